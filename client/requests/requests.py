"""The requests of one producer that wait for their replies.

A request is an ordinary message with an id and the client id of this producer. A consumer sends its
reply to a broker, which pushes it over this producer's connection (326); so the brokers must have
seen a heartbeat of this producer before the request is sent. Java's clients send a reply to any
broker that offers the reply topic of the cluster, TrioMQ's to the broker that had the request:
heartbeats go to both kinds.

Source: client/…/impl/producer/DefaultMQProducerImpl.java#request,
impl/ClientRemotingProcessor.java#receiveReplyMessage.
"""

from __future__ import annotations

import logging
import time
import uuid
from math import inf

import attrs
import trio

from triomq.client.core.errors import (
    MessageInvalid,
    ReplyTimeout,
    SendError,
    SendTimeout,
    TrioMQError,
)
from triomq.client.core.failure_log import FailureLog
from triomq.client.requests.reply_message import ReplyMessage, reply_record
from triomq.client.sending.encoding import OutgoingMessage
from triomq.client.sending.receipt import SendReceipt
from triomq.client.sending.sender import Sender, SendTarget
from triomq.remoting.core.errors import LocalProtocolError, ProtocolError, Rejected
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import Command, response_to
from triomq.remoting.protocol.headers.send import ReplyMessageHeader
from triomq.remoting.protocol.message_properties import (
    CORRELATION_ID,
    PROPERTIES_BYTES_MAX,
    REPLY_TO_CLIENT,
    REPLY_TTL,
    properties_text,
)
from triomq.remoting.protocol.names import reply_topic

logger = logging.getLogger(__name__)

_HEARTBEAT_SECONDS = 1.0
"""How long a request waits for heartbeats of brokers that do not answer."""
_AGAIN_SECONDS = 5.0
"""Time until a broker that did not answer, or an unknown reply topic, is tried again."""


@attrs.frozen(kw_only=True)
class RequestStatistics:
    """A snapshot of a producer's requests."""

    waiting: int
    """requests that wait for their replies now"""
    answered: int
    """requests that got their replies"""
    timed_out: int
    """requests that got none in time"""
    unmatched: int
    """replies that no request waits for: too late, or second ones"""


@attrs.define(eq=False)
class _Waiting:
    """A request without a reply; ``sending`` is cancelled when the reply comes first."""

    arrived: trio.Event = attrs.field(factory=trio.Event)
    sending: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    reply: ReplyMessage | None = None


