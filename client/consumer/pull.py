"""`PullConsumer`: the application asks for messages and decides about offsets.

    async with PullConsumer("ns1:9876", group="reports", subscriptions="Orders") as consumer:
        messages = await consumer.poll(max_messages=100)
        ...
        await consumer.commit()

Either `subscriptions` (the group shares the queues, as with a push consumer) or `assign` (exactly these queues, nobody else is asked).
Messages have no verdict; what counts is the position.  With `auto_commit` (the default, as in Java's lite pull consumer) each `poll` first
declares everything that *earlier* polls returned as done, and a saver tells the brokers every `offset_interval`.
"""

from __future__ import annotations

import datetime
import itertools
import operator
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import SupportsIndex

import trio

from triomq.client.arguments import check_callable, check_count, check_offset, check_queue, checked_queues, shown
from triomq.client.config import ConsumerSettings, namesrv_addresses
from triomq.client.consumer.allocation import Allocation, allocate_average
from triomq.client.consumer.answers import Answers
from triomq.client.consumer.assignment import Assignment
from triomq.client.consumer.group_consumer import GroupConsumer
from triomq.client.consumer.inbox import Inbox, InboxClosed
from triomq.client.consumer.membership import Membership, Role, open_membership
from triomq.client.consumer.offsets import ConsumeFrom, GroupOffsets, Start, StartPoint, timestamp_ms
from triomq.client.consumer.rebalance import AssignmentChange
from triomq.client.consumer.received import ReceivedMessage
from triomq.client.consumer.subscribing import Sql, Subscriptions, check_filters, make_subscriptions
from triomq.client.errors import NotRunning, OffsetOutOfRange, QueueNotAssigned, RouteNotFound, SettingsError
from triomq.client.heartbeats import Member
from triomq.client.names import check_topic
from triomq.client.session import open_session
from triomq.remoting.protocol.bodies.heartbeat import CLUSTERING, CONSUME_ACTIVELY, ConsumerData, SubscriptionData
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.codes import ResponseCode

_OWNER = operator.attrgetter("owner")


class QueueWatch:
    """An endless iteration over a topic's queues; made by `PullConsumer.watch_queues`."""

    def __init__(self, member: Callable[[], Membership], topic: str) -> None:
        self._member = member
        self._topic = topic
        self._seen: tuple[MessageQueue, ...] | None = None

    def __aiter__(self) -> QueueWatch:
        return self

    async def __anext__(self) -> tuple[MessageQueue, ...]:
        """Wait until the queues are others than the last time.  Errors: `NotRunning` when the consumer stops."""
        session = self._member().session
        if self._seen is None:
            await session.refresh(self._topic)
        while True:
            known = self._member().session.routes.topic(self._topic)
            queues = known.subscribe if known is not None else ()
            if queues != self._seen:
                self._seen = queues
                await trio.lowlevel.checkpoint()
                return queues
            await session.wait_routes_changed()


