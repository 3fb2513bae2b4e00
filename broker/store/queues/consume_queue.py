"""Consume queue: 20-byte entries, in files named by the byte offset of their first entry.

=========  ====  ======================================================================
position   type  field
=========  ====  ======================================================================
0          i8    log offset of the record
8          i4    size of the record; 0: nothing was ever written here
12         i8    tags code: hash of TAGS, or the time of delivery in the schedule topic
=========  ====  ======================================================================

Entry number q lies at byte ``20·q``. A queue whose first record has q > 0 (a fresh slave) begins
with *fillers* (size 0x7FFFFFFF), which readers skip. The newest entries lie in memory (``tail``)
until they are written out in one piece. A crash loses none of them: recovery reads the log again.

Source: store/…/ConsumeQueue.java.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path

import attrs

from triomq.broker.store.core.errors import StoreDamaged
from triomq.broker.store.io.disk import Disk
from triomq.broker.store.io.open_files import OpenFiles
from triomq.broker.store.io.reads import Buffer, Reads
from triomq.broker.store.io.segment import NAME_DIGITS, segment_name
from triomq.broker.store.queues.search import FILLER_SIZE, Entry, first_not
from triomq.remoting.protocol.names import SCHEDULE_TOPIC
from triomq.remoting.protocol.record import topic_field

logger = logging.getLogger(__name__)

ENTRY = struct.Struct(">qiq")
GAP_MAX = 1_000_000
QUEUE_OFFSET_END = 1 << 55
"""Entry numbers from here on have no byte offset."""
FILLER = ENTRY.pack(0, FILLER_SIZE, 0)
SCAN_ENTRIES = 3_200
ONE_READ_ENTRIES = 256
"""Up to this number entries are read with one call instead of being searched on the disk: a block
of most file systems has 204 entries.
"""
SECTOR_BYTES_MIN = 64
"""A power failure cuts a write at multiples of this. Sectors have at least 512 bytes, but the code
does not rely on that.
"""

IsRecord = Callable[[int, int, int, int], bool]


@attrs.frozen
class QueueFiles:
    """What all queues of one kind share."""

    disk: Disk
    open_files: OpenFiles
    file_size: int
    entry: struct.Struct = ENTRY
    """Layout of an entry. Log offset, size and tags code come first. In batch consume queues it has
    46 bytes.
    """

    @property
    def per_file(self) -> int:
        """The number of entries of one file."""
        return self.file_size // self.entry.size


@attrs.define(eq=False)
class ConsumeQueue:
    """The entries of one queue. Offsets are entry numbers ("queue offsets") unless named bytes."""

    topic: str
    queue_id: int
    directory: Path
    files: QueueFiles
    next_offset: int = 0
    """The number of the next message to be appended. Changed by appends only."""
    min_offset: int = 0
    end_offset: int = 0
    """One past the last entry. Changed by the indexer only."""
    log_end: int = -1
    """Log offset of the end of the last entry's record: records up to there have their entries."""
    tail: bytearray = attrs.field(factory=bytearray, init=False)
    tail_offset: int = attrs.field(default=0, init=False)
    """Number of the first entry in ``tail``; all entries before it are in the files."""
    arrived: dict[int, int] = attrs.field(factory=dict, init=False)
    """Tags code -> new end of the queue, since the last report of arrivals."""
    bases: list[int] = attrs.field(factory=list, init=False)
    """Byte offsets of the files, which are their names; ascending, without gaps."""
    unsynced: set[int] = attrs.field(factory=set, init=False)
    """Files that were written and are not forced to the disk yet."""
    entry_bytes: int = attrs.field(init=False)
    delayed: bool = attrs.field(init=False)
    """Whether entries carry the time of delivery instead of a hash."""
    batched: bool = attrs.field(default=False, init=False)
    """Whether an entry stands for several messages. Then this is a ``BatchQueue``."""
    special: bool = attrs.field(init=False)
    """Whether an entry is not made from tags, size and place alone: the queue is delayed, batched
    or deleted.
    """
    deleted: bool = attrs.field(default=False, init=False)
    """Whether the queue is removed from the table, with its files. Messages that were appended
    before the deletion and confirmed after it get no entry.
    """
    record_magic: int = attrs.field(init=False)
    record_topic: bytes = attrs.field(init=False)
    """The topic as it is in every record of this queue: length and text. A long topic needs the
    second version of the record format (``record_magic``).
    """
    names_durable: bool = attrs.field(default=True, init=False)
    """False while a power failure may lose the name of a new file."""
    _oldest: tuple[int, int, int] | None = attrs.field(default=None, init=False)
    """Number, log offset and size of the first entry, if recovery has read it: saves opening
    thousands of files a second time.
    """
    _path: tuple[int, Path] | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.delayed = self.special = self.topic == SCHEDULE_TOPIC
        self.entry_bytes = self.files.entry.size
        self.record_magic, self.record_topic = topic_field(self.topic)

    # Writing

    def add(self, queue_offset: int, log_offset: int, size: int, tags_code: int) -> bool:
        """Add an entry that is not simply the next one; return False if the queue has it already.

        A gap is filled with fillers, so that every entry has the position that belongs to its
        number (Java appends at the end, so later positions are off by the gap).

        Checkpoint: never.
        """
        if (
            log_offset + size <= self.log_end
            or queue_offset < self.end_offset
            or queue_offset >= QUEUE_OFFSET_END
        ):
            return False
        if queue_offset - self.end_offset > GAP_MAX and (self.bases or self.tail):
            # No log lacks so many records: the number is damaged, and no CRC covers it.
            return False
        if queue_offset > self.end_offset:
            # The first entry ever: the queue begins with the file of this entry.
            if not self.bases and not self.tail:
                per_file = self.files.per_file
                self.end_offset = self.tail_offset = queue_offset - queue_offset % per_file
                self.min_offset = queue_offset
            self.tail += FILLER * (queue_offset - self.end_offset)
        self.tail += ENTRY.pack(log_offset, size, tags_code)
        self.end_offset = queue_offset + 1
        self.log_end = log_offset + size
        return True

    @property
    def unwritten_bytes(self) -> int:
        """Bytes of the entries that are only in memory."""
        return len(self.tail)

    def write_out(self) -> None:
        """Move ``tail`` to the files. After an error all entries are still in memory.

        Raises: DiskFull, StoreIoError. Checkpoint: never.
        """
        position, start = self.tail_offset * self.entry_bytes, 0
        file_size = self.files.file_size
        while start < len(self.tail):
            base = position - position % file_size
            piece = self.tail[start : start + base + file_size - position]
            self.files.disk.write_at(
                self._fd_for_writing(base), piece, position - base, self.path(base)
            )
            self.unsynced.add(base)
            position, start = position + len(piece), start + len(piece)
        self.tail_offset = self.end_offset
        self.tail = bytearray()

    def _fd_for_writing(self, base: int) -> int:
        try:
            if self.bases and self.bases[-1] >= base:
                return self.files.open_files.get(self.path(base))
            self.files.disk.make_directory(self.directory)
            if not self.bases:
                self._remove_foreign_entries()
        except OSError as error:
            raise self.files.disk.write_error(self.directory, error) from error
        fd = self.files.open_files.get(self.path(base), create_size=self.files.file_size)
        self.bases.append(base)
        self.names_durable = False
        return fd

    def _remove_foreign_entries(self) -> None:
        """Remove files of a deleted queue of this name, which a restart would take for ours.

        Raises: OSError.
        """
        for name in os.listdir(self.directory):
            if len(name) == NAME_DIGITS and name.isdecimal():
                logger.warning("%s is left of a deleted queue: removed", self.directory / name)
                self.files.disk.remove(self.directory / name)

    def path(self, base: int) -> Path:
        if self._path is None or self._path[0] != base:
            # A new path costs 7 µs, and most reads of a queue go to the same file.
            self._path = base, self.directory / segment_name(base)
        return self._path[1]

    # Reading

    def place(self, offset: int, count: int) -> tuple[Path, int, int]:
        """Return (file, position, bytes) of entries from ``offset`` on.

        They end with the file, and before the entries that are only in memory.
        """
        position = offset * self.entry_bytes
        base = position - position % self.files.file_size
        stop = min(
            (offset + count) * self.entry_bytes,
            self.tail_offset * self.entry_bytes,
            base + self.files.file_size,
        )
        return self.path(base), position - base, stop - position

    def in_memory(self, offset: int, count: int) -> bytearray | None:
        """Return entries from ``offset`` on if they are not written out yet, otherwise None."""
        start = (offset - self.tail_offset) * self.entry_bytes
        return self.tail[start : start + count * self.entry_bytes] if start >= 0 else None

    def entries_from(self, offset: int, count: int, reads: Reads) -> Buffer:
        """Return at most ``count`` entries from ``offset`` on. Raises: Cold, StoreIoError."""
        data = self.in_memory(offset, count)
        return data if data is not None else reads.file(*self.place(offset, count))

    def entry(self, offset: int) -> tuple[int, int, int]:
        """Return (log offset, size, tags code) of an entry. For recovery: may wait for the disk.

        Raises: OSError.
        """
        log_offset, size, code = self.files.entry.unpack_from(self.read_entries(offset, 1))[:3]
        return log_offset, size, code

    # Loading and truncating (before the store serves)

    def load(self) -> None:
        """Find the files. Raises: StoreDamaged, OSError."""
        with os.scandir(self.directory) as entries:
            lengths = {entry.name: entry.stat().st_size for entry in entries}
        names = sorted(lengths)
        for name in names:
            if len(name) != NAME_DIGITS or not name.isdecimal():
                raise StoreDamaged(
                    self.directory / name, "not a consume queue file", "move it away"
                )
            path, length = self.path(int(name)), lengths[name]
            if length == 0 and name == names[-1]:  # made just before a power failure
                self.files.disk.remove(path)
                continue
            if length != self.files.file_size:
                raise StoreDamaged(
                    path,
                    f"its length is {length}, but the configured size is {self.files.file_size}",
                    f"set mappedFileSizeConsumeQueue={length} if all queues were written so; or"
                    " delete the folder consumequeue, it is rebuilt from the log",
                )
            if self.bases and int(name) != self.bases[-1] + self.files.file_size:
                raise StoreDamaged(
                    path,
                    "a file before it is missing",
                    "delete the folder consumequeue and the file checkpoint, all queues are rebuilt"
                    " from the log",
                )
            self.bases.append(int(name))
        # The end of the entries is still unknown, because a file always has its full length:
        # `truncate` or `find_end_by_scan` must follow.
        self.end_offset = self.tail_offset = self._capacity_offset

    @property
    def first_offset(self) -> int:
        """The number of the first entry in the files."""
        return self.bases[0] // self.entry_bytes if self.bases else self.tail_offset

    @property
    def _capacity_offset(self) -> int:
        return (self.bases[-1] + self.files.file_size) // self.entry_bytes if self.bases else 0

    def _written_offset(self) -> int:
        """Return a number from which on no entry was written: of the first hole, or of the end.

        Raises: OSError.
        """
        if not self.bases:
            return 0
        base = self.bases[-1]
        path = self.path(base)
        hole = self.files.disk.next_hole(self.files.open_files.get(path), 0, self.files.file_size)
        return (base + min(self.files.file_size, hole + self.entry_bytes - 1)) // self.entry_bytes

    def first_not(self, holds: Callable[[int, int], bool], low: int, high: int) -> int:
        """Return the smallest real offset in [low, high) that does not hold; otherwise ``high``.

        ``holds(log offset, size)`` must be true up to it and false from there on.
        """
        if (
            0 < high - low <= ONE_READ_ENTRIES
            and low // self.files.per_file == (high - 1) // self.files.per_file
        ):
            entries = list(self.files.entry.iter_unpack(self.read_entries(low, high - low)))
            self._oldest = low, entries[0][0], entries[0][1]
            if len(entries) == high - low:

                def next_real(start: int, stop: int) -> tuple[int, Entry] | None:
                    while start < stop and entries[start - low][1] == FILLER_SIZE:
                        start += 1
                    return (start, entries[start - low][:3]) if start < stop else None

                return first_not(lambda _, entry: holds(entry[0], entry[1]), next_real, low, high)
        return first_not(
            lambda _, entry: holds(entry[0], entry[1]),
            partial(self.next_real, self.read_entries),
            low,
            high,
        )

    def next_real(
        self, read: Callable[[int, int], Buffer], start: int, stop: int
    ) -> tuple[int, Entry] | None:
        """Return the first entry in [start, stop) that is not a filler; None if there is none.

        ``read``: returns entries from a number on, at most a count of them.

        Raises: what ``read`` raises.
        """
        count = 1  # the first entry is nearly always real
        while start < stop:
            data = read(start, min(count, stop - start))
            if not data:
                return None  # the file was deleted meanwhile
            for log_offset, size, code, *_ in self.files.entry.iter_unpack(data):
                if size != FILLER_SIZE:
                    return start, (log_offset, size, code)
                start += 1
            count = SCAN_ENTRIES
        return None

    def _end_without_fillers(self, end: int) -> int:
        """Return the number behind the last real entry before ``end``, or the files' first number.

        Raises: OSError.
        """
        first, per_file = self.first_offset, self.files.per_file
        count = 1
        while end > first:
            start = max(first, end - count, (end - 1) // per_file * per_file)
            sizes = [
                entry[1]
                for entry in self.files.entry.iter_unpack(self.read_entries(start, end - start))
            ]
            while sizes and sizes[-1] == FILLER_SIZE:
                sizes.pop()
            if sizes:
                return start + len(sizes)
            end, count = start, SCAN_ENTRIES
        return first

    def read_entries(self, offset: int, count: int) -> bytes | bytearray:
        """Return entries from ``offset`` on, at least one if there is one. May wait for the disk.

        Raises: OSError.
        """
        data = self.in_memory(offset, count)
        if data is not None:
            return data
        path, position, size = self.place(offset, count)
        return self.files.disk.read(self.files.open_files.get(path), size, position)

    def find_end_by_scan(self) -> None:
        """Set the end at the first entry never written, from the third-last file on.

        Source: ConsumeQueue.java#recover.
        """
        self.end_offset = self.tail_offset = self._capacity_offset
        capacity = self._written_offset()
        offset = self.bases[max(0, len(self.bases) - 3)] // self.entry_bytes if self.bases else 0
        while offset < capacity:
            for log_offset, entry_size, *_ in self.files.entry.iter_unpack(
                self.read_entries(offset, SCAN_ENTRIES)
            ):
                if log_offset < 0 or entry_size <= 0:
                    self._cut(offset)
                    return
                offset += 1
        self._cut(offset)

    def truncate(
        self, log_offset: int, *, clean: bool = False, is_record: IsRecord | None = None
    ) -> None:
        """Drop all entries of records that start at or after ``log_offset``.

        ``clean``: there was no crash, so all entries behind an empty entry are empty.
        ``is_record``, after a crash: whether the log has a record of this queue id, queue offset,
        log offset and size. Changed files are noted in ``unsynced``.
        """
        if self.log_end >= 0 and self.log_end <= log_offset and is_record is None:
            return

        stop = self._written_offset() if self.log_end < 0 and not self.tail else self.end_offset

        def holds(start: int, size: int) -> bool:
            return size > 0 and start < log_offset

        end = self.first_not(holds, self.first_offset, stop)
        while (
            is_record is not None and end > self.first_offset and self._is_torn(end - 1, is_record)
        ):
            end = self.first_not(holds, self.first_offset, end - 1)
        if end != self.end_offset or self.log_end < 0:
            self._cut(end, clean=clean)

    def _is_torn(self, offset: int, is_record: IsRecord) -> bool:
        """Return whether an entry that seems valid is one half of a later entry.

        If only the second of its two sectors reached the disk, the upper half of its log offset is
        zero, or all of it.
        """
        start, size, _ = self.entry(offset)
        position = offset * self.entry_bytes % self.files.file_size
        if (
            start >= 1 << 32
            or size == FILLER_SIZE
            or position // SECTOR_BYTES_MIN == (position + self.entry_bytes - 1) // SECTOR_BYTES_MIN
        ):
            return False
        if offset > self.first_offset:
            before, size_before, _ = self.entry(offset - 1)
            if size_before != FILLER_SIZE and start <= before:
                return True
        return not is_record(self.queue_id, offset, start, size)

    def _cut(self, end: int, *, clean: bool = False) -> None:
        """Set the end of the queue: remove later files, and zero the rest of the last one.

        Any entry there would count as valid.

        If no entry is left, the queue begins anew: the files that a crash has left say nothing
        about numbers.
        """
        if self.tail:
            self.write_out()
        end = self._end_without_fillers(end)  # the record behind them is gone
        while self.bases and self.bases[-1] > max(end * self.entry_bytes, self.bases[0]):
            self._remove(self.bases.pop())
        stale = (
            bool(self.bases)
            and end < self._capacity_offset
            and not (clean and self.entry(end)[1] == 0)
        )
        self._set_end(end)
        if self.log_end < 0:
            while self.bases:
                self._remove(self.bases.pop())
            self._set_end(0)
        elif stale:
            path = self.path(self.bases[-1])
            position = end * self.entry_bytes - self.bases[-1]
            self.files.disk.zero_tail(
                self.files.open_files.get(path), position, self.files.file_size, path
            )
            self.unsynced.add(self.bases[-1])

    def _remove(self, base: int) -> None:
        path = self.path(base)
        self.files.open_files.forget(path)
        self.files.disk.remove(path)
        self.unsynced.discard(base)
        self.names_durable = False

    def _set_end(self, end: int) -> None:
        self.next_offset = self.end_offset = self.tail_offset = end
        self.log_end = -1
        if end > self.first_offset:
            log_offset, size, _ = self.entry(end - 1)
            self.log_end = -1 if size == FILLER_SIZE else log_offset + size

    def find_min(self, log_min: int) -> None:
        """Set ``min_offset`` to the first entry that is not a filler and whose record still exists.

        Source: ConsumeQueue.java#correctMinOffset.
        """
        first = self.first_offset
        if first < self.end_offset:
            number, log_offset, size = self._oldest or (-1, 0, 0)
            if number != first:
                log_offset, size, _ = self.entry(first)
            if size != FILLER_SIZE and log_offset >= log_min:
                self.min_offset = first
                return
        self.min_offset = self.first_not(
            lambda start, size: start < log_min, first, self.end_offset
        )

    # Expiry (while the store serves)

    def take_expired(self) -> int | None:
        """Forget the oldest file if all entries are below ``min_offset``; return its byte offset.

        The caller deletes the file or puts it back. Never the last file, which keeps the numbers.
        """
        if len(self.bases) < 2 or self.bases[1] > self.min_offset * self.entry_bytes:
            return None
        base = self.bases.pop(0)
        self.files.open_files.forget(self.path(base))
        return base

    def put_back(self, base: int) -> None:
        """Undo ``take_expired``, if the file could not be deleted."""
        self.bases.insert(0, base)

    def forget(self) -> None:
        """Release the files, which the caller removes. From now on no entry is added."""
        self.deleted = self.special = True
        for base in self.bases:
            self.files.open_files.forget(self.path(base))
        self.bases.clear()
        self.unsynced.clear()
        self.tail = bytearray()
