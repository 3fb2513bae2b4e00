"""Being a member of a consumer group: owning a share of the queues, pulling them, storing offsets.  Push and pull consumers build on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

import attrs
import trio

from triomq.client.background import open_background
from triomq.client.config import ConsumerSettings
from triomq.client.consumer.allocation import Allocation
from triomq.client.consumer.assignment import Assignment, SendsBack
from triomq.client.consumer.counts import ConsumerCounts
from triomq.client.consumer.fetcher import Fetcher
from triomq.client.consumer.local_offsets import open_local_offsets
from triomq.client.consumer.offsets import GroupOffsets, StartPoint
from triomq.client.consumer.ordered_inbox import OrderedInbox
from triomq.client.consumer.rebalance import AssignmentChange, Rebalancer
from triomq.client.consumer.received import ReceivedMessage
from triomq.client.consumer.subscribing import check_filters
from triomq.client.session import Session
from triomq.remoting.protocol.bodies.heartbeat import SubscriptionData
from triomq.remoting.protocol.bodies.route import MessageQueue


@attrs.frozen(kw_only=True)
class Role:
    """What kind of member a consumer is."""

    group: str
    subscriptions: Mapping[str, SubscriptionData]
    """may grow and shrink later"""
    start: StartPoint
    allocate: Allocation
    deliver: Callable[[list[ReceivedMessage]], None]
    """takes each pulled batch; must not wait"""
    sends_back: SendsBack | None
    """None: messages have no verdict"""
    turns: OrderedInbox | None = None
    """for ordered consumers"""
    broadcast: bool = False
    """own all queues, and keep offsets in a file of this machine"""
    on_assignment: Callable[[AssignmentChange], object] | None = None


@attrs.define(eq=False)
class Membership:
    """A running member of a group."""

    session: Session
    settings: ConsumerSettings
    fetcher: Fetcher
    rebalancer: Rebalancer
    offsets: GroupOffsets
    nursery: trio.Nursery
    _rebalancing: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)

    def owned(self) -> list[Assignment]:
        return list(self.fetcher.assignments.values())

    async def join(self, topics: Mapping[str, SubscriptionData], *, again: bool = False) -> None:
        """Find the topics' brokers and introduce ourselves (`again`: with new subscriptions); the rebalancer then takes our share.

        Errors: `NoNameServer` if none answers.  A topic that does not exist (yet) is not an error: it is looked for again and again.
        Who subscribes has had the filters checked before (`check_filters`).
        """
        self.session.watch(topics)
        for topic in topics:
            await self.session.refresh(topic)
        await (self.session.beat_all() if again else self.session.greet_all())
        self.rebalancer.wake()

    def broker_joined(self) -> None:
        """Take up work with a broker that is new, or came back, perhaps with older offsets than it was told: tell them once more."""
        for assignment in self.fetcher.assignments.values():
            assignment.stored = -1
        self.nursery.start_soon(self.offsets.store, self.owned(), name="store offsets again")
        if self.rebalancer.locks is not None:
            self.rebalancer.locks.renew_soon()
        self.rebalancer.wake()

    def start_rebalancing(self) -> None:
        """Divide the queues from now on, and renew locks if there are any."""
        self.nursery.start_soon(self._rebalance, name="rebalance")
        if self.rebalancer.locks is not None:
            self.nursery.start_soon(self.rebalancer.locks.run, name="queue locks")

    async def _rebalance(self) -> None:
        with self._rebalancing:
            await self.rebalancer.run()

    async def save_offsets(self) -> None:
        """Store offsets every `offset_interval`."""
        while True:
            await trio.sleep(self.settings.offset_interval)
            await self.offsets.store(self.owned())

    async def reset(self, offsets: Mapping[MessageQueue, int]) -> list[MessageQueue]:
        """Go on at other offsets, and store them, where a queue is ours; returns these queues.  What was pulled before is lost.

        Of a member that is leaving, the offsets are only stored.
        """
        moved = [queue for queue in offsets if queue in self.fetcher.assignments]
        for queue in moved:
            before = self.fetcher.assignments[queue]
            if before.ending:
                continue
            assignment = self.fetcher.restart(queue, offsets[queue], paused=before.paused)
            if assignment.sends_back is None:
                assignment.committable = offsets[queue]
        await self.offsets.store(assignment for assignment in self.owned() if assignment.queue in offsets)
        return moved

    def stop_fetching(self) -> None:
        """Pull no more, whatever comes, and keep the present share; verdicts still count."""
        self.rebalancer.end()
        self._rebalancing.cancel()
        self.fetcher.stop()


@asynccontextmanager
async def open_membership(session: Session, settings: ConsumerSettings, role: Role) -> AsyncIterator[Membership]:
    """Join a group for the time of the block.  At its end offsets are stored and locks given up, also when cancelled."""
    async with _open_offsets(session, settings, role) as offsets:
        membership: Membership | None = None
        try:
            async with open_background() as nursery:
                fetcher = Fetcher(
                    group=role.group,
                    session=session,
                    settings=settings,
                    subscriptions=role.subscriptions,
                    deliver=role.deliver,
                    sends_back=role.sends_back,
                    nursery=nursery,
                    with_expression=role.sends_back is None,
                    carries_offsets=role.sends_back is not None and not role.broadcast,
                    turns=role.turns,
                    counts=ConsumerCounts(),
                )
                rebalancer = Rebalancer(
                    session,
                    settings,
                    fetcher,
                    offsets,
                    role.subscriptions,
                    role.start,
                    None if role.broadcast else role.allocate,
                    role.turns,
                )
                if role.on_assignment is not None:
                    rebalancer.on_change = role.on_assignment
                membership = Membership(session, settings, fetcher, rebalancer, offsets, nursery)
                try:
                    session.on_routes_changed = rebalancer.wake
                    session.on_group_changed = rebalancer.wake
                    session.on_broker_joined = membership.broker_joined
                    await check_filters(session, role.group, role.subscriptions.values())
                    await membership.join(role.subscriptions)
                    if role.subscriptions:
                        membership.start_rebalancing()
                    nursery.start_soon(membership.save_offsets, name="offset saver")
                    nursery.start_soon(fetcher.counts.run, name="consumption samples")
                    yield membership
                finally:  # the session, and what brokers ask of it, lives longer than this nursery
                    membership.stop_fetching()
                    session.forget_callbacks()
        finally:
            if membership is not None:
                await _leave(membership)


async def _leave(membership: Membership) -> None:
    """Store offsets, then give up locks and queues, each within `farewell_timeout`, whatever becomes of the step before."""
    timeout = membership.settings.client.farewell_timeout
    try:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + timeout):
            await membership.offsets.store(membership.owned())
    finally:
        try:
            if membership.rebalancer.locks is not None:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + timeout):
                    await membership.rebalancer.locks.release_all()
        finally:
            membership.fetcher.drop_all()


def _open_offsets(
    session: Session, settings: ConsumerSettings, role: Role
) -> AbstractAsyncContextManager[GroupOffsets]:
    if role.broadcast:
        return open_local_offsets(role.group, session, settings)
    return nullcontext(GroupOffsets(role.group, session, settings.offset_timeout))
