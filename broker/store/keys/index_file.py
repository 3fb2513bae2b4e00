"""KeyIndexFile: a hash table on the disk.

A slot names its newest entry, and each entry the previous entry of its slot.

=====================  =============================================================================
position               content
=====================  =============================================================================
0                      begin time i8, end time i8, begin log offset i8, end log offset i8 (of the
                       first and of the last entry)
32                     slots in use i4; number of the next entry i4 (entries are counted from 1)
40 + 4·s               slot s: number of its newest entry; 0: none
40 + 4·slots + 20·n    entry n: hash i4, log offset i8, seconds since the begin time i4, number of
                       the previous entry of the slot i4
=====================  =============================================================================

Source: store/…/index/IndexFile.java, IndexHeader.java.
"""

from __future__ import annotations

import struct
import sys
from array import array
from mmap import mmap
from pathlib import Path

import attrs

from triomq.broker.store.core.stored_times import AHEAD_MS_MAX
from triomq.broker.store.io.disk import Disk
from triomq.broker.store.io.reads import Reads

HEADER = struct.Struct(">qqqqii")
ENTRY = struct.Struct(">iqii")
HASH_ONLY = struct.Struct(">i16x")
NUMBER = struct.Struct(">i")
SECONDS_MAX = 0x7FFFFFFF
RESERVE_ENTRIES = 50_000
"""Room is reserved in the file system in steps of this size, about 1 MB."""


@attrs.frozen
class Geometry:
    """The numbers of slots and entries (including entry 0) of a file."""

    slot_count: int
    entry_count: int

    @property
    def entries_position(self) -> int:
        return HEADER.size + 4 * self.slot_count

    @property
    def size_bytes(self) -> int:
        return self.entries_position + ENTRY.size * self.entry_count


def to_disk_order(numbers: array[int]) -> array[int]:
    """Convert native u4 to big-endian u4, as in the map, and back, in place."""
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers


