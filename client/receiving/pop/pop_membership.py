"""Membership of a group that pops: heartbeats and routes, but no share of the queues."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import attrs
import trio

from triomq.client.core.background import open_background
from triomq.client.core.config import ConsumerSettings
from triomq.client.core.session import Session
from triomq.client.receiving.member_spec import GroupMember, MemberSpec
from triomq.client.receiving.offsets import OffsetStore
from triomq.client.receiving.pop.pop_calls import PopCalls
from triomq.client.receiving.pop.pop_fetcher import PopFetcher
from triomq.client.receiving.pop.pop_requests import PopRequests
from triomq.client.receiving.pop.pop_sources import PopSources
from triomq.client.receiving.pop.receiver import Receiver
from triomq.remoting.protocol.bodies.route import MessageQueue


@attrs.define(eq=False)
class PopMembership(GroupMember):
    """A running member of a group that pops."""

    fetcher: PopSources

    pops = True

    @property
    def state(self) -> str:
        """What the member is doing, for its repr."""
        return f"holds {self.fetcher.held()} messages"

    def routes_changed(self) -> None:
        self.fetcher.sources_changed()

    def start_rebalancing(self) -> None:
        """Do nothing: the members share every queue."""

    async def wait_balanced(self) -> None:
        """Do nothing: a member that has joined takes messages of all queues."""
        await trio.lowlevel.checkpoint()

    def unsettled(self) -> int:
        """Return how many messages were popped and are not settled."""
        return self.fetcher.held()

    async def reset(self, offsets: Mapping[MessageQueue, int]) -> list[MessageQueue]:
        """Move no queue: brokers move the position of a group that pops themselves."""
        await trio.lowlevel.checkpoint()
        return []

    def stop_fetching(self) -> None:
        """Pop no more; settling still counts."""
        self.fetcher.stop()


@asynccontextmanager
async def open_pop_calls(
    session: Session, settings: ConsumerSettings, spec: MemberSpec, *, ordered: bool
) -> AsyncIterator[PopCalls]:
    """Make pops possible for the time of the block; at its end late answers are given back."""
    requests = PopRequests(
        spec.group, session, settings, spec.subscriptions, spec.start.where, ordered
    )
    calls = PopCalls(requests)
    async with open_background() as nursery:
        await nursery.start(calls.run)
        try:
            yield calls
        finally:
            await calls.end(wait=settings.client.farewell_timeout)


@asynccontextmanager
async def open_pop_membership(
    session: Session,
    settings: ConsumerSettings,
    spec: MemberSpec,
    answer: Callable[[PopMembership], None],
    make_fetcher: type[PopFetcher | Receiver],
    *,
    ordered: bool,
) -> AsyncIterator[PopMembership]:
    """Join a group and pop its topics for the time of the block.

    ``answer``: called with the member before a broker knows it and can have requests for it.

    At its end, even if cancelled, what a push consumer has not settled is given back.

    Raises: ``NoNameServer``, ``SubscriptionInvalid``, ``SettingsError``.
    """
    async with (
        open_pop_calls(session, settings, spec, ordered=ordered) as calls,
        open_background() as nursery,
    ):
        fetcher = make_fetcher(session, settings, spec, calls, nursery, ordered)
        offsets = OffsetStore(spec.group, session, settings.offset_timeout)
        membership = PopMembership(session, settings, spec, offsets, fetcher)
        try:
            await membership.enter(answer, fetcher.counts, nursery)
            if isinstance(fetcher, PopFetcher):
                nursery.start_soon(fetcher.renew, name="renewals")
            yield membership
        finally:
            membership.stop_fetching()
            session.end_observation()
            if isinstance(fetcher, PopFetcher):
                await fetcher.end(wait=settings.client.farewell_timeout)
