"""The checkpoint file: how far log, queues and key index are known to be on the disk. 4096 bytes.

=========  ====  ===================================================================================
position   type  field (store times in ms; each is the time of a message, never that of a flush)
=========  ====  ===================================================================================
0          i8    store time of the last record that is on the disk
8          i8    store time of the last record whose queue entry is on the disk
16         i8    store time of the last entry of the newest *full* index file that is on the disk
24         i8    on a slave: how far its master has flushed
32         i8    confirmed log offset
40         i8    start of the last record whose queue entry is on the disk (0 before RocketMQ 5.5.0)
4056       8 B   b"TRIOMQ1\\0": our mark, in a part of the file that Java neither reads nor changes
4064       i8    the same as position 40. Java moves that field and not this one, so a difference
                 means that Java has used the store
4072       i8    end of that record
4080       i8    last record in the key index at that time; -1: none
4088       i8    1 if there were consume queues, so that recovery notices a removed folder
=========  ====  ===================================================================================

Law: a value may be too low, never too high. Java's recovery trusts the times with a margin of 3 s.
Ours starts exactly at the mark, because log, queue entries and key index up to it were forced to
the disk before the mark was written. Source: store/…/StoreCheckpoint.java.
"""

from __future__ import annotations

import struct
from pathlib import Path

import attrs

from triomq.broker.store.io.disk import Disk

SIZE_BYTES = 4096
JAVA_FIELDS = struct.Struct(">6q")
MARK = struct.Struct(">8s4q")
MARK_POSITION = SIZE_BYTES - MARK.size
MAGIC = b"TRIOMQ1\0"
JAVA_MARGIN_MS = 3_000


@attrs.frozen
class Mark:
    """A record that is on the disk, with everything before it and everything derived from it."""

    record_offset: int
    record_end: int
    index_position: int
    has_queues: bool


@attrs.frozen
class Checkpoint:
    """The content of the file, in its order. All zeros: nothing is known."""

    log_timestamp: int = 0
    queue_timestamp: int = 0
    index_timestamp: int = 0
    master_flushed: int = 0
    confirmed: int = 0
    queue_log_offset: int = 0
    mark: Mark | None = None

    @property
    def safe_timestamp(self) -> int:
        """Recovery may start at a segment that begins no later than this (Java's rule)."""
        return max(0, min(self.log_timestamp, self.queue_timestamp) - JAVA_MARGIN_MS)

    def encode(self) -> bytes:
        data = bytearray(SIZE_BYTES)
        *java_fields, mark = attrs.astuple(self, recurse=False)
        JAVA_FIELDS.pack_into(data, 0, *java_fields)
        if mark is not None:
            MARK.pack_into(data, MARK_POSITION, MAGIC, *attrs.astuple(mark))
        return bytes(data)

    @classmethod
    def decode(cls, data: bytes) -> Checkpoint:
        """Return the content.

        Fields that a short file lacks are zero; a mark in a short file, or one that contradicts
        Java's fields, does not count.
        """
        whole = len(data) >= SIZE_BYTES
        data = data.ljust(SIZE_BYTES, b"\0")
        known = cls(*JAVA_FIELDS.unpack_from(data))
        magic, start, end, index_position, has_queues = MARK.unpack_from(data, MARK_POSITION)
        if not whole or magic != MAGIC or start != known.queue_log_offset or start >= end:
            return known
        return attrs.evolve(known, mark=Mark(start, end, index_position, bool(has_queues)))


@attrs.define(eq=False)
class CheckpointFile:
    """The file ``checkpoint`` in the root of the store."""

    disk: Disk
    path: Path
    _fd: int = attrs.field(default=-1, init=False)

    def load(self) -> Checkpoint:
        """Open the file, create it if it is missing, and return its content.

        Raises: DiskFull, StoreIoError, OSError.
        """
        known = self.disk.read_path(self.path, SIZE_BYTES, 0) if self.path.exists() else b""
        self._fd = self.disk.create(self.path, SIZE_BYTES)
        return Checkpoint.decode(known)

    def write(self, checkpoint: Checkpoint) -> None:
        """Write the content. After an error the old one is whole, because the file has its blocks.

        Raises: DiskFull, StoreIoError.
        """
        self.disk.write_at(self._fd, checkpoint.encode(), 0, self.path)

    def close(self) -> None:
        if self._fd >= 0:
            self.disk.close(self._fd)
            self._fd = -1
