"""How a slave that acts as master gets a message into the cluster although it may not write: it sends it to another master that has the topic.

Which one, and which queue, is as with a producer: brokers in turns, the queue that the message was meant for if the other broker has it.  A refusal or a dead
broker leads to the next one.  An answer that did not come leaves open whether the message is stored; it is sent again, so it may come twice, as with any producer.
Source: broker/failover/EscapeBridge.java.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs
import trio

from triomq.broker.services.registration import Caller
from triomq.remoting.errors import RemotingError
from triomq.remoting.protocol.bodies.route import MASTER_ID, PERM_WRITE, TopicRoute
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.route import GetRouteHeader
from triomq.remoting.protocol.headers.send import SendMessageHeader
from triomq.remoting.protocol.message import (
    COMPRESSED,
    COMPRESSION_MASK,
    DELAY,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    properties_text,
)
from triomq.remoting.protocol.names import DEFAULT_TOPIC
from triomq.remoting.protocol.record import StoredMessage

INNER_PRODUCER = "CLIENT_INNER_PRODUCER"
ROUTE_SECONDS = 5.0
"""A route is asked for again after so long, and when no broker of it takes a message."""
CALL_SECONDS = 3.0
STORED = frozenset({ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.FLUSH_SLAVE_TIMEOUT})
"""The other broker has the message."""


PERMANENT = frozenset({ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.MESSAGE_ILLEGAL, ResponseCode.VERSION_NOT_SUPPORTED, ResponseCode.INVALID_PARAMETER})
"""What is wrong is the message, or the broker: the same answer comes to the same message."""


class RemoteSendFailed(Exception):
    """No other broker took the message; its text says what each one said."""


class RemoteSendRefused(RemoteSendFailed):
    """Every master that has the topic has refused the message for good."""


@attrs.frozen
class Target:
    """A master that takes messages of a topic."""

    broker_name: str
    address: str
    queue_count: int


def targets_of(route: TopicRoute, own_name: str) -> list[Target]:
    """The masters of other groups that may be written to."""
    addresses = {data.broker_name: data.broker_addrs.get(MASTER_ID) for data in route.broker_datas}
    return [
        Target(queues.broker_name, address, queues.write_queue_count)
        for queues in route.queue_datas
        if queues.broker_name != own_name and queues.perm & PERM_WRITE and queues.write_queue_count > 0 and (address := addresses.get(queues.broker_name))
    ]


@attrs.define(eq=False)
class RemoteSender:
    """Sends messages that were due on this broker through another one."""

    broker_name: str
    name_servers: Callable[[], Iterable[str]]
    caller: Callable[[], Caller]
    sent: int = attrs.field(default=0, init=False)
    _turn: int = attrs.field(default=0, init=False)
    _routes: dict[str, tuple[float, list[Target]]] = attrs.field(factory=dict, init=False)

    async def send(self, message: StoredMessage) -> None:
        """Deliver a message of the schedule topic where it belongs.  Raises RemoteSendFailed if it is stored nowhere, as far as anybody knows, and RemoteSendRefused if another try of the same brokers would not help."""
        topic = message.properties.get(REAL_TOPIC, "")
        queue = message.properties.get(REAL_QUEUE_ID, "")
        targets = await self._targets(topic)
        said = [] if targets else ["no other master has this topic"]
        permanent = bool(targets)
        turn = self._turn = self._turn + 1  # others send at the same time
        for number in range(len(targets)):
            target = targets[(turn + number) % len(targets)]
            code, remark = await self._try(message, topic, int(queue) if queue.isascii() and queue.isdigit() else 0, target)
            if code in STORED:
                self.sent += 1
                return
            permanent = permanent and code in PERMANENT
            said.append(f"{target.broker_name} ({target.address}): {remark}")
        self._routes.pop(topic, None)
        raise (RemoteSendRefused if permanent else RemoteSendFailed)(f"topic {topic!r}: {'; '.join(said)}")

    async def _try(self, message: StoredMessage, topic: str, queue_id: int, target: Target) -> tuple[int, str]:
        properties = {name: value for name, value in message.properties.items() if name not in (DELAY, REAL_TOPIC, REAL_QUEUE_ID)}
        header = SendMessageHeader(
            producer_group=INNER_PRODUCER,
            topic=topic,
            default_topic=DEFAULT_TOPIC,
            default_topic_queue_count=4,
            queue_id=queue_id % target.queue_count,
            sys_flag=message.sys_flag & (COMPRESSED | COMPRESSION_MASK),
            born_timestamp=message.born_timestamp,
            flag=message.flag,
            properties=properties_text(properties),
            reconsume_times=message.reconsume_times,
            unit_mode=False,
            batch=False,
        )
        try:
            answer = await self.caller().invoke(target.address, request(RequestCode.SEND_MESSAGE_V2, header, message.body), timeout=CALL_SECONDS)
        except RemotingError as error:
            return ResponseCode.SYSTEM_ERROR, str(error)
        return answer.code, f"{answer.code} {answer.remark}"

    async def _targets(self, topic: str) -> list[Target]:
        asked, targets = self._routes.get(topic, (float("-inf"), []))
        if targets and trio.current_time() < asked + ROUTE_SECONDS:
            return targets
        for address in self.name_servers():
            try:
                answer = await self.caller().invoke(address, request(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteHeader(topic)), timeout=CALL_SECONDS)
                if answer.code != ResponseCode.SUCCESS:
                    continue
                targets = targets_of(TopicRoute.decode(bytes(answer.body)), self.broker_name)
            except (RemotingError, ValueError):
                continue
            if targets:
                self._routes[topic] = trio.current_time(), targets
                return targets
        return []
