"""When a wait counts as begun, if the broker restarts and its wall clock was set back.

By its stored time, such a wait would last until the clock has caught up. So the wait begins again
at the start of the broker, because the time that has passed is not known. A wait begins again only
once: the file ``clockMarks.json`` has the end of the log and the time of each such start. If the
clock is set back a second time, a wait that has begun again is over.
"""

from __future__ import annotations

from pathlib import Path

import attrs
import msgspec

from triomq.broker.services.persisted import load_table
from triomq.broker.store.io.disk import Disk
from triomq.remoting.core.atomic_file import replace_file

MARKS_MAX = 64
"""The oldest marks beyond it are dropped; the next mark then counts for their waits."""
OVER = 0


@attrs.define(eq=False)
class ClockMarks:
    """``marks``: (end of the log at a start, begin of the waits below that end (ms)), ascending."""

    path: Path
    disk: Disk
    marks: list[tuple[int, int]] = attrs.field(factory=list)

    def note(self, now_ms: int, newest_ms: int, log_end: int) -> None:
        """Begin all waits again whose stored begin is later than now. Blocks.

        ``newest_ms``: the time of the last message, at ``log_end``.

        Raises: OSError.
        """
        found = [(end, OVER if since > now_ms else since) for end, since in self.marks]
        if newest_ms > now_ms and (not found or log_end > found[-1][0]):
            found.append((log_end, now_ms))
        found = found[-MARKS_MAX:]
        if found != self.marks:
            self.marks = found
            replace_file(self.path, msgspec.json.encode(found), self.disk)

    def since(self, begun_ms: int, log_offset: int, now_ms: int) -> int:
        """Return when a wait began (ms): as stored, unless the stored time is later than now.

        ``log_offset``: of the waiting message, or of the record about it.
        """
        if begun_ms <= now_ms:
            return begun_ms
        return next((since for end, since in self.marks if log_offset < end), now_ms)


def open_clock_marks(directory: Path, disk: Disk) -> ClockMarks:
    """Load the marks. Raises: DamagedTable, OSError."""

    def decode(content: bytes) -> list[tuple[int, int]]:
        return msgspec.json.decode(content, type=list[tuple[int, int]])

    path = directory / "clockMarks.json"
    return ClockMarks(path, disk, load_table(path, decode) or [])
