"""The entries of one consume queue: which records its messages are, in files named by byte offset.

An entry has 20 bytes: log offset (i8), size (i4) and tags code (i8) of a record; entry n is message
n. In a batch queue (46 bytes) an entry also has the store time (i8), the offset of its first
message (i8), and the number of its messages (i2). Entries that were never written are zeros; those
with the size 0x7FFFFFFF are fillers without a record.

Source: store/…/ConsumeQueue.java, store/…/queue/BatchConsumeQueue.java.
"""

import itertools
import os
import struct
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import numpy as np
import numpy.typing as npt

from triomq.client.spark.errors import StoreFileDamaged
from triomq.client.spark.offsets import Bounds, Queue
from triomq.client.spark.store.log_files import NAME_DIGITS, LogFiles, SegmentFile, numbered_files

FILLER_SIZE = 0x7FFFFFFF
SIMPLE = np.dtype([("log_offset", ">i8"), ("size", ">i4"), ("code", ">i8")])
BATCHED = np.dtype(
    [
        *((name, SIMPLE[name]) for name in ("log_offset", "size", "code")),
        ("stored", ">i8"),
        ("base", ">i8"),
        ("count", ">i2"),
        ("rest", ">i8"),
    ]
)
SIMPLE_ENTRY = struct.Struct(">qi8x")
BATCH_ENTRY = struct.Struct(">qi8xqqh8x")
READ_ENTRIES = 4_096
FILES_COUNTED_MAX = 1_000
Entries = npt.NDArray[Any]
"""a structured array of SIMPLE or BATCHED"""


class StoredEntry(NamedTuple):
    """One entry; its messages are [base, base + messages)."""

    log_offset: int
    size: int
    base: int
    messages: int

    @property
    def is_real(self) -> bool:
        return 0 < self.size < FILLER_SIZE


Holds = Callable[[StoredEntry], bool]