@attrs.define(eq=False)
class Requests:
    """The requests of a running producer. All deadlines are in Trio's one queue of deadlines."""

    sender: Sender
    _waiting: dict[str, _Waiting] = attrs.field(factory=dict, init=False)
    _answered: int = attrs.field(default=0, init=False)
    _timed_out: int = attrs.field(default=0, init=False)
    _unmatched: int = attrs.field(default=0, init=False)
    _lost: trio.Event = attrs.field(factory=trio.Event, init=False)
    """set when a broker has lost this client"""
    _introducing: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _not_before: dict[str, float] = attrs.field(factory=dict, init=False)
    """address of a broker or reply topic that failed → trio time of the next try"""
    _failures: FailureLog = attrs.field(factory=lambda: FailureLog(logger), init=False)

    def __attrs_post_init__(self) -> None:
        session = self.sender.session
        session.connector.instant_handlers[RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT] = self.take
        session.heartbeats.on_unregistered = lambda: self._lost.set()

    def statistics(self) -> RequestStatistics:
        return RequestStatistics(
            waiting=len(self._waiting),
            answered=self._answered,
            timed_out=self._timed_out,
            unmatched=self._unmatched,
        )

    async def request(
        self, outgoing: OutgoingMessage, target: SendTarget | None, seconds: float
    ) -> ReplyMessage:
        """Send a request and return its reply.

        Raises: ``ReplyTimeout``; what ``Sender.send`` raises, if the request was not sent.
        """
        correlation_id = str(uuid.uuid4())
        self._mark(outgoing, correlation_id, seconds)
        deadline = trio.current_time() + seconds
        waiting = self._waiting[correlation_id] = _Waiting()
        receipt: SendReceipt | None = None
        failure: SendError | None = None
        try:
            with trio.CancelScope(deadline=deadline):
                with waiting.sending:
                    await self._introduce(outgoing.topic)
                    receipt = await self.sender.send(outgoing, target=target, deadline=deadline)
                    # A send that was tried again may have found a broker that was not there before.
                    await self._send_missing_heartbeats(outgoing.topic)
                await waiting.arrived.wait()
        except SendError as error:
            failure = error
        finally:
            del self._waiting[correlation_id]
        if waiting.reply is not None:
            self._answered += 1
            return waiting.reply
        if failure is not None and not isinstance(failure, SendTimeout):
            raise failure
        self._timed_out += 1
        raise ReplyTimeout(
            outgoing.topic,
            correlation_id,
            seconds,
            receipt,
            maybe_stored=receipt is not None or failure is None or failure.maybe_stored,
        ) from failure

    def _mark(self, outgoing: OutgoingMessage, correlation_id: str, seconds: float) -> None:
        """Make a message a request. Raises: ``MessageInvalid``."""
        try:
            outgoing.properties += properties_text(
                {
                    CORRELATION_ID: correlation_id,
                    REPLY_TO_CLIENT: self.sender.session.client_id,
                    REPLY_TTL: str(max(1, int(seconds * 1000))),
                }
            )
        except LocalProtocolError as error:
            raise MessageInvalid(f"the client id cannot be used for requests: {error}") from error
        if len(outgoing.properties.encode()) > PROPERTIES_BYTES_MAX:
            raise MessageInvalid(
                f"the properties of the request have more than {PROPERTIES_BYTES_MAX} bytes: put"
                " them into the body"
            )

    # Heartbeats

    async def renew_heartbeats(self) -> None:
        """Send heartbeats again when a connection is lost: replies may be on their way to it."""
        while True:
            await self._lost.wait()
            self._lost = trio.Event()
            if self._waiting:
                await self.sender.session.heartbeats.ensure_all()
                if self._waiting and not self._registered_everywhere():
                    await trio.sleep(_HEARTBEAT_SECONDS)
                    self._lost.set()

    def _registered_everywhere(self) -> bool:
        session = self.sender.session
        return session.heartbeats.registered.issuperset(session.routes.addresses(masters_only=True))

    async def _introduce(self, topic: str) -> None:
        """Make this client known to the brokers that may get the reply.

        Raises: ``RouteNotFound``, ``NoNameServer``.
        Checkpoint: maybe, only if the route, or a heartbeat, is missing.
        """
        await self.sender.find_route(topic)
        await self._send_missing_heartbeats(topic)

    async def _send_missing_heartbeats(self, topic: str) -> None:
        if self._missing(topic):
            async with self._introducing:
                if self._missing(topic):
                    await self._send_heartbeats(topic)

    def _missing(self, topic: str) -> bool:
        """Return whether a look-up or a heartbeat is due."""
        return bool(self._unknown_reply_topics(topic) or self._unregistered())

    def _unknown_reply_topics(self, topic: str) -> list[str]:
        session, now = self.sender.session, trio.current_time()
        if session.namespace is not None:  # its look-ups carry the names of the tenant
            return []
        return [
            name
            for name in map(reply_topic, session.routes.clusters(topic))
            if session.routes.topic(name) is None and self._not_before.get(name, -inf) <= now
        ]

    def _unregistered(self) -> list[str]:
        session, now = self.sender.session, trio.current_time()
        return [
            address
            for address in session.routes.addresses(masters_only=True)
            if address not in session.heartbeats.registered
            and self._not_before.get(address, -inf) <= now
        ]

    async def _send_heartbeats(self, topic: str) -> None:
        session = self.sender.session
        with trio.move_on_after(_HEARTBEAT_SECONDS):
            for name in self._unknown_reply_topics(topic):
                self._not_before[name] = trio.current_time() + _AGAIN_SECONDS
                try:
                    await session.finder.refresh(name)
                except TrioMQError as error:
                    self._failures.failed(f"the route of {name}", error)
        missing = self._unregistered()
        with trio.move_on_after(_HEARTBEAT_SECONDS):
            await session.heartbeats.ensure_all()
        for address in missing:
            if address in session.heartbeats.registered:
                self._not_before.pop(address, None)
            else:  # the heartbeat task tries it again, and so does a later request
                self._not_before[address] = trio.current_time() + _AGAIN_SECONDS

    # Replies

    def take(self, address: str, command: Command) -> Command:
        """Take a reply that a broker pushes, and answer. Raises: Rejected. Checkpoint: never."""
        try:
            header = command.header(ReplyMessageHeader)
        except ProtocolError as error:
            raise Rejected(
                ResponseCode.SYSTEM_ERROR, f"process reply message fail: {error}"
            ) from error
        record = reply_record(header, bytes(command.body), time.time_ns() // 1_000_000)
        broker = self.sender.session.routes.broker_at(address) or address
        reply = ReplyMessage(record, self.sender.group, broker)
        waiting = self._waiting.get(reply.correlation_id)
        if waiting is None or waiting.reply is not None:
            self._unmatched += 1
            if self._unmatched == 1:
                logger.warning(
                    "the reply to request %s came from %s, but nothing waits for it: it was too"
                    " late, or the second one; replies like this are only counted from now on"
                    " (request_statistics().unmatched)",
                    reply.correlation_id or "(without an id)",
                    ":".join(map(str, reply.born_host)),
                )
        else:
            waiting.reply = reply
            waiting.arrived.set()
            waiting.sending.cancel()
        return response_to(command, ResponseCode.SUCCESS)
