"""Since when the waits count that were begun before a start, if the wall clock was set back.

Such a wait would last for as long as the clock is behind. So it begins again at the start: nobody
knows how much of it had passed, nor how long the broker was stopped. It does so once: a file of our
own says where the log ended at each such start, and at what time. What has begun again is over if
the clock is set back once more.
"""

from __future__ import annotations

from pathlib import Path

import attrs
import msgspec

from triomq.broker.services.persisted import load_table
from triomq.broker.store.io.disk import Disk
from triomq.remoting.core.atomic_file import replace_file

MARKS_MAX = 64
"""Beyond it the oldest are forgotten: the waits below them count as those of the next one."""
OVER = 0


@attrs.define(eq=False)
class ClockMarks:
    """``marks``: (end of the log at a start, since when what is below it waits (ms)), ascending."""

    path: Path
    disk: Disk
    marks: list[tuple[int, int]] = attrs.field(factory=list)

    def note(self, now_ms: int, newest_ms: int, log_end: int) -> None:
        """Begin all waits again that the clock calls later than now. Blocks.

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
        """Return since when a wait counts: since it was begun, unless that is later than now.

        ``log_offset``: of the message that waits, or of the record about it.
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
