"""``PullConsumer``: the application requests messages and decides about offsets.

It has either ``subscriptions`` (the group shares the queues, as with a push consumer) or ``assign``
(exactly these queues, whatever other members do). Messages are not settled singly; what counts is
the position. With ``auto_commit`` (the default, as in Java's lite pull consumer) each ``poll``
first declares everything that *earlier* polls returned as done, and the offset saver stores that
every ``offset_interval``.
"""

from __future__ import annotations

import datetime
import itertools
import operator
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import SupportsIndex

import trio

from triomq.client.core.arguments import (
    check_count,
    check_offset,
    check_queue,
    checked_queues,
    shown,
)
from triomq.client.core.config import ConsumerSettings
from triomq.client.core.errors import (
    NotRunning,
    OffsetOutOfRange,
    QueueNotAssigned,
    RouteNotFound,
    SettingsError,
)
from triomq.client.core.names import check_topic
from triomq.client.receiving.allocation import Allocation, allocate_average
from triomq.client.receiving.assignment import Assignment
from triomq.client.receiving.inbox import Inbox, InboxClosed
from triomq.client.receiving.member_spec import AssignmentChange, MemberSpec
from triomq.client.receiving.membership import Membership, open_membership
from triomq.client.receiving.newest_values import NewestValues
from triomq.client.receiving.offsets import ConsumeFrom, OffsetStore, Start, ask_all, timestamp_ms
from triomq.client.receiving.received import ReceivedMessage
from triomq.client.receiving.subscribing import (
    Sql,
    Subscriptions,
    check_filters,
    make_subscriptions,
)
from triomq.client.sdk.broker_requests import BrokerRequests
from triomq.client.sdk.group_consumer import GroupConsumer
from triomq.remoting.protocol.bodies.heartbeat import CONSUME_ACTIVELY
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.codes import ResponseCode

TABLE_POLL_SECONDS = 0.5
"""``latest`` looks this often whether a queue has moved on without a message."""
TABLE_POLL_MESSAGES = 1024

_OWNER = operator.attrgetter("owner")


class QueueWatch:
    """An endless iteration over a topic's queues; made by ``PullConsumer.watch_queues``."""

    def __init__(self, member: Callable[[], Membership], topic: str) -> None:
        self._member = member
        self._topic = topic
        self._seen: tuple[MessageQueue, ...] | None = None

    def __aiter__(self) -> QueueWatch:
        return self

    async def __anext__(self) -> tuple[MessageQueue, ...]:
        """Wait until the queues differ from the last ones, and return them.

        Raises: ``NotRunning`` when the consumer stops.
        """
        session = self._member().session
        if self._seen is None:
            await session.finder.refresh(self._topic)
        while True:
            known = self._member().session.routes.topic(self._topic)
            queues = known.subscribe if known is not None else ()
            if queues != self._seen:
                self._seen = queues
                await trio.lowlevel.checkpoint()
                return queues
            await session.finder.wait_routes_changed()


