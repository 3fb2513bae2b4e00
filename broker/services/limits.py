"""How much clients may make a broker keep.

The defaults are far above what clusters use, and low enough that the tables still travel in one frame to name servers and slaves.
What is there already is never refused or deleted, so a directory with more than a limit works as before.
"""

from __future__ import annotations

import attrs

from triomq.remoting.limits import Limits
from triomq.remoting.settings import INTEGER, setting

_MOST = 100_000_000


@attrs.frozen(kw_only=True)
class LimitSettings:
    """The limits of a broker's tables."""

    topics_max: int = setting("topicsMax", INTEGER, 20_000, "topics on this broker beside retry and dead-letter topics; no more are created", low=1, high=_MOST, own=True)
    groups_max: int = setting("groupsMax", INTEGER, 5_000, "consumer groups on this broker, and connected producer groups; no more are created", low=1, high=_MOST, own=True)
    groups_per_connection_max: int = setting(
        "groupsPerConnectionMax", INTEGER, 1_000, "groups that one connection may be a member of; a heartbeat with more is refused", low=1, high=_MOST, own=True
    )
    subscriptions_per_group_max: int = setting(
        "subscriptionsPerGroupMax", INTEGER, 5_000, "topics that one group may subscribe; a heartbeat with more is refused", low=1, high=_MOST, own=True
    )
    offsets_max: int = setting(
        "consumerOffsetsMax", INTEGER, 1_000_000, "consumer offsets on this broker: one for each queue that each group has committed", low=1, high=_MOST, own=True
    )
    locks_max: int = setting("queueLocksMax", INTEGER, 500_000, "queues that groups that consume in order may hold at once", low=1, high=_MOST, own=True)


def broker_limits(settings: LimitSettings | None = None) -> Limits:
    """Return the limits of one broker, with their counters."""
    return Limits(settings or LimitSettings(), "broker")
