"""`Producer`: sends messages.

    async with Producer("ns1:9876;ns2:9876", group="orders") as producer:
        receipt = await producer.send("Orders", b"...", tag="paid", keys=["o-1"])

What a cancelled `send` means: while it waits for a route or a connection, nothing was sent; later the outcome is unknown, the answer is
discarded when it comes, and the connection stays usable.  With `auto_batch` it is unknown as soon as the batch has left with other messages.  A message given its `message_id` beforehand (`Producer.new_message_id`) can be
sent again without doubt: consumers see the same id.
"""

from __future__ import annotations

import ipaddress
import os
import random
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import SupportsIndex, overload

import trio

from triomq.client.arguments import check_count, check_settings, key_words, shown
from triomq.client.background import open_background
from triomq.client.config import ProducerSettings, namesrv_addresses
from triomq.client.errors import BatchIncomplete, MessageInvalid, NotRunning, TrioMQError
from triomq.client.heartbeats import Member
from triomq.client.lifetime import Lifetime
from triomq.client.names import check_group, check_topic
from triomq.client.producer.auto_batch import Accumulator
from triomq.client.producer.destinations import TOPICS_REMEMBERED
from triomq.client.producer.detector import detect_brokers
from triomq.client.producer.encoding import Outgoing, OutgoingBatch, check_sendable, prepare, prepare_batches
from triomq.client.producer.queue_choice import Selector, choose_by_key
from triomq.client.producer.receipt import SendReceipt, split_receipt
from triomq.client.producer.sender import Sender, Target
from triomq.client.session import open_session
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.message import Message, UniqueIds
from triomq.remoting.protocol.names import RETRY_PREFIX

_BOTH = "a Message brings its own body, tag, keys, properties and flag: give one or the other"
_NO_BODY = "a message needs a body: send(topic, body), or send(Message(…))"


