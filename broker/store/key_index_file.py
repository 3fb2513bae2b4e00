"""One file of the key index: a hash table on disk that chains the newest entry of a slot to the older ones.

=========================  =======================================================================================
position                   content
=========================  =======================================================================================
0                          begin time i8, end time i8, begin log offset i8, end log offset i8 (first and last entry)
32                         slots in use i4; number of the next entry i4 (entries are counted from 1)
40 + 4·s                   slot s: number of its newest entry, 0 = none
40 + 4·slots + 20·n        entry n: hash i4, log offset i8, seconds since the begin time i4, previous entry of the slot i4
=========================  =======================================================================================

Source: store/…/index/IndexFile.java, IndexHeader.java.
"""

from __future__ import annotations

import struct
import sys
from array import array
from mmap import mmap
from pathlib import Path

import attrs

from triomq.broker.store.disk import Disk
from triomq.broker.store.reads import Reads

HEADER = struct.Struct(">qqqqii")
ENTRY = struct.Struct(">iqii")
HASH_ONLY = struct.Struct(">i16x")
NUMBER = struct.Struct(">i")
SECONDS_MAX = 0x7FFFFFFF
RESERVE_ENTRIES = 50_000
"""Room is claimed from the file system in steps of this size, about 1 MB."""
FEW = 8
"""Fewer entries than this are put one by one, more as columns of arrays (1: 2.0 against 3.9 µs; 8: 0.6 either way; 64: 0.43 against 0.30 µs each)."""


@attrs.frozen
class Geometry:
    """How many slots and entries (entry 0 included) a file has."""

    slot_count: int
    entry_count: int

    @property
    def entries_position(self) -> int:
        return HEADER.size + 4 * self.slot_count

    @property
    def size_bytes(self) -> int:
        return self.entries_position + ENTRY.size * self.entry_count


def to_disk_order(numbers: array[int]) -> array[int]:
    """Native u4 <-> big-endian u4, as the map shows them."""
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers


