"""``MemberSpec``: what kind of member of its group a consumer is."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from triomq.client.receiving.allocation import Allocation
from triomq.client.receiving.assignment import SendsBack
from triomq.client.receiving.observed import MakeMessage
from triomq.client.receiving.offsets import StartPoint
from triomq.client.receiving.ordered_inbox import OrderedInbox
from triomq.client.receiving.received import ReceivedMessage
from triomq.remoting.protocol.bodies.heartbeat import SubscriptionData
from triomq.remoting.protocol.bodies.route import MessageQueue
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