class Producer(Lifetime):
    """Sends messages for a producer group, used with `async with`.

    One producer serves any number of tasks; make one for the life of the application, not one for each message.
    """

    def __init__(
        self, namesrv: str | Iterable[str] | None = None, *, group: str, settings: ProducerSettings | None = None
    ) -> None:
        """Describe a producer; nothing is started.

        `namesrv` is `"host:9876;host2:9876"`, a list, or None for the environment variable NAMESRV_ADDR.
        """
        self.group = check_group(group)
        self.settings = check_settings(settings, ProducerSettings)
        self._namesrv = namesrv_addresses(namesrv)
        self._sender: Sender | None = None
        self._accumulator: Accumulator | None = None
        self._ids: UniqueIds | None = None
        self._known_topics: set[str] = set()

    def __repr__(self) -> str:
        return f"<Producer of {self.group}: {'running' if self._sender else 'not running'}>"

    # -- life -------------------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[None]:
        settings = self.settings
        async with open_session(self._namesrv, settings.client, Member(producer_group=self.group)) as session:
            await session.check_name_server()
            self._ids = _make_ids(session.client_id.partition("@")[0])
            sender = Sender(self.group, session, settings)
            async with open_background() as nursery:
                if sender.faults is not None and settings.detect_brokers:
                    nursery.start_soon(detect_brokers, sender.faults, session, settings, name="broker detector")
                if settings.auto_batch:
                    self._accumulator = Accumulator(
                        settings, nursery, sender.find_route, self._send_pile, self._send_alone, self.new_message_id
                    )
                    nursery.start_soon(self._accumulator.watch_deadlines, name="automatic batches' deadlines")
                self._sender = sender
                try:
                    yield
                finally:
                    self._sender = self._accumulator = None

    # -- sending ----------------------------------------------------------------------------------------------------------------

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
        message_id: str | None = None,
    ) -> SendReceipt:
        """Send one message and wait until a broker has it.

        The queue is the next one in turn; or `queue`, a `MessageQueue` or an index of the publish list; or what `select` chooses; or the
        one that belongs to `sharding_key`, always the same for equal keys.  With one of them there is one try only, so that order is kept.
        `delay_level` 1–18 delivers after 1 s … 2 h.  `wait_stored=False` lets the broker answer before disk and slave have it.

        Errors: `MessageInvalid`, `TopicInvalid` (not sent); `RouteNotFound`, `NoNameServer` (not sent); `BrokerError` (refused);
        `SendTimeout`, `SendFailed` (see their `maybe_stored`).
        """
        sender = self._active()
        if isinstance(topic, Message):
            if body is not None or tag is not None or keys or properties or flag or not wait_stored:
                raise MessageInvalid(_BOTH)
            body, tag, keys, properties = topic.body, topic.tag, topic.keys, topic.properties
            flag, wait_stored, topic = topic.flag, topic.wait_stored, topic.topic
        elif body is None:
            raise MessageInvalid(_NO_BODY)
        elif keys and select is not None:  # read twice, which not every kind can be
            keys = key_words(keys)
        if type(topic) is not str or topic not in self._known_topics:
            self._check_topic(topic)
        now_ms = time.time_ns() // 1_000_000
        assert self._ids is not None
        outgoing = prepare(
            topic,
            body,
            self.settings,
            message_id or self._ids.next(now_ms),
            now_ms,
            tag=tag,
            keys=keys,
            properties=properties,
            flag=flag,
            wait_stored=wait_stored,
            sharding_key=sharding_key,
            delay_level=delay_level,
        )
        target: Target | None = queue
        if target is None and (sharding_key is not None or select is not None):
            message = select and _as_message(topic, body, tag, keys, properties, flag, wait_stored)
            target = _choice(message, sharding_key, select)
        pool = self._accumulator
        if pool is None or delay_level or not pool.takes(outgoing) or topic.startswith(RETRY_PREFIX):
            return await sender.send(outgoing, target=target)
        deadline = sender.deadline()
        chosen = await sender.queue_for(topic, target, deadline) if target is not None else None
        self._active()  # it may have stopped meanwhile
        return await pool.send(outgoing, (topic, chosen, wait_stored, tag), deadline)

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
        """Send one message and ask for no answer: fast, and without any guarantee.  Returns when the bytes are written."""
        sender = self._active()
        message = _as_message(topic, body, tag, keys, properties, flag)
        self._check_topic(message.topic)
        now_ms = time.time_ns() // 1_000_000
        assert self._ids is not None
        outgoing = prepare(
            message.topic,
            message.body,
            self.settings,
            self._ids.next(now_ms),
            now_ms,
            tag=message.tag,
            keys=message.keys,
            properties=message.properties,
            flag=message.flag,
            wait_stored=message.wait_stored,
            sharding_key=sharding_key,
            delay_level=delay_level,
        )
        target: Target | None = queue if queue is not None else _choice(message, sharding_key, select)
        await sender.send_oneway(outgoing, target=target)

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | SupportsIndex | None = None,
        sharding_key: str | None = None,
        select: Selector | None = None,
    ) -> list[SendReceipt]:
        """Send messages of one topic, many in each request; returns their receipts in the same order.

        A list beyond `batch_bytes_max` is cut into several requests, one after the other, each stored as a whole.  `sharding_key` and
        `select` choose one queue for the whole list (`select` sees its first message).  Errors: as `send`; `BatchIncomplete` if a
        request fails after others were stored.
        """
        sender = self._active()
        if not isinstance(messages, Sequence) or (messages and not isinstance(messages[0], Message)):
            raise MessageInvalid(f"a batch is a list of Message(topic=…, body=…), not {shown(messages)}")
        if not messages:
            await trio.lowlevel.checkpoint()
            return []
        self._check_topic(messages[0].topic)
        assert self._ids is not None
        now_ms = time.time_ns() // 1_000_000
        batches = prepare_batches(messages, self.settings, self._ids, now_ms, sharding_key=sharding_key)
        target: Target | None = queue if queue is not None else _choice(messages[0], sharding_key, select)
        receipts: list[SendReceipt] = []
        for batch in batches:
            try:
                receipt = await sender.send(batch.carrier, target=target, code=RequestCode.SEND_BATCH_MESSAGE)
            except TrioMQError as error:
                if not receipts:
                    raise
                raise BatchIncomplete(receipts, len(messages) - len(receipts)) from error
            receipts += split_receipt(receipt, batch.message_ids)
            target = receipt.queue if target is not None else None
        return receipts

    async def send_many(self, messages: Iterable[Message], *, window: SupportsIndex = 64) -> list[SendReceipt]:
        """Send messages with up to `window` of them under way; return the receipts in the order of the messages.

        After a failure no further message is taken; when those under way have ended the first error is raised, with a note that says how many are stored.
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

    async def _send_pile(self, batch: OutgoingBatch, queue: MessageQueue | None, deadline: float) -> SendReceipt:
        """Send an automatic batch."""
        code = RequestCode.SEND_BATCH_MESSAGE
        return await self._active().send(batch.carrier, target=queue, code=code, deadline=deadline)

    async def _send_alone(self, outgoing: Outgoing, queue: MessageQueue | None, deadline: float) -> SendReceipt:
        """Send a message that found no others to travel with."""
        return await self._active().send(outgoing, target=queue, deadline=deadline)

    def new_message_id(self) -> str:
        """Return an id for `send(message_id=…)`, to be kept by who wants to send the same message again after a doubt."""
        self._active()
        assert self._ids is not None
        return self._ids.next(time.time_ns() // 1_000_000)

    # -- what it knows ----------------------------------------------------------------------------------------------------------

    @property
    def client_id(self) -> str:
        """The name under which the brokers know this producer."""
        return self._active().session.client_id

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the publish list of a topic: what `queue=` counts in.  Errors: `RouteNotFound`, `NoNameServer`."""
        settings = self.settings
        session = self._active().session
        check_topic(topic)
        await trio.lowlevel.checkpoint()
        return await session.publish_queues(topic, settings.create_topic_key, settings.default_topic_queues)

    def _check_topic(self, topic: str) -> None:
        if not isinstance(topic, str) or topic not in self._known_topics:
            check_sendable(topic)
            if len(self._known_topics) >= TOPICS_REMEMBERED:
                self._known_topics.clear()
            self._known_topics.add(topic)

    def _active(self) -> Sender:
        if self._sender is None:
            raise NotRunning("this producer is not running: use it inside `async with`")
        return self._sender