@attrs.define(eq=False)
class KeyIndexFile:
    """The header's fields live here and are copied to the map at the end of every put. Only the newest file has a map."""

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
    """Up to this entry a write through the map cannot fail."""

    # Opening and closing

    @classmethod
    def create(cls, disk: Disk, path: Path, geometry: Geometry) -> KeyIndexFile:
        """Make an empty file with room for all slots. Raises DiskFull or StoreIoError, and then leaves nothing."""
        file = cls(disk, path, geometry)
        file._fd = disk.create(path, geometry.size_bytes, in_place=True)
        try:
            disk.allocate(file._fd, 0, geometry.entries_position, path)
        except Exception:
            disk.close(file._fd)
            disk.remove(path)
            raise
        file._make_map()
        return file

    @staticmethod
    def complaint(header: bytes, geometry: Geometry) -> str | None:
        """Why these first bytes cannot be a header, None if they can."""
        begin, end, begin_offset, end_offset, slots_used, next_entry = HEADER.unpack(header)
        if not 0 <= next_entry <= geometry.entry_count:
            return f"the number of its next entry is {next_entry} of {geometry.entry_count}"
        if not 0 <= slots_used <= geometry.slot_count:
            return f"{slots_used} of {geometry.slot_count} slots are in use"
        if not 0 <= begin_offset <= end_offset:
            return f"it goes from log offset {begin_offset} to {end_offset}"
        if begin < 0 or end < 0:  # a clock that was set back may have made end the smaller one
            return f"it goes from time {begin} to {end}"
        return None

    @classmethod
    def load(cls, disk: Disk, path: Path, geometry: Geometry) -> KeyIndexFile:
        """Read the header. An entry number of 0 counts as 1, as in Java."""
        begin, end, begin_offset, end_offset, slots_used, next_entry = HEADER.unpack(disk.read_path(path, HEADER.size, 0))
        return cls(disk, path, geometry, begin, end, begin_offset, end_offset, slots_used, max(1, min(next_entry, geometry.entry_count)))

    def open(self) -> None:
        """Map the file for writing. Raises DiskFull, StoreIoError, OSError."""
        if self._map is None:
            self._fd = self.disk.open(self.path)
            self.disk.allocate(self._fd, 0, self.geometry.entries_position, self.path)
            self._reserved_entries = 0
            self._make_map()

    def _make_map(self) -> None:
        self._map = self.disk.map(self._fd, self.geometry.size_bytes, writable=True)
        self._slots = memoryview(self._map)[HEADER.size : self.geometry.entries_position].cast("I")

    def close(self) -> None:
        """Drop the map; the system writes its pages back."""
        if self._map is not None and self._slots is not None:
            self._slots.release()
            self._map.close()
            self.disk.close(self._fd)
            self._map = self._slots = None

    @property
    def room(self) -> int:
        """Entries that still fit."""
        return self.geometry.entry_count - self.next_entry

    # Writing

    @property
    def room_reserved(self) -> int:
        """Entries for which a put cannot fail."""
        return self._reserved_entries - self.next_entry

    def reserve(self, count: int) -> None:
        """Claim room for ``count`` more entries (at most ``room``). Raises DiskFull or StoreIoError."""
        if count > self.room_reserved:
            first = self._reserved_entries
            last = min(max(self.next_entry + count, first + RESERVE_ENTRIES), self.geometry.entry_count)
            position = self.geometry.entries_position + ENTRY.size * first
            self.disk.allocate(self._fd, position, ENTRY.size * (last - first), self.path)
            self._reserved_entries = last

    def follow(self, older: KeyIndexFile) -> None:
        """Begin where ``older`` ends: Java pre-sets a new header so, and computes the first entry's seconds from it."""
        self.begin_timestamp = self.end_timestamp = older.end_timestamp
        self.begin_offset = self.end_offset = older.end_offset

    def put(self, hashes: list[int], offsets: list[int], timestamps: list[int]) -> None:
        """Add entries for which room has been reserved: non-negative hashes, log offsets and store times (ms) that never decrease. Cannot fail."""
        assert self._map is not None
        begin = self.begin_timestamp
        if self.next_entry == 1:
            self.begin_timestamp, self.begin_offset = timestamps[0], offsets[0]
        # The seconds of a file's very first entry count from the begin time that it had before: see follow().
        seconds = self._seconds(timestamps, self.begin_timestamp)
        if begin != self.begin_timestamp:
            seconds[:1] = self._seconds(timestamps[:1], begin)
        if len(hashes) < FEW:
            self._put_few(self._map, hashes, offsets, seconds)
        else:
            self._put_many(self._map, hashes, offsets, seconds)
        self.next_entry += len(hashes)
        self.end_timestamp, self.end_offset = timestamps[-1], offsets[-1]
        self._write_header()

    def _put_few(self, data: mmap, hashes: list[int], offsets: list[int], seconds: list[int]) -> None:
        number, slot_count, entries = self.next_entry, self.geometry.slot_count, self.geometry.entries_position
        for value, offset, second in zip(hashes, offsets, seconds):
            slot = HEADER.size + 4 * (value % slot_count)
            (previous,) = NUMBER.unpack_from(data, slot)
            NUMBER.pack_into(data, slot, number)
            ENTRY.pack_into(data, entries + ENTRY.size * number, value, offset, second, previous)
            if not previous:
                self.slots_used += 1
            number += 1

    def _put_many(self, data: mmap, hashes: list[int], offsets: list[int], seconds: list[int]) -> None:
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
        # An entry is five big-endian u4: columns are filled as wholes.
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
        """From ``begin`` to each of these times, in what the field can hold."""
        if begin <= 0:
            return [0] * len(timestamps)
        low, high = min(timestamps), max(timestamps)
        first, last = (max(0, min((timestamp - begin) // 1000, SECONDS_MAX)) for timestamp in (low, high))
        if first == last:
            return [first] * len(timestamps)
        if low >= begin and high - begin <= 1000 * SECONDS_MAX:
            return [(timestamp - begin) // 1000 for timestamp in timestamps]
        return [max(0, min((timestamp - begin) // 1000, SECONDS_MAX)) for timestamp in timestamps]

    def _write_header(self) -> None:
        assert self._map is not None
        HEADER.pack_into(
            self._map, 0, self.begin_timestamp, self.end_timestamp, self.begin_offset, self.end_offset, self.slots_used, self.next_entry
        )

    # Repair

    def truncate(self, log_offset: int) -> None:
        """Keep the entries of records that start before ``log_offset``, which must all be whole, and make the rest as if it had never been.

        The slots are made anew from those entries: after a crash of the machine a slot may name an entry that never reached the disk.
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
        self.disk.zero_tail(self._fd, entries + ENTRY.size * low, self.geometry.size_bytes, self.path)
        self.next_entry = low
        if low > 1:
            _, self.end_offset, seconds, _ = ENTRY.unpack_from(self._map, entries + ENTRY.size * (low - 1))
            # Entries know their second only; a time range that ends too late finds too much, one that ends too early would hide keys.
            self.end_timestamp = max(self.begin_timestamp, min(self.end_timestamp, self.begin_timestamp + 1000 * seconds + 999))
        self._write_header()

    def _first_not_before(self, log_offset: int) -> int:
        """Number of the first entry that does not belong to a record before ``log_offset``.

        Offsets grow with the numbers up to there. Behind, anything may lie: zeros, entries of later records, and entries torn between two sectors, which
        have a hash and no offset; hence an offset of 0 counts at the very beginning only, where the first record of the log has its keys.

        Entries are read by calls: what nobody has written yet is a hole, and where a file system gives holes a block as soon as a map of them is touched (tmpfs),
        a full one answers with SIGBUS.
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

    def _read_entry(self, number: int) -> tuple[int, int, int, int]:
        """Hash, log offset, seconds, number of the previous one."""
        position = self.geometry.entries_position + ENTRY.size * number
        value, offset, seconds, previous = ENTRY.unpack(self.disk.read(self._fd, ENTRY.size, position))
        return value, offset, seconds, previous

    # Reading

    def find(self, value: int, begin_ms: int, end_ms: int, count_max: int, reads: Reads) -> list[int]:
        """Log offsets of the entries with this hash and a store time in [begin_ms, end_ms], newest first. Raises Cold."""
        found: list[int] = []
        (number,) = NUMBER.unpack(reads.file(self.path, HEADER.size + 4 * (value % self.geometry.slot_count), NUMBER.size))
        while 0 < number < self.next_entry and len(found) < count_max:
            entry = reads.file(self.path, self.geometry.entries_position + ENTRY.size * number, ENTRY.size)
            entry_value, offset, seconds, previous = ENTRY.unpack(entry)
            timestamp = self.begin_timestamp + 1000 * seconds
            if seconds < 0 or timestamp < begin_ms:
                break
            if entry_value == value and timestamp <= end_ms:
                found.append(offset)
            number = previous if previous < number else 0
        return found
