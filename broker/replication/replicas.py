"""What each slave has of the log, and how many slaves a send waits for. SANS-IO.

The caller passes ends of the log and times. Java's classic mode has ``inSyncReplicas`` alone; the
others belong to its acting-master and controller modes, and work here in any mode. Source:
store/CommitLog.java#asyncPutMessage, #calcNeedAckNums, store/ha/GroupTransferService.java,
DefaultHAService.java#inSyncReplicasNums, 4.9: HAService.java#isSlaveOK.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from triomq.remoting.core.settings import LONG_MAX, flag, number

SYNC_MASTER_REPLICAS = 2


@attrs.frozen(kw_only=True)
class ReplicaRules:
    """The settings that decide how many copies a send on a SYNC_MASTER waits for.

    in_sync_replicas: copies of a message, the master's own among them, before a SYNC_MASTER answers
        SEND_OK; 1: it waits for no slave, as Java 5 by default
    min_in_sync_replicas: a SYNC_MASTER refuses messages while fewer copies than this, its own among
        them, are in sync; with enableControllerMode 2 unless set, and 1 as long as the group has
        one broker
    auto: wait only for slaves that are in sync, but for minInSyncReplicas copies at least
    all_in_sync: wait for every slave that is in sync, whatever inSyncReplicas says
    available_gap_bytes: no send waits for a slave that is farther behind (bytes):
        SLAVE_NOT_AVAILABLE
    in_sync_gap_bytes: a slave that is farther behind (bytes) is not in sync
    catch_up_ms: a slave that has not been at the end of the log for this time is not in sync (ms)
    """

    in_sync_replicas: int = number("inSyncReplicas", 0, low=0, default_text="0: two, as Java 4")
    min_in_sync_replicas: int = number("minInSyncReplicas", 1, low=0)
    auto: bool = flag("enableAutoInSyncReplicas", False)
    all_in_sync: bool = flag("allAckInSyncStateSet", False)
    available_gap_bytes: int = number("haSlaveFallbehindMax", 256 * 1024 * 1024, high=LONG_MAX)
    in_sync_gap_bytes: int = number("haMaxGapNotInSync", 256 * 1024 * 1024, high=LONG_MAX)
    catch_up_ms: int = number("haMaxTimeSlaveNotCatchup", 15_000)
    fixed: bool = attrs.field(init=False)
    """Whether the number of slaves in sync does not matter: the master itself always is."""

    @fixed.default
    def _is_fixed(self) -> bool:
        return self.min_in_sync_replicas <= 1 and not (self.auto or self.all_in_sync)


@attrs.define(eq=False)
class Replica:
    """One connected slave that has reported."""

    peer: str
    acknowledged: int
    caught_up_at: float
    """When it last had everything that the log had at an earlier report."""
    copied: int = 0
    """End of what senders may count as its copy; ``acknowledged`` only shows how near it is, and
    whether a send may wait for it.
    """
    _goal: int = 0
    _goal_at: float = 0.0

    def note_acknowledged(self, offset: int, log_end: int, now: float) -> None:
        """Record that the slave has everything before ``offset``."""
        self.acknowledged = max(self.acknowledged, offset)
        if self.acknowledged >= self._goal:
            self.caught_up_at = max(self.caught_up_at, self._goal_at)
            self._goal, self._goal_at = log_end, now
        if self.acknowledged >= log_end:
            self.caught_up_at = now


@attrs.frozen
class AckPlan:
    """The number of slaves that a stored message waits for, and whether there are too few."""

    acknowledgements: int
    unavailable: bool = False


@attrs.define(eq=False)
class ReplicaSet:
    """The slaves of a master by a key that the caller chooses."""

    rules: ReplicaRules
    replicas: dict[object, Replica] = attrs.field(factory=dict)

    def is_in_sync(self, replica: Replica, log_end: int, now: float) -> bool:
        """Return whether a slave is near enough in bytes, and has recently been at the end."""
        rules = self.rules
        return log_end - replica.acknowledged < rules.in_sync_gap_bytes and (
            replica.acknowledged >= log_end
            or now - replica.caught_up_at <= rules.catch_up_ms / 1000
        )

    def in_sync(self, log_end: int, now: float) -> int:
        """Return the number of slaves in sync."""
        return sum(self.is_in_sync(replica, log_end, now) for replica in self.replicas.values())

    def available(self, log_end: int) -> int:
        """Return the number of slaves near enough to wait for."""
        return sum(
            log_end - replica.acknowledged < self.rules.available_gap_bytes
            for replica in self.replicas.values()
        )

    def plan(self, log_end: int, now: float) -> AckPlan:
        """Return what messages up to ``log_end`` wait for, even if the next one is refused."""
        acknowledgements = self.acknowledgements(log_end, now)
        return AckPlan(acknowledgements, unavailable=acknowledgements > self.available(log_end))

    def refusal(self, log_end: int, now: float) -> str:
        """Return why the next message is refused before it is stored; an empty string if not."""
        if self.rules.fixed:
            return ""
        in_sync, wanted = 1 + self.in_sync(log_end, now), self.rules.min_in_sync_replicas
        return (
            f"{in_sync} in sync, the master included, minInSyncReplicas={wanted}"
            if in_sync < wanted
            else ""
        )

    def acknowledgements(self, log_end: int, now: float) -> int:
        """Return the number of slaves that a send waits for.

        It is never below the minimum: a slave that was in sync when the message was admitted can be
        out of sync when it is stored, because it has been silent, or because this message is larger
        than the gap.
        """
        rules = self.rules
        needed = rules.in_sync_replicas or SYNC_MASTER_REPLICAS
        if not rules.fixed:
            if rules.all_in_sync:
                needed = 1 + self.in_sync(log_end, now)
            elif rules.auto:
                needed = min(needed, 1 + self.in_sync(log_end, now))
            needed = max(needed, rules.min_in_sync_replicas)
        return max(0, needed - 1)

    def reached(self, acknowledgements: int) -> int:
        """Return the log offset up to which this number of slaves have copies that count.

        It is 0 if there are fewer slaves.
        """
        if acknowledgements == 1 == len(self.replicas):
            (only,) = self.replicas.values()
            return only.copied
        return kth_largest((replica.copied for replica in self.replicas.values()), acknowledgements)


def kth_largest(values: Iterable[int], k: int) -> int:
    ordered = sorted(values, reverse=True)
    return ordered[k - 1] if 0 < k <= len(ordered) else 0