@attrs.define(eq=False)
class StoredQueue:
    """A queue and its files. A file stays open until another one is read."""

    queue: Queue
    batched: bool
    files: list[SegmentFile]
    """by the byte offset of their first entry"""
    _open: tuple[SegmentFile, int] | None = attrs.field(default=None, init=False)
    _bases: list[int] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._bases = [file.base for file in self.files]

    @classmethod
    def find(cls, queue: Queue, folder: Path, *, batched: bool) -> "StoredQueue":
        """List the files of a queue, which may have none. Raises: OSError."""
        return cls(queue, batched, numbered_files(folder) if folder.is_dir() else [])

    @property
    def width(self) -> int:
        return BATCHED.itemsize if self.batched else SIMPLE.itemsize

    def damages(self, usual_bytes: int) -> list[StoreFileDamaged]:
        """Return what is missing. ``usual_bytes``: the length of whole files."""
        found = []
        for number, file in enumerate(self.files):
            last = number == len(self.files) - 1
            if file.length % self.width:
                what = f"the file ends within an entry of {self.width} bytes"
            elif last and file.length != usual_bytes:
                what = f"the file ends, but whole files of queues have {usual_bytes} bytes"
            elif not last and file.end != self.files[number + 1].base:
                what = f"the file ends, but the next one begins at byte {self._bases[number + 1]}"
            else:
                continue
            found.append(StoreFileDamaged(file.path, file.length, what))
        return found

    # Entries

    def entries(self, first: int, end: int) -> Entries:
        """Return entries [first, end); zeros where no file is. Raises: StoreFileDamaged."""
        data = bytearray((end - first) * self.width)
        at, stop = first * self.width, end * self.width
        for file in self.files[max(0, bisect_right(self._bases, at) - 1) :]:
            begin, until = max(at, file.base), min(stop, file.end)
            if file.base >= stop:
                break
            if begin < until:
                data[begin - at : until - at] = self._read(file, begin - file.base, until - begin)
        return np.frombuffer(data, BATCHED if self.batched else SIMPLE)

    def _read(self, file: SegmentFile, position: int, size: int) -> bytes:
        try:
            if self._open is None or self._open[0] is not file:
                self.close()
                self._open = file, os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
            data = os.pread(self._open[1], size, position)
        except OSError as error:
            raise StoreFileDamaged(file.path, position, f"cannot be read: {error}") from error
        if len(data) < size:
            raise StoreFileDamaged(
                file.path, position, f"{size} bytes are expected, {len(data)} there"
            )
        return data

    def entry(self, number: int) -> StoredEntry:
        """Return one entry; zeros where the files have none. Raises: StoreFileDamaged."""
        data = self.entries(number, number + 1).tobytes()
        if self.batched:
            log_offset, size, _, base, messages = BATCH_ENTRY.unpack(data)
            return StoredEntry(log_offset, size, base, max(0, messages))
        log_offset, size = SIMPLE_ENTRY.unpack(data)
        return StoredEntry(log_offset, size, number, 1)

    def place(self, number: int) -> tuple[Path, int]:
        """Return the file of an entry and its position, for messages."""
        at = number * self.width
        index = max(0, bisect_right(self._bases, at) - 1)
        return self.files[index].path, at - self._bases[index]

    def parts(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield [first, end) without what lies in no file, in parts of at most one file."""
        for file in self.files:
            low, high = -(-file.base // self.width), -(-file.end // self.width)
            if max(first, low) < min(end, high):
                yield max(first, low), min(end, high)

    def _next_real(self, start: int, stop: int) -> tuple[int, StoredEntry] | None:
        """Return the first entry in [start, stop) that has a record."""
        found = self.entry(start)  # nearly always real
        if found.is_real:
            return start, found
        for first, end in self.parts(start, stop):
            for begin in range(first, end, READ_ENTRIES):
                sizes = self.entries(begin, min(end, begin + READ_ENTRIES))["size"]
                real = np.flatnonzero((sizes > 0) & (sizes < FILLER_SIZE))
                if len(real):
                    number = begin + int(real[0])
                    return number, self.entry(number)
        return None

    def first_not(self, holds: Holds, low: int, high: int) -> int:
        """Return the first entry with a record in [low, high) that does not hold, or ``high``.

        ``holds`` must be true up to some entry and false from there on.
        """
        found = high
        while low < high:
            middle = (low + high) // 2
            real = self._next_real(middle, high)
            if real is None:
                high = middle
            elif holds(real[1]):
                low = real[0] + 1
            else:
                found, high = real[0], middle
        return found

    # Numbers and offsets

    @property
    def first(self) -> int:
        """The number of the first entry in the files."""
        return self._bases[0] // self.width if self.files else 0

    def written_end(self) -> int:
        """Return the number behind the last entry that was written. Raises: StoreFileDamaged."""
        for file in reversed(self.files):
            low, high = file.base // self.width, file.end // self.width
            if low >= high or self.entry(low).size <= 0:
                continue  # made in advance
            while low < high:
                middle = (low + high) // 2
                low, high = (middle + 1, high) if self.entry(middle).size > 0 else (low, middle)
            return low
        return self.first

    def whole_end(self, log: LogFiles, low: int, high: int) -> int:
        """Return ``high`` without the last entries whose records the log does not have.

        So ends a copy whose log was copied before its queues. Damage before its end is not
        mistaken for the end.
        """
        step = 1
        end = high
        while end > low:
            real = self._next_real(max(low, end - step), end)
            if real is not None and log.is_whole(real[1].log_offset, real[1].size):
                return self.first_not(
                    lambda entry: log.is_whole(entry.log_offset, entry.size), real[0], high
                )
            end = max(low, end - step)
            step *= 2
        return low

    def bounds_of(self, first: int, end: int) -> Bounds:
        """Return the offsets of the messages of entries [first, end). Raises: StoreFileDamaged."""
        if not self.batched:
            return Bounds(first, end)
        if first < end:
            last = self.entry(end - 1)
            return Bounds(self.entry(first).base, last.base + last.messages)
        if self.first < end:
            last = self.entry(end - 1)
            return Bounds(last.base + last.messages, last.base + last.messages)
        following = self.entry(end).base if self.files else 0
        return Bounds(following, following)

    def number_of(self, offset: int, low: int, high: int) -> int:
        """Return the number of the entry that has a message, in [low, high]."""
        if not self.batched:
            return min(max(offset, low), high)
        return self.first_not(lambda entry: entry.base + entry.messages <= offset, low, high)

    def close(self) -> None:
        if self._open is not None:
            os.close(self._open[1])
            self._open = None


def usual_file_bytes(folder: Path) -> int:
    """Return the most frequent length of the files of all queues: a shorter one was cut off.

    The configured length is not in the store. The first thousand files are enough.

    Raises: OSError.
    """
    lengths: Counter[int] = Counter()
    for path in itertools.islice(folder.glob("*/*/*"), FILES_COUNTED_MAX):
        if len(path.name) == NAME_DIGITS and path.is_file():
            lengths[path.stat().st_size] += 1
    del lengths[0]
    return max(lengths, key=lambda length: (lengths[length], length), default=0)
