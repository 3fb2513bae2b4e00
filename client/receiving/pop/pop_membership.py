"""Membership of a group that pops: heartbeats and routes, but no share of the queues."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial

import attrs
import trio

from triomq.client.core.background import open_background
from triomq.client.core.config import ConsumerSettings
from triomq.client.core.session import Session, SessionObserver
from triomq.client.receiving.agreement import Agreement
from triomq.client.receiving.member_spec import MemberSpec
from triomq.client.receiving.offsets import ConsumeFrom, OffsetStore
from triomq.client.receiving.pop.pop_calls import PopCalls
from triomq.client.receiving.pop.pop_fetcher import PopFetcher
from triomq.client.receiving.pop.pop_requests import PopRequests
from triomq.client.receiving.pop.pop_sources import PopSources
from triomq.client.receiving.subscribing import check_filters
from triomq.remoting.protocol.bodies.heartbeat import SubscriptionData
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.names import RETRY_PREFIX


@attrs.define(eq=False)
class PopMembership(SessionObserver):
    """A running member of a group that pops."""

    session: Session
    settings: ConsumerSettings
    spec: MemberSpec
    fetcher: PopSources
    agreement: Agreement = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.agreement = Agreement(
            self.session, self.spec.group, self.spec.subscriptions, pops=True
        )

    @property
    def state(self) -> str:
        """What the member is doing, for its repr."""
        return f"holds {self.fetcher.held()} messages"

    async def join(self, topics: Mapping[str, SubscriptionData], *, again: bool = False) -> None:
        """Find the topics' brokers, send them a heartbeat, and pop.

        ``again``: whether the subscriptions of a running member changed.

        Raises: ``NoNameServer``.
        """
        self.session.finder.watch(topics)
        for topic in topics:
            await self.session.finder.refresh(topic)
        await (
            self.session.heartbeats.send_all() if again else self.session.heartbeats.ensure_all()
        )
        if not again:
            await self.begin(topics)
        self.fetcher.sources_changed()

    async def begin(self, topics: Iterable[str]) -> None:
        """Let the group begin in topics that are new to it, as a group that pulls does.

        Otherwise brokers would begin with the last message of each queue.

        Raises: ``NoNameServer``.
        """
        if self.spec.start.where is not ConsumeFrom.LAST:
            return
        offsets = OffsetStore(self.spec.group, self.session, self.settings.offset_timeout)
        found = [
            await self.session.finder.subscribe_queues(topic)
            for topic in topics
            if not topic.startswith(RETRY_PREFIX)
        ]
        async with trio.open_nursery() as nursery:
            for known in found:
                if known is not None:
                    nursery.start_soon(partial(offsets.begin, known.subscribe, keep=True))

    def routes_changed(self) -> None:
        self.fetcher.sources_changed()

    def group_changed(self) -> None:
        self.agreement.changed()

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
) -> AsyncIterator[PopMembership]:
    """Join a group and pop its topics for the time of the block.

    ``answer``: called with the member before a broker knows it and can have requests for it.

    At its end, even if cancelled, what was not settled is given back.

    Raises: ``NoNameServer``, ``SubscriptionInvalid``, ``SettingsError``.
    """
    async with (
        open_pop_calls(session, settings, spec, ordered=spec.turns is not None) as calls,
        open_background() as nursery,
    ):
        fetcher = PopFetcher(session, settings, spec, calls, nursery, spec.turns is not None)
        membership = PopMembership(session, settings, spec, fetcher)
        try:
            session.observe(membership)
            answer(membership)
            await check_filters(session, spec.group, spec.subscriptions.values())
            await membership.join(spec.subscriptions)
            nursery.start_soon(fetcher.renew, name="renewals")
            nursery.start_soon(fetcher.counts.run, name="consumption samples")
            nursery.start_soon(membership.agreement.run, name="agreement")
            yield membership
        finally:
            membership.stop_fetching()
            session.end_observation()
            await fetcher.end(wait=settings.client.farewell_timeout)
