"""Segments: the log files by log offset, without gaps; every file except the last is full."""

from __future__ import annotations

import logging
from pathlib import Path

import attrs

from triomq.broker.store.core.errors import StoreDamaged
from triomq.broker.store.io.disk import Disk
from triomq.broker.store.io.segment import NAME_DIGITS, Segment

logger = logging.getLogger(__name__)


@attrs.define(eq=False)
class Segments:
    """The files of one directory. Empty until ``load``; ``grow`` adds the next file."""

    disk: Disk
    directory: Path
    size: int
    size_key: str = attrs.field(default="mappedFileSizeCommitLog", kw_only=True)
    """The setting that has the size."""
    items: list[Segment] = attrs.field(factory=list, init=False)

    def load(self) -> None:
        """Find the files and check that they form one log.

        Sub-directories are skipped and an empty last file is removed, as Java does. Any other file
        stops the start: a guess about a foreign file would be a guess about messages.

        Raises: StoreDamaged, OSError. Source: store/…/MappedFileQueue.java#doLoad.
        """
        self.disk.make_durable_directory(self.directory)
        names = sorted(path.name for path in self.directory.iterdir() if not path.is_dir())
        for name in names:
            path = self.directory / name
            if len(name) != NAME_DIGITS or not name.isdecimal():
                raise StoreDamaged(
                    path,
                    "not a log segment, and only segments may lie in this directory",
                    "move the file away",
                )
            length = path.stat().st_size
            if length == 0 and name == names[-1]:
                logger.warning("%s is empty (a crash while it was made); removed", path)
                self.disk.remove(path)
                continue
            self._check(path, int(name), length)
            self.items.append(Segment(self.disk, self.directory, int(name), self.size))

    def _check(self, path: Path, base: int, length: int) -> None:
        if length != self.size:
            raise StoreDamaged(
                path,
                f"its length is {length}, but the configured segment size is {self.size}",
                f"set {self.size_key}={length} if the whole store was written so; otherwise"
                " restore the file from a copy",
            )
        if base % self.size:
            raise StoreDamaged(
                path,
                f"its name is not a multiple of the segment size {self.size}",
                f"check {self.size_key}",
            )
        if self.items and base != self.items[-1].end:
            raise StoreDamaged(
                path,
                f"the log has a hole: the bytes from offset {self.items[-1].end} to {base} are"
                " missing, that is "
                + (
                    f"the segment {self.items[-1].end:020d}"
                    if base == self.items[-1].end + self.size
                    else f"the segments {self.items[-1].end:020d} to {base - self.size:020d}"
                )
                + " before it",
                "restore it from a copy (of a slave, or a backup); or move this and all later"
                " segments away, which loses their messages; or move all segments before the hole"
                " away, which loses the older ones",
            )

    @property
    def first_offset(self) -> int:
        """The smallest log offset; 0 for an empty log."""
        return self.items[0].base if self.items else 0

    @property
    def end(self) -> int:
        """The end of the last file, whether written up to there or not."""
        return self.items[-1].end if self.items else 0

    def find(self, offset: int) -> Segment | None:
        """Return the file that holds ``offset``; None if there is none."""
        # One load of the list: threads call this, too, while `take_oldest` may replace it.
        items = self.items
        if not items:
            return None
        number = (offset - items[0].base) // self.size
        return items[number] if 0 <= number < len(items) else None

    def grow(self, base: int) -> Segment:
        """Create the file that starts at ``base``, the end of the log.

        Raises: DiskFull, StoreIoError.
        """
        assert base % self.size == 0
        assert not self.items or base == self.items[-1].end
        segment = Segment.create(self.disk, self.directory, base, self.size)
        self.items.append(segment)
        return segment

    def drop_from(self, offset: int) -> list[Path]:
        """Delete all files that begin at or after ``offset``, and return their paths."""
        dropped = []
        while self.items and self.items[-1].base >= offset:
            segment = self.items.pop()
            segment.close()
            self.disk.remove(segment.path)
            dropped.append(segment.path)
        return dropped

    def take_oldest(self) -> Segment:
        """Remove the first file from the sequence. The caller deletes it, or puts it back."""
        assert len(self.items) > 1
        oldest, *self.items = self.items  # a new list: a thread may be in `find`
        oldest.close()
        return oldest

    def put_back(self, segment: Segment) -> None:
        """Undo ``take_oldest``, if the file could not be deleted."""
        self.items = [segment, *self.items]

    def covering(self, start: int, end: int) -> list[Segment]:
        """Return the files that overlap [start, end)."""
        return [segment for segment in self.items if segment.base < end and segment.end > start]

    def close(self) -> None:
        for segment in self.items:
            segment.close()
