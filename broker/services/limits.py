
"""How much clients may make a broker keep: each limit is a setting, a refusal that names it, and a counter.

The defaults are far above what clusters use, and low enough that the tables still travel in one frame to name servers and slaves.
What is there already is never refused or deleted, so a directory with more than a limit works as before.
"""

from __future__ import annotations

from collections import Counter

import attrs

from triomq.remoting.errors import Rejected
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.settings import INTEGER, setting

_MOST = 100_000_000
_JAVA = {
    "topics_max": "topicsMax",
    "groups_max": "groupsMax",
    "groups_per_connection_max": "groupsPerConnectionMax",
    "subscriptions_per_group_max": "subscriptionsPerGroupMax",
    "offsets_max": "consumerOffsetsMax",
    "locks_max": "queueLocksMax",
}


@attrs.frozen(kw_only=True)
class LimitSettings:
    """The limits of a broker's tables."""

    topics_max: int = setting(_JAVA["topics_max"], INTEGER, 20_000, "topics on this broker beside retry and dead-letter topics; no more are created", low=1, high=_MOST, own=True)
    groups_max: int = setting(_JAVA["groups_max"], INTEGER, 5_000, "consumer groups on this broker, and connected producer groups; no more are created", low=1, high=_MOST, own=True)
    groups_per_connection_max: int = setting(
        _JAVA["groups_per_connection_max"], INTEGER, 1_000, "groups that one connection may be a member of; a heartbeat with more is refused", low=1, high=_MOST, own=True
    )
    subscriptions_per_group_max: int = setting(
        _JAVA["subscriptions_per_group_max"], INTEGER, 5_000, "topics that one group may subscribe; a heartbeat with more is refused", low=1, high=_MOST, own=True
    )
    offsets_max: int = setting(
        _JAVA["offsets_max"], INTEGER, 1_000_000, "consumer offsets on this broker: one for each queue that each group has committed", low=1, high=_MOST, own=True
    )
    locks_max: int = setting(_JAVA["locks_max"], INTEGER, 500_000, "queues that groups that consume in order may hold at once", low=1, high=_MOST, own=True)


class LimitReached(Rejected):
    """A request asks for more than a limit allows; the remark names the limit and its setting."""


@attrs.define(eq=False)
class Limits:
    """The limits, and how often each one was met."""

    settings: LimitSettings = attrs.field(factory=LimitSettings)
    refused: Counter[str] = attrs.field(factory=Counter, init=False)
    """name of the setting -> refusals since the start"""

    def require(self, limit: str, count: int, what: str) -> None:
        """Refuse `what`, a clause, if it makes `count` of what the field `limit` of the settings bounds.

        Raises: LimitReached.  Checkpoint: never.
        """
        most = getattr(self.settings, limit)
        if count > most:
            name = _JAVA[limit]
            self.refused[name] += 1
            raise LimitReached(ResponseCode.INVALID_PARAMETER, f"{what}: the broker's limit is {most}; use fewer, or raise {name} in its settings")
