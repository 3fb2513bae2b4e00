"""TopicsAndGroups: what most requests look up before they answer."""

from __future__ import annotations

import attrs

from triomq.broker.services.groups import GroupTable
from triomq.broker.services.offsets import ConsumerOffsets
from triomq.broker.services.statistics import Statistics
from triomq.broker.services.subscriptions import SubscriptionGroups
from triomq.broker.services.topics import Topics
from triomq.remoting.server.connection import Connection


@attrs.frozen
class TopicsAndGroups:
    """Topics and groups with their settings, and what is known of them while the broker runs."""

    topics: Topics
    groups: SubscriptionGroups
    clients: GroupTable[Connection]
    """connected producers and consumers"""
    offsets: ConsumerOffsets
    statistics: Statistics
