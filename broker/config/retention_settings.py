"""RetentionSettings: when old messages are deleted, and when new ones are refused."""

from __future__ import annotations

import attrs

from triomq.broker.store.core.retention import RetentionRules, format_hours, parse_hours
from triomq.remoting.core.settings import Kind, flag, number, setting

HOURS: Kind[tuple[int, ...]] = Kind(
    "hours from 00 to 23, separated by ;", parse_hours, format_hours
)


@attrs.frozen(kw_only=True)
class RetentionSettings:
    """When messages are deleted or refused; the names of the fields are from ``RetentionRules``."""

    reserved_hours: int = number(
        "fileReservedTime",
        72,
        "age of its last message at which a commit log file may be deleted (hours)",
        low=0,
    )
    delete_hours: tuple[int, ...] = setting(
        "deleteWhen",
        HOURS,
        parse_hours("04"),
        "hours of the day, local time, in which such files are deleted if the disk has room; 04;16:"
        " twice a day",
    )
    used_percent_max: int = number(
        "diskMaxUsedSpaceRatio",
        75,
        "above this use of the disk (%) such files are deleted at any hour",
        low=10,
        high=95,
        clamp=True,
    )
    force_percent: int = number(
        "diskSpaceCleanForciblyRatio",
        85,
        "above this use of the disk (%) the oldest files are deleted whatever their age, until use"
        " is back at it",
        low=30,
        high=85,
        clamp=True,
    )
    warning_percent: int = number(
        "diskSpaceWarningLevelRatio",
        90,
        "above this use of the disk (%) messages are refused until use is down at"
        " diskSpaceCleanForciblyRatio",
        low=35,
        high=90,
        clamp=True,
    )
    force_enabled: bool = flag(
        "cleanFileForciblyEnable",
        True,
        "false: files are kept for their time even when the disk fills up",
    )
    batch_max: int = number("deleteFileBatchMax", 10, "commit log files deleted in one round")
    interval_ms: int = number(
        "cleanResourceInterval", 10_000, "time between two rounds of checks and deletions (ms)"
    )
    log_pause_ms: int = number(
        "deleteCommitLogFilesInterval",
        100,
        "pause between two commit log files that are deleted (ms)",
        low=0,
    )
    queue_pause_ms: int = number(
        "deleteConsumeQueueFilesInterval",
        100,
        "pause after each queue of which files were deleted (ms)",
        low=0,
    )

    def rules(self) -> RetentionRules:
        return RetentionRules(**attrs.asdict(self, recurse=False))
