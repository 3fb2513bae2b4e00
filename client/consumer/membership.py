"""Being a member of a consumer group: owning a share of the queues, pulling them, storing offsets.  Push and pull consumers build on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import attrs
import trio

from triomq.client.background import open_background
from triomq.client.config import ConsumerSettings
from triomq.client.consumer.allocation import Allocation
from triomq.client.consumer.assignment import Assignment, SendsBack
from triomq.client.consumer.fetcher import Fetcher
from triomq.client.consumer.offsets import GroupOffsets, StartPoint
from triomq.client.consumer.rebalance import Rebalancer
from triomq.client.consumer.received import ReceivedMessage
from triomq.client.session import Session
from triomq.remoting.protocol.bodies.heartbeat import SubscriptionData


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
        """
        self.session.watch(topics)
        for topic in topics:
            await self.session.refresh(topic)
        await (self.session.beat_all() if again else self.session.greet_all())
        self.rebalancer.wake()

    def start_rebalancing(self) -> None:
        """Divide the queues from now on."""
        self.nursery.start_soon(self._rebalance, name="rebalance")

    async def _rebalance(self) -> None:
        with self._rebalancing:
            await self.rebalancer.run()

    async def save_offsets(self) -> None:
        """Store offsets every `offset_interval`."""
        while True:
            await trio.sleep(self.settings.offset_interval)
            await self.offsets.store(self.owned())

    def stop_fetching(self) -> None:
        """Pull no more and keep the present share; verdicts still count."""
        self._rebalancing.cancel()
        self.fetcher.stop()


@asynccontextmanager
async def open_membership(
    session: Session,
    settings: ConsumerSettings,
    *,
    group: str,
    subscriptions: Mapping[str, SubscriptionData],
    start: StartPoint,
    allocate: Allocation,
    deliver: Callable[[list[ReceivedMessage]], None],
    sends_back: SendsBack | None,
) -> AsyncIterator[Membership]:
    """Join a group for the time of the block.  `subscriptions` may grow afterwards.  At the end offsets are stored, also when cancelled."""
    offsets = GroupOffsets(group, session, settings.offset_timeout)
    membership: Membership | None = None
    try:
        async with open_background() as nursery:
            fetcher = Fetcher(
                group=group,
                session=session,
                settings=settings,
                subscriptions=subscriptions,
                deliver=deliver,
                sends_back=sends_back,
                nursery=nursery,
                with_expression=sends_back is None,
            )
            rebalancer = Rebalancer(session, settings, fetcher, offsets, subscriptions, start, allocate)
            membership = Membership(session, settings, fetcher, rebalancer, offsets, nursery)
            session.on_routes_changed = rebalancer.wake
            session.on_group_changed = rebalancer.wake
            session.on_broker_joined = rebalancer.wake
            await membership.join(subscriptions)
            if subscriptions:
                membership.start_rebalancing()
            nursery.start_soon(membership.save_offsets, name="offset saver")
            yield membership
    finally:
        if membership is not None:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + settings.client.farewell_timeout):
                await offsets.store(membership.owned())
            membership.fetcher.drop_all()