@attrs.define(eq=False)
class KeyIndexFile:
    """The header of a file. Every put copies it to the map; only the newest file has a map."""

    disk: Disk
    path: Path
    geometry: Geometry
    begin_timestamp: int = 0
    end_timestamp: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    slots_used: int = 0
    next_entry: int = 1
    _map: mmap | None = attrs.field(default=None, init=False)
    _slots: memoryview | None = attrs.field(default=None, init=False)
    _fd: int = attrs.field(default=-1, init=False)
    _reserved_entries: int = attrs.field(default=0, init=False)
    """Number of the entry up to which a write through the map cannot fail."""

    # Opening and closing

    @classmethod
    def create(cls, disk: Disk, path: Path, geometry: Geometry) -> KeyIndexFile:
        """Create an empty file with room for all slots. After an error no file is left.

        Raises: DiskFull, StoreIoError.
        """
        file = cls(disk, path, geometry)
        file._fd = disk.create(path, geometry.size_bytes, in_place=True)
        try:
            disk.allocate(file._fd, 0, geometry.entries_position, path)
            file._make_map()
        except Exception:
            disk.close(file._fd)
            disk.remove(path)
            raise
        return file

    @staticmethod
    def complaint(header: bytes, geometry: Geometry) -> str | None:
        """Return why these bytes cannot be a header; None if they can."""
        begin, end, begin_offset, end_offset, slots_used, next_entry = HEADER.unpack(header)
        if not 0 <= next_entry <= geometry.entry_count:
            return f"the number of its next entry is {next_entry} of {geometry.entry_count}"
        if not 0 <= slots_used <= geometry.slot_count:
            return f"{slots_used} of {geometry.slot_count} slots are in use"
        if not 0 <= begin_offset <= end_offset:
            return f"it goes from log offset {begin_offset} to {end_offset}"
        if begin < 0 or end < 0:  # end may be smaller than begin: a clock that was set back
            return f"it goes from time {begin} to {end}"
        return None

    @classmethod
    def load(cls, disk: Disk, path: Path, geometry: Geometry) -> KeyIndexFile:
        """Read the header and return the file. A next entry 0 counts as 1, as in Java."""
        *fields, next_entry = HEADER.unpack(disk.read_path(path, HEADER.size, 0))
        fields.append(max(1, min(next_entry, geometry.entry_count)))
        return cls(disk, path, geometry, *fields)

    def open(self) -> None:
        """Map the file for writing. After an error it is not open.

        Raises: DiskFull, StoreIoError.
        """
        if self._map is not None:
            return
        try:
            self._fd = self.disk.open(self.path)
        except OSError as error:
            raise self.disk.write_error(self.path, error) from error
        try:
            self.disk.allocate(self._fd, 0, self.geometry.entries_position, self.path)
            self._make_map()
        except Exception:
            self.disk.close(self._fd)
            raise
        self._reserved_entries = 0

    def _make_map(self) -> None:
        try:
            self._map = self.disk.map(self._fd, self.geometry.size_bytes, writable=True)
        except OSError as error:
            raise self.disk.write_error(self.path, error) from error
        self._slots = memoryview(self._map)[HEADER.size : self.geometry.entries_position].cast("I")

    def close(self) -> None:
        """Close the map; the system writes its pages back."""
        if self._map is not None and self._slots is not None:
            self._slots.release()
            self._map.close()
            self.disk.close(self._fd)
            self._map = self._slots = None

    @property
    def room(self) -> int:
        """The number of entries that still fit."""
        return self.geometry.entry_count - self.next_entry

    # Writing

    @property
    def room_reserved(self) -> int:
        """The number of further entries for which a put cannot fail."""
        return self._reserved_entries - self.next_entry

    def reserve(self, count: int) -> None:
        """Reserve room for ``count`` more entries (at most ``room``).

        Raises: DiskFull, StoreIoError.
        """
        if count > self.room_reserved:
            first = self._reserved_entries
            last = min(
                max(self.next_entry + count, first + RESERVE_ENTRIES), self.geometry.entry_count
            )
            position = self.geometry.entries_position + ENTRY.size * first
            self.disk.allocate(self._fd, position, ENTRY.size * (last - first), self.path)
            self._reserved_entries = last

    def follow(self, older: KeyIndexFile) -> None:
        """Begin where ``older`` ends, as Java does: the first entry's seconds count from there."""
        self.begin_timestamp = self.end_timestamp = older.end_timestamp
        self.begin_offset = self.end_offset = older.end_offset

    def put(self, hashes: list[int], offsets: list[int], timestamps: list[int]) -> None:
        """Add entries for which room is reserved. Cannot fail.

        ``hashes`` are not negative; ``timestamps``: store times in ms without a step far back.
        """
        assert self._map is not None
        begin = self.begin_timestamp
        if self.next_entry == 1:
            self.begin_timestamp, self.begin_offset = timestamps[0], offsets[0]
        # The seconds of a file's first entry count from the begin time that `follow` has preset.
        seconds = self._seconds(timestamps, self.begin_timestamp)
        if begin != self.begin_timestamp:
            seconds[:1] = self._seconds(timestamps[:1], begin)
        self._put_columns(self._map, hashes, offsets, seconds)
        self.next_entry += len(hashes)
        self.end_timestamp, self.end_offset = timestamps[-1], offsets[-1]
        self._write_header()

    def _put_columns(
        self, data: mmap, hashes: list[int], offsets: list[int], seconds: list[int]
    ) -> None:
        slots, slot_count = self._slots, self.geometry.slot_count
        assert slots is not None
        first, count = self.next_entry, len(hashes)
        numbers = to_disk_order(array("I", range(first, first + count)))
        previous = array("I")
        note = previous.append
        for value, number in zip(hashes, numbers):
            slot = value % slot_count
            note(slots[slot])
            slots[slot] = number
        self.slots_used += previous.count(0)
        # An entry is five big-endian u4: each is filled as a column.
        wide = array("Q", offsets)
        if sys.byteorder == "little":
            wide.byteswap()
        halves = array("I", wide.tobytes())
        entries = array("I", bytes(ENTRY.size * count))
        entries[0::5] = to_disk_order(array("I", hashes))
        entries[1::5] = halves[0::2]
        entries[2::5] = halves[1::2]
        entries[3::5] = to_disk_order(array("I", seconds))
        entries[4::5] = previous
        position = self.geometry.entries_position + ENTRY.size * first
        data[position : position + ENTRY.size * count] = entries.tobytes()

    def _seconds(self, timestamps: list[int], begin: int) -> list[int]:
        """Return the seconds from ``begin`` to each time, limited to the range of the field."""
        if begin <= 0:
            return [0] * len(timestamps)
        low, high = min(timestamps), max(timestamps)
        first, last = (
            max(0, min((timestamp - begin) // 1000, SECONDS_MAX)) for timestamp in (low, high)
        )
        if first == last:
            return [first] * len(timestamps)
        return [max(0, min((timestamp - begin) // 1000, SECONDS_MAX)) for timestamp in timestamps]

    def _write_header(self) -> None:
        assert self._map is not None
        HEADER.pack_into(
            self._map,
            0,
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_offset,
            self.end_offset,
            self.slots_used,
            self.next_entry,
        )

    # Repair

    def truncate(self, log_offset: int) -> None:
        """Erase the entries of records that start at or after ``log_offset``.

        The entries of earlier records must all be whole.

        The slots are rebuilt from those entries: after a crash of the machine a slot may name an
        entry that never reached the disk.
        """
        self.open()
        assert self._map is not None
        entries = self.geometry.entries_position
        low = self._first_not_before(log_offset)
        slots = array("I", bytes(4 * self.geometry.slot_count))
        slot_count = self.geometry.slot_count
        used = memoryview(self._map)[entries + ENTRY.size : entries + ENTRY.size * low]
        for number, (value,) in enumerate(HASH_ONLY.iter_unpack(used), 1):
            slots[value % slot_count] = number
        used.release()
        self.slots_used = slot_count - slots.count(0)
        self._map[HEADER.size : entries] = to_disk_order(slots).tobytes()
        self.disk.zero_tail(
            self._fd, entries + ENTRY.size * low, self.geometry.size_bytes, self.path
        )
        self.next_entry = low
        if low > 1:
            _, self.end_offset, seconds, _ = ENTRY.unpack_from(
                self._map, entries + ENTRY.size * (low - 1)
            )
            # Entries have the second only. A time range that ends too late finds too much; one that
            # ends too early would hide keys.
            self.end_timestamp = max(
                self.begin_timestamp,
                min(self.end_timestamp, self.begin_timestamp + 1000 * seconds + 999),
            )
        self._write_header()

    def _first_not_before(self, log_offset: int) -> int:
        """Return the number of the first entry that is not of a record before ``log_offset``.

        Offsets grow with the numbers up to there. Behind it may be zeros, entries of later records,
        and entries torn between two sectors, which have a hash and no offset. So an offset of 0
        counts only at the beginning, where the first record of the log has its keys.

        Entries are read by calls, because entries that were never written are holes: tmpfs gives a
        hole a block when a map of it is touched, and on a full tmpfs that is a SIGBUS.
        """
        low, high = 1, self.geometry.entry_count
        while low < high:
            value, offset, _, _ = self._read_entry(low)
            if offset or not value or log_offset == 0:
                break
            low += 1
        while low < high:
            middle = (low + high) // 2
            if 0 < self._read_entry(middle)[1] < log_offset:
                low = middle + 1
            else:
                high = middle
        return low

    def _read_entry(self, number: int) -> tuple[int, ...]:
        """Return hash, log offset, seconds and number of the previous entry."""
        position = self.geometry.entries_position + ENTRY.size * number
        return ENTRY.unpack(self.disk.read(self._fd, ENTRY.size, position))

    # Reading

    def find(
        self, value: int, begin_ms: int, end_ms: int, count_max: int, reads: Reads
    ) -> list[int]:
        """Return the log offsets of entries of this hash and time range (ms), newest first.

        Raises: Cold, StoreIoError.
        """
        found: list[int] = []
        (number,) = NUMBER.unpack(
            reads.file(self.path, HEADER.size + 4 * (value % self.geometry.slot_count), NUMBER.size)
        )
        while 0 < number < self.next_entry and len(found) < count_max:
            entry = reads.file(
                self.path, self.geometry.entries_position + ENTRY.size * number, ENTRY.size
            )
            entry_value, offset, seconds, previous = ENTRY.unpack(entry)
            # The seconds of the first entry count from a time that is not stored: see `follow`.
            timestamp = self.begin_timestamp + (1000 * seconds if number > 1 else 0)
            if seconds < 0 or timestamp + AHEAD_MS_MAX < begin_ms:
                break
            if entry_value == value and begin_ms <= timestamp <= end_ms:
                found.append(offset)
            number = previous if previous < number else 0
        return found
