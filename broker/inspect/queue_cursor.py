"""The entries of one consume queue, read in step with the log and compared with its records.

Both ascend by log offset, so one pass is enough, and a queue takes one block of memory. Three cases
need more than a comparison: a queue may begin later than the log (its topic was deleted and created
again: records from before have no entries), its first entries may belong to expired records, and a
damaged entry must not make all later entries look wrong: it is skipped if the entry with the
record's own number fits.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import ClassVar

import attrs

from triomq.broker.inspect.layout import (
    QUEUES,
    REBUILD_QUEUES,
    StoreFiles,
    listing,
    not_empty,
    numbered,
)
from triomq.broker.inspect.log_check import LogCheck
from triomq.broker.inspect.report import Report
from triomq.broker.store.io.segment import NAME_DIGITS, segment_name
from triomq.broker.store.queues.consume_queue import ENTRY
from triomq.broker.store.queues.search import FILLER_SIZE

Entry = tuple[int, int, int]
"""log offset, size, tags code"""


@attrs.define(eq=False)
class QueueCursor:
    """``index`` is the number of the next entry."""

    folder: ClassVar[str] = QUEUES
    layout: ClassVar[struct.Struct] = ENTRY
    """begins with log offset, size and tags code"""
    entry_bytes: ClassVar[int] = ENTRY.size
    files: StoreFiles
    log: LogCheck
    report: Report
    topic: str
    queue_id: int
    block_entries: int
    """number of entries that are read at once"""
    directory: Path = attrs.field(init=False)
    file_size: int = attrs.field(init=False)
    bases: list[int] = attrs.field(factory=list, init=False)
    index: int = attrs.field(default=0, init=False)
    capacity: int = attrs.field(default=0, init=False)
    """number of entries up to the end of the files"""
    entries: int = attrs.field(default=0, init=False)
    """entries that belong to a record"""
    expired: int = attrs.field(default=0, init=False)
    fillers: int = attrs.field(default=0, init=False)
    lost: int = attrs.field(default=0, init=False)
    """entries that point into a damaged part of the log"""
    ahead: int = attrs.field(default=0, init=False)
    """entries that point behind the end of the log"""
    ahead_first: tuple[int, int] | None = attrs.field(default=None, init=False)
    """number and log offset of the first of them"""
    earlier_incarnation: int = attrs.field(default=0, init=False)
    """records without entry, from before the topic was deleted and created again"""
    behind: int = attrs.field(default=0, init=False)
    """records without entry since the last record with an entry"""
    behind_first: tuple[int, int] | None = attrs.field(default=None, init=False)
    """queue offset and log offset of the first of them"""
    _pending: tuple[int, int] | None = attrs.field(default=None, init=False)
    """queue offset and log offset of a record whose entry points behind it"""
    _data: bytes = attrs.field(default=b"", init=False)
    _data_start: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self.directory = self.files.root / self.folder / self.topic / str(self.queue_id)
        self.file_size = self.files.queue_file_sizes[self.folder]

    def find_files(self) -> None:
        """Check the names and lengths of the queue's files.

        Raises: OSError.
        """
        files = listing(self.directory)
        named = numbered(files, NAME_DIGITS, "consume queue file", self.report)
        for path in not_empty(named, "empty-queue-file", self.report):
            length = path.stat().st_size
            if length != self.file_size:
                self.report.damage(
                    "queue-size",
                    path,
                    f"the file has {length} bytes, a consume queue file has {self.file_size}",
                    REBUILD_QUEUES,
                    at=length,
                )
            base = int(path.name)
            if self.bases and base != self.bases[-1] + self.file_size:
                missing = self.directory / segment_name(self.bases[-1] + self.file_size)
                self.report.damage(
                    "queue-file-missing",
                    missing,
                    f"files are missing between {segment_name(self.bases[-1])} and {path.name}",
                    REBUILD_QUEUES,
                )
            self.bases.append(base)
        if self.bases:
            self.index = self.bases[0] // self.entry_bytes
            self.capacity = (self.bases[-1] + self.file_size) // self.entry_bytes

    def position(self, number: int) -> int | None:
        """Return the position of an entry in the queue, for a finding."""
        return number * self.entry_bytes

    @property
    def first(self) -> int:
        return self.bases[0] // self.entry_bytes if self.bases else 0

    def entry(self, number: int) -> Entry | None:
        """Return an entry by its number; None beyond the files.

        Bytes that a file lacks count as zero.
        """
        at = (number - self._data_start) * self.entry_bytes
        if at < 0 or at >= len(self._data):
            if not self.first <= number < self.capacity:
                return None
            self._data, self._data_start, at = (
                self._entry_bytes(number, self.block_entries),
                number,
                0,
            )
        log_offset, found_size, code, *_ = self.layout.unpack_from(self._data, at)
        return log_offset, found_size, code

    def _entry_bytes(self, number: int, count: int) -> bytes:
        """Return up to ``count`` entries of one file."""
        start = number * self.entry_bytes % self.file_size
        size = min(count * self.entry_bytes, self.file_size - start)
        data = b""
        try:
            data = self.files.disk.read_path(self._path(number), size, start)
        except FileNotFoundError:
            pass
        except OSError as error:
            self.report.damage(
                "queue-unreadable",
                self._path(number),
                f"it cannot be read: {error.strerror or error}",
                REBUILD_QUEUES,
                at=start,
            )
        return data.ljust(size, b"\0")

    def record(self, queue_offset: int, log_offset: int, size: int, code: int | None) -> None:
        """Compare the next record of this queue with its entry.

        ``code``: None for a delayed message, whose entry has the time of delivery.
        """
        while True:
            found = self.entry(self.index)
            if found is None:
                break
            entry_offset, entry_size, entry_code = found
            if entry_offset == log_offset and 0 < entry_size < FILLER_SIZE:
                self._claim(queue_offset, size, code, entry_size, entry_code)
                return
            if entry_size == FILLER_SIZE and queue_offset < self.index:
                break  # the record is older than the queue's files
            if entry_size == FILLER_SIZE and queue_offset > self.index:
                self.fillers += 1
            elif (
                entry_size > 0
                and entry_offset < self.files.log_start
                and queue_offset != self.index
            ):
                self.expired += 1
            elif entry_size > 0 and self.log.is_lost(entry_offset) and queue_offset != self.index:
                self.lost += 1
            elif queue_offset == self.index:
                if not self._is_wrong_here(entry_offset, entry_size, log_offset):
                    self._pending = (queue_offset, log_offset)
                    break
                self._wrong(
                    f"points at {entry_offset} (size {entry_size}), but the message with this"
                    f" number is at {log_offset}"
                )
                self._continue()
                return
            elif queue_offset > self.index and self._fits(queue_offset, log_offset, size):
                self._skip_wrong(entry_offset, entry_size)
            elif entry_size > 0 and entry_offset < log_offset:
                self._wrong(f"points at {entry_offset}, where no message of this queue starts")
            else:
                break
            self.index += 1
        self.behind += 1
        self.behind_first = self.behind_first or (queue_offset, log_offset)

    def _claim(
        self, queue_offset: int, size: int, code: int | None, entry_size: int, entry_code: int
    ) -> None:
        if queue_offset != self.index:
            self._wrong(f"points at the message with number {queue_offset}")
        elif entry_size != size:
            self._wrong(f"has the size {entry_size}, but the message has {size} bytes")
        elif code is not None and entry_code != code:
            self._wrong(
                f"has tags code {entry_code}, but the message has {code}: consumers that filter by"
                " tag would miss it"
            )
        else:
            self.entries += 1
        self._continue()

    def _continue(self) -> None:
        """Continue behind an entry that belongs to a record.

        Earlier records without entry are from before the topic was created again, or older than the
        queue's files.
        """
        if self.behind:
            assert self.behind_first is not None
            number, log_offset = self.behind_first
            if number < self.first:
                self.report.damage(
                    "queue-begins-late",
                    self.directory,
                    f"the queue begins with number {self.first}, but the log holds {self.behind}"
                    f" older messages, the first with number {number} at {log_offset}",
                    REBUILD_QUEUES,
                )
            else:
                self.earlier_incarnation += self.behind
            self.behind, self.behind_first = 0, None
        self._pending = None
        self.index += 1

    def _fits(self, number: int, log_offset: int, size: int) -> bool:
        """Return whether the entry of this number belongs to the record.

        If so, the entries before it are damaged.
        """
        at = (number - self._data_start) * self.entry_bytes
        if 0 <= at < len(self._data):
            found = self.layout.unpack_from(self._data, at)
        elif number < self.capacity:  # reading ahead must not replace the block
            found = self.layout.unpack(self._entry_bytes(number, 1))
        else:
            return False
        return found[:2] == (log_offset, size)

    def _is_wrong_here(self, entry_offset: int, entry_size: int, log_offset: int) -> bool:
        """Return whether an entry that has the number of a record and points elsewhere is damaged.

        Otherwise the record is from before the topic was created again.
        """
        if entry_size <= 0:
            # Never written: the queue ends here, or has a hole, which the next record shows.
            return False
        if entry_offset < log_offset:
            return True
        following = self.entry(self.index + 1)
        return (
            following is not None
            and 0 < following[1] < FILLER_SIZE
            and following[0] <= entry_offset
        )

    def _skip_wrong(self, entry_offset: int, entry_size: int) -> None:
        if entry_size <= 0:
            self._wrong("is empty, but entries follow")
        elif self._pending is not None and self._pending[0] == self.index:
            self._wrong(
                f"points at {entry_offset}, but the message with this number is at"
                f" {self._pending[1]}"
            )
        else:
            self._wrong(f"points at {entry_offset}, where no message of this queue starts")
        if self.behind and self.behind_first is not None and self.behind_first[0] <= self.index:
            self.behind -= 1
            if not self.behind:
                self.behind_first = None

    def _wrong(self, what: str) -> None:
        position = self.index * self.entry_bytes
        self.report.damage(
            "queue-entry",
            self._path(self.index),
            f"entry {self.index} {what}",
            REBUILD_QUEUES,
            at=position % self.file_size,
        )

    def _path(self, number: int) -> Path:
        position = number * self.entry_bytes
        return self.directory / segment_name(position - position % self.file_size)

    # Behind the last record

    def finish(self) -> None:
        """Check the entries behind the end of the log."""
        number, empty, block = self.index, False, -1
        while number < self.capacity:
            if (
                not self._data_start
                <= number
                < self._data_start + len(self._data) // self.entry_bytes
                and number != block
            ):
                block = self._next_data(number)  # once per block
                empty = empty or block > number
                number = block
                continue
            found = self.entry(number)
            if found is None:
                break
            entry_offset, entry_size, _ = found
            if entry_size <= 0 and entry_offset <= 0:
                empty = True
                if not any(self._data):
                    number = self._data_start + len(self._data) // self.entry_bytes
                    continue
            else:
                self.index = number
                if empty:
                    self._wrong("is not empty, but entries before it are")
                    return
                self._check_rest(entry_offset, entry_size)
            number += 1

    def _check_rest(self, entry_offset: int, entry_size: int) -> None:
        if entry_size == FILLER_SIZE:
            self.fillers += 1
        elif self.log.is_lost(entry_offset):
            self.lost += 1
        elif entry_size > 0 and entry_offset >= self.log.end:
            self.ahead += 1
            self.ahead_first = self.ahead_first or (self.index, entry_offset)
        elif entry_size > 0 and 0 <= entry_offset < self.files.log_start:
            self.expired += 1
        elif self._pending is not None and self._pending[0] == self.index:
            self._skip_wrong(entry_offset, entry_size)
        else:
            self._wrong(
                f"points at {entry_offset} (size {entry_size}), where no message of this queue"
                " starts"
            )

    def _next_data(self, number: int) -> int:
        """Return the first entry from ``number`` on that is not in a hole of its file."""
        position = number * self.entry_bytes
        base = position - position % self.file_size
        path = self.directory / segment_name(base)
        try:
            return (base + self.files.disk.next_data(path, position - base)) // self.entry_bytes
        except OSError:
            return number  # entry() reports it