def _as_message(
    topic: str | Message,
    body: bytes | None,
    tag: str | None,
    keys: Iterable[str],
    properties: Mapping[str, str] | None,
    flag: int,
    wait_stored: bool = True,
) -> Message:
    if isinstance(topic, Message):
        if body is not None or tag is not None or keys or properties or flag or not wait_stored:
            raise MessageInvalid(_BOTH)
        return topic
    if body is None:
        raise MessageInvalid(_NO_BODY)
    return Message(
        topic=topic,
        body=body,
        tag=tag,
        keys=tuple(key_words(keys)) if keys else (),
        properties=properties or {},
        flag=flag,
        wait_stored=wait_stored,
    )


def _choice(message: Message | None, sharding_key: str | None, select: Selector | None) -> Target | None:
    """Return how the queue of a directed send is found; None for one that is not directed."""
    if select is not None:
        if not callable(select):
            raise MessageInvalid(f"select must be a function, not {shown(select)}")
        assert message is not None
        return lambda queues: select(queues, message)
    return None if sharding_key is None else lambda queues: choose_by_key(queues, sharding_key)


def _make_ids(host: str) -> UniqueIds:
    address = ipaddress.ip_address(host.strip("[]"))
    utc_offset = time.localtime().tm_gmtoff
    return UniqueIds(address.packed, os.getpid(), random.getrandbits(32), utc_offset_seconds=utc_offset)
