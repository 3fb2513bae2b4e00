"""ReceiveMessage: take messages of a group, wait for some, and send them one by one.

The pop runs in a task of the service, not of the call: a client that goes away cannot take messages
with it. What comes too late, or cannot be sent, is made visible again at once.
Source: proxy/…/grpc/v2/consumer/ReceiveMessageActivity.java.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

import attrs
import trio

from triomq.remoting.core.errors import RemotingError
from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.grpc.apache_rocketmq import definition_pb2 as pb
from triomq.remoting.grpc.apache_rocketmq.definition_pb2 import Code
from triomq.remoting.grpc.apache_rocketmq.service_pb2 import (
    ReceiveMessageRequest,
    ReceiveMessageResponse,
)
from triomq.remoting.grpc.methods import AnswerStream, CallContext
from triomq.remoting.messaging.checks import (
    check_filter,
    check_invisible_time,
    group_name,
    time_ms,
    topic_name,
)
from triomq.remoting.messaging.cluster import Cluster, known_route, refused_by_network
from triomq.remoting.messaging.delivered_message import delivered_message
from triomq.remoting.messaging.known_clients import KnownClient, KnownClients
from triomq.remoting.messaging.messaging_settings import MessagingSettings
from triomq.remoting.messaging.popped_messages import RETURN_MS, PoppedMessage
from triomq.remoting.messaging.renewal import Renewals
from triomq.remoting.messaging.status_codes import Refused, refused_by_broker, status
from triomq.remoting.messaging.unpacking import off_the_loop
from triomq.remoting.protocol.bodies.groups import SubscriptionGroupConfig
from triomq.remoting.protocol.bodies.route import PERM_READ
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import Command
from triomq.remoting.protocol.command import request as new_request
from triomq.remoting.protocol.consuming.popped_records import popped_records
from triomq.remoting.protocol.headers.pop import PopMessageHeader, PopMessageResponseHeader
from triomq.remoting.protocol.record import StoredMessage

logger = logging.getLogger(__name__)

VERSION = "x-mq-client-version"
VERSION_OF_POLLING_CODE = "5.0.3"
"""Clients before it do not know ILLEGAL_POLLING_TIME."""
REQUEST_SECONDS = 3.0
"""The time-out of a client's other calls, which is part of the deadline of a receive."""
ANSWER_SECONDS = 3.0
"""How long the answer of a broker may take after the poll time."""
INIT_MAX = 1
TOGETHER_BYTES = 12 * 1024
"""of bodies: with handles and properties about a frame, for clients that take small ones"""
ATTEMPT_ID_LENGTH_MAX = 128
"""Clients send a UUID."""
_NOTHING = (
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.POLLING_TIMEOUT,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
)


@attrs.frozen
class TakenMessage:
    """A message as it is stored, and what it is settled by."""

    stored: StoredMessage
    popped: PoppedMessage


@attrs.define(eq=False)
class _Pop:
    """A pop in a task of its own, and the call that waits for it."""

    done: trio.Event = attrs.field(factory=trio.Event)
    wanted: bool = True
    """Whether a call still takes the messages."""
    unsent: deque[TakenMessage] = attrs.field(factory=deque)
    error: RemotingError | None = None


