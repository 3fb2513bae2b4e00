"""The SDK without `async`: for scripts, threads, Spark's executors.

    from triomq.sync import Producer

    with Producer("ns1:9876", group="jobs") as producer:
        producer.send("Orders", b"...", timeout=5)

Each object has one background thread with a Trio loop, started and joined by its `with` block; the objects of `triomq` do all the work.  Any
number of threads may use one object.  A call that takes longer than its `timeout` is cancelled and raises `CallTimeout`; Ctrl-C cancels
the waiting call and leaves the object usable.  Make objects after a fork, in the process that uses them.
"""

from __future__ import annotations

import datetime
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf
from types import TracebackType
from typing import Any, TypeVar

import trio

from triomq import client
from triomq.client import (
    ConsumeFrom,
    ConsumerSettings,
    ConsumerStatistics,
    Message,
    MessageQueue,
    ProducerSettings,
    SendReceipt,
)
from triomq.client.consumer.allocation import Allocation, allocate_average
from triomq.client.consumer.subscribing import Subscriptions
from triomq.client.consumer.view import MessageView, stamp, take
from triomq.client.portal import Call, Portal
from triomq.client.producer.queue_choice import Selector

R = TypeVar("R")

__all__ = ["Message", "MessageQueue", "Producer", "PullConsumer", "PushConsumer", "ReceivedMessage", "SendReceipt"]


class Producer:
    """A blocking `triomq.Producer`."""

    def __init__(
        self, namesrv: str | Sequence[str] | None = None, *, group: str, settings: ProducerSettings | None = None
    ) -> None:
        self._target = client.Producer(namesrv, group=group, settings=settings)
        self._portal = Portal(self._target)

    def start(self) -> Producer:
        """Start without a `with` block, for objects that live from cell to cell of a notebook; `stop` ends them."""
        _start(self._portal)
        return self

    def stop(self) -> None:
        """End what `start` began."""
        _stop(self._portal, None)

    def __enter__(self) -> Producer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _stop(self._portal, error)

    def send(
        self,
        topic: str,
        body: bytes,
        *,
        tag: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        wait_stored: bool = True,
        queue: MessageQueue | int | None = None,
        sharding_key: str | None = None,
        select: Selector | None = None,
        delay_level: int = 0,
        message_id: str | None = None,
        timeout: float | None = None,
    ) -> SendReceipt:
        """Send one message; see `triomq.Producer.send`."""
        message = Message(
            topic=topic,
            body=body,
            tag=tag,
            keys=tuple(keys),
            properties=properties or {},
            flag=flag,
            wait_stored=wait_stored,
        )
        return self.send_message(
            message,
            queue=queue,
            sharding_key=sharding_key,
            select=select,
            delay_level=delay_level,
            message_id=message_id,
            timeout=timeout,
        )

    def send_message(
        self,
        message: Message,
        *,
        queue: MessageQueue | int | None = None,
        sharding_key: str | None = None,
        select: Selector | None = None,
        delay_level: int = 0,
        message_id: str | None = None,
        timeout: float | None = None,
    ) -> SendReceipt:
        """Send a `Message`; see `triomq.Producer.send`."""

        async def send() -> SendReceipt:
            return await self._target.send(
                message,
                queue=queue,
                sharding_key=sharding_key,
                select=select,
                delay_level=delay_level,
                message_id=message_id,
            )

        return self._portal.call(timeout, send)

    def send_oneway(
        self,
        topic: str | Message,
        body: bytes | None = None,
        *,
        tag: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        queue: MessageQueue | int | None = None,
        sharding_key: str | None = None,
        select: Selector | None = None,
        delay_level: int = 0,
        timeout: float | None = None,
    ) -> None:
        """Send without an answer; see `triomq.Producer.send_oneway`."""
        self._portal.call(
            timeout,
            self._target.send_oneway,
            topic,
            body,
            tag=tag,
            keys=keys,
            properties=properties,
            flag=flag,
            queue=queue,
            sharding_key=sharding_key,
            select=select,
            delay_level=delay_level,
        )

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | int | None = None,
        sharding_key: str | None = None,
        select: Selector | None = None,
        timeout: float | None = None,
    ) -> list[SendReceipt]:
        """Send messages of one topic together; see `triomq.Producer.send_batch`."""
        return self._portal.call(
            timeout, self._target.send_batch, messages, queue=queue, sharding_key=sharding_key, select=select
        )

    def queues(self, topic: str, *, timeout: float | None = None) -> tuple[MessageQueue, ...]:
        """Return the publish list of a topic; see `triomq.Producer.queues`."""
        return self._portal.call(timeout, self._target.queues, topic)

    @property
    def client_id(self) -> str:
        """The name under which the brokers know this producer."""
        return self._target.client_id

    def send_many(self, messages: Iterable[Message], *, window: int = 64) -> Iterator[SendReceipt]:
        """Send messages with up to `window` of them under way; yields the receipts in the order of the messages.

        Iterate to its end: messages are taken as receipts are.  A failed send raises where its receipt would come.
        """
        under_way: deque[Call[SendReceipt]] = deque()
        for message in messages:
            under_way.append(self._portal.submit(self._target.send, message))
            if len(under_way) >= window:
                yield under_way.popleft().future.result()
        while under_way:
            yield under_way.popleft().future.result()

    def new_message_id(self) -> str:
        """Return an id for `send(message_id=…)`."""
        return self._portal.call(None, _in_loop, self._target.new_message_id)


