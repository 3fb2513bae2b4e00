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

HOUR_MS = 3_600_000


def parse_hours(text: str | Sequence[int]) -> tuple[int, ...]:
    """Return the hours of a setting: ``"04;16"`` -> (4, 16).

    Raises: ValueError, which names the wrong part.
    """
    if not isinstance(text, str):
        return tuple(text)
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


@attrs.frozen(kw_only=True)
class RetentionRules:
    """The settings. Percentages are shares of a file system's space."""

    reserved_hours: int = attrs.field(default=72, validator=attrs.validators.ge(0))
    delete_hours: tuple[int, ...] = attrs.field(default="04", converter=parse_hours)
    """Local hours in which expired segments are deleted."""
    used_percent_max: int = 75
    force_percent: int = 85
    warning_percent: int = 90
    force_enabled: bool = True
    batch_max: int = attrs.field(default=10, validator=attrs.validators.ge(1))
    """Limit of segments deleted in one round."""
    interval_ms: int = attrs.field(default=10_000, validator=attrs.validators.ge(1))
    """Time between two rounds."""
    log_pause_ms: int = attrs.field(default=100, validator=attrs.validators.ge(0))
    queue_pause_ms: int = attrs.field(default=100, validator=attrs.validators.ge(0))


def without_future(times_ms: Sequence[int], latest_ms: int) -> list[int]:
    """Return when segments, oldest first, were last written to, without times after ``latest_ms``.

    Such a segment was written to while the clock was ahead, and would stay for as long: it counts
    as old as the next one that was not. The last ones keep their times if none follows.
    """
    times = list(times_ms)
    for number in reversed(range(len(times) - 1)):
        if times[number] > latest_ms:
            times[number] = times[number + 1]
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