@attrs.define(eq=False)
class Receiving:
    """The handler. ``spawn`` starts a task that outlives the call."""

    cluster: Cluster
    clients: KnownClients
    renewals: Renewals
    settings: MessagingSettings
    spawn: Callable[..., None]
    clock_ms: Callable[[], int]
    limit: LogLimit = attrs.field(factory=LogLimit, init=False)
    _turn: int = attrs.field(default=0, init=False)
    _waiting: set[_Pop] = attrs.field(factory=set, init=False)
    _watched: bool = attrs.field(default=False, init=False)

    async def receive(
        self,
        request: ReceiveMessageRequest,
        answers: AnswerStream[ReceiveMessageResponse],
        call: CallContext,
    ) -> None:
        """Send a status, the messages, and the time of delivery."""
        try:
            found = await self._receive(request, answers, call)
        except Refused as error:
            await answers.send(ReceiveMessageResponse(status=error.status()))
            found = True
        if not found:
            await answers.send(
                ReceiveMessageResponse(status=status(Code.MESSAGE_NOT_FOUND, "no new message"))
            )
        sent = ReceiveMessageResponse()
        sent.delivery_timestamp.FromMilliseconds(self.clock_ms())
        await answers.send(sent)

    async def _receive(
        self,
        request: ReceiveMessageRequest,
        answers: AnswerStream[ReceiveMessageResponse],
        call: CallContext,
    ) -> bool:
        """Send what there is; return whether there was a message. Raises: Refused."""
        client = self.clients.of_call(call)
        topic = topic_name(request.message_queue.topic, system_allowed=True)
        group = group_name(request.group)
        expression_type, expression = check_filter(request.filter_expression)
        renewed = request.auto_renew and self.settings.renew
        invisible_ms = self.settings.renewed_ms if renewed else self._invisible_ms(request)
        poll_ms = self._poll_ms(request, call)
        config = await self.cluster.group(group)
        broker_name = await self._broker(topic, request.message_queue.broker.name)
        header = PopMessageHeader(
            consumer_group=group,
            topic=topic,
            queue_id=-1,
            message_count_max=max(1, min(request.batch_size, self.settings.receive_messages_max)),
            invisible_ms=invisible_ms,
            poll_ms=poll_ms,
            init_mode=INIT_MAX,
            born_timestamp=self.clock_ms(),
            expression_type=expression_type,
            expression=expression,
            order=config is not None and config.consume_message_orderly,
            attempt_id=_attempt_id(request.attempt_id),
            broker_name=broker_name,
        )
        pop = _Pop()
        self.spawn(self._pop, client, header, pop, name="receive")
        try:
            await self._wait(pop, call)
            if pop.error is not None:
                raise refused_by_network(pop.error)
            await self._bury_spent(client, config, pop)
            if not pop.unsent:
                return False  # there is none, or the server stops
            await answers.send(ReceiveMessageResponse(status=status()))
            while pop.unsent:
                make = partial(
                    _first_answers, tuple(pop.unsent), request.message_queue.topic, invisible_ms
                )
                made = await off_the_loop(make, (message.stored for message in pop.unsent))
                await answers.send(*made)
                for _ in made:
                    message = pop.unsent.popleft()
                    if renewed:
                        self.renewals.add(client, message.popped, message.stored.reconsume_times)
        finally:
            pop.wanted = False
            if pop.unsent:
                self.spawn(self._give_back, client, pop, name="give-back")
        return True

    async def _wait(self, pop: _Pop, call: CallContext) -> None:
        """Wait for the answer to a pop, or for the server's stop."""
        if not self._watched:
            self._watched = True
            self.spawn(self._let_go_when_draining, call.draining, name="receives-let-go")
        self._waiting.add(pop)
        try:
            if not call.draining.is_set():
                await pop.done.wait()
        finally:
            self._waiting.discard(pop)

    async def _let_go_when_draining(self, draining: trio.Event) -> None:
        """End the waits of all calls when the server stops: no client should wait for it."""
        await draining.wait()
        for pop in self._waiting:
            pop.done.set()

    async def _pop(self, client: KnownClient, header: PopMessageHeader, pop: _Pop) -> None:
        """Pop at the broker; give back what nobody waits for any more."""
        command = new_request(RequestCode.POP_MESSAGE, header)
        command.language = client.language
        try:
            answer = await client.link.invoke(
                header.broker_name or "", command, header.poll_ms / 1000 + ANSWER_SECONDS
            )
            if answer.code == ResponseCode.SUCCESS:
                pop.unsent.extend(received(answer, header))
            elif answer.code not in _NOTHING:
                raise refused_by_broker(answer.code, answer.remark)
        except RemotingError as error:
            pop.error = error
        pop.done.set()
        if not pop.wanted:
            await self._give_back(client, pop)

    async def _give_back(self, client: KnownClient, pop: _Pop) -> None:
        """Make messages visible again that did not reach the client."""
        for message in pop.unsent:
            try:
                await message.popped.change_time(client.link, RETURN_MS)
            except RemotingError:
                return  # they come again when their time is over

    async def _bury_spent(
        self, client: KnownClient, config: SubscriptionGroupConfig | None, pop: _Pop
    ) -> None:
        """Make dead letters of the messages that may not be delivered once more.

        One for which that fails comes again when its time is over; the others are delivered.
        """
        most = config.retry_max_times if config is not None else None
        if most is None or all(message.stored.reconsume_times <= most for message in pop.unsent):
            return
        spent = [message for message in pop.unsent if message.stored.reconsume_times > most]
        kept = [message for message in pop.unsent if message.stored.reconsume_times <= most]
        pop.unsent = deque(kept)
        for message in spent:
            try:
                await message.popped.to_dead_letters(client.link)
            except RemotingError as error:
                self.limit.warning(
                    logger,
                    "a message of group %s that was delivered too often could not become a dead"
                    " letter, so it comes again: %s",
                    message.popped.group,
                    error,
                )

    def _invisible_ms(self, request: ReceiveMessageRequest) -> int:
        """Return for how long the messages are hidden. Raises: Refused."""
        asked = time_ms(request.invisible_duration)
        low, high = self.settings.invisible_ms_min, self.settings.invisible_ms_max
        check_invisible_time(asked, minimum_ms=low, maximum_ms=high)
        return asked

    def _poll_ms(self, request: ReceiveMessageRequest, call: CallContext) -> int:
        """Return how long the broker may wait for a message. Raises: Refused."""
        left_ms = call.time_left() * 1000
        if request.HasField("long_polling_timeout"):
            asked = float(request.long_polling_timeout.ToMilliseconds())
        else:
            asked = left_ms - REQUEST_SECONDS * 1000 / 2
        low, high = self.settings.poll_ms_min, self.settings.poll_ms_max
        poll_ms = min(max(asked, low), high)
        if poll_ms <= left_ms:
            return int(poll_ms)
        if left_ms >= low:
            return int(left_ms)
        old = call.metadata.get(VERSION, "") < VERSION_OF_POLLING_CODE
        raise Refused(
            Code.BAD_REQUEST if old else Code.ILLEGAL_POLLING_TIME,
            f"the deadline leaves {max(0, int(left_ms))} ms, but a receive waits at least {low} ms;"
            " use a longer deadline",
        )

    async def _broker(self, topic: str, asked: str) -> str:
        """Return the broker to pop from: the one that is asked for, else any. Raises: Refused."""
        route = await known_route(self.cluster, topic)
        masters = route.masters
        readable = sorted(
            data.broker_name
            for data in route.queue_datas
            if data.perm & PERM_READ and data.broker_name in masters
        )
        if not readable:
            raise Refused(
                Code.FORBIDDEN,
                f"topic {topic} has no readable queue: its permissions do not allow reads, or no"
                " master of it runs",
            )
        if asked in readable:
            return asked
        self._turn += 1
        return readable[self._turn % len(readable)]