class ReceivedMessage(MessageView):
    """A blocking `triomq.ReceivedMessage`, with the same read-only fields and verdicts."""

    __slots__ = ("_portal",)

    def __init__(self, message: client.ReceivedMessage, portal: Portal[client.PushConsumer]) -> None:
        super().__init__(message)
        self._portal = portal

    def ack(self, *, timeout: float | None = None) -> bool:
        """Count the message as done; see `triomq.ReceivedMessage.ack`."""
        return self._portal.call(timeout, self._message.ack)

    def retry(self, delay_level: int = 0, *, pause: float | None = None, timeout: float | None = None) -> bool:
        """Ask for the message again, later; see `triomq.ReceivedMessage.retry`."""
        return self._portal.call(timeout, self._message.retry, delay_level, pause=pause)

    def dead_letter(self, *, timeout: float | None = None) -> bool:
        """Move the message to the dead letters; see `triomq.ReceivedMessage.dead_letter`."""
        return self._portal.call(timeout, self._message.dead_letter)

    def __enter__(self) -> ReceivedMessage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.settled:
            return
        if error is None:
            self.ack()
        elif isinstance(error, Exception):
            self.retry()


Handler = Callable[[ReceivedMessage], object]
"""Handles one message in a worker thread: its normal end is an ack, an exception a retry, unless it gave the verdict itself."""


