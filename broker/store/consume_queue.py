"""One consume queue: the 20-byte entries of one topic and queue id, in files named by the byte offset of their first entry.

=========  ====  ======================================================================
position   type  field
=========  ====  ======================================================================
0          i8    log offset of the record
8          i4    size of the record; 0 = nothing was ever written here
12         i8    tags code: hash of TAGS, or the time of delivery in the schedule topic
=========  ====  ======================================================================

Entry number q lies at byte ``20·q``. A queue whose first record has q > 0 (a fresh slave) begins with *fillers* (size 0x7FFFFFFF), which no reader may load.
The newest entries lie in memory (``tail``) until they are written out in one piece; a crash loses none, recovery reads the log again.

Source: store/…/ConsumeQueue.java.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Callable
from pathlib import Path

import attrs

from triomq.broker.store.disk import Disk
from triomq.broker.store.errors import StoreDamaged
from triomq.broker.store.open_files import OpenFiles
from triomq.broker.store.queue_search import FILLER_SIZE, Entry, first_not
from triomq.broker.store.segment import NAME_DIGITS, segment_name
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
"""So many entries are read at once rather than searched on the disk: a block of most file systems has 204."""
SECTOR_BYTES_MIN = 64
"""A power failure cuts a write at multiples of this; no disk's sectors are smaller than 512, but nothing here depends on them."""

IsRecord = Callable[[int, int, int, int], bool]


@attrs.frozen
class QueueFiles:
    """What all queues of a store share."""

    disk: Disk
    open_files: OpenFiles
    file_size: int
    entry: struct.Struct = ENTRY
    """Layout of an entry; log offset, size and tags code come first. It is 46 bytes long in batch consume queues."""

    @property
    def per_file(self) -> int:
        """Entries of one file."""
        return self.file_size // self.entry.size