def _first_answers(
    messages: Iterable[TakenMessage], topic: pb.Resource, invisible_ms: int
) -> list[ReceiveMessageResponse]:
    """Return the answers with the first messages: about as many as go into one frame."""
    answers, left = [], TOGETHER_BYTES
    for message in messages:
        answer = ReceiveMessageResponse()
        delivered_message(
            message.stored,
            topic=topic,
            handle=message.popped.text,
            invisible_ms=invisible_ms,
            made=answer.message,
        )
        answers.append(answer)
        left -= len(message.stored.body)
        if left <= 0:
            break
    return answers


def _attempt_id(text: str) -> str | None:
    """Return the id of a receive, by which an orderly group knows its repetition. Raises: Refused.

    It is kept while messages are in flight.
    """
    if len(text) > ATTEMPT_ID_LENGTH_MAX:
        raise Refused(
            Code.BAD_REQUEST,
            f"the attempt id has {len(text)} characters; the limit is {ATTEMPT_ID_LENGTH_MAX}",
        )
    return text or None


def received(answer: Command, asked: PopMessageHeader) -> list[TakenMessage]:
    """Return the messages of an answer to POP_MESSAGE. Raises: RemoteProtocolError."""
    header = answer.header(PopMessageResponseHeader)
    found = popped_records(header, bytes(answer.body), asked.broker_name or "")
    return [
        TakenMessage(
            each.record,
            PoppedMessage(asked.consumer_group, asked.topic, each.handle, each.record.log_offset),
        )
        for each in found
    ]