class PushConsumer:
    """A blocking `triomq.PushConsumer`: iterate over it, or give a `handler`, which runs in `threads` worker threads."""

    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        *,
        group: str,
        subscriptions: Subscriptions,
        handler: Handler | None = None,
        threads: int = 20,
        ordered: bool = False,
        broadcast: bool = False,
        consume_from: str | ConsumeFrom | datetime.datetime = ConsumeFrom.LAST,
        allocate: Allocation = allocate_average,
        settings: ConsumerSettings | None = None,
    ) -> None:
        self._limiter = trio.CapacityLimiter(threads)
        self._handler = handler
        self._buffer: deque[client.ReceivedMessage] = deque()
        self._target = client.PushConsumer(
            namesrv,
            group=group,
            subscriptions=subscriptions,
            handler=self._handle if handler is not None else None,
            concurrency=threads,
            ordered=ordered,
            broadcast=broadcast,
            consume_from=consume_from,
            allocate=allocate,
            settings=settings,
        )
        self._portal = Portal(self._target)

    def start(self) -> PushConsumer:
        """Start without a `with` block, for objects that live from cell to cell of a notebook; `stop` ends them."""
        _start(self._portal)
        return self

    def stop(self) -> None:
        """End what `start` began."""
        _stop(self._portal, None)

    def __enter__(self) -> PushConsumer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _stop(self._portal, error)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return self

    def __next__(self) -> ReceivedMessage:
        """Wait for the next message; it wants `ack` or `retry`, or `with message:`."""
        while True:
            try:
                message = self._buffer.popleft()  # asking first if there is one would race with other threads
            except IndexError:
                self._portal.call(None, self._fill)
                continue
            if not message.lost:
                self._portal.tell(stamp, message)
                return ReceivedMessage(message, self._portal)

    def wait_assigned(self, *, timeout: float | None = None) -> None:
        """Wait until this member has its first share of the queues."""
        self._portal.call(timeout, self._target.wait_assigned)

    def statistics(self) -> ConsumerStatistics:
        """Return how much is under way."""
        return self._portal.call(None, _in_loop, self._target.statistics)

    def pause(self) -> None:
        """Take nothing more until `resume`; what this side has already is still returned."""
        self._portal.call(None, _in_loop, self._target.pause)

    def resume(self) -> None:
        """Go on after `pause`."""
        self._portal.call(None, _in_loop, self._target.resume)

    def subscribe(self, subscriptions: Subscriptions, *, timeout: float | None = None) -> None:
        """Consume further topics; see `triomq.PushConsumer.subscribe`."""
        self._portal.call(timeout, self._target.subscribe, subscriptions)

    def unsubscribe(self, topic: str, *, timeout: float | None = None) -> None:
        """Consume a topic no longer."""
        self._portal.call(timeout, self._target.unsubscribe, topic)

    async def _fill(self) -> None:
        self._buffer.extend(await take(self._target))

    async def _handle(self, message: client.ReceivedMessage) -> None:
        assert self._handler is not None
        view = ReceivedMessage(message, self._portal)
        # A thread cannot be cancelled: after `shutdown_timeout` it is left alone, and its verdict has no effect.
        await trio.to_thread.run_sync(self._handler, view, limiter=self._limiter, abandon_on_cancel=True)


