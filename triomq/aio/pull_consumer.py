"""A `triomq.PullConsumer` for asyncio."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable, Iterable, Mapping
from typing import SupportsIndex

from triomq import client
from triomq.aio.calls import AsyncioLifetime, call_in_loop
from triomq.client import (
    AssignmentChange,
    ConsumeFrom,
    ConsumerSettings,
    MessageQueue,
    NotRunning,
)
from triomq.client.consumer.allocation import Allocation, allocate_average
from triomq.client.consumer.offsets import Start
from triomq.client.consumer.subscribing import Sql, Subscriptions
from triomq.client.portal import in_loop


class PullConsumer(AsyncioLifetime[client.PullConsumer]):
    """A `triomq.PullConsumer` for asyncio."""

    def __init__(
        self,
        namesrv: str | Iterable[str] | None = None,
        *,
        group: str,
        subscriptions: Subscriptions | None = None,
        consume_from: Start = ConsumeFrom.LAST,
        auto_commit: bool = True,
        allocate: Allocation = allocate_average,
        on_assignment: Callable[[AssignmentChange], object] | None = None,
        settings: ConsumerSettings | None = None,
    ) -> None:
        super().__init__(
            client.PullConsumer(
                namesrv,
                group=group,
                subscriptions=subscriptions,
                consume_from=consume_from,
                auto_commit=auto_commit,
                allocate=allocate,
                on_assignment=on_assignment,
                settings=settings,
            )
        )

    def __aiter__(self) -> PullConsumer:
        return self

    async def __anext__(self) -> client.ReceivedMessage:
        """Return the next message; with `auto_commit` the ones before it then count as done.  The iteration ends when the consumer is stopped."""
        try:
            return (await self.poll(max_messages=1))[0]
        except NotRunning:
            if self._portal.ended:
                raise StopAsyncIteration from None
            raise

    async def poll(self, *, max_messages: SupportsIndex = 32) -> list[client.ReceivedMessage]:
        """Wait until something is there and return it; for a limit of time, `asyncio.timeout`.  A cancelled poll loses nothing."""
        returned: list[client.ReceivedMessage] = []

        async def poll() -> None:
            returned.extend(await self._target.poll(max_messages=max_messages))

        try:
            await call_in_loop(self._portal, poll)
        except BaseException:  # cancelled; nobody got what had come
            if returned:
                await asyncio.shield(call_in_loop(self._portal, in_loop, self._target.give_back, returned))
            raise
        return returned

    @property
    def client_id(self) -> str:
        """The name under which the brokers know this member."""
        return self._target.client_id

    @property
    def assignment(self) -> tuple[MessageQueue, ...]:
        """The queues that this consumer owns now, sorted."""
        return self._target.assignment

    async def assign(self, queues: Iterable[MessageQueue], *, tags: str | Sql = "*") -> None:
        """Read exactly these queues."""
        await call_in_loop(self._portal, self._target.assign, queues, tags=tags)

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return all readable queues of a topic."""
        return await call_in_loop(self._portal, self._target.queues, topic)

    async def wait_assigned(self) -> None:
        """Wait until the group has given this member its first share."""
        await call_in_loop(self._portal, self._target.wait_assigned)

    async def subscribe(self, subscriptions: Subscriptions) -> None:
        """Share further topics with the group."""
        await call_in_loop(self._portal, self._target.subscribe, subscriptions)

    async def unsubscribe(self, topic: str) -> None:
        """Share a topic no longer."""
        await call_in_loop(self._portal, self._target.unsubscribe, topic)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Go on at the oldest message."""
        await call_in_loop(self._portal, self._target.seek_to_begin, queue)

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Go on with what is sent from now on."""
        await call_in_loop(self._portal, self._target.seek_to_end, queue)

    async def seek_to_time(self, queue: MessageQueue, instant: datetime.datetime) -> None:
        """Go on at the first message stored at or after an aware `datetime`."""
        await call_in_loop(self._portal, self._target.seek_to_time, queue, instant)

    async def pause(self, *queues: MessageQueue) -> None:
        """Return nothing more of these queues until `resume`."""
        await call_in_loop(self._portal, in_loop, self._target.pause, *queues)

    async def resume(self, *queues: MessageQueue) -> None:
        """Go on where `pause` stopped."""
        await call_in_loop(self._portal, in_loop, self._target.resume, *queues)

    async def seek(self, queue: MessageQueue, offset: SupportsIndex) -> None:
        """Go on at another offset."""
        await call_in_loop(self._portal, self._target.seek, queue, offset)

    async def commit(self, offsets: Mapping[MessageQueue, SupportsIndex] | None = None) -> None:
        """Store offsets now."""
        await call_in_loop(self._portal, self._target.commit, offsets)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's offset as the broker has it."""
        return await call_in_loop(self._portal, self._target.committed, queue)

    async def position(self, queue: MessageQueue) -> int:
        """Return the offset of the message that comes next."""
        return await call_in_loop(self._portal, in_loop, self._target.position, queue)

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message."""
        return await call_in_loop(self._portal, self._target.min_offset, queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message will get."""
        return await call_in_loop(self._portal, self._target.max_offset, queue)

    async def offset_for_time(self, queue: MessageQueue, instant: datetime.datetime) -> int:
        """Return the offset of the first message stored at or after an instant."""
        return await call_in_loop(self._portal, self._target.offset_for_time, queue, instant)
