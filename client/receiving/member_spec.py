"""``MemberSpec``: what kind of member of its group a consumer is; ``GroupMember``: how it joins."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import ClassVar, Self

import attrs
import trio

from triomq.client.core.config import ConsumerSettings
from triomq.client.core.session import Session, SessionObserver
from triomq.client.receiving.agreement import Agreement
from triomq.client.receiving.allocation import Allocation
from triomq.client.receiving.assignment import SendsBack
from triomq.client.receiving.observed import MakeMessage
from triomq.client.receiving.offsets import ConsumeFrom, OffsetStore, StartPoint
from triomq.client.receiving.ordered_inbox import OrderedInbox
from triomq.client.receiving.rates import ConsumerCounts
from triomq.client.receiving.received import ReceivedMessage
from triomq.client.receiving.subscribing import check_filters
from triomq.remoting.protocol.bodies.heartbeat import SubscriptionData
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.names import RETRY_PREFIX
from triomq.remoting.protocol.short_repr import short_count


@attrs.frozen(kw_only=True)
class AssignmentChange:
    """The changes of one round, as ``on_assignment`` gets them."""

    topic: str
    gained: tuple[MessageQueue, ...] = attrs.field(repr=short_count)
    lost: tuple[MessageQueue, ...] = attrs.field(repr=short_count)
    owned: tuple[MessageQueue, ...] = attrs.field(repr=short_count)
    """the queues of the topic that this member owns now"""
    queues: tuple[MessageQueue, ...] = attrs.field(repr=short_count)
    """all queues of the topic"""


@attrs.frozen(kw_only=True)
class MemberSpec:
    """What kind of member a consumer is."""

    group: str
    subscriptions: Mapping[str, SubscriptionData]
    """changes with ``subscribe`` and ``unsubscribe``"""
    start: StartPoint
    allocate: Allocation
    deliver: Callable[[list[ReceivedMessage]], None]
    """called with each pulled batch; must not block"""
    sends_back: SendsBack | None
    """None: messages are not settled"""
    turns: OrderedInbox | None = None
    """ordered consumers only"""
    broadcast: bool = False
    """whether the member owns all queues and keeps offsets in a file of its machine"""
    on_assignment: Callable[[AssignmentChange], object] | None = None
    """called after a round that gained or lost a queue"""
    make_message: MakeMessage = ReceivedMessage
    """makes a message from its record, its queue, and whether it is settled at once"""
    keeps_begin: bool = True
    """whether the offsets where a new group begins are stored at once"""


@attrs.define(eq=False)
class GroupMember(SessionObserver, ABC):
    """A running member of a group, which pulls a share of the queues or pops."""

    session: Session
    settings: ConsumerSettings
    spec: MemberSpec
    offsets: OffsetStore
    agreement: Agreement = attrs.field(init=False)

    pops: ClassVar[bool]

    def __attrs_post_init__(self) -> None:
        spec = self.spec
        self.agreement = Agreement(self.session, spec.group, spec.subscriptions, pops=self.pops)

    @abstractmethod
    def routes_changed(self) -> None:
        """Get messages from the brokers that the routes name now, for the topics subscribed now."""

    async def enter(
        self, answer: Callable[[Self], None], counts: ConsumerCounts, nursery: trio.Nursery
    ) -> None:
        """Become a member, and run what all members need.

        ``answer``: called before a broker knows the member and can have requests for it.

        Raises: ``NoNameServer``, ``SubscriptionInvalid``, ``SettingsError``.
        """
        self.session.observe(self)
        answer(self)
        subscriptions = self.spec.subscriptions
        await check_filters(self.session, self.spec.group, subscriptions.values())
        await self.join(subscriptions)
        nursery.start_soon(counts.take_samples, name="consumption samples")
        nursery.start_soon(self.agreement.compare_after_changes, name="agreement")

    async def join(self, topics: Mapping[str, SubscriptionData], *, again: bool = False) -> None:
        """Find the topics' brokers, send them a heartbeat, and get messages.

        ``again``: whether the subscriptions of a running member changed. A topic that does not
        exist (yet) is not an error: its look-up is repeated. The caller has checked the filters
        (``check_filters``).

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
        self.routes_changed()

    async def begin(self, topics: Iterable[str]) -> None:
        """Let the group begin in topics that are new to it, before it has any of their messages.

        Without an offset, brokers let a group that pops begin with the last message of each queue.

        Raises: ``NoNameServer``.
        """
        if self.spec.start.where is not ConsumeFrom.LAST:
            return
        found = [
            await self.session.finder.subscribe_queues(topic)
            for topic in topics
            if not topic.startswith(RETRY_PREFIX)
        ]
        async with trio.open_nursery() as nursery:
            for known in found:
                if known is not None:
                    nursery.start_soon(
                        partial(self.offsets.begin, known.subscribe, keep=self.spec.keeps_begin)
                    )

    def group_changed(self) -> None:
        self.agreement.changed()