class PullConsumer(GroupConsumer):
    """Reads queues at the application's own pace, used with `async with`.

    After a normal end of the block, and with `auto_commit`, everything that was returned counts as done.
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
        """Describe a consumer; nothing is started.  The arguments are those of `PushConsumer`."""
        super().__init__(group, settings)
        for name, function in (("allocate", allocate), ("on_assignment", on_assignment)):
            check_callable(name, function)
        self.auto_commit = auto_commit
        self._namesrv = namesrv_addresses(namesrv)
        self._subscriptions: dict[str, SubscriptionData] = {}
        if subscriptions:
            self._subscriptions.update(make_subscriptions(subscriptions, time.time_ns() // 1_000_000))
        self._subscribed = bool(self._subscriptions)
        self._start = StartPoint.of(consume_from)
        self._allocate = allocate
        self._on_assignment = on_assignment
        self._inbox = Inbox()
        self._touched: set[MessageQueue] = set()
        """queues of which messages were returned since offsets were last declared done"""

    # -- life -------------------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[None]:
        member = Member(consumer_group=self.group, consumer_data=self._describe)
        async with open_session(self._namesrv, self.settings.client, member) as session:
            if not self._subscriptions:
                await session.check_name_server()
            role = Role(
                group=self.group,
                subscriptions=self._subscriptions,
                start=self._start,
                allocate=self._allocate,
                deliver=self._inbox.put,
                sends_back=None,
                on_assignment=self._on_assignment,
            )
            async with open_membership(session, self.settings, role) as membership:
                self._membership = membership
                session.answer_requests(Answers(self.group, self.settings, membership, self._describe).table())
                try:
                    yield
                    if self.auto_commit:
                        self._declare_done()
                finally:
                    self._inbox.close()
                    self._membership = None

    def _describe(self) -> ConsumerData:
        return ConsumerData(
            group=self.group,
            consume_type=CONSUME_ACTIVELY,
            message_model=CLUSTERING,
            consume_from_where=self._start.where.value,
            subscriptions=list(self._subscriptions.values()) if self._subscribed else [],
        )

    # -- which queues -----------------------------------------------------------------------------------------------------------

    async def subscribe(self, subscriptions: Subscriptions) -> None:
        """Share further topics with the group.

        Errors: `SettingsError` after `assign`; `SettingsError`, `SubscriptionInvalid` for a filter that a broker refuses, and then everything
        stays as it was.
        """
        session = self._sharing_member().session
        added = make_subscriptions(subscriptions, time.time_ns() // 1_000_000)
        await check_filters(session, self.group, added.values())
        membership = self._sharing_member()  # it may have ended meanwhile
        self._subscriptions.update(added)
        if not self._subscribed:  # before anything can fail or be cancelled: who calls again then finds it running
            self._subscribed = True
            membership.start_rebalancing()
        await membership.join(added, again=True)

    def _sharing_member(self) -> Membership:
        membership = self._member()
        if membership.fetcher.assignments and not self._subscribed:
            raise SettingsError("subscribe and assign exclude each other: use one consumer for each")
        return membership

    async def wait_assigned(self) -> None:
        """As `PushConsumer.wait_assigned`.  Errors: `SettingsError` if nothing is subscribed: queues of `assign` are there at once."""
        self._member()
        if not self._subscribed:
            raise SettingsError(
                "nothing is subscribed, so there is no share to wait for: call `subscribe` first; queues of `assign` are there at once"
            )
        await super().wait_assigned()

    async def unsubscribe(self, topic: str) -> None:
        """Share a topic no longer.  Errors: `SettingsError` if it is not subscribed."""
        membership = self._member()
        if not self._subscribed or check_topic(topic) not in self._subscriptions:
            raise SettingsError(f"topic {topic} is not subscribed")
        del self._subscriptions[topic]
        await membership.join({}, again=True)

    async def assign(self, queues: Iterable[MessageQueue], *, tags: str | Sql = "*") -> None:
        """Read exactly these queues; replaces an earlier call.

        Errors: `SettingsError` after `subscribe`; `SettingsError`, `SubscriptionInvalid` for a filter that a broker refuses, `RouteNotFound` for a
        topic or a queue that does not exist, and then everything stays as it was; `TrioMQError` from the broker.
        """
        membership = self._member()
        if self._subscribed:
            raise SettingsError("subscribe and assign exclude each other: use one consumer for each")
        wanted = checked_queues(queues)
        filters = make_subscriptions({queue.topic: tags for queue in wanted}, time.time_ns() // 1_000_000)
        for topic in filters:
            known = await membership.session.refresh(topic)
            if known is None:
                raise RouteNotFound(topic)
            missing = sorted(queue for queue in wanted - set(known.subscribe) if queue.topic == topic)
            if missing:
                raise RouteNotFound(
                    topic,
                    f"broker {missing[0].broker_name} has no queue {missing[0].queue_id} that may be read",
                    f"take queues from `await consumer.queues({topic!r})`; there are {len(known.subscribe)} now, on {', '.join(known.brokers)}",
                    offered=True,
                )
        await check_filters(membership.session, self.group, filters.values())
        self._subscriptions.update(filters)
        for queue in set(membership.fetcher.assignments) - wanted:
            membership.fetcher.drop(queue)
        for queue in sorted(wanted - set(membership.fetcher.assignments)):
            position, stored = await membership.offsets.start_position(queue, self._start)
            assignment = membership.fetcher.take(queue, position, stored)
            assignment.committable = -1  # nothing of ours to tell again: others of the group may commit while this one only reads

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return all readable queues of a topic.  Errors: `RouteNotFound`."""
        known = await self._member().session.refresh(check_topic(topic))
        if known is None:
            raise RouteNotFound(topic)
        return known.subscribe

    def watch_queues(self, topic: str) -> QueueWatch:
        """Iterate over the topic's readable queues: as they are now, then after every change of its route.

            async for queues in consumer.watch_queues("Orders"):
                await consumer.assign(queues)

        A topic that does not exist has no queues.  Changes are seen within `route_interval`.
        """
        return QueueWatch(self._member, check_topic(topic))

    # -- messages ---------------------------------------------------------------------------------------------------------------

    async def poll(self, *, max_messages: SupportsIndex = 32) -> list[ReceivedMessage]:
        """Wait until something is there and return it, at most `max_messages`, of whatever queues.

        There is no time limit: use `trio.move_on_after`.  A cancelled poll returns nothing and loses nothing.
        Errors: `NotRunning` when the consumer stops.
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
        return messages

    def give_back(self, messages: Iterable[ReceivedMessage]) -> None:
        """Undo the last `poll`, whose messages nobody got: they are read again.  For the façades, whose callers may go away meanwhile."""
        lowest: dict[MessageQueue, int] = {}
        for message in messages:
            if not message.lost:
                lowest.setdefault(message.queue, message.queue_offset)
        for queue, offset in lowest.items():
            self._member().fetcher.restart(queue, offset, paused=self._assigned(queue).paused)

    def __aiter__(self) -> PullConsumer:
        return self

    async def __anext__(self) -> ReceivedMessage:
        """Return the next message; with `auto_commit` the ones before it then count as done."""
        if self._membership is None and self._context is not None:  # it has stopped
            await trio.lowlevel.checkpoint()
            raise StopAsyncIteration
        try:
            return (await self._poll(1))[0]
        except InboxClosed:
            raise StopAsyncIteration from None

    # -- offsets ----------------------------------------------------------------------------------------------------------------

    def position(self, queue: MessageQueue) -> int:
        """Return the offset of the message that comes next.  Errors: `QueueNotAssigned`."""
        return self._assigned(queue).held.committed

    async def seek(self, queue: MessageQueue, offset: SupportsIndex) -> None:
        """Go on at another offset.  Errors: `QueueNotAssigned`; `OffsetOutOfRange` if the queue does not have it."""
        paused = self._assigned(queue).paused
        offset = check_offset(offset)
        offsets = self._member().offsets
        lowest, end = await offsets.min_offset(queue), await offsets.max_offset(queue)
        if not lowest <= offset <= end:
            raise OffsetOutOfRange(
                ResponseCode.PULL_OFFSET_MOVED,
                f"{queue} has offsets {lowest} to {end}, not {offset}",
                queue.broker_name,
                "seek",
            )
        self._assigned(queue)  # it may have been lost meanwhile
        self._member().fetcher.restart(queue, offset, paused=paused)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Go on at the oldest message."""
        await self.seek(queue, await self.min_offset(queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Go on with what is sent from now on."""
        await self.seek(queue, await self.max_offset(queue))

    async def seek_to_time(self, queue: MessageQueue, instant: datetime.datetime) -> None:
        """Go on at the first message stored at or after an aware `datetime`."""
        await self.seek(queue, await self.offset_for_time(queue, instant))

    def pause(self, *queues: MessageQueue) -> None:
        """Return nothing more of these queues until `resume`; they stay ours."""
        for queue in queues:
            if not self._assigned(queue).paused:
                self._member().fetcher.restart(queue, self.position(queue), paused=True)

    def resume(self, *queues: MessageQueue) -> None:
        """Go on where `pause` stopped."""
        for queue in queues:
            assignment = self._assigned(queue)
            assignment.paused = False
            assignment.look_again()

    async def commit(self, offsets: Mapping[MessageQueue, SupportsIndex] | None = None) -> None:
        """Store offsets now: the given ones, or else the positions behind everything that was returned.

        An offset is that of the next message to read.  Errors: `QueueNotAssigned`, `TrioMQError` from the broker.
        """
        if offsets is None:
            self._declare_done()
            chosen = self._member().owned()
        else:
            chosen = self._noted(offsets)
        for assignment in chosen:
            if assignment.committable >= 0 and assignment.committable != assignment.stored:
                await self._member().offsets.store_one(assignment)
        await trio.lowlevel.checkpoint()

    def commit_nowait(self, offsets: Mapping[MessageQueue, SupportsIndex] | None = None) -> None:
        """As `commit`, but return at once: the offsets are stored in the background, tried again until that works.

        Errors: `QueueNotAssigned`.
        """
        if offsets is None:
            self._declare_done()
        else:
            self._noted(offsets)
        member = self._member()
        member.nursery.start_soon(member.offsets.store, member.owned(), name="store offsets")

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's offset as the broker has it, None if it has none."""
        offset = await self._offsets(queue).stored(queue, exactly=True)
        return offset if offset >= 0 else None

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message."""
        return await self._offsets(queue).min_offset(queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message will get."""
        return await self._offsets(queue).max_offset(queue)

    async def offset_for_time(self, queue: MessageQueue, instant: datetime.datetime) -> int:
        """Return the offset of the first message stored at or after an aware `datetime`."""
        return await self._offsets(queue).offset_for_time(queue, timestamp_ms("instant", instant))

    def _declare_done(self) -> None:
        assignments = self._member().fetcher.assignments
        for queue in self._touched:
            if queue in assignments:
                assignments[queue].committable = assignments[queue].held.committed
        self._touched.clear()

    def _noted(self, offsets: Mapping[MessageQueue, SupportsIndex]) -> list[Assignment]:
        """Note what is to be stored, all of it or nothing."""
        if not isinstance(offsets, Mapping):
            raise SettingsError(f"offsets must be a dict of queue → offset, not {shown(offsets)}")
        chosen = {queue: (self._assigned(queue), check_offset(offset)) for queue, offset in offsets.items()}
        for assignment, offset in chosen.values():
            assignment.committable = offset
        return [assignment for assignment, _ in chosen.values()]

    def _offsets(self, queue: MessageQueue) -> GroupOffsets:
        check_queue(queue)
        return self._member().offsets

    def _assigned(self, queue: MessageQueue) -> Assignment:
        check_queue(queue)
        assignment = self._member().fetcher.assignments.get(queue)
        if assignment is None:
            raise QueueNotAssigned(f"{queue} does not belong to this consumer (any more): look at its `assignment`")
        return assignment
