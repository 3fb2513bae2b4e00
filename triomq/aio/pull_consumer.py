"""A ``triomq.PullConsumer`` for asyncio."""

# Written by `make docs` from the signatures in client/sdk/pull_consumer.py: change them instead.

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping
from typing import SupportsIndex

from triomq import client
from triomq.aio.calls import call_in_loop
from triomq.aio.consuming import PullConsumerBase
from triomq.client.core.config import ConsumerSettings
from triomq.client.core.portal import in_loop
from triomq.client.receiving.allocation import Allocation, allocate_average
from triomq.client.receiving.member_spec import AssignmentChange
from triomq.client.receiving.offsets import ConsumeFrom, Start
from triomq.client.receiving.subscribing import Sql, Subscriptions
from triomq.remoting.protocol.bodies.route import MessageQueue


class PullConsumer(PullConsumerBase):
    """A ``triomq.PullConsumer`` for asyncio.

    Methods have the names and parameters of ``triomq.PullConsumer``; see there.
    """

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

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._target.group

    @property
    def settings(self) -> ConsumerSettings:
        """The settings as given, or the defaults."""
        return self._target.settings

    @property
    def client_id(self) -> str:
        """This member's name on the brokers."""
        return self._target.client_id

    async def subscribe(self, subscriptions: Subscriptions) -> None:
        """Consume further topics, or other tags; all members of the group should do the same."""
        await call_in_loop(self._portal, self._target.subscribe, subscriptions)

    @property
    def assignment(self) -> tuple[MessageQueue, ...]:
        """The queues that this consumer owns, sorted; a push consumer's retry queues included."""
        return self._target.assignment

    async def wait_assigned(self) -> None:
        """Wait until this member has its first share of the queues."""
        await call_in_loop(self._portal, self._target.wait_assigned)

    async def unsubscribe(self, topic: str) -> None:
        """Stop consuming a topic: its queues go to the members that still subscribe to it."""
        await call_in_loop(self._portal, self._target.unsubscribe, topic)

    @property
    def auto_commit(self) -> bool:
        """Whether each ``poll`` declares the messages of earlier polls as done."""
        return self._target.auto_commit

    async def assign(self, queues: Iterable[MessageQueue], *, tags: str | Sql = "*") -> None:
        """Read exactly these queues, instead of those of an earlier call."""
        await call_in_loop(self._portal, self._target.assign, queues, tags=tags)

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return all readable queues of a topic. Raises: ``RouteNotFound``, ``NoNameServer``."""
        return await call_in_loop(self._portal, self._target.queues, topic)

    async def position(self, queue: MessageQueue) -> int:
        """Return the offset of the message that comes next. Raises: ``QueueNotAssigned``."""
        return await call_in_loop(self._portal, in_loop, self._target.position, queue)

    async def seek(self, queue: MessageQueue, offset: SupportsIndex) -> None:
        """Continue at another offset."""
        await call_in_loop(self._portal, self._target.seek, queue, offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Continue at the oldest message. Raises: as ``seek``."""
        await call_in_loop(self._portal, self._target.seek_to_begin, queue)

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue with messages that are sent from now on. Raises: as ``seek``."""
        await call_in_loop(self._portal, self._target.seek_to_end, queue)

    async def seek_to_time(self, queue: MessageQueue, instant: datetime.datetime) -> None:
        """Continue at the first message stored at or after an aware ``datetime``."""
        await call_in_loop(self._portal, self._target.seek_to_time, queue, instant)

    async def pause(self, *queues: MessageQueue) -> None:
        """Return no more messages of these queues until ``resume``; the queues stay owned."""
        await call_in_loop(self._portal, in_loop, self._target.pause, *queues)

    async def resume(self, *queues: MessageQueue) -> None:
        """Continue where ``pause`` stopped. Raises: ``QueueNotAssigned``."""
        await call_in_loop(self._portal, in_loop, self._target.resume, *queues)

    async def commit(self, offsets: Mapping[MessageQueue, SupportsIndex] | None = None) -> None:
        """Store offsets now: the given ones, otherwise those behind all returned messages."""
        await call_in_loop(self._portal, self._target.commit, offsets)

    async def commit_nowait(
        self, offsets: Mapping[MessageQueue, SupportsIndex] | None = None
    ) -> None:
        """Store offsets as ``commit`` does, in the background and until that works."""
        await call_in_loop(self._portal, in_loop, self._target.commit_nowait, offsets)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's offset on the broker, or None if it has none."""
        return await call_in_loop(self._portal, self._target.committed, queue)

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message. Raises: ``TrioMQError`` from the broker."""
        return await call_in_loop(self._portal, self._target.min_offset, queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message will get. Raises: ``TrioMQError`` (broker)."""
        return await call_in_loop(self._portal, self._target.max_offset, queue)

    async def offset_for_time(self, queue: MessageQueue, instant: datetime.datetime) -> int:
        """Return the offset of the first message stored at or after an aware ``datetime``."""
        return await call_in_loop(self._portal, self._target.offset_for_time, queue, instant)
