"""The SDK for asyncio: FastAPI, notebooks, anything with an asyncio loop.

    from triomq.aio import Producer

    async with Producer("ns1:9876", group="web") as producer:
        await producer.send("Orders", b"...")

Each object has one background thread with a Trio loop, which does all the work; so a stalled asyncio loop does not stop heartbeats.  Cancelling
an awaited call cancels it in the Trio loop, too.  A call costs a thread hop (tens of microseconds); consumers hand over lists.
"""

from __future__ import annotations

import asyncio
import datetime
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

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
from triomq.client.portal import CallCancelled, Portal
from triomq.client.producer.queue_choice import Selector

__all__ = ["Message", "MessageQueue", "Producer", "PullConsumer", "PushConsumer", "ReceivedMessage", "SendReceipt"]

P = ParamSpec("P")
R = TypeVar("R")


async def _call(portal: Portal[Any], function: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run an async function in the portal's loop; cancelling this call cancels it there."""
    call = portal.submit(function, *args, **kwargs)
    waiting = asyncio.wrap_future(call.future)
    try:
        return await asyncio.shield(waiting)
    except asyncio.CancelledError:
        call.cancel()
        try:
            await waiting
        except CallCancelled:
            raise asyncio.CancelledError from None
        raise


async def _in_loop(function: Callable[[], R]) -> R:
    """Run a function in the portal's loop, where the consumer's state may be touched."""
    await trio.lowlevel.checkpoint()
    return function()


async def _start(portal: Portal[Any]) -> None:
    entered = asyncio.wrap_future(portal.start())
    try:
        await asyncio.shield(entered)
    except asyncio.CancelledError:  # nobody would ever stop what has begun
        portal.stop()
        entered.add_done_callback(lambda future: future.exception())  # whatever became of it, nobody waits for it
        raise


async def _stop(portal: Portal[Any], error: BaseException | None) -> None:
    try:
        await asyncio.wrap_future(portal.stop(body_failed=error is not None))
    finally:
        await asyncio.get_running_loop().run_in_executor(None, portal.join)


class Producer:
    """A `triomq.Producer` for asyncio."""

    def __init__(
        self, namesrv: str | Sequence[str] | None = None, *, group: str, settings: ProducerSettings | None = None
    ) -> None:
        self._target = client.Producer(namesrv, group=group, settings=settings)
        self._portal = Portal(self._target)

    async def __aenter__(self) -> Producer:
        await _start(self._portal)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await _stop(self._portal, error)

    async def send(
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
    ) -> SendReceipt:
        """Send one message; see `triomq.Producer.send`."""

        async def send() -> SendReceipt:
            return await self._target.send(
                topic,
                body,
                tag=tag,
                keys=keys,
                properties=properties,
                flag=flag,
                wait_stored=wait_stored,
                queue=queue,
                sharding_key=sharding_key,
                select=select,
                delay_level=delay_level,
                message_id=message_id,
            )

        return await _call(self._portal, send)

    async def send_message(
        self,
        message: Message,
        *,
        queue: MessageQueue | int | None = None,
        sharding_key: str | None = None,
        select: Selector | None = None,
        delay_level: int = 0,
        message_id: str | None = None,
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

        return await _call(self._portal, send)

    async def send_oneway(
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
    ) -> None:
        """Send without an answer; see `triomq.Producer.send_oneway`."""

        async def send() -> None:
            await self._target.send_oneway(
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

        await _call(self._portal, send)

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | int | None = None,
        sharding_key: str | None = None,
        select: Selector | None = None,
    ) -> list[SendReceipt]:
        """Send messages of one topic together; see `triomq.Producer.send_batch`."""
        return await _call(
            self._portal, self._target.send_batch, messages, queue=queue, sharding_key=sharding_key, select=select
        )

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the publish list of a topic; see `triomq.Producer.queues`."""
        return await _call(self._portal, self._target.queues, topic)

    async def new_message_id(self) -> str:
        """Return an id for `send(message_id=…)`."""

        async def make() -> str:
            return self._target.new_message_id()

        return await _call(self._portal, make)


class ReceivedMessage(MessageView):
    """A `triomq.ReceivedMessage` for asyncio, with the same read-only fields and verdicts."""

    __slots__ = ("_portal",)

    def __init__(self, message: client.ReceivedMessage, portal: Portal[client.PushConsumer]) -> None:
        super().__init__(message)
        self._portal = portal

    async def ack(self) -> bool:
        """Count the message as done; see `triomq.ReceivedMessage.ack`."""
        return await _call(self._portal, self._message.ack)

    async def retry(self, delay_level: int = 0, *, pause: float | None = None) -> bool:
        """Ask for the message again, later; see `triomq.ReceivedMessage.retry`."""
        return await _call(self._portal, self._message.retry, delay_level, pause=pause)

    async def dead_letter(self) -> bool:
        """Move the message to the dead letters; see `triomq.ReceivedMessage.dead_letter`."""
        return await _call(self._portal, self._message.dead_letter)

    async def __aenter__(self) -> ReceivedMessage:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.settled:
            return
        if error is None:
            await self.ack()
        elif isinstance(error, Exception):
            await self.retry()


class PushConsumer:
    """A `triomq.PushConsumer` for asyncio: iterate over it, from as many tasks as you like."""

    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        *,
        group: str,
        subscriptions: Subscriptions,
        ordered: bool = False,
        broadcast: bool = False,
        consume_from: str | ConsumeFrom | datetime.datetime = ConsumeFrom.LAST,
        allocate: Allocation = allocate_average,
        settings: ConsumerSettings | None = None,
    ) -> None:
        self._target = client.PushConsumer(
            namesrv,
            group=group,
            subscriptions=subscriptions,
            ordered=ordered,
            broadcast=broadcast,
            consume_from=consume_from,
            allocate=allocate,
            settings=settings,
        )
        self._portal = Portal(self._target)
        self._buffer: deque[client.ReceivedMessage] = deque()

    async def __aenter__(self) -> PushConsumer:
        await _start(self._portal)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await _stop(self._portal, error)

    def __aiter__(self) -> PushConsumer:
        return self

    async def __anext__(self) -> ReceivedMessage:
        """Wait for the next message; it wants `ack` or `retry`, or `async with message:`."""
        while True:
            while not self._buffer:
                await _call(self._portal, self._fill)
            message = self._buffer.popleft()
            if not message.lost:
                self._portal.tell(stamp, message)
                return ReceivedMessage(message, self._portal)

    async def wait_assigned(self) -> None:
        """Wait until this member has its first share of the queues."""
        await _call(self._portal, self._target.wait_assigned)

    async def pause(self) -> None:
        """Take nothing more until `resume`; what this side has already is still returned."""
        await _call(self._portal, _in_loop, self._target.pause)

    async def resume(self) -> None:
        """Go on after `pause`."""
        await _call(self._portal, _in_loop, self._target.resume)

    async def subscribe(self, subscriptions: Subscriptions) -> None:
        """Consume further topics; see `triomq.PushConsumer.subscribe`."""
        await _call(self._portal, self._target.subscribe, subscriptions)

    async def unsubscribe(self, topic: str) -> None:
        """Consume a topic no longer."""
        await _call(self._portal, self._target.unsubscribe, topic)

    async def statistics(self) -> ConsumerStatistics:
        """Return how much is under way."""
        return await _call(self._portal, _in_loop, self._target.statistics)

    async def _fill(self) -> None:
        self._buffer.extend(await take(self._target))


class PullConsumer:
    """A `triomq.PullConsumer` for asyncio."""

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

    async def __aenter__(self) -> PullConsumer:
        await _start(self._portal)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await _stop(self._portal, error)

    def __aiter__(self) -> PullConsumer:
        return self

    async def __anext__(self) -> client.ReceivedMessage:
        """Return the next message; with `auto_commit` the ones before it then count as done."""
        return (await self.poll(1))[0]

    async def poll(self, max_messages: int = 32) -> list[client.ReceivedMessage]:
        """Wait until something is there and return it; for a limit of time, `asyncio.timeout`.  A cancelled poll loses nothing."""
        returned: list[client.ReceivedMessage] = []

        async def poll() -> None:
            returned.extend(await self._target.poll(max_messages))

        try:
            await _call(self._portal, poll)
        except BaseException:  # cancelled; nobody got what had come
            if returned:
                await asyncio.shield(_call(self._portal, _in_loop, lambda: self._target.give_back(returned)))
            raise
        return returned

    async def assign(self, queues: Iterable[MessageQueue], *, tags: str = "*") -> None:
        """Read exactly these queues."""
        await _call(self._portal, self._target.assign, queues, tags=tags)

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return all readable queues of a topic."""
        return await _call(self._portal, self._target.queues, topic)

    async def wait_assigned(self) -> None:
        """Wait until the group has given this member its first share."""
        await _call(self._portal, self._target.wait_assigned)

    async def subscribe(self, subscriptions: Subscriptions) -> None:
        """Share further topics with the group."""
        await _call(self._portal, self._target.subscribe, subscriptions)

    async def unsubscribe(self, topic: str) -> None:
        """Share a topic no longer."""
        await _call(self._portal, self._target.unsubscribe, topic)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Go on at the oldest message."""
        await _call(self._portal, self._target.seek_to_begin, queue)

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Go on with what is sent from now on."""
        await _call(self._portal, self._target.seek_to_end, queue)

    async def seek_to_time(self, queue: MessageQueue, instant: datetime.datetime) -> None:
        """Go on at the first message stored at or after an aware `datetime`."""
        await _call(self._portal, self._target.seek_to_time, queue, instant)

    async def pause(self, *queues: MessageQueue) -> None:
        """Return nothing more of these queues until `resume`."""
        await _call(self._portal, _in_loop, lambda: self._target.pause(*queues))

    async def resume(self, *queues: MessageQueue) -> None:
        """Go on where `pause` stopped."""
        await _call(self._portal, _in_loop, lambda: self._target.resume(*queues))

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at another offset."""
        await _call(self._portal, self._target.seek, queue, offset)

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Store offsets now."""
        await _call(self._portal, self._target.commit, offsets)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's offset as the broker has it."""
        return await _call(self._portal, self._target.committed, queue)

    async def position(self, queue: MessageQueue) -> int:
        """Return the offset of the message that comes next."""
        return await _call(self._portal, _in_loop, lambda: self._target.position(queue))

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message."""
        return await _call(self._portal, self._target.min_offset, queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message will get."""
        return await _call(self._portal, self._target.max_offset, queue)

    async def offset_for_time(self, queue: MessageQueue, instant: datetime.datetime) -> int:
        """Return the offset of the first message stored at or after an instant."""
        return await _call(self._portal, self._target.offset_for_time, queue, instant)
