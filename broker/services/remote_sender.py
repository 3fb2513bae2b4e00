"""How a slave that acts as master gets a message into the cluster: through another master.

Its own log takes nothing but its master's. The choice is that of a producer: masters that have the
topic, in turns, and the queue that the message was meant for if the other broker has it. After a
refusal or a dead broker comes the next one. If no answer comes, the message may be stored or not;
it is sent again, so it may come twice, as with any producer. Source:
broker/failover/EscapeBridge.java.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import attrs
import trio

from triomq.broker.services.registration import Caller
from triomq.broker.services.routes import Routes
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.protocol.bodies.route import MASTER_ID, PERM_WRITE, TopicRoute
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.send import SendMessageHeader
from triomq.remoting.protocol.message_properties import (
    DELAY,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    joined_properties,
)
from triomq.remoting.protocol.names import DEFAULT_TOPIC
from triomq.remoting.protocol.record import StoredMessage
from triomq.remoting.protocol.sys_flags import COMPRESSED, COMPRESSION_MASK

INNER_PRODUCER = "CLIENT_INNER_PRODUCER"
CALL_SECONDS = 3.0
SEND_SECONDS = 5.0
"""Longest wait for a send in flight when the acting slave must stop."""
STORED = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    }
)
"""The other broker has the message."""
PERMANENT = frozenset(
    {
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        ResponseCode.MESSAGE_ILLEGAL,
        ResponseCode.VERSION_NOT_SUPPORTED,
        ResponseCode.INVALID_PARAMETER,
    }
)
"""The message or the broker is at fault: the same message gets the same answer again."""


class RemoteSendFailed(Exception):
    """No other broker took the message; the text has the answer of each."""


class RemoteSendRefused(RemoteSendFailed):
    """Every master that has the topic has refused the message permanently."""


@attrs.frozen
class RemoteMaster:
    """A master of another broker group that takes messages of a topic."""

    broker_name: str
    address: str
    queue_count: int


def remote_masters(route: TopicRoute, own_name: str) -> list[RemoteMaster]:
    """Return the masters of other broker groups that take messages."""
    addresses = {data.broker_name: data.broker_addrs.get(MASTER_ID) for data in route.broker_datas}
    return [
        RemoteMaster(queues.broker_name, address, queues.write_queue_count)
        for queues in route.queue_datas
        if queues.broker_name != own_name
        and queues.perm & PERM_WRITE
        and queues.write_queue_count > 0
        and (address := addresses.get(queues.broker_name))
    ]


@attrs.define(eq=False)
class RemoteSender:
    """Sends messages that are due on this broker through another one."""

    broker_name: str
    routes: Routes
    caller: Caller
    _turn: int = attrs.field(default=0, init=False)

    async def send(self, message: StoredMessage) -> None:
        """Deliver a message of the schedule topic to its real topic.

        Raises: RemoteSendFailed, if no broker is known to have stored it; RemoteSendRefused, if
        another try of the same brokers would not help.
        """
        topic = message.properties.get(REAL_TOPIC, "")
        queue = message.properties.get(REAL_QUEUE_ID, "")
        queue_id = int(queue) if queue.isascii() and queue.isdigit() else 0
        await self.send_to(message, topic, queue_id, topic)

    async def send_to(
        self, message: StoredMessage, topic: str, queue_id: int, routed_as: str
    ) -> None:
        """Send a message to a queue of a topic, at a master that has the topic ``routed_as``.

        Raises: RemoteSendFailed, RemoteSendRefused, as ``send``.
        """
        masters = await self._masters_of(routed_as)
        answers = [] if masters else ["no other master has this topic"]
        permanent = bool(masters)
        turn = self._turn = self._turn + 1  # others send at the same time
        for number in range(len(masters)):
            master = masters[(turn + number) % len(masters)]
            code, remark = await self._try(message, topic, queue_id, master)
            if code in STORED:
                return
            permanent = permanent and code in PERMANENT
            answers.append(f"{master.broker_name} ({master.address}): {remark}")
        self.routes.forget(routed_as)
        raise (RemoteSendRefused if permanent else RemoteSendFailed)(
            f"topic {topic!r}: {'; '.join(answers)}"
        )

    async def _try(
        self, message: StoredMessage, topic: str, queue_id: int, master: RemoteMaster
    ) -> tuple[int, str]:
        properties = {
            name: value
            for name, value in message.properties.items()
            if name not in (DELAY, REAL_TOPIC, REAL_QUEUE_ID)
        }
        header = SendMessageHeader(
            producer_group=INNER_PRODUCER,
            topic=topic,
            default_topic=DEFAULT_TOPIC,
            default_topic_queue_count=4,
            queue_id=queue_id % master.queue_count,
            sys_flag=message.sys_flag & (COMPRESSED | COMPRESSION_MASK),
            born_timestamp=message.born_timestamp,
            flag=message.flag,
            properties=joined_properties(properties),
            reconsume_times=message.reconsume_times,
            unit_mode=False,
            batch=False,
        )
        try:
            answer = await self.caller.invoke(
                master.address,
                request(RequestCode.SEND_MESSAGE_V2, header, message.body),
                timeout=CALL_SECONDS,
            )
        except RemotingError as error:
            return ResponseCode.SYSTEM_ERROR, str(error)
        return answer.code, f"{answer.code} {answer.remark}"

    async def _masters_of(self, topic: str) -> list[RemoteMaster]:
        route = await self.routes.find(topic)
        return remote_masters(route, self.broker_name) if route is not None else []


async def send_to_the_end(sender: RemoteSender, message: StoredMessage) -> None:
    """Send a message although the caller is cancelled; see ``to_the_end``.

    Raises: RemoteSendFailed, also after ``SEND_SECONDS``; RemoteSendRefused.
    """
    await to_the_end(partial(sender.send, message))


async def to_the_end(send: Callable[[], Awaitable[None]]) -> None:
    """Send although the caller is cancelled: otherwise the outcome would be unknown, and the
    message would come twice.

    Raises: RemoteSendFailed, also after ``SEND_SECONDS``; RemoteSendRefused.
    """
    with trio.move_on_after(SEND_SECONDS, shield=True):
        await send()
        return
    raise RemoteSendFailed(f"no other master has answered within {SEND_SECONDS:g} s")
