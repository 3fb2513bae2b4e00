"""``Producer``: sends messages.

A ``send`` that is cancelled while it waits for a route or a connection has sent nothing. Later its
outcome is unknown: the answer is discarded when it comes, and the connection stays usable. With
``auto_batch`` the outcome is unknown as soon as the batch is dispatched. A message with an id from
``Producer.new_message_id`` can be sent again safely: consumers see the same id.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import SupportsIndex, overload

import trio

from triomq.client.core.arguments import (
    check_callable,
    check_count,
    check_settings,
    key_words,
    shown,
)
from triomq.client.core.background import open_background
from triomq.client.core.config import ProducerSettings, namesrv_addresses
from triomq.client.core.errors import BatchIncomplete, MessageInvalid, NotRunning, TrioMQError
from triomq.client.core.heartbeats import JoinedGroups
from triomq.client.core.names import check_group, check_topic
from triomq.client.core.session import open_session
from triomq.client.requests.methods import RequestMethods
from triomq.client.requests.requests import Requests
from triomq.client.sending.auto_batch import Accumulator
from triomq.client.sending.destinations import TOPICS_REMEMBERED
from triomq.client.sending.detector import detect_brokers
from triomq.client.sending.encoding import check_sendable, prepare, prepare_batches
from triomq.client.sending.message_arguments import (
    MESSAGE_AND_FIELDS,
    NO_BODY,
    as_message,
    queue_choice,
    timer_property,
)
from triomq.client.sending.queue_choice import Selector
from triomq.client.sending.recalls import RecallMethods
from triomq.client.sending.receipt import SendReceipt, split_receipt
from triomq.client.sending.sender import Sender, SendTarget
from triomq.client.spans.setup import make_accumulator, make_sender
from triomq.client.trace.dispatcher import open_trace
from triomq.client.transactions.checked_message import CheckHandler
from triomq.client.transactions.methods import ProducerTransactions, TransactionMethods
from triomq.remoting.core.periodic import every
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.message import Message
from triomq.remoting.protocol.names import RETRY_PREFIX


class Producer(TransactionMethods, RequestMethods, RecallMethods):
    """Sends messages for a producer group; used with ``async with``.

        async with Producer("ns1:9876;ns2:9876", group="orders") as producer:
            receipt = await producer.send("Orders", b"...", tag="paid", keys=["o-1"])

    One producer serves any number of tasks. Make one for the life of the application, not one for
    each message.
    """

    group: str
    """The producer group."""
    settings: ProducerSettings
    """The settings as given, or the defaults."""

    def __init__(
        self,
        namesrv: str | Iterable[str] | None = None,
        *,
        group: str,
        check: CheckHandler | None = None,
        settings: ProducerSettings | None = None,
    ) -> None:
        """Describe a producer; nothing is started.

        ``namesrv`` is ``"host:9876;host2:9876"``, a list of such addresses, or None for the
        environment variable NAMESRV_ADDR. ``check``: the check handler of transactions, an async
        or a plain function; a broker asks it how the local transaction of a message ended.

        Raises: ``SettingsError``, ``NoNameServer``.
        """
        self.group = check_group(group)
        check_callable("check", check)
        self.settings = check_settings(settings, ProducerSettings)
        self._namesrv = namesrv_addresses(namesrv)
        self._check = check
        self._sender: Sender | None = None
        self._accumulator: Accumulator | None = None
        self._known_topics: set[str] = set()

    def __repr__(self) -> str:
        return f"<Producer of {self.group}: {'running' if self._sender else 'not running'}>"

    # Start and stop

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[None]:
        settings = self.settings
        async with (
            open_session(
                self._namesrv, settings.client, JoinedGroups(producer_group=self.group)
            ) as session,
            open_trace(self.group, "PRODUCE", self._namesrv, settings.client) as trace,
        ):
            await session.finder.check_name_server()
            sender = make_sender(self.group, session, settings, trace)
            async with open_background() as nursery:
                if sender.faults is not None and settings.detect_brokers:
                    detect = partial(detect_brokers, sender.faults, session, settings)
                    nursery.start_soon(
                        every, settings.detect_interval, detect, name="broker detector"
                    )
                if settings.auto_batch:
                    self._accumulator = make_accumulator(settings, nursery, sender)
                    nursery.start_soon(
                        self._accumulator.watch_deadlines, name="automatic batches' deadlines"
                    )
                self._transactions = ProducerTransactions.start(sender, self._check, nursery)
                self._requests = Requests(sender)
                nursery.start_soon(self._requests.renew_heartbeats, name="heartbeats for replies")
                self._sender = sender
                try:
                    yield
                finally:
                    self._sender = self._accumulator = None
                    self._transactions = self._requests = None

    # Sending

    @overload
    async def send(
        self,
        topic: str,
        body: bytes,
        *,
        tag: str | None = None,
        keys: Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        wait_stored: bool = True,
        queue: MessageQueue | SupportsIndex | None = None,
        sharding_key: str | None = None,
        select: Selector | None = None,
        delay_level: SupportsIndex = 0,
        delay: float | timedelta | None = None,
        deliver_at: datetime | None = None,
        message_id: str | None = None,
    ) -> SendReceipt: ...

    @overload
    async def send(
        self,
        topic: Message,
        *,
        queue: MessageQueue | SupportsIndex | None = None,
        sharding_key: str | None = None,
        select: Selector | None = None,
        delay_level: SupportsIndex = 0,
        delay: float | timedelta | None = None,
        deliver_at: datetime | None = None,
        message_id: str | None = None,
    ) -> SendReceipt: ...

    async def send(
        self,
        topic: str | Message,
        body: bytes | None = None,
        *,
        tag: str | None = None,
        keys: Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        wait_stored: bool = True,
        queue: MessageQueue | SupportsIndex | None = None,
        sharding_key: str | None = None,
        select: Selector | None = None,
        delay_level: SupportsIndex = 0,
        delay: float | timedelta | None = None,
        deliver_at: datetime | None = None,
        message_id: str | None = None,
    ) -> SendReceipt:
        """Send one message and wait until a broker has stored it.

        ``tag`` is what consumers filter by; ``keys`` are the message's business keys, by which it
        can be looked up; ``properties`` are the application's own. ``delay_level``: 1 to 18
        delivers after 1 s to 2 h (messageDelayLevel; a higher one means the last), 0 at once.
        ``delay`` (seconds or a timedelta) and ``deliver_at`` (a datetime with a time zone) deliver
        to the millisecond, up to three days ahead (timerMaxDelaySec); such a message can be taken
        back with ``recall``.
        ``wait_stored=False`` lets the broker answer before disk and slave have the message.
        ``message_id``: an id from ``new_message_id``.

        The queue is the next one in turn, and a failed attempt is retried, on another broker if
        there is one. Or the queue is ``queue`` (a ``MessageQueue``, or an index of
        ``queues(topic)``), or what ``select`` returns, or the queue of ``sharding_key``, the same
        for equal keys; then there is one attempt only, so that the order is kept.

        Raises: ``MessageInvalid``, ``TopicInvalid``, ``RouteNotFound``, ``NoNameServer`` (not
        sent); ``TimersUnavailable``; ``BrokerError`` (refused); ``SendTimeout``, ``SendFailed``,
        whose ``maybe_stored`` tells whether a broker may have the message.
        """
        sender = self._active()
        if isinstance(topic, Message):
            if body is not None or tag is not None or keys or properties or flag or not wait_stored:
                raise MessageInvalid(MESSAGE_AND_FIELDS)
            body, tag, keys, properties = topic.body, topic.tag, topic.keys, topic.properties
            flag, wait_stored, topic = topic.flag, topic.wait_stored, topic.topic
        elif body is None:
            raise MessageInvalid(NO_BODY)
        elif keys and select is not None:  # read twice below, so an iterator must be kept
            keys = key_words(keys)
        if type(topic) is not str or topic not in self._known_topics:
            self._check_topic(topic)
        timer = timer_property(delay, deliver_at, delay_level)
        now_ms = time.time_ns() // 1_000_000
        outgoing = prepare(
            topic,
            body,
            self.settings,
            message_id or sender.ids.next(now_ms),
            now_ms,
            tag=tag,
            keys=keys,
            properties=properties,
            flag=flag,
            wait_stored=wait_stored,
            sharding_key=sharding_key,
            delay_level=delay_level,
            timer=timer,
        )
        target: SendTarget | None = queue
        if target is None and (sharding_key is not None or select is not None):
            message = select and as_message(topic, body, tag, keys, properties, flag, wait_stored)
            target = queue_choice(message, sharding_key, select)
        accumulator = self._accumulator
        if (
            accumulator is None
            or delay_level
            or timer
            or not accumulator.takes(outgoing)
            or topic.startswith(RETRY_PREFIX)
        ):
            return await sender.send(outgoing, target=target)
        deadline = sender.deadline()
        chosen = await sender.queue_for(topic, target, deadline) if target is not None else None
        self._active()  # the producer may have stopped while this task waited
        return await accumulator.send(outgoing, (topic, chosen, wait_stored, tag), deadline)

    async def send_oneway(
        self,
        topic: str | Message,
        body: bytes | None = None,
        *,
        tag: str | None = None,
        keys: Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        queue: MessageQueue | SupportsIndex | None = None,
        sharding_key: str | None = None,
        select: Selector | None = None,
        delay_level: SupportsIndex = 0,
    ) -> None:
        """Send one message without waiting for an answer: fast, and without any guarantee.

        The arguments are those of ``send``. The call returns when the bytes are written.

        Raises: as ``send``, for failures before the bytes are written.
        """
        sender = self._active()
        message = as_message(topic, body, tag, keys, properties, flag)
        self._check_topic(message.topic)
        now_ms = time.time_ns() // 1_000_000
        outgoing = prepare(
            message.topic,
            message.body,
            self.settings,
            sender.ids.next(now_ms),
            now_ms,
            tag=message.tag,
            keys=message.keys,
            properties=message.properties,
            flag=message.flag,
            wait_stored=message.wait_stored,
            sharding_key=sharding_key,
            delay_level=delay_level,
        )
        target: SendTarget | None = (
            queue if queue is not None else queue_choice(message, sharding_key, select)
        )
        await sender.send_oneway(outgoing, target=target)

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | SupportsIndex | None = None,
        sharding_key: str | None = None,
        select: Selector | None = None,
    ) -> list[SendReceipt]:
        """Send messages of one topic, many in each request, and return their receipts in order.

        A list over ``batch_bytes_max`` is cut into several requests, sent one after the other;
        each request is stored as a whole. ``queue``, ``sharding_key`` and ``select`` choose one
        queue for the whole list (``select`` sees its first message).

        Raises: as ``send``; ``BatchIncomplete`` if a request fails after others were stored.
        """
        sender = self._active()
        if not isinstance(messages, Sequence) or (
            messages and not isinstance(messages[0], Message)
        ):
            raise MessageInvalid(
                f"a batch is a list of Message(topic=…, body=…), not {shown(messages)}"
            )
        if not messages:
            await trio.lowlevel.checkpoint()
            return []
        self._check_topic(messages[0].topic)
        now_ms = time.time_ns() // 1_000_000
        batches = prepare_batches(
            messages, self.settings, sender.ids, now_ms, sharding_key=sharding_key
        )
        target: SendTarget | None = (
            queue if queue is not None else queue_choice(messages[0], sharding_key, select)
        )
        receipts: list[SendReceipt] = []
        for batch in batches:
            try:
                receipt = await sender.send(
                    batch.carrier, target=target, code=RequestCode.SEND_BATCH_MESSAGE
                )
            except TrioMQError as error:
                if not receipts:
                    raise
                raise BatchIncomplete(receipts, len(messages) - len(receipts)) from error
            receipts += split_receipt(receipt, batch.message_ids)
            target = receipt.queue if target is not None else None
        return receipts

    async def send_many(
        self, messages: Iterable[Message], *, window: SupportsIndex = 64
    ) -> list[SendReceipt]:
        """Send messages, up to ``window`` of them at a time, and return their receipts in order.

        After a failure no further message is taken. When the sends in flight have ended, the first
        error is raised, with a note that says how many messages are stored.

        Raises: as ``send``; ``SettingsError``.
        """
        limiter = trio.Semaphore(check_count("window", window))
        receipts: dict[int, SendReceipt] = {}
        errors: list[Exception] = []

        async def send(number: int, message: Message) -> None:
            try:
                receipts[number] = await self.send(message)
            except Exception as error:
                errors.append(error)
            finally:
                limiter.release()

        async with trio.open_nursery() as nursery:
            for number, message in enumerate(messages):
                await limiter.acquire()
                if errors:
                    limiter.release()
                    break
                nursery.start_soon(send, number, message)
        if errors:
            errors[0].add_note(f"{len(receipts)} messages of this send_many are stored")
            raise errors[0]
        return [receipts[number] for number in sorted(receipts)]

    def new_message_id(self) -> str:
        """Return an id for ``send(message_id=…)``.

        Keep it to send the same message again when the outcome of the first send is unknown.

        Raises: ``NotRunning``.
        """
        return self._active().ids.next(time.time_ns() // 1_000_000)

    # State

    @property
    def client_id(self) -> str:
        """This producer's name on the brokers."""
        return self._running().session.client_id

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the publish list of a topic, which ``queue=`` indexes.

        Raises: ``RouteNotFound``, ``NoNameServer``, ``TopicInvalid``.
        """
        settings = self.settings
        session = self._active().session
        check_topic(topic)
        await trio.lowlevel.checkpoint()
        return await session.finder.publish_queues(
            topic, settings.create_topic_key, settings.default_topic_queues
        )

    def _check_topic(self, topic: str) -> None:
        if not isinstance(topic, str) or topic not in self._known_topics:
            check_sendable(topic)
            if len(self._known_topics) >= TOPICS_REMEMBERED:
                self._known_topics.clear()
            self._known_topics.add(topic)

    def _active(self) -> Sender:
        sender = self._running()
        self._require_own_loop()
        return sender

    def _running(self) -> Sender:
        """Return the sender, for what any thread may read."""
        if self._sender is None:
            raise NotRunning("this producer is not running: use it inside `async with`")
        return self._sender
