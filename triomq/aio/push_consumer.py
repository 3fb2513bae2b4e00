"""A `triomq.PushConsumer` for asyncio, and its messages."""

from __future__ import annotations

import datetime
from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import SupportsIndex

from triomq import client
from triomq.aio.calls import AsyncioLifetime, call_in_loop
from triomq.client import (
    ConsumeFrom,
    ConsumerSettings,
    ConsumerStatistics,
    NotRunning,
)
from triomq.client.consumer.allocation import Allocation, allocate_average
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


class PushConsumer(AsyncioLifetime[client.PushConsumer]):
    """A `triomq.PushConsumer` for asyncio: iterate over it, from as many tasks as you like."""

    def __init__(
        self,
        namesrv: str | Iterable[str] | None = None,
        *,
        group: str,
        subscriptions: Subscriptions,
        ordered: bool = False,
        broadcast: bool = False,
        consume_from: str | ConsumeFrom | datetime.datetime = ConsumeFrom.LAST,
        allocate: Allocation = allocate_average,
        settings: ConsumerSettings | None = None,
    ) -> None:
        super().__init__(
            client.PushConsumer(
                namesrv,
                group=group,
                subscriptions=subscriptions,
                ordered=ordered,
                broadcast=broadcast,
                consume_from=consume_from,
                allocate=allocate,
                settings=settings,
            )
        )
        self._buffer: deque[client.ReceivedMessage] = deque()

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
