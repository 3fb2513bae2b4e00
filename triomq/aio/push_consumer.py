"""A `triomq.PushConsumer` for asyncio, and its messages."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import Self, SupportsIndex

from triomq import client
from triomq.aio.calls import AsyncioLifetime, call_in_asyncio, call_in_loop
from triomq.client import (
    AssignmentChange,
    ConsumeFrom,
    ConsumerSettings,
    ConsumerStatistics,
    MessageQueue,
    NotRunning,
)
from triomq.client.arguments import awaiting
from triomq.client.consumer.allocation import Allocation, allocate_average
from triomq.client.consumer.offsets import Start
from triomq.client.consumer.subscribing import Subscriptions
from triomq.client.consumer.view import MessageView, stamp, take
from triomq.client.portal import Portal, in_loop


class ReceivedMessage(MessageView):
    """A `triomq.ReceivedMessage` for asyncio, with the same read-only fields and verdicts."""

    __slots__ = ("_portal",)

    def __init__(self, message: client.ReceivedMessage, portal: Portal[client.PushConsumer]) -> None:
        super().__init__(message)
        self._portal = portal

    async def ack(self) -> bool:
        """Count the message as done; see `triomq.ReceivedMessage.ack`."""
        return await call_in_loop(self._portal, self._message.ack)

    async def retry(self, delay_level: SupportsIndex = 0, *, pause: float | None = None) -> bool:
        """Ask for the message again, later; see `triomq.ReceivedMessage.retry`."""
        return await call_in_loop(self._portal, self._message.retry, delay_level, pause=pause)

    async def dead_letter(self) -> bool:
        """Move the message to the dead letters; see `triomq.ReceivedMessage.dead_letter`."""
        return await call_in_loop(self._portal, self._message.dead_letter)

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


Handler = Callable[[ReceivedMessage], Awaitable[object]]
"""Handles one message in the asyncio loop: its normal end is an ack, an exception a retry, unless it gave the verdict itself."""
BatchHandler = Callable[[Sequence[ReceivedMessage]], Awaitable[object]]
"""The same for the messages of one queue that are there; its verdict is for all that have none yet."""


class PushConsumer(AsyncioLifetime[client.PushConsumer]):
    """A `triomq.PushConsumer` for asyncio: iterate over it, from as many tasks as you like, or give a `handler` or `batch_handler`.

    Handlers run in the asyncio loop that started the consumer, `concurrency` at a time.
    """

    def __init__(
        self,
        namesrv: str | Iterable[str] | None = None,
        *,
        group: str,
        subscriptions: Subscriptions,
        handler: Handler | None = None,
        batch_handler: BatchHandler | None = None,
        batch_max: SupportsIndex = 32,
        concurrency: SupportsIndex = 20,
        ordered: bool = False,
        broadcast: bool = False,
        consume_from: Start = ConsumeFrom.LAST,
        allocate: Allocation = allocate_average,
        on_assignment: Callable[[AssignmentChange], object] | None = None,
        settings: ConsumerSettings | None = None,
    ) -> None:
        self._handler = None if handler is None else awaiting(handler)
        self._batch_handler = None if batch_handler is None else awaiting(batch_handler)
        self._loop: asyncio.AbstractEventLoop | None = None
        super().__init__(
            client.PushConsumer(
                namesrv,
                group=group,
                subscriptions=subscriptions,
                handler=self._handle if handler is not None else None,
                batch_handler=self._handle_batch if batch_handler is not None else None,
                batch_max=batch_max,
                concurrency=concurrency,
                ordered=ordered,
                broadcast=broadcast,
                consume_from=consume_from,
                allocate=allocate,
                on_assignment=on_assignment,
                settings=settings,
            )
        )
        self._buffer: deque[client.ReceivedMessage] = deque()

    async def start(self) -> Self:
        """Start without an `async with` block; handlers run in the loop that calls this."""
        self._loop = asyncio.get_running_loop()
        return await super().start()

    async def _handle(self, message: client.ReceivedMessage) -> None:
        assert self._loop is not None
        assert self._handler is not None
        await call_in_asyncio(self._loop, self._handler, ReceivedMessage(message, self._portal))

    async def _handle_batch(self, messages: Sequence[client.ReceivedMessage]) -> None:
        assert self._loop is not None
        assert self._batch_handler is not None
        await call_in_asyncio(self._loop, self._batch_handler, [ReceivedMessage(message, self._portal) for message in messages])

    def __aiter__(self) -> PushConsumer:
        return self

    async def __anext__(self) -> ReceivedMessage:
        """Wait for the next message; it wants `ack` or `retry`, or `async with message:`.  The iteration ends when the consumer is stopped."""
        while True:
            while not self._buffer:
                try:
                    await call_in_loop(self._portal, self._fill)
                except NotRunning:
                    if self._portal.ended:
                        raise StopAsyncIteration from None
                    raise
            message = self._buffer.popleft()
            if not message.lost:
                self._portal.tell(stamp, message)
                return ReceivedMessage(message, self._portal)

    @property
    def client_id(self) -> str:
        """The name under which the brokers know this member."""
        return self._target.client_id

    @property
    def assignment(self) -> tuple[MessageQueue, ...]:
        """The queues that this consumer owns now, sorted; retry queues included."""
        return self._target.assignment

    async def wait_assigned(self) -> None:
        """Wait until this member has its first share of the queues."""
        await call_in_loop(self._portal, self._target.wait_assigned)

    async def pause(self) -> None:
        """Take nothing more until `resume`; what this side has already is still returned."""
        await call_in_loop(self._portal, in_loop, self._target.pause)

    async def resume(self) -> None:
        """Go on after `pause`."""
        await call_in_loop(self._portal, in_loop, self._target.resume)

    async def subscribe(self, subscriptions: Subscriptions) -> None:
        """Consume further topics; see `triomq.PushConsumer.subscribe`."""
        await call_in_loop(self._portal, self._target.subscribe, subscriptions)

    async def unsubscribe(self, topic: str) -> None:
        """Consume a topic no longer."""
        await call_in_loop(self._portal, self._target.unsubscribe, topic)

    async def statistics(self) -> ConsumerStatistics:
        """Return how much is under way."""
        return await call_in_loop(self._portal, in_loop, self._target.statistics)

    async def _fill(self) -> None:
        self._buffer.extend(await take(self._target))
