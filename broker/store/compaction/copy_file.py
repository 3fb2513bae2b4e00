"""CopyFile: a file of copied records and the file of its queue entries, which has the same name.

The queue file has entries of 46 bytes, as batch consume queues have; an entry's first field is the
position of the copy in the compaction log, which the copy repeats as its log offset. A file that
was left before it was full ends with the mark BLANK and with an entry of position -1.

Source: store/kv/CompactionLog.java#CompactionAppendMessageCallback,
store/queue/SparseConsumeQueue.java#putEndPositionInfo.
"""

from __future__ import annotations

from bisect import bisect_left
from pathlib import Path

import attrs

from triomq.broker.store.core.config import BATCH_ENTRY_BYTES
from triomq.broker.store.core.errors import StoreDamaged, io_error
from triomq.broker.store.io.disk import Disk
from triomq.broker.store.io.segment import segment_name
from triomq.broker.store.queues.batch_queue import BATCH_ENTRY, NOT_COMPACTED, BatchEntry
from triomq.remoting.protocol.record import BLANK, LOG_OFFSET_AT, encode_blank
from triomq.remoting.protocol.record_reader import read_record

BLOCK_ENTRIES = 1024
"""Queue entries that one read takes while a file is opened."""
END_ENTRY = BATCH_ENTRY.pack(-1, 0, 0, 0, 0, 0, NOT_COMPACTED, 0)
POSITION_BYTES = 8


@attrs.frozen
class CopySizes:
    """The sizes of all files of a compaction log, in bytes."""

    log_bytes: int
    queue_bytes: int

    @classmethod
    def of(cls, log_bytes: int, queue_bytes: int) -> CopySizes:
        """Return the sizes that a Java broker makes of its settings.

        ``log_bytes``, ``queue_bytes``: compactionMappedFileSize, compactionCqMappedFileSize.
        Source: store/kv/CompactionLog.java#getCompactionLogSize.
        """
        queue_bytes = queue_bytes // BATCH_ENTRY_BYTES * BATCH_ENTRY_BYTES
        count, rest = divmod(log_bytes, queue_bytes)
        if count < 5:
            return cls(5 * queue_bytes, queue_bytes)
        near = 0 < rest < queue_bytes >> 1
        return cls((count if near else count + 1) * queue_bytes, queue_bytes)

    @property
    def record_bytes_max(self) -> int:
        """The longest record that a file takes."""
        return self.log_bytes - BLANK.size


