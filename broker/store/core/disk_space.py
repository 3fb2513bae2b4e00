"""Disk space: how full a file system is, and when a full disk makes the broker refuse messages.

Messages are refused above diskSpaceWarningLevelRatio, and then until the disk is at or below
diskSpaceCleanForciblyRatio. Which files go to make room: ``retention.py``. What a write on a full
disk raises: ``DiskFull`` in ``errors.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs


@attrs.frozen
class Usage:
    """Bytes of a file system as a user sees them: the space reserved for root counts as neither."""

    used: int
    free: int

    @property
    def ratio(self) -> float:
        """The share in use, 0 to 1."""
        return self.used / (self.used + self.free) if self.used + self.free else 0.0

    def above(self, percent: int) -> bool:
        return self.used * 100 > percent * (self.used + self.free)

    def without(self, size: int) -> Usage:
        """Return the usage after ``size`` bytes are deleted."""
        size = min(size, self.used)
        return Usage(self.used - size, self.free + size)


def refuses_messages(
    disks: Sequence[Usage], *, warning_percent: int, force_percent: int, refusing: bool
) -> bool:
    """Return whether to refuse messages; ``refusing`` says whether they are refused already."""
    return any(
        disk.above(warning_percent) or (refusing and disk.above(force_percent)) for disk in disks
    )
