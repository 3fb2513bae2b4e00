"""Membership of a consumer group: owning a share of the queues, pulling them, storing offsets."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

import attrs
import trio

from triomq.client.core.background import open_background
from triomq.client.core.config import ConsumerSettings
from triomq.client.core.errors import TrioMQError
from triomq.client.core.session import Session
from triomq.client.receiving.assignment import Assignment
from triomq.client.receiving.fetcher import Fetcher
from triomq.client.receiving.local_offsets import open_local_offsets
from triomq.client.receiving.member_spec import GroupMember, MemberSpec
from triomq.client.receiving.offsets import OffsetStore
from triomq.client.receiving.rebalance import Rebalancer
from triomq.remoting.core.periodic import every
from triomq.remoting.protocol.bodies.route import MessageQueue

logger = logging.getLogger(__name__)


@attrs.define(eq=False)
class Membership(GroupMember):
    """A running member of a group that pulls."""

    fetcher: Fetcher
    rebalancer: Rebalancer
    nursery: trio.Nursery
    _rebalancing: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _storing: set[str] = attrs.field(factory=set, init=False)
    """brokers that have not answered yet how far the group has come"""

    pops = False

    @property
    def state(self) -> str:
        """What the member is doing, for its repr."""
        return f"owns {len(self.fetcher.assignments)} queues"

    async def wait_balanced(self) -> None:
        """Wait until this member has its first share. Raises: ``NotRunning``."""
        await self.rebalancer.wait_balanced()

    @property
    def has_share(self) -> bool:
        """Whether this member has had its first share, or needs none (``assign``)."""
        return self.rebalancer.balanced or not self.spec.subscriptions

    def unsettled(self) -> int:
        """Return how many messages were pulled and are not settled."""
        return sum(len(assignment.held) for assignment in self.fetcher.owned())

    def routes_changed(self) -> None:
        self.rebalancer.wake()

    def group_changed(self) -> None:
        self.rebalancer.wake()
        GroupMember.group_changed(self)

    def broker_joined(self) -> None:
        """Resume work with a broker that is new or came back.

        It may have come back with older offsets than it was sent, so all are stored again.
        """
        for assignment in self.fetcher.assignments.values():
            assignment.stored = -1
        self.store_offsets()
        if self.rebalancer.locks is not None:
            self.rebalancer.locks.renew_soon()
        self.rebalancer.wake()

    def start_rebalancing(self) -> None:
        """Divide the queues from now on, and renew locks if there are any."""
        self.nursery.start_soon(self._rebalance, name="rebalance")
        if self.rebalancer.locks is not None:
            self.nursery.start_soon(self.rebalancer.locks.renew_when_due, name="queue locks")

    async def _rebalance(self) -> None:
        with self._rebalancing:
            await self.rebalancer.rebalance_when_due()

    def store_offsets(self) -> None:
        """Start to store offsets, at each broker apart: one that hangs holds up its own only."""
        for name in dict.fromkeys(self._place(each) for each in self.fetcher.owned()):
            if name not in self._storing:
                self._storing.add(name)
                self.nursery.start_soon(self._store_at, name, name=f"store offsets {name}")

    def _place(self, assignment: Assignment) -> str:
        return "" if self.spec.broadcast else assignment.queue.broker_name  # "": the one file

    async def _store_at(self, name: str) -> None:
        """Store a broker's offsets, but read them first if it may have forgotten this member."""
        try:
            address = self.session.routes.master(name)
            if address in self.session.heartbeats.forgotten:
                await self._catch_up(address)
            await self.offsets.store(
                each for each in self.fetcher.owned() if self._place(each) == name
            )
        finally:
            self._storing.discard(name)

    async def _catch_up(self, address: str) -> None:
        """Go on where the group is by now: others may have had the queues of a broker.

        A broker that came back with an older table has smaller offsets, and gets ours.
        """
        complete = True
        for before in self.fetcher.owned():
            queue = before.queue
            if self.session.routes.master(queue.broker_name) != address or self.spec.broadcast:
                continue
            try:
                offset = await self.offsets.stored(queue, exactly=True)
            except TrioMQError as error:
                logger.warning("the offset of %s is not known yet: %s", queue, error)
                complete = False
                continue
            if self.fetcher.assignments.get(queue) is before and offset > before.held.committed:
                logger.warning(
                    "others have handled %s up to %d while this member stood still at %d: it goes"
                    " on there",
                    queue,
                    offset,
                    before.held.committed,
                )
                moved = self.fetcher.restart(queue, offset, paused=before.paused)
                moved.stored = offset
                if moved.sends_back is None:
                    moved.committable = -1
        if complete:
            self.session.heartbeats.forgotten.discard(address)

    async def reset(self, offsets: Mapping[MessageQueue, int]) -> list[MessageQueue]:
        """Continue at other offsets and store them; return those of the queues that are owned.

        Messages pulled before are dropped. A member that is leaving only stores the offsets.
        """
        moved = [queue for queue in offsets if queue in self.fetcher.assignments]
        for queue in moved:
            before = self.fetcher.assignments[queue]
            if before.ending:
                continue
            assignment = self.fetcher.restart(queue, offsets[queue], paused=before.paused)
            # The master ignores commits until it has told of the move, and a slave cannot.
            assignment.broker_id = 0
            if assignment.sends_back is None:
                assignment.committable = offsets[queue]
        await self.offsets.store(
            assignment for assignment in self.fetcher.owned() if assignment.queue in offsets
        )
        return moved

    def stop_fetching(self) -> None:
        """Pull no more, whatever happens, and keep the current share; settling still counts."""
        self.rebalancer.end()
        self._rebalancing.cancel()
        self.fetcher.stop()


@asynccontextmanager
async def open_membership(
    session: Session,
    settings: ConsumerSettings,
    spec: MemberSpec,
    answer: Callable[[Membership], None],
) -> AsyncIterator[Membership]:
    """Join a group for the time of the block.

    ``answer``: called with the member before a broker knows it and can have requests for it.

    At its end, even if cancelled, offsets are stored and locks released.

    Raises: ``NoNameServer``, ``SubscriptionInvalid``, ``SettingsError``.
    """
    store: AbstractAsyncContextManager[OffsetStore] = (
        open_local_offsets(spec.group, session, settings)
        if spec.broadcast
        else nullcontext(OffsetStore(spec.group, session, settings.offset_timeout))
    )
    async with store as offsets:
        membership: Membership | None = None
        try:
            async with open_background() as nursery:
                fetcher = Fetcher(session, settings, spec, nursery)
                rebalancer = Rebalancer(session, settings, spec, fetcher, offsets)
                membership = Membership(
                    session, settings, spec, offsets, fetcher, rebalancer, nursery
                )
                try:
                    await membership.enter(answer, fetcher.counts, nursery)
                    if spec.subscriptions:
                        membership.start_rebalancing()
                    save = membership.store_offsets
                    nursery.start_soon(every, settings.offset_interval, save, name="offset saver")
                    yield membership
                finally:  # the session, which answers brokers' requests, outlives this nursery
                    membership.stop_fetching()
                    session.end_observation()
        finally:
            if membership is not None:
                await _leave(membership)


async def _leave(membership: Membership) -> None:
    """Store offsets, then release locks and queues, each step within ``farewell_timeout``.

    A failed step does not stop the next one.
    """
    timeout = membership.settings.client.farewell_timeout
    try:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + timeout):
            await membership.offsets.store(membership.fetcher.owned())
    finally:
        try:
            if membership.rebalancer.locks is not None:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + timeout):
                    await membership.rebalancer.locks.release_all()
        finally:
            membership.fetcher.drop_all()