@attrs.define(eq=False)
class CopyFile:
    """A pair of files. Calls block: they are for a thread, one at a time.

    Positions are bytes from the start of the file.
    """

    disk: Disk
    log_path: Path
    queue_path: Path
    base: int
    """The position of the first byte in the compaction log: the name of both files."""
    sizes: CopySizes
    names_durable: bool = True
    count: int = attrs.field(default=0, init=False)
    """Copies."""
    end: int = attrs.field(default=0, init=False)
    """Position behind the last copy."""
    first_offset: int = attrs.field(default=-1, init=False)
    last_offset: int = attrs.field(default=-1, init=False)
    """Queue offsets of the first and the last copy; -1: none."""
    _log_fd: int = attrs.field(default=-1, init=False)
    _queue_fd: int = attrs.field(default=-1, init=False)

    @classmethod
    def create(
        cls, disk: Disk, log_directory: Path, queue_directory: Path, base: int, sizes: CopySizes
    ) -> CopyFile:
        """Create both files. Raises: DiskFull, StoreIoError; then one of them may exist."""
        name = segment_name(base)
        file = cls(disk, log_directory / name, queue_directory / name, base, sizes, False)
        file._log_fd = disk.create(file.log_path, sizes.log_bytes)
        try:
            file._queue_fd = disk.create(file.queue_path, sizes.queue_bytes)
        except BaseException:
            file.close()
            raise
        return file

    # Writing

    def has_room(self, size: int) -> bool:
        """Return whether a record of ``size`` bytes fits before the marks of the file's end."""
        return (
            self.end + size + BLANK.size <= self.sizes.log_bytes
            and (self.count + 1) * BATCH_ENTRY_BYTES < self.sizes.queue_bytes
        )

    def append(self, record: bytes, queue_offset: int, tags_code: int, store_ms: int) -> None:
        """Write a copy at the end. After an error the file has the copies that it had before.

        Raises: DiskFull, StoreIoError.
        """
        assert self.has_room(len(record)), "the caller asks has_room"
        assert queue_offset > self.last_offset, "copies come in the order of the queue"
        position = self.base + self.end
        copy = bytearray(record)
        copy[LOG_OFFSET_AT : LOG_OFFSET_AT + POSITION_BYTES] = position.to_bytes(8, "big")
        entry = BATCH_ENTRY.pack(
            position, len(record), tags_code, store_ms, queue_offset, 1, NOT_COMPACTED, 0
        )
        self._open()
        self.disk.write_at(self._log_fd, copy, self.end, self.log_path)
        at = self.count * BATCH_ENTRY_BYTES
        self.disk.write_at(self._queue_fd, entry, at, self.queue_path)
        self._note(queue_offset, len(record))

    def _note(self, queue_offset: int, size: int) -> None:
        if not self.count:
            self.first_offset = queue_offset
        self.count, self.end, self.last_offset = self.count + 1, self.end + size, queue_offset

    def seal(self) -> None:
        """Mark the end of a file that gets no more copies. Raises: DiskFull, StoreIoError."""
        self._open()
        left = self.sizes.log_bytes - self.end
        if left >= BLANK.size:
            self.disk.write_at(self._log_fd, encode_blank(left), self.end, self.log_path)
        at = self.count * BATCH_ENTRY_BYTES
        if at < self.sizes.queue_bytes:
            self.disk.write_at(self._queue_fd, END_ENTRY, at, self.queue_path)

    # Reading

    def entry(self, number: int) -> BatchEntry:
        """Return the entry of a copy, counted from 0. Raises: StoreIoError."""
        return BatchEntry.unpack(self._read_entries(number, 1))

    def record(self, entry: BatchEntry) -> bytes:
        """Return the copy of an entry. Raises: StoreIoError."""
        return self._read(entry.log_offset - self.base, entry.size)

    def record_at(self, position: int) -> bytes | None:
        """Return the copy at a position of the compaction log, if one begins there.

        Raises: StoreIoError.
        """
        number = bisect_left(range(self.count), position, key=lambda n: self.entry(n).log_offset)
        if number == self.count or (entry := self.entry(number)).log_offset != position:
            return None
        return self.record(entry)

    def number_from(self, queue_offset: int) -> int:
        """Return the number of the first copy at or after a queue offset; ``count``: none."""
        return bisect_left(range(self.count), queue_offset, key=lambda n: self.entry(n).base)

    def number_stored_from(self, timestamp_ms: int) -> int:
        """Return the number of the first copy stored at or after a time; ``count``: none."""
        return bisect_left(
            range(self.count), timestamp_ms, key=lambda n: self.entry(n).store_timestamp
        )

    def _read_entries(self, number: int, count: int) -> bytes:
        self._open()
        try:
            return self.disk.read(
                self._queue_fd, count * BATCH_ENTRY_BYTES, number * BATCH_ENTRY_BYTES
            )
        except OSError as error:
            raise io_error(self.queue_path, error) from error

    def _read(self, position: int, size: int) -> bytes:
        self._open()
        try:
            return self.disk.read(self._log_fd, size, position)
        except OSError as error:
            raise io_error(self.log_path, error) from error

    # Opening

    def load(self, topic: str, queue_id: int, log_min: int | None = None) -> None:
        """Find the copies.

        ``log_min``: the smallest queue offset that the commit log still has, for the file that was
        written to last: from there on copies are cut off, since they are made again, and the others
        are checked. None: a file whose copies are all on the disk.

        Raises: StoreIoError, DiskFull.
        """
        number = 0
        while True:
            data = self._read_entries(number, BLOCK_ENTRIES)
            for at in range(0, len(data) - BATCH_ENTRY_BYTES + 1, BATCH_ENTRY_BYTES):
                entry = BatchEntry.unpack(data, at)
                if not self._continues(entry) or (
                    log_min is not None
                    and (entry.base >= log_min or not self._is_copy(entry, topic, queue_id))
                ):
                    if log_min is not None:
                        self._cut()
                    return
                self._note(entry.base, entry.size)
            number += BLOCK_ENTRIES
            if len(data) < BLOCK_ENTRIES * BATCH_ENTRY_BYTES:
                return

    def _continues(self, entry: BatchEntry) -> bool:
        return (
            entry.log_offset == self.base + self.end
            and 0 < entry.size <= self.sizes.log_bytes - self.end
            and entry.messages == 1
            and entry.base > self.last_offset
        )

    def _is_copy(self, entry: BatchEntry, topic: str, queue_id: int) -> bool:
        found = read_record(self.record(entry), 0, entry.size)
        return not isinstance(found, str) and (
            found.size,
            found.topic,
            found.queue_id,
            found.queue_offset,
        ) == (entry.size, topic, queue_id, entry.base)

    def _cut(self) -> None:
        """Zero what is behind the last copy, and force that out."""
        at = self.count * BATCH_ENTRY_BYTES
        self.disk.zero_tail(self._queue_fd, at, self.sizes.queue_bytes, self.queue_path)
        self.disk.zero_tail(self._log_fd, self.end, self.sizes.log_bytes, self.log_path)

    def check_lengths(self) -> None:
        """Raises: StoreDamaged if the files do not have the configured sizes; OSError."""
        for path, size, key in (
            (self.log_path, self.sizes.log_bytes, "compactionMappedFileSize"),
            (self.queue_path, self.sizes.queue_bytes, "compactionCqMappedFileSize"),
        ):
            length = path.stat().st_size
            if length != size:
                raise StoreDamaged(
                    path,
                    f"its length is {length}, but files of {size} bytes are configured",
                    f"set {key} as it was when the file was written, or restore the file",
                )

    def _open(self) -> None:
        try:
            if self._log_fd < 0:
                self._log_fd = self.disk.open(self.log_path)
            if self._queue_fd < 0:
                self._queue_fd = self.disk.open(self.queue_path)
        except OSError as error:
            raise io_error(self.log_path, error) from error

    def close(self) -> None:
        """Close the descriptors. A later call opens them again, by name."""
        for fd in (self._log_fd, self._queue_fd):
            if fd >= 0:
                self.disk.close(fd)
        self._log_fd = self._queue_fd = -1
