"""The checkpoint file: how far log, queues and index are known to be on the disk. 4096 bytes.

=========  ====  =====================================================================================================
position   type  field (store times in ms; each of a *message*, none of the flush itself)
=========  ====  =====================================================================================================
0          i8    store time of the last record that is on the disk
8          i8    store time of the last record whose queue entry is on the disk
16         i8    store time of the last entry of the newest *full* index file that is on the disk
24         i8    a slave: how far its master has flushed
32         i8    confirmed log offset
40         i8    start of the last record whose queue entry is on the disk (RocketMQ 5.5.0; 0 in other versions)
4056       8 B   b"TRIOMQ1\\0": our mark, in a part of the file that Java neither reads nor changes
4064       i8    the same as position 40: Java moves that one and not this one, so a difference means that Java was here
4072       i8    end of that record
4080       i8    last record in the key index at that time, -1 = none
4088       i8    1 if there were consume queues, so that a removed folder is noticed
=========  ====  =====================================================================================================

Law: a value may be too low, never too high. Java's recovery trusts the times with a margin of 3 s; ours starts exactly at the mark, since everything
before it was forced to the disk first: log, queue entries and index. Source: store/…/StoreCheckpoint.java.
"""

from __future__ import annotations

import struct
from pathlib import Path

import attrs

from triomq.broker.store.disk import Disk

SIZE_BYTES = 4096
JAVA_FIELDS = struct.Struct(">6q")
MARK = struct.Struct(">8s4q")
MARK_POSITION = SIZE_BYTES - MARK.size
MAGIC = b"TRIOMQ1\0"
JAVA_MARGIN_MS = 3_000


@attrs.frozen
class Mark:
    """A record of which we know that it, and everything before it, is on the disk with all that is derived from it."""

    record_offset: int
    record_end: int
    index_position: int
    has_queues: bool


@attrs.frozen(kw_only=True)
class Checkpoint:
    """The content of the file. All zero = nothing is known."""

    log_timestamp: int = 0
    queue_timestamp: int = 0
    index_timestamp: int = 0
    master_flushed: int = 0
    confirmed: int = 0
    queue_log_offset: int = 0
    mark: Mark | None = None

    @property
    def safe_timestamp(self) -> int:
        """Java's rule: recovery may start at a segment that begins no later than this."""
        return max(0, min(self.log_timestamp, self.queue_timestamp) - JAVA_MARGIN_MS)

    def encode(self) -> bytes:
        data = bytearray(SIZE_BYTES)
        JAVA_FIELDS.pack_into(
            data, 0, self.log_timestamp, self.queue_timestamp, self.index_timestamp, self.master_flushed, self.confirmed, self.queue_log_offset
        )
        if self.mark is not None:
            MARK.pack_into(data, MARK_POSITION, MAGIC, self.mark.record_offset, self.mark.record_end, self.mark.index_position, self.mark.has_queues)
        return bytes(data)

    @classmethod
    def decode(cls, data: bytes) -> Checkpoint:
        """Read the bytes; what a short file lacks is zero or no mark, and a mark that Java's fields contradict is none."""
        whole = len(data) >= SIZE_BYTES
        data = data.ljust(SIZE_BYTES, b"\0")
        log, queue, index, master, confirmed, queue_log_offset = JAVA_FIELDS.unpack_from(data)
        magic, record_offset, record_end, index_position, has_queues = MARK.unpack_from(data, MARK_POSITION)
        mark = None
        if whole and magic == MAGIC and record_offset == queue_log_offset and record_offset < record_end:
            mark = Mark(record_offset, record_end, index_position, bool(has_queues))
        return cls(
            log_timestamp=log,
            queue_timestamp=queue,
            index_timestamp=index,
            master_flushed=master,
            confirmed=confirmed,
            queue_log_offset=queue_log_offset,
            mark=mark,
        )


@attrs.define(eq=False)
class CheckpointFile:
    """``checkpoint`` in the root of the store."""

    disk: Disk
    path: Path
    _fd: int = attrs.field(default=-1, init=False)

    def load(self) -> Checkpoint:
        """Open the file, made if missing, and read it. Raises DiskFull, StoreIoError, OSError."""
        known = self.disk.read_path(self.path, SIZE_BYTES, 0) if self.path.exists() else b""
        self._fd = self.disk.create(self.path, SIZE_BYTES)
        return Checkpoint.decode(known)

    def write(self, checkpoint: Checkpoint) -> None:
        """Raises DiskFull or StoreIoError; the old content is then whole, since the file has its blocks already."""
        self.disk.write_at(self._fd, checkpoint.encode(), 0, self.path)

    def close(self) -> None:
        if self._fd >= 0:
            self.disk.close(self._fd)
            self._fd = -1