@attrs.define(eq=False)
class ConsumeQueue:
    """Offsets are entry numbers ("queue offsets") unless a name says bytes."""

    topic: str
    queue_id: int
    directory: Path
    files: QueueFiles
    next_offset: int = 0
    """Number that the next appended message gets; belongs to the append."""
    min_offset: int = 0
    end_offset: int = 0
    """One past the last entry; belongs to the indexer."""
    log_end: int = -1
    """End of the record of the last entry: a record at or before it has its entry already."""
    tail: bytearray = attrs.field(factory=bytearray, init=False)
    tail_offset: int = attrs.field(default=0, init=False)
    """Number of the first entry in ``tail``; all before it are in the files."""
    arrived: dict[int, int] = attrs.field(factory=dict, init=False)
    """Tags code -> new end, since readers were told last."""
    bases: list[int] = attrs.field(factory=list, init=False)
    """Byte offsets (= names) of the files, ascending, without gaps."""
    unsynced: set[int] = attrs.field(factory=set, init=False)
    """Files written since they were last forced to the disk."""
    entry_bytes: int = attrs.field(init=False)
    delayed: bool = attrs.field(init=False)
    """Whether entries carry the time of delivery instead of a hash."""
    batched: bool = attrs.field(default=False, init=False)
    """Whether an entry stands for several messages: then this is a ``BatchQueue``."""
    special: bool = attrs.field(init=False)
    """Whether an entry is made otherwise than from tags, size and place: delayed, batched, or not at all, since the queue is deleted."""
    deleted: bool = attrs.field(default=False, init=False)
    """Not in the table any more, nor are its files; messages that were appended before, and confirmed after that, get no entry."""
    record_magic: int = attrs.field(init=False)
    record_topic: bytes = attrs.field(init=False)
    """The topic as every record of this queue has it: length and text; a long one needs the second version of the format."""
    names_durable: bool = attrs.field(default=True, init=False)
    """False while a new file's name may be lost in a power failure."""
    _oldest: tuple[int, int, int] | None = attrs.field(default=None, init=False)
    """Number, log offset and size of the first entry, if recovery has read it: thousands of files are not opened once more for it."""
    _path: tuple[int, Path] | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.delayed = self.special = self.topic == SCHEDULE_TOPIC
        self.entry_bytes = self.files.entry.size
        self.record_magic, self.record_topic = topic_field(self.topic)

    # Writing

    def add(self, queue_offset: int, log_offset: int, size: int, tags_code: int) -> bool:
        """Add an entry that is not simply the next one; False if it is there already. Atomic: no checkpoint.

        A gap is filled with fillers, so that every entry keeps the position its number says (Java appends at the end and is off by the gap).
        """
        if log_offset + size <= self.log_end or queue_offset < self.end_offset or queue_offset >= QUEUE_OFFSET_END:
            return False
        if queue_offset - self.end_offset > GAP_MAX and (self.bases or self.tail):
            return False  # no log lacks so many; the number in the record is damaged, which no CRC would show
        if queue_offset > self.end_offset:
            if not self.bases and not self.tail:  # the first entry ever: the queue begins at its file, which is not file 0
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
        """What lies in memory only."""
        return len(self.tail)

    def write_out(self) -> None:
        """Move ``tail`` to the files. Raises DiskFull or StoreIoError; then all is still in memory. Atomic: no checkpoint."""
        position, start = self.tail_offset * self.entry_bytes, 0
        file_size = self.files.file_size
        while start < len(self.tail):
            base = position - position % file_size
            piece = self.tail[start : start + base + file_size - position]
            self.files.disk.write_at(self._fd_for_writing(base), piece, position - base, self.path(base))
            self.unsynced.add(base)
            position, start = position + len(piece), start + len(piece)
        self.tail_offset = self.end_offset
        self.tail = bytearray()

    def _fd_for_writing(self, base: int) -> int:
        if self.bases and self.bases[-1] >= base:
            return self.files.open_files.get(self.path(base))
        try:
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
        """Files of a deleted queue of the same name, if they could not be removed then, must not show as ours after a restart. Raises OSError."""
        for name in os.listdir(self.directory):
            if len(name) == NAME_DIGITS and name.isdecimal():
                logger.warning("%s is left of a deleted queue: removed", self.directory / name)
                self.files.disk.remove(self.directory / name)

    def path(self, base: int) -> Path:
        if self._path is None or self._path[0] != base:
            self._path = base, self.directory / segment_name(base)  # 7 µs, and most reads of a queue go to the same file
        return self._path[1]

    # Reading

    def place(self, offset: int, count: int) -> tuple[Path, int, int]:
        """(file, position, bytes) of entries from ``offset`` on, cut at the end of that file and of what is written out."""
        position = offset * self.entry_bytes
        base = position - position % self.files.file_size
        stop = min((offset + count) * self.entry_bytes, self.tail_offset * self.entry_bytes, base + self.files.file_size)
        return self.path(base), position - base, stop - position

    def in_memory(self, offset: int, count: int) -> bytearray | None:
        """Entries from ``offset`` on if they have not been written out yet, else None."""
        start = (offset - self.tail_offset) * self.entry_bytes
        return self.tail[start : start + count * self.entry_bytes] if start >= 0 else None

    def entry(self, offset: int) -> tuple[int, int, int]:
        """(log offset, size, tags code), waiting for the disk if need be: for recovery. Raises OSError."""
        log_offset, size, code = self.files.entry.unpack_from(self.read_entries(offset, 1))[:3]
        return log_offset, size, code

    # Loading and truncating (before the store serves)

    def load(self) -> None:
        """Find the files. Raises StoreDamaged, OSError."""
        with os.scandir(self.directory) as entries:
            lengths = {entry.name: entry.stat().st_size for entry in entries}
        names = sorted(lengths)
        for name in names:
            if len(name) != NAME_DIGITS or not name.isdecimal():
                raise StoreDamaged(self.directory / name, "not a consume queue file", "move it away")
            path, length = self.path(int(name)), lengths[name]
            if length == 0 and name == names[-1]:  # made just before a power failure
                self.files.disk.remove(path)
                continue
            if length != self.files.file_size:
                raise StoreDamaged(
                    path,
                    f"its length is {length}, but the configured size is {self.files.file_size}",
                    f"set mappedFileSizeConsumeQueue={length} if all queues were written so; or delete the folder consumequeue, it is rebuilt from the log",
                )
            if self.bases and int(name) != self.bases[-1] + self.files.file_size:
                raise StoreDamaged(path, "a file before it is missing", "delete the folder consumequeue and the file checkpoint, all queues are rebuilt from the log")
            self.bases.append(int(name))
        # Where the entries end is not known yet: a file always has its full length. ``truncate`` or ``find_end_by_scan`` comes next.
        self.end_offset = self.tail_offset = self._capacity_offset

    @property
    def first_offset(self) -> int:
        """Number of the first entry that the files have."""
        return self.bases[0] // self.entry_bytes if self.bases else self.tail_offset

    @property
    def _capacity_offset(self) -> int:
        return (self.bases[-1] + self.files.file_size) // self.entry_bytes if self.bases else 0

    def _written_offset(self) -> int:
        """An entry number that nothing was written at or behind: where the last file's first hole begins, else its end. Raises OSError."""
        if not self.bases:
            return 0
        base = self.bases[-1]
        path = self.path(base)
        hole = self.files.disk.next_hole(self.files.open_files.get(path), 0, self.files.file_size)
        return (base + min(self.files.file_size, hole + self.entry_bytes - 1)) // self.entry_bytes

    def first_not(self, holds: Callable[[int, int], bool], low: int, high: int) -> int:
        """Smallest real offset in [low, high) whose (log offset, size) does not hold, else ``high``; ``holds`` must be true up to it and false after."""
        if 0 < high - low <= ONE_READ_ENTRIES and low // self.files.per_file == (high - 1) // self.files.per_file:
            entries = list(self.files.entry.iter_unpack(self.read_entries(low, high - low)))
            self._oldest = low, entries[0][0], entries[0][1]
            if len(entries) == high - low:

                def next_real(start: int, stop: int) -> tuple[int, Entry] | None:
                    while start < stop and entries[start - low][1] == FILLER_SIZE:
                        start += 1
                    return (start, entries[start - low][:3]) if start < stop else None

                return first_not(lambda _, entry: holds(entry[0], entry[1]), next_real, low, high)
        return first_not(lambda _, entry: holds(entry[0], entry[1]), self.next_real, low, high)

    def next_real(self, start: int, stop: int) -> tuple[int, Entry] | None:
        """The first entry in [start, stop) that is no filler; waits for the disk if need be. Raises OSError."""
        count = 1  # nearly always the one asked for
        while start < stop:
            for entry in self.files.entry.iter_unpack(self.read_entries(start, min(count, stop - start))):
                if entry[1] != FILLER_SIZE:
                    return start, (entry[0], entry[1], entry[2])
                start += 1
            count = SCAN_ENTRIES
        return None

    def _end_without_fillers(self, end: int) -> int:
        """One past the last entry before ``end`` that is no filler; where the files begin if all are. Raises OSError."""
        first, per_file = self.first_offset, self.files.per_file
        count = 1
        while end > first:
            start = max(first, end - count, (end - 1) // per_file * per_file)
            sizes = [entry[1] for entry in self.files.entry.iter_unpack(self.read_entries(start, end - start))]
            while sizes and sizes[-1] == FILLER_SIZE:
                sizes.pop()
            if sizes:
                return start + len(sizes)
            end, count = start, SCAN_ENTRIES
        return first

    def read_entries(self, offset: int, count: int) -> bytes | bytearray:
        """Entries from ``offset`` on, one at least if there is one, waiting for the disk. Raises OSError."""
        data = self.in_memory(offset, count)
        if data is not None:
            return data
        path, position, size = self.place(offset, count)
        return self.files.disk.read(self.files.open_files.get(path), size, position)

    def find_end_by_scan(self) -> None:
        """Read entries from the third-last file on; the first one never written is the end. Source: ConsumeQueue.java#recover."""
        self.end_offset = self.tail_offset = self._capacity_offset
        capacity = self._written_offset()
        offset = self.bases[max(0, len(self.bases) - 3)] // self.entry_bytes if self.bases else 0
        while offset < capacity:
            for log_offset, entry_size, *_ in self.files.entry.iter_unpack(self.read_entries(offset, SCAN_ENTRIES)):
                if log_offset < 0 or entry_size <= 0:
                    self._cut(offset)
                    return
                offset += 1
        self._cut(offset)

    def truncate(self, log_offset: int, *, clean: bool = False, is_record: IsRecord | None = None) -> None:
        """Drop all entries of records that start at or after ``log_offset``.

        ``clean``: there was no crash, so an empty entry has only empty ones behind it. ``is_record``, after a crash: whether a record of this queue id, queue
        offset, log offset and size may have this entry. What has changed is noted in ``unsynced``.
        """
        if self.log_end >= 0 and self.log_end <= log_offset and is_record is None:
            return

        stop = self._written_offset() if self.log_end < 0 and not self.tail else self.end_offset

        def holds(start: int, size: int) -> bool:
            return size > 0 and start < log_offset

        end = self.first_not(holds, self.first_offset, stop)
        while is_record is not None and end > self.first_offset and self._is_torn(end - 1, is_record):
            end = self.first_not(holds, self.first_offset, end - 1)
        if end != self.end_offset or self.log_end < 0:
            self._cut(end, clean=clean)

    def _is_torn(self, offset: int, is_record: IsRecord) -> bool:
        """Whether an entry that looks as if it belonged here is half of a later one.

        If only the second of its two sectors reached the disk, the upper half of its log offset is zero, or all of it.
        """
        start, size, _ = self.entry(offset)
        position = offset * self.entry_bytes % self.files.file_size
        if start >= 1 << 32 or size == FILLER_SIZE or position // SECTOR_BYTES_MIN == (position + self.entry_bytes - 1) // SECTOR_BYTES_MIN:
            return False
        if offset > self.first_offset:
            before, size_before, _ = self.entry(offset - 1)
            if size_before != FILLER_SIZE and start <= before:
                return True
        return not is_record(self.queue_id, offset, start, size)

    def _cut(self, end: int, *, clean: bool = False) -> None:
        """Make ``end`` the end: later files go, the rest of its file becomes zeros, since any other entry there would count as valid.

        Without any entry left the queue begins anew: what a crash left of its files says nothing about numbers.
        """
        if self.tail:
            self.write_out()
        end = self._end_without_fillers(end)  # the record that they led to is gone
        while self.bases and self.bases[-1] > max(end * self.entry_bytes, self.bases[0]):
            self._remove(self.bases.pop())
        stale = bool(self.bases) and end < self._capacity_offset and not (clean and self.entry(end)[1] == 0)
        self._set_end(end)
        if self.log_end < 0:
            while self.bases:
                self._remove(self.bases.pop())
            self._set_end(0)
        elif stale:
            path = self.path(self.bases[-1])
            position = end * self.entry_bytes - self.bases[-1]
            self.files.disk.zero_tail(self.files.open_files.get(path), position, self.files.file_size, path)
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
        """Set ``min_offset``: the first entry that is no filler and whose record still exists. Source: ConsumeQueue.java#correctMinOffset."""
        first = self.first_offset
        if first < self.end_offset:
            number, log_offset, size = self._oldest or (-1, 0, 0)
            if number != first:
                log_offset, size, _ = self.entry(first)
            if size != FILLER_SIZE and log_offset >= log_min:
                self.min_offset = first
                return
        self.min_offset = self.first_not(lambda start, size: start < log_min, first, self.end_offset)

    # Expiry (while the store serves)

    def take_expired(self) -> int | None:
        """Forget the oldest file, whose name is returned, if all its entries are below ``min_offset``; the caller deletes it or puts it back.

        Never the last one: it keeps the numbers going.
        """
        if len(self.bases) < 2 or self.bases[1] > self.min_offset * self.entry_bytes:
            return None
        base = self.bases.pop(0)
        self.files.open_files.forget(self.path(base))
        return base

    def put_back(self, base: int) -> None:
        """Undo ``take_expired``: the file could not be deleted."""
        self.bases.insert(0, base)

    def forget(self) -> None:
        """Let go of the files; the caller removes them. From now on nothing is added."""
        self.deleted = self.special = True
        for base in self.bases:
            self.files.open_files.forget(self.path(base))
        self.bases.clear()
        self.unsynced.clear()
        self.tail = bytearray()