class PullConsumer(GroupConsumer[Membership]):
    """Reads queues at the application's own pace; used with ``async with``.

        async with PullConsumer("ns1:9876", group="reports", subscriptions="Orders") as consumer:
            messages = await consumer.poll(max_messages=100)
            ...
            await consumer.commit()

    After a normal end of the block, and with ``auto_commit``, everything that was returned counts
    as done.
    """

    auto_commit: bool
    """Whether each ``poll`` declares the messages of earlier polls as done."""

    _consume_type = CONSUME_ACTIVELY

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
        """Describe a consumer; nothing is started. The arguments are those of ``PushConsumer``.

        ``auto_commit``: whether each ``poll`` declares the messages of earlier polls as done.

        Raises: ``SettingsError``, ``TopicInvalid``, ``NoNameServer``.
        """
        super().__init__(
            namesrv, group, subscriptions or (), consume_from, allocate, on_assignment, settings
        )
        self.auto_commit = auto_commit
        self._inbox = Inbox()
        self._group_offsets: OffsetStore | None = None
        self._present: dict[str, frozenset[MessageQueue]] = {}
        """topic of ``assign`` → its queues at the first call; others were added later"""
        self._touched: set[MessageQueue] = set()
        """queues of the messages returned since ``_declare_done``"""

    # Start and stop

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[None]:
        async with self._open_session() as session, self._observing(self.settings.consume_timeout):
            if not self._subscriptions:
                await session.finder.check_name_server()
            spec = MemberSpec(
                group=self.group,
                subscriptions=self._subscriptions,
                start=self._start,
                allocate=self._allocate,
                deliver=self._inbox.put,
                sends_back=None,
                on_assignment=self._on_assignment,
                keeps_begin=self.auto_commit,
            )

            def answer(membership: Membership) -> None:
                session.answer_requests(BrokerRequests(membership, self._describe).table())

            async with open_membership(session, self.settings, spec, answer) as membership:
                self._membership = membership
                self._group_offsets = OffsetStore(
                    self.group, session, self.settings.offset_timeout, waits=True
                )
                try:
                    yield
                    if self.auto_commit and not self._body_failed:
                        self._declare_done()
                finally:
                    self._inbox.close()
                    self._membership = None

    # Queues

    async def assign(self, queues: Iterable[MessageQueue], *, tags: str | Sql = "*") -> None:
        """Read exactly these queues, instead of those of an earlier call.

        ``tags``: a tag expression or ``Sql`` for all of them.

        Raises: ``SettingsError`` after ``subscribe``; ``SettingsError`` or ``SubscriptionInvalid``
        for a filter that a broker refuses, ``RouteNotFound`` for a topic or queue that does not
        exist, and then nothing changes; other ``TrioMQError`` from the broker.
        """
        membership = self._member()
        if self._subscribed:
            raise SettingsError(
                "subscribe and assign exclude each other: use one consumer for each"
            )
        wanted = checked_queues(queues)
        filters = make_subscriptions({queue.topic: tags for queue in wanted})
        for topic in filters:
            known = await membership.session.finder.require(topic)
            self._present.setdefault(topic, frozenset(known.subscribe))
            missing = sorted(
                queue for queue in wanted - set(known.subscribe) if queue.topic == topic
            )
            if missing:
                raise RouteNotFound(
                    topic,
                    f"broker {missing[0].broker_name} has no queue {missing[0].queue_id} that may"
                    " be read",
                    f"take queues from `await consumer.queues({topic!r})`; there are"
                    f" {len(known.subscribe)} now, on {', '.join(known.brokers)}",
                    offered=True,
                )
        await check_filters(membership.session, self.group, filters.values())
        self._subscriptions.update(filters)
        for queue in set(membership.fetcher.assignments) - wanted:
            membership.fetcher.drop(queue)
        for queue in sorted(wanted - set(membership.fetcher.assignments)):
            exactly = queue in self._present[queue.topic]
            position, stored = await self._offsets(queue).start_position(
                queue, self._start, exactly=exactly
            )
            assignment = membership.fetcher.take(queue, position, stored)
            # A stored offset is not stored again: other members may commit while this one only
            # reads.
            assignment.committable = -1
            if stored < 0 and self.auto_commit and self._start.where is ConsumeFrom.LAST:
                # Stored at once: otherwise the group would begin later the next time.
                assignment.committable = position
                membership.nursery.start_soon(
                    membership.offsets.store, [assignment], name="store a first offset"
                )

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return all readable queues of a topic. Raises: ``RouteNotFound``, ``NoNameServer``."""
        return (await self._member().session.finder.require(check_topic(topic))).subscribe

    def watch_queues(self, topic: str) -> AsyncIterator[tuple[MessageQueue, ...]]:
        """Iterate over a topic's readable queues: the current ones, then those after every change.

            async for queues in consumer.watch_queues("Orders"):
                await consumer.assign(queues)

        A topic that does not exist has no queues. Changes are seen within ``route_interval``.
        """
        return QueueWatch(self._member, check_topic(topic))

    # Messages

    async def poll(self, *, max_messages: SupportsIndex = 32) -> list[ReceivedMessage]:
        """Wait for messages and return them, at most ``max_messages``, from any queues.

        There is no time limit: use ``trio.move_on_after``. A cancelled poll loses no message.

        Raises: ``NotRunning`` when the consumer stops.
        Checkpoint: maybe; can always be cancelled.
        """
        count = check_count("max_messages", max_messages)
        try:
            return await self._poll(count)
        except InboxClosed:
            raise NotRunning("this consumer is stopping") from None

    async def _poll(self, max_messages: int) -> list[ReceivedMessage]:
        membership = self._member()
        if self.auto_commit:
            self._declare_done()
        messages = await self._inbox.get_some(max_messages)
        assignments = membership.fetcher.assignments
        for owner, run in itertools.groupby(messages, _OWNER):
            assignments[owner.queue].settle_all(run)
            self._touched.add(owner.queue)
        self._observers.polled(messages)
        return messages

    async def latest(
        self, topic: str, *, keys_max: SupportsIndex = 1_000_000
    ) -> dict[str, ReceivedMessage]:
        """Read a topic as a table: return key → its newest message.

            prices = await consumer.latest("Prices")
            async for message in consumer:  # what changes from then on
                prices[message.keys[0]] = message

        A key is the property KEYS; messages without one are left out, and so are keys whose newest
        message has an empty body. The consumer reads exactly this topic afterwards, as after
        ``assign``, behind the messages of the table. Send all messages of a key to one queue (by
        its hash); otherwise the brokers' clocks decide which one is newest. ``keys_max``: limit of
        the keys.

        There is no time limit: use ``trio.move_on_after``.

        Raises: ``TooManyKeys``; as ``assign``; ``NotRunning`` when the consumer stops.
        """
        values = NewestValues(check_count("keys_max", keys_max))
        queues = await self.queues(topic)
        await self.assign(queues)
        ends: dict[MessageQueue, int] = {}
        for queue in queues:
            ends[queue] = await self.max_offset(queue)
            # Not `seek`, which refuses an offset that expires meanwhile: the pull corrects it.
            lowest = await self.min_offset(queue)
            self._assigned(queue)
            self._member().fetcher.restart(queue, lowest, paused=False)
        while any(self.position(queue) < end for queue, end in ends.items()):
            # A pull may move on without a message, where messages are gone or filtered out.
            with trio.move_on_after(TABLE_POLL_SECONDS):
                values.add(await self.poll(max_messages=TABLE_POLL_MESSAGES))
        await trio.lowlevel.checkpoint()
        return values.table()

    def give_back(self, messages: Iterable[ReceivedMessage]) -> None:
        """Undo the last ``poll``: its messages come again. For façades with a cancelled caller."""
        lowest: dict[MessageQueue, int] = {}
        for message in messages:
            if not message.lost:
                lowest.setdefault(message.queue, message.queue_offset)
        for queue, offset in lowest.items():
            self._member().fetcher.restart(queue, offset, paused=self._assigned(queue).paused)

    async def _next(self) -> ReceivedMessage:
        return (await self._poll(1))[0]

    # Offsets

    def position(self, queue: MessageQueue) -> int:
        """Return the offset of the message that comes next. Raises: ``QueueNotAssigned``."""
        return self._assigned(queue).held.committed

    async def seek(self, queue: MessageQueue, offset: SupportsIndex) -> None:
        """Continue at another offset.

        Raises: ``QueueNotAssigned``; ``OffsetOutOfRange`` if the queue does not have the offset.
        """
        paused = self._assigned(queue).paused
        offset = check_offset(offset)
        offsets = self._offsets(queue)
        lowest, end = await offsets.min_offset(queue), await offsets.max_offset(queue)
        if not lowest <= offset <= end:
            raise OffsetOutOfRange(
                ResponseCode.PULL_OFFSET_MOVED,
                f"{queue} has offsets {lowest} to {end}, not {offset}",
                queue.broker_name,
                "seek",
            )
        self._assigned(queue)  # the queue may have been lost during the requests
        self._member().fetcher.restart(queue, offset, paused=paused)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Continue at the oldest message. Raises: as ``seek``."""
        await self.seek(queue, await self.min_offset(queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue with messages that are sent from now on. Raises: as ``seek``."""
        await self.seek(queue, await self.max_offset(queue))

    async def seek_to_time(self, queue: MessageQueue, instant: datetime.datetime) -> None:
        """Continue at the first message stored at or after an aware ``datetime``.

        Raises: as ``seek``.
        """
        await self.seek(queue, await self.offset_for_time(queue, instant))

    def pause(self, *queues: MessageQueue) -> None:
        """Return no more messages of these queues until ``resume``; the queues stay owned.

        Raises: ``QueueNotAssigned``.
        """
        for queue in queues:
            if not self._assigned(queue).paused:
                self._member().fetcher.restart(queue, self.position(queue), paused=True)

    def resume(self, *queues: MessageQueue) -> None:
        """Continue where ``pause`` stopped. Raises: ``QueueNotAssigned``."""
        for queue in queues:
            self._assigned(queue).resume()

    async def commit(self, offsets: Mapping[MessageQueue, SupportsIndex] | None = None) -> None:
        """Store offsets now: the given ones, otherwise those behind all returned messages.

        An offset is that of the next message to read.

        Raises: ``QueueNotAssigned``; ``TrioMQError`` from a broker, or for one that is away, when
        the offsets of all other queues are stored.
        """
        if offsets is None:
            self._declare_done()
            chosen = self._member().fetcher.owned()
        else:
            chosen = self._noted(offsets)
        new = {
            each.queue: each
            for each in chosen
            if each.committable >= 0 and each.committable != each.stored
        }
        await ask_all(lambda queue: self._offsets(queue).store_one(new[queue]), new)

    def commit_nowait(self, offsets: Mapping[MessageQueue, SupportsIndex] | None = None) -> None:
        """Store offsets as ``commit`` does, in the background and until that works.

        Raises: ``QueueNotAssigned``.
        """
        if offsets is None:
            self._declare_done()
        else:
            self._noted(offsets)
        member = self._member()
        member.nursery.start_soon(
            member.offsets.store, member.fetcher.owned(), name="store offsets"
        )

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's offset on the broker, or None if it has none.

        Raises: ``TrioMQError`` from the broker.
        """
        offset = await self._offsets(queue).stored(queue, exactly=True)
        return offset if offset >= 0 else None

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message. Raises: ``TrioMQError`` from the broker."""
        return await self._offsets(queue).min_offset(queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message will get. Raises: ``TrioMQError`` (broker)."""
        return await self._offsets(queue).max_offset(queue)

    async def offset_for_time(self, queue: MessageQueue, instant: datetime.datetime) -> int:
        """Return the offset of the first message stored at or after an aware ``datetime``.

        Raises: ``TrioMQError`` from the broker.
        """
        return await self._offsets(queue).offset_for_time(queue, timestamp_ms("instant", instant))

    def _declare_done(self) -> None:
        assignments = self._member().fetcher.assignments
        for queue in self._touched:
            if queue in assignments:
                assignments[queue].committable = assignments[queue].held.committed
        self._touched.clear()

    def _noted(self, offsets: Mapping[MessageQueue, SupportsIndex]) -> list[Assignment]:
        """Note the offsets to store, all of them or none."""
        if not isinstance(offsets, Mapping):
            raise SettingsError(f"offsets must be a dict of queue → offset, not {shown(offsets)}")
        chosen = {
            queue: (self._assigned(queue), check_offset(offset))
            for queue, offset in offsets.items()
        }
        for assignment, offset in chosen.values():
            assignment.committable = offset
        return [assignment for assignment, _ in chosen.values()]

    def _offsets(self, queue: MessageQueue) -> OffsetStore:
        """Return the ``OffsetStore`` that repeats requests for up to ``offset_timeout``.

        Raises: ``SettingsError``, ``NotRunning``.
        """
        check_queue(queue)
        self._member()
        assert self._group_offsets is not None
        return self._group_offsets

    def _assigned(self, queue: MessageQueue) -> Assignment:
        check_queue(queue)
        assignment = self._member().fetcher.assignments.get(queue)
        if assignment is None:
            raise QueueNotAssigned(
                f"{queue} does not belong to this consumer (any more): look at its `assignment`"
            )
        return assignment
