"""Who has how much of the log, and how many slaves a send waits for.  SANS-IO: ends of the log and times are given.

=============================  =====================================================================================================
setting                        meaning here
=============================  =====================================================================================================
``inSyncReplicas``             copies before a send is answered SEND_OK, the master's own among them; 1: no slave (Java 5's default)
``minInSyncReplicas``          with fewer copies *in sync* a message is refused before it is stored; and no fewer are waited for, whatever the others say
``enableAutoInSyncReplicas``   wait for as many of ``inSyncReplicas`` as are in sync, at least ``minInSyncReplicas``
``allAckInSyncStateSet``       wait for all that are in sync, whatever ``inSyncReplicas`` says
``haSlaveFallbehindMax``       a slave so far behind is not *available*: nobody waits for it, SLAVE_NOT_AVAILABLE
``haMaxGapNotInSync``          a slave so far behind is not in sync
``haMaxTimeSlaveNotCatchup``   nor is one that has not been at the end of the log for so long
=============================  =====================================================================================================

Java's classic mode has ``inSyncReplicas`` alone; the others belong to its acting-master and controller modes, and work here in any mode.
Source: store/CommitLog.java#asyncPutMessage, #calcNeedAckNums, store/ha/GroupTransferService.java, DefaultHAService.java#inSyncReplicasNums, 4.9: HAService.java#isSlaveOK.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs


@attrs.frozen(kw_only=True)
class ReplicaRules:
    """The settings; bytes and seconds."""

    in_sync_replicas: int = 2
    min_in_sync_replicas: int = 1
    auto: bool = False
    all_in_sync: bool = False
    available_gap_bytes: int = 256 * 1024 * 1024
    in_sync_gap_bytes: int = 256 * 1024 * 1024
    catch_up_seconds: float = 15.0

    @property
    def fixed(self) -> bool:
        """Whether it does not matter who is in sync: the master itself always is."""
        return self.min_in_sync_replicas <= 1 and not (self.auto or self.all_in_sync)


@attrs.define(eq=False)
class Replica:
    """One slave that is connected and has said where it is."""

    peer: str
    acknowledged: int
    caught_up_at: float
    """When it last had everything that the log had at an earlier look."""
    _goal: int = 0
    _goal_at: float = 0.0

    def note_acknowledged(self, offset: int, log_end: int, now: float) -> None:
        """The slave has everything before ``offset``."""
        self.acknowledged = max(self.acknowledged, offset)
        if self.acknowledged >= self._goal:
            self.caught_up_at = max(self.caught_up_at, self._goal_at)
            self._goal, self._goal_at = log_end, now
        if self.acknowledged >= log_end:
            self.caught_up_at = now


@attrs.frozen
class Plan:
    """What a message that is stored waits for: ``acknowledgements`` slaves, of which there may be too few."""

    acknowledgements: int
    unavailable: bool = False


@attrs.define(eq=False)
class ReplicaSet:
    """The slaves of a master by a key of the caller's choice."""

    rules: ReplicaRules
    replicas: dict[object, Replica] = attrs.field(factory=dict)
    _fixed: bool = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._fixed = self.rules.fixed

    def is_in_sync(self, replica: Replica, log_end: int, now: float) -> bool:
        """Near enough in bytes, and at the end of the log not long ago."""
        rules = self.rules
        return log_end - replica.acknowledged < rules.in_sync_gap_bytes and (
            replica.acknowledged >= log_end or now - replica.caught_up_at <= rules.catch_up_seconds
        )

    def in_sync(self, log_end: int, now: float) -> int:
        """How many slaves are in sync."""
        return sum(self.is_in_sync(replica, log_end, now) for replica in self.replicas.values())

    def available(self, log_end: int) -> int:
        """How many slaves are near enough to be waited for."""
        return sum(log_end - replica.acknowledged < self.rules.available_gap_bytes for replica in self.replicas.values())

    def plan(self, log_end: int, now: float) -> Plan:
        """What messages wait for that are stored up to ``log_end``, also when the next one would be refused."""
        acknowledgements = self.acknowledgements(log_end, now)
        return Plan(acknowledgements, unavailable=acknowledgements > self.available(log_end))

    def refusal(self, log_end: int, now: float) -> str:
        """Why the next message is refused before it is stored; empty: it is not."""
        if self._fixed:
            return ""
        in_sync, wanted = 1 + self.in_sync(log_end, now), self.rules.min_in_sync_replicas
        return f"{in_sync} in sync, the master included, minInSyncReplicas={wanted}" if in_sync < wanted else ""

    def acknowledgements(self, log_end: int, now: float) -> int:
        """For how many slaves a send waits.

        Never for fewer than the minimum: a slave that was in sync when the message was let in may be out of sync the moment it is stored, because it has
        been silent for long, or because this very message is larger than the gap.
        """
        rules = self.rules
        needed = rules.in_sync_replicas
        if not self._fixed:
            if rules.all_in_sync:
                needed = 1 + self.in_sync(log_end, now)
            elif rules.auto:
                needed = min(needed, 1 + self.in_sync(log_end, now))
            needed = max(needed, rules.min_in_sync_replicas)
        return max(0, needed - 1)

    def reached(self, acknowledgements: int) -> int:
        """The log offset up to which so many slaves have everything; 0 if there are not so many."""
        if acknowledgements == 1 == len(self.replicas):
            (only,) = self.replicas.values()
            return only.acknowledged
        return kth_largest((replica.acknowledged for replica in self.replicas.values()), acknowledgements)


def kth_largest(values: Iterable[int], k: int) -> int:
    ordered = sorted(values, reverse=True)
    return ordered[k - 1] if 0 < k <= len(ordered) else 0
