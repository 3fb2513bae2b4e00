"""The segments of the commit log: bytes by log offset.

A segment's name is the log offset of its first byte. Its size follows from its length, so the
configured size of segments is not needed. Offsets and sizes come from files that may be damaged:
each is checked before it is used.
"""

import os
import struct
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

import attrs

from triomq.client.spark.errors import StoreFileDamaged
from triomq.client.spark.records import TIME_END, store_time_of
from triomq.remoting.protocol.record import LOG_OFFSET_AT
from triomq.remoting.protocol.record_reader import RECORD_BYTES_MIN, read_record

NAME_DIGITS = 20
OFFSET_END = 1 << 62
"""No broker has written so much."""
RECORD_BYTES_MAX = 64 << 20
"""A larger record is damage: a frame of RocketMQ has 16 MiB by default."""
I8 = struct.Struct(">q")


@attrs.frozen
class SegmentFile:
    """One file of the log."""

    base: int
    """log offset of the first byte"""
    length: int
    path: Path

    @property
    def end(self) -> int:
        return self.base + self.length

    def damaged(self, log_offset: int, what: str) -> StoreFileDamaged:
        return StoreFileDamaged(
            self.path, log_offset - self.base, f"{what} (log offset {log_offset})"
        )


@attrs.define(eq=False)
class LogFiles:
    """All segments. A file stays open until another one is read."""

    segments: Sequence[SegmentFile]
    bases: list[int] = attrs.field(init=False)
    _open: tuple[SegmentFile, int] | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.bases = [segment.base for segment in self.segments]

    @classmethod
    def find(cls, folders: Sequence[Path]) -> "LogFiles":
        """List the segments of all folders. Raises: OSError."""
        found = [segment for folder in folders for segment in numbered_files(folder)]
        return cls(sorted(found, key=lambda segment: segment.base))

    @property
    def start(self) -> int:
        """The log offset of the first byte."""
        return self.segments[0].base if self.segments else 0

    @property
    def end(self) -> int:
        """The end of the last file; records may end before it."""
        return self.segments[-1].end if self.segments else 0

    def read(self, log_offset: int, size: int) -> bytes:
        """Return ``size`` bytes, which lie in one segment.

        Raises: StoreFileDamaged if the segment is missing, too short or cannot be read.
        """
        segment = self.segment_of(log_offset, size)
        if self._open is None or self._open[0] is not segment:
            self.close()
            try:
                self._open = segment, os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise segment.damaged(log_offset, f"cannot be opened: {error}") from error
        try:
            data = os.pread(self._open[1], size, log_offset - segment.base)
        except OSError as error:
            raise segment.damaged(log_offset, f"cannot be read: {error}") from error
        if len(data) < size:
            raise segment.damaged(log_offset, f"{size} bytes are expected, {len(data)} are there")
        return data

    def segment_of(self, log_offset: int, size: int = 1) -> SegmentFile:
        """Return the segment that has these bytes. Raises: StoreFileDamaged."""
        number = bisect_right(self.bases, log_offset) - 1
        if number < 0:
            raise StoreFileDamaged(
                self.segments[0].path.parent if self.segments else Path("commitlog"),
                0,
                f"log offset {log_offset} lies before the first segment",
            )
        segment = self.segments[number]
        if log_offset + size > segment.end:
            what = "the segment is missing" if log_offset >= segment.end else "the file ends"
            raise segment.damaged(
                log_offset, f"{what} within the {size} bytes that a queue says are here"
            )
        return segment

    def is_whole(self, log_offset: int, size: int) -> bool:
        """Return whether a whole record of this size is at its own log offset.

        Its body must have its CRC. Zeros at the end of what follows the body were never written.
        """
        if not RECORD_BYTES_MIN <= size <= RECORD_BYTES_MAX:
            return False
        try:
            data = self.read(log_offset, size)
        except StoreFileDamaged:
            return False
        found = read_record(data, 0, size)
        if isinstance(found, str) or found.size != size or found.log_offset != log_offset:
            return False
        return not (found.properties_bytes or found.topic.encode()).endswith(b"\0")

    def store_time(self, log_offset: int) -> int:
        """Return the store time (ms) of the record at a log offset. Raises: StoreFileDamaged."""
        head = self.read(log_offset, TIME_END)
        if I8.unpack_from(head, LOG_OFFSET_AT)[0] != log_offset:
            raise self.segment_of(log_offset).damaged(log_offset, "no record begins here")
        return store_time_of(head)

    def close(self) -> None:
        if self._open is not None:
            os.close(self._open[1])
            self._open = None


def numbered_files(folder: Path) -> list[SegmentFile]:
    """Return the files of a folder that have content and whose name is an offset, in order.

    Raises: OSError.
    """
    with os.scandir(folder) as entries:
        found = [
            SegmentFile(int(entry.name), entry.stat().st_size, Path(entry.path))
            for entry in entries
            if len(entry.name) == NAME_DIGITS
            and entry.name.isdecimal()
            and int(entry.name) < OFFSET_END
            and entry.is_file()
            and entry.stat().st_size
        ]
    return sorted(found, key=lambda file: file.base)
