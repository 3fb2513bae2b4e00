"""Retention: which segments of the log may go, and whether messages are still taken. A pure function of what was seen.

Old segments go for one of three reasons, and always from the oldest on, never the last one:

* expired: not written to for the reserved time; in the hours of ``delete_hours``, above ``used_percent_max``, or when an operator asks;
* forced: above ``force_percent`` the oldest go whatever their age, as many as it takes to come down to it;
* never: a segment that is not indexed yet, and, unless forced, one that somebody still needs (a slave).

Above ``warning_percent`` messages are refused, from then on until the disk is at or below ``force_percent``.

Source: store/…/DefaultMessageStore.java#CleanCommitLogService. Java forces whole batches; here it stops as soon as the disk has room enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

HOUR_MS = 3_600_000


def parse_hours(text: str | Sequence[int]) -> tuple[int, ...]:
    """``"04;16"`` -> (4, 16). Raises ValueError with the part that is no hour."""
    if not isinstance(text, str):
        return tuple(text)
    hours = []
    for part in filter(None, (part.strip() for part in text.split(";"))):
        if not (part.isascii() and part.isdigit() and int(part) < 24):
            raise ValueError(f"{part!r} is not an hour from 00 to 23; write for example 04 or 04;16")
        hours.append(int(part))
    return tuple(hours)


def format_hours(hours: Sequence[int]) -> str:
    """(4, 16) -> ``"04;16"``."""
    return ";".join(f"{hour:02d}" for hour in hours)


@attrs.frozen(kw_only=True)
class RetentionRules:
    """The settings; percentages are of the file system's space."""

    reserved_hours: int = attrs.field(default=72, validator=attrs.validators.ge(0), metadata={"java": "fileReservedTime"})
    delete_hours: tuple[int, ...] = attrs.field(default="04", converter=parse_hours, metadata={"java": "deleteWhen"})
    """Local hours in which expired segments go."""
    used_percent_max: int = attrs.field(default=75, metadata={"java": "diskMaxUsedSpaceRatio"})
    force_percent: int = attrs.field(default=85, metadata={"java": "diskSpaceCleanForciblyRatio"})
    warning_percent: int = attrs.field(default=90, metadata={"java": "diskSpaceWarningLevelRatio"})
    force_enabled: bool = attrs.field(default=True, metadata={"java": "cleanFileForciblyEnable"})
    batch_max: int = attrs.field(default=10, validator=attrs.validators.ge(1), metadata={"java": "deleteFileBatchMax"})
    """Segments deleted in one round."""
    interval_ms: int = attrs.field(default=10_000, validator=attrs.validators.ge(1), metadata={"java": "cleanResourceInterval"})
    """Time between two rounds."""
    log_pause_ms: int = attrs.field(default=100, validator=attrs.validators.ge(0), metadata={"java": "deleteCommitLogFilesInterval"})
    queue_pause_ms: int = attrs.field(default=100, validator=attrs.validators.ge(0), metadata={"java": "deleteConsumeQueueFilesInterval"})


@attrs.frozen
class Usage:
    """Space of a file system as a user sees it: what root keeps for itself counts as neither. Bytes."""

    used: int
    free: int

    @property
    def ratio(self) -> float:
        """Share in use, 0 to 1."""
        return self.used / (self.used + self.free) if self.used + self.free else 0.0

    def above(self, percent: int) -> bool:
        return self.used * 100 > percent * (self.used + self.free)

    def without(self, size: int) -> Usage:
        """When so many bytes are deleted."""
        size = min(size, self.used)
        return Usage(self.used - size, self.free + size)


@attrs.frozen
class OldSegment:
    """A segment as the policy sees it."""

    base: int
    end: int
    modified_ms: int
    """When it was written to last (wall clock)."""


@attrs.frozen(kw_only=True)
class Seen:
    """Everything that a decision depends on."""

    segments: Sequence[OldSegment]
    """Oldest first, adjacent; the last one of the log must not be among them."""
    now_ms: int
    hour: int
    """Local hour of ``now_ms``."""
    log_disk: Usage | None
    """None: it could not be asked."""
    queue_disk: Usage | None
    refusing: bool = False
    """Whether messages are refused already because of the disk."""
    asked: bool = False
    """An operator has asked for the expired segments to go."""
    indexed_to: int
    """No record from here on may be deleted, whatever happens."""
    needed_from: int
    """No record from here on may be deleted unless the disk forces it."""


@attrs.frozen
class Decision:
    """What to do now."""

    delete: tuple[int, ...] = ()
    """Bases of the segments to delete, oldest first."""
    refuse: bool = False
    """Take no messages until the next decision."""
    forced: bool = False
    """The disk is so full that age does not count."""
    short: bool = False
    """There is too little room, and nothing that could be deleted."""
    reasons: Mapping[int, str] = attrs.field(factory=dict)
    """Base -> why that segment goes; for people."""


def decide(seen: Seen, rules: RetentionRules) -> Decision:
    """Source: DefaultMessageStore.java#isSpaceToDelete, #deleteExpiredFiles."""
    disks = [disk for disk in (seen.log_disk, seen.queue_disk) if disk is not None]
    alarm = any(disk.above(rules.warning_percent) for disk in disks)
    high = any(disk.above(rules.force_percent) for disk in disks) or alarm
    over = any(disk.above(rules.used_percent_max) for disk in disks)
    refuse = alarm or (seen.refusing and high)
    forced = high and rules.force_enabled
    by_age = seen.asked or over or high or seen.hour in rules.delete_hours
    delete: list[int] = []
    reasons: dict[int, str] = {}
    expired_before = seen.now_ms - rules.reserved_hours * HOUR_MS
    log_disk = seen.log_disk
    for segment in seen.segments[: rules.batch_max]:
        if segment.end > seen.indexed_to:
            break
        # One at least: if it is the disk of the queues that is full, nobody can tell how much a segment gives back there.
        must = forced and (not delete or (log_disk is not None and log_disk.above(rules.force_percent)))
        expired = by_age and segment.modified_ms <= expired_before
        if not must and (not expired or segment.end > seen.needed_from):
            break
        delete.append(segment.base)
        reasons[segment.base] = f"not written to for {rules.reserved_hours} hours" if expired else f"the disk is more than {rules.force_percent} % full"
        if log_disk is not None:
            log_disk = log_disk.without(segment.end - segment.base)
    return Decision(tuple(delete), refuse, forced, (over or high) and not delete, reasons)
