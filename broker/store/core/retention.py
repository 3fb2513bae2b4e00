"""Retention: which segments of the log to delete. A pure function of the observed facts.

Segments are deleted from the oldest on, and never the last one:

* expired segments, which were not written to for the reserved time: in the hours of
  ``delete_hours``, above ``used_percent_max``, or when an operator asks for it;
* above ``force_percent`` the oldest segments of any age, until the disk is down to it;
* never a segment that is not indexed yet; and a segment that a slave still needs only above
  ``force_percent``.

When messages are refused: ``disk_space.py``.

Source: store/…/DefaultMessageStore.java#CleanCommitLogService. Java forces whole batches; this
broker stops as soon as the disk has enough room.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from triomq.broker.store.core.disk_space import Usage, refuses_messages
from triomq.remoting.core.settings import Kind, flag, number, setting

HOUR_MS = 3_600_000


def parse_hours(text: str) -> tuple[int, ...]:
    """Return the hours of a setting: ``"04;16"`` -> (4, 16).

    Raises: ValueError, which names the wrong part.
    """
    hours = []
    for part in filter(None, (part.strip() for part in text.split(";"))):
        if not (part.isascii() and part.isdigit() and int(part) < 24):
            raise ValueError(
                f"{part!r} is not an hour from 00 to 23; write for example 04 or 04;16"
            )
        hours.append(int(part))
    return tuple(hours)


def format_hours(hours: Sequence[int]) -> str:
    """Return the text of hours: (4, 16) -> ``"04;16"``."""
    return ";".join(f"{hour:02d}" for hour in hours)


HOURS: Kind[tuple[int, ...]] = Kind(
    "hours from 00 to 23, separated by ;", parse_hours, format_hours
)


@attrs.frozen(kw_only=True)
class RetentionRules:
    """When messages are deleted or refused; shares are of a file system's space.

    reserved_hours: age of its last message at which a commit log file may be deleted (hours)
    delete_hours: hours of the day, local time, in which such files are deleted if the disk has
        room; 04;16: twice a day
    used_percent_max: above this use of the disk (%) such files are deleted at any hour
    force_percent: above this use of the disk (%) the oldest files are deleted whatever their age,
        until use is back at it
    warning_percent: above this use of the disk (%) messages are refused until use is down at
        diskSpaceCleanForciblyRatio
    force_enabled: false: files are kept for their time even when the disk fills up
    batch_max: commit log files deleted in one round
    interval_ms: time between two rounds of checks and deletions (ms)
    log_pause_ms: pause between two commit log files that are deleted (ms)
    queue_pause_ms: pause after each queue of which files were deleted (ms)
    """

    reserved_hours: int = number("fileReservedTime", 72, low=0)
    delete_hours: tuple[int, ...] = setting("deleteWhen", HOURS, parse_hours("04"))
    used_percent_max: int = number("diskMaxUsedSpaceRatio", 75, low=10, high=95, clamp=True)
    force_percent: int = number("diskSpaceCleanForciblyRatio", 85, low=30, high=85, clamp=True)
    warning_percent: int = number("diskSpaceWarningLevelRatio", 90, low=35, high=90, clamp=True)
    force_enabled: bool = flag("cleanFileForciblyEnable", True)
    batch_max: int = number("deleteFileBatchMax", 10)
    interval_ms: int = number("cleanResourceInterval", 10_000)
    log_pause_ms: int = number("deleteCommitLogFilesInterval", 100, low=0)
    queue_pause_ms: int = number("deleteConsumeQueueFilesInterval", 100, low=0)


def without_future(times_ms: Sequence[int], latest_ms: int) -> list[int]:
    """Return when segments, oldest first, were last written to, without times after ``latest_ms``.

    Such a segment was written to while the clock was ahead, and would stay for as long: it counts
    as old as the next one that was not. The last ones keep their times if none follows.
    """
    times = list(times_ms)
    for place in reversed(range(len(times) - 1)):
        if times[place] > latest_ms:
            times[place] = times[place + 1]
    return times


@attrs.frozen
class OldSegment:
    """A segment as the decision sees it."""

    base: int
    end: int
    modified_ms: int
    """When the segment was last written to (wall clock)."""


@attrs.frozen(kw_only=True)
class Seen:
    """The facts that a decision depends on."""

    segments: Sequence[OldSegment]
    """Oldest first, adjacent, without the last segment of the log."""
    now_ms: int
    hour: int
    """Local hour of ``now_ms``."""
    log_disk: Usage | None
    """None: the system did not say."""
    queue_disk: Usage | None
    refusing: bool = False
    """Whether messages are refused already because the disk is too full."""
    asked: bool = False
    """Whether an operator has asked to delete the expired segments."""
    indexed_to: int
    """No record from here on may be deleted."""
    needed_from: int
    """No record from here on may be deleted, unless the disk is above ``force_percent``."""


@attrs.frozen
class Decision:
    """What the cleaner does now."""

    delete: Mapping[int, str] = attrs.field(factory=dict)
    """Base of each segment to delete, oldest first -> why it is deleted, for the log."""
    refuse: bool = False
    """Refuse messages until the next decision."""
    short: bool = False
    """There is too little room, and no segment to delete."""


def decide(seen: Seen, rules: RetentionRules) -> Decision:
    """Return what to do. Source: DefaultMessageStore.java#isSpaceToDelete, #deleteExpiredFiles."""
    disks = [disk for disk in (seen.log_disk, seen.queue_disk) if disk is not None]
    alarm = any(disk.above(rules.warning_percent) for disk in disks)
    high = any(disk.above(rules.force_percent) for disk in disks) or alarm
    over = any(disk.above(rules.used_percent_max) for disk in disks)
    refuse = refuses_messages(
        disks,
        warning_percent=rules.warning_percent,
        force_percent=rules.force_percent,
        refusing=seen.refusing,
    )
    forced = high and rules.force_enabled
    by_age = seen.asked or over or high or seen.hour in rules.delete_hours
    delete: dict[int, str] = {}
    expired_before = seen.now_ms - rules.reserved_hours * HOUR_MS
    log_disk = seen.log_disk
    for segment in seen.segments[: rules.batch_max]:
        if segment.end > seen.indexed_to:
            break
        # At least one segment: if the disk of the queues is full, it is unknown how much space a
        # segment frees there.
        must = forced and (
            not delete or (log_disk is not None and log_disk.above(rules.force_percent))
        )
        expired = by_age and segment.modified_ms <= expired_before
        if not must and (not expired or segment.end > seen.needed_from):
            break
        delete[segment.base] = (
            f"not written to for {rules.reserved_hours} hours"
            if expired
            else f"the disk is more than {rules.force_percent} % full"
        )
        if log_disk is not None:
            log_disk = log_disk.without(segment.end - segment.base)
    return Decision(delete, refuse, (over or high) and not delete)
