"""Limits of what clients may make a broker keep.

The defaults are far above what clusters use, and low enough that the tables still fit in one frame
to name servers and slaves. Entries that exist are never refused or deleted, so a directory with
more than a limit works as before.
"""

from __future__ import annotations

from typing import Any

import attrs

from triomq.remoting.core.settings import INTEGER, setting
from triomq.remoting.protocol.limits import Limits


def _limit(name: str, default: int) -> Any:
    return setting(name, INTEGER, default, low=1, high=100_000_000, own=True)


@attrs.frozen(kw_only=True)
class BrokerTableLimits:
    """The limits of a broker's tables.

    topics_max: most topics on this broker, not counting retry and dead-letter topics
    groups_max: most consumer groups on this broker, and most connected producer groups
    groups_per_connection_max: most groups that one connection may be a member of; a heartbeat with
        more is refused
    subscriptions_per_group_max: most topics that one group may subscribe; a heartbeat with more is
        refused
    offsets_max: most consumer offsets on this broker: one for each queue that each group has
        committed
    locks_max: most queues that groups that consume in order may lock at once
    replies_per_client_max: most replies that one requester of request-reply may leave unanswered;
        more are refused as busy
    pop_in_flight_max: most messages that a group may have popped and neither acknowledged nor got
        back; its pops are refused until then
    """

    topics_max: int = _limit("topicsMax", 20_000)
    groups_max: int = _limit("groupsMax", 5_000)
    groups_per_connection_max: int = _limit("groupsPerConnectionMax", 1_000)
    subscriptions_per_group_max: int = _limit("subscriptionsPerGroupMax", 5_000)
    offsets_max: int = _limit("consumerOffsetsMax", 1_000_000)
    locks_max: int = _limit("queueLocksMax", 500_000)
    replies_per_client_max: int = _limit("repliesPerClientMax", 2_000)
    pop_in_flight_max: int = _limit("popInFlightPerGroupMax", 1_000_000)


def broker_limits(settings: BrokerTableLimits | None = None) -> Limits:
    """Return the limits of one broker, with their counters."""
    return Limits(settings or BrokerTableLimits(), "broker")