class PullConsumer:
    """A blocking `triomq.PullConsumer`."""

    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        *,
        group: str,
        subscriptions: Subscriptions | None = None,
        consume_from: str | ConsumeFrom | datetime.datetime = ConsumeFrom.LAST,
        auto_commit: bool = True,
        settings: ConsumerSettings | None = None,
    ) -> None:
        self._target = client.PullConsumer(
            namesrv,
            group=group,
            subscriptions=subscriptions,
            consume_from=consume_from,
            auto_commit=auto_commit,
            settings=settings,
        )
        self._portal = Portal(self._target)

    def start(self) -> PullConsumer:
        """Start without a `with` block, for objects that live from cell to cell of a notebook; `stop` ends them."""
        _start(self._portal)
        return self

    def stop(self) -> None:
        """End what `start` began."""
        _stop(self._portal, None)

    def __enter__(self) -> PullConsumer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _stop(self._portal, error)

    def __iter__(self) -> Iterator[client.ReceivedMessage]:
        return self

    def __next__(self) -> client.ReceivedMessage:
        """Wait for the next message; with `auto_commit` the ones before it then count as done."""
        return self.poll(1)[0]

    def poll(self, max_messages: int = 32, *, timeout: float | None = None) -> list[client.ReceivedMessage]:
        """Return at most `max_messages`; an empty list if none came within `timeout` seconds."""
        returned: list[client.ReceivedMessage] = []
        try:
            self._portal.call(None, _poll, self._target, max_messages, timeout, returned)
        except BaseException:  # interrupted; nobody got what had come
            if returned:
                self._portal.call(5.0, _in_loop, lambda: self._target.give_back(returned))
            raise
        return returned

    def subscribe(self, subscriptions: Subscriptions, *, timeout: float | None = None) -> None:
        """Share further topics with the group."""
        self._portal.call(timeout, self._target.subscribe, subscriptions)

    def assign(self, queues: Iterable[MessageQueue], *, tags: str = "*", timeout: float | None = None) -> None:
        """Read exactly these queues."""
        self._portal.call(timeout, self._target.assign, queues, tags=tags)

    def queues(self, topic: str, *, timeout: float | None = None) -> tuple[MessageQueue, ...]:
        """Return all readable queues of a topic."""
        return self._portal.call(timeout, self._target.queues, topic)

    @property
    def assignment(self) -> tuple[MessageQueue, ...]:
        """The queues that are read now."""
        return self._portal.call(None, _in_loop, lambda: self._target.assignment)

    def wait_assigned(self, *, timeout: float | None = None) -> None:
        """Wait until the group has given this member its first share."""
        self._portal.call(timeout, self._target.wait_assigned)

    def position(self, queue: MessageQueue) -> int:
        """Return the offset of the message that comes next."""
        return self._portal.call(None, _in_loop, lambda: self._target.position(queue))

    def seek(self, queue: MessageQueue, offset: int, *, timeout: float | None = None) -> None:
        """Go on at another offset."""
        self._portal.call(timeout, self._target.seek, queue, offset)

    def seek_to_begin(self, queue: MessageQueue, *, timeout: float | None = None) -> None:
        """Go on at the oldest message."""
        self._portal.call(timeout, self._target.seek_to_begin, queue)

    def seek_to_time(self, queue: MessageQueue, instant: datetime.datetime, *, timeout: float | None = None) -> None:
        """Go on at the first message stored at or after an aware `datetime`."""
        self._portal.call(timeout, self._target.seek_to_time, queue, instant)

    def unsubscribe(self, topic: str, *, timeout: float | None = None) -> None:
        """Share a topic no longer."""
        self._portal.call(timeout, self._target.unsubscribe, topic)

    def seek_to_end(self, queue: MessageQueue, *, timeout: float | None = None) -> None:
        """Go on with what is sent from now on."""
        self._portal.call(timeout, self._target.seek_to_end, queue)

    def pause(self, *queues: MessageQueue) -> None:
        """Return nothing more of these queues until `resume`."""
        self._portal.call(None, _in_loop, lambda: self._target.pause(*queues))

    def resume(self, *queues: MessageQueue) -> None:
        """Go on where `pause` stopped."""
        self._portal.call(None, _in_loop, lambda: self._target.resume(*queues))

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None, *, timeout: float | None = None) -> None:
        """Store offsets now."""
        self._portal.call(timeout, self._target.commit, offsets)

    def committed(self, queue: MessageQueue, *, timeout: float | None = None) -> int | None:
        """Return the group's offset as the broker has it."""
        return self._portal.call(timeout, self._target.committed, queue)

    def min_offset(self, queue: MessageQueue, *, timeout: float | None = None) -> int:
        """Return the offset of the oldest message."""
        return self._portal.call(timeout, self._target.min_offset, queue)

    def max_offset(self, queue: MessageQueue, *, timeout: float | None = None) -> int:
        """Return the offset that the next message will get."""
        return self._portal.call(timeout, self._target.max_offset, queue)

    def offset_for_time(self, queue: MessageQueue, instant: datetime.datetime, *, timeout: float | None = None) -> int:
        """Return the offset of the first message stored at or after an instant."""
        return self._portal.call(timeout, self._target.offset_for_time, queue, instant)


async def _poll(
    consumer: client.PullConsumer, max_messages: int, seconds: float | None, returned: list[client.ReceivedMessage]
) -> None:
    with trio.move_on_after(inf if seconds is None else seconds):
        returned += await consumer.poll(max_messages)


async def _in_loop(function: Callable[[], R]) -> R:
    """Run a function in the loop's thread, where the consumer's state may be looked at."""
    await trio.lowlevel.checkpoint()
    return function()


def _start(portal: Portal[Any]) -> None:
    entered = portal.start()
    try:
        entered.result()
    except BaseException:  # interrupted: nobody would ever stop what has begun
        portal.stop()
        raise


def _stop(portal: Portal[Any], error: BaseException | None) -> None:
    left = portal.stop(body_failed=error is not None)
    try:
        left.result()
    finally:
        portal.join()
