"""The entries of one consume queue, read once from the oldest on in step with the log, and compared with the records of the queue as they come by.

Both sides ascend by log offset, so one pass over each is enough, and a queue costs one block of memory. Three things make it more than a comparison:
a queue may begin later than the log (its topic was deleted and made again: the records of the earlier life have no entries), its first entries may belong to
records that have expired, and a damaged entry must not make all later ones look wrong: it is passed when the entry with the record's own number fits.
"""

from __future__ import annotations

import struct
from pathlib import Path

import attrs

from triomq.broker.inspect.findings import Report
from triomq.broker.inspect.layout import REBUILD_QUEUES
from triomq.broker.inspect.log_check import LogCheck
from triomq.broker.store.consume_queue import ENTRY
from triomq.broker.store.disk import Disk
from triomq.broker.store.queue_search import FILLER_SIZE
from triomq.broker.store.segment import NAME_DIGITS, segment_name

Entry = tuple[int, int, int]
"""(log offset, size, tags code)"""


@attrs.define(eq=False)
class QueueCursor:
    """``index`` is the number of the entry that comes next."""

    topic: str
    queue_id: int
    directory: Path
    disk: Disk
    report: Report
    log: LogCheck
    log_start: int
    file_size: int
    block_entries: int
    bases: list[int] = attrs.field(factory=list, init=False)
    index: int = attrs.field(default=0, init=False)
    capacity: int = attrs.field(default=0, init=False)
    """One past the last entry that the files have room for."""
    entries: int = attrs.field(default=0, init=False)
    """Entries that belong to a record."""
    expired: int = attrs.field(default=0, init=False)
    fillers: int = attrs.field(default=0, init=False)
    lost: int = attrs.field(default=0, init=False)
    """Entries whose record lies where the log is damaged."""
    wrong: int = attrs.field(default=0, init=False)
    ahead: int = attrs.field(default=0, init=False)
    """Entries that point behind the end of the log."""
    ahead_first: tuple[int, int] | None = attrs.field(default=None, init=False)
    """(number, log offset) of the first of them."""
    earlier_life: int = attrs.field(default=0, init=False)
    """Records without entry from before the topic was deleted and made again."""
    behind: int = attrs.field(default=0, init=False)
    """Records without entry since the last one that had one."""
    behind_first: tuple[int, int] | None = attrs.field(default=None, init=False)
    """(queue offset, log offset) of the first of them."""
    _pending: tuple[int, int] | None = attrs.field(default=None, init=False)
    """(queue offset, log offset) of a record whose entry points farther on."""
    layout: struct.Struct = attrs.field(default=ENTRY, init=False)
    """Log offset, size and tags code come first."""
    entry_bytes: int = attrs.field(default=ENTRY.size, init=False)
    _data: bytes = attrs.field(default=b"", init=False)
    _data_start: int = attrs.field(default=0, init=False)

    def find_files(self) -> None:
        """Names and lengths. Raises OSError."""
        for path in sorted(self.directory.iterdir()) if self.directory.is_dir() else []:
            if len(path.name) != NAME_DIGITS or not path.name.isdecimal():
                self.report.damage("foreign-file", path, None, "not a consume queue file: no broker starts with it in this folder", "move it away")
                continue
            length = path.stat().st_size
            if length == 0:
                self.report.note("empty-queue-file", path, None, "the file is empty (a crash while it was made)", "nothing: the next start removes it")
                continue
            if length != self.file_size:
                self.report.damage("queue-size", path, length, f"the file has {length} bytes, a consume queue file has {self.file_size}", REBUILD_QUEUES)
            base = int(path.name)
            if self.bases and base != self.bases[-1] + self.file_size:
                missing = self.directory / segment_name(self.bases[-1] + self.file_size)
                self.report.damage("queue-file-missing", missing, None, f"files are missing between {segment_name(self.bases[-1])} and {path.name}", REBUILD_QUEUES)
            self.bases.append(base)
        if self.bases:
            self.index = self.bases[0] // self.entry_bytes
            self.capacity = (self.bases[-1] + self.file_size) // self.entry_bytes

    @property
    def first(self) -> int:
        return self.bases[0] // self.entry_bytes if self.bases else 0

    def entry(self, number: int) -> Entry | None:
        """An entry by its number; None beyond the files. What a file lacks is as good as never written."""
        at = (number - self._data_start) * self.entry_bytes
        if at < 0 or at >= len(self._data):
            if not self.first <= number < self.capacity:
                return None
            position = number * self.entry_bytes
            base = position - position % self.file_size
            size = min(self.block_entries * self.entry_bytes, base + self.file_size - position)
            try:
                data = self.disk.read_path(self.directory / segment_name(base), size, position - base)
            except FileNotFoundError:
                data = b""
            except OSError as error:
                data = b""
                self.report.damage("queue-unreadable", self._path(number), position - base, f"it cannot be read: {error.strerror or error}", REBUILD_QUEUES)
            self._data, self._data_start, at = data.ljust(size, b"\0"), number, 0
        log_offset, found_size, code, *_ = self.layout.unpack_from(self._data, at)
        return log_offset, found_size, code

    def record(self, queue_offset: int, log_offset: int, size: int, code: int | None) -> None:
        """The next record of this queue in the log. ``code`` None: the time of delivery of a delayed message, which is not known here."""
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
            elif entry_size > 0 and entry_offset < self.log_start and queue_offset != self.index:
                self.expired += 1
            elif entry_size > 0 and self.log.is_lost(entry_offset) and queue_offset != self.index:
                self.lost += 1
            elif queue_offset == self.index:
                if not self._is_wrong_here(entry_offset, entry_size, log_offset):
                    self._pending = (queue_offset, log_offset)
                    break
                self._wrong(f"points at {entry_offset} (size {entry_size}), but the message with this number lies at {log_offset}")
                self._continue()
                return
            elif queue_offset > self.index and self._fits(queue_offset, log_offset, size):
                self._pass_wrong(entry_offset, entry_size)
            elif entry_size > 0 and entry_offset < log_offset:
                self._wrong(f"points at {entry_offset}, where no message of this queue starts")
            else:
                break
            self.index += 1
        self.behind += 1
        self.behind_first = self.behind_first or (queue_offset, log_offset)

    def _claim(self, queue_offset: int, size: int, code: int | None, entry_size: int, entry_code: int) -> None:
        if queue_offset != self.index:
            self._wrong(f"points at the message with number {queue_offset}")
        elif entry_size != size:
            self._wrong(f"says {entry_size} bytes, but the message has {size}")
        elif code is not None and entry_code != code:
            self._wrong(f"has tags code {entry_code}, but the message has {code}: consumers that filter by tag would miss it")
        else:
            self.entries += 1
        self._continue()

    def _continue(self) -> None:
        """An entry has been found for a record: those before it without one are of an earlier life, or older than the queue's files."""
        if self.behind:
            assert self.behind_first is not None
            number, log_offset = self.behind_first
            if number < self.first:
                self.report.damage(
                    "queue-begins-late",
                    self.directory,
                    None,
                    f"the queue begins with number {self.first}, but the log holds {self.behind} older messages, the first with number {number} at {log_offset}",
                    REBUILD_QUEUES,
                )
            else:
                self.earlier_life += self.behind
            self.behind, self.behind_first = 0, None
        self._pending = None
        self.index += 1

    def _fits(self, number: int, log_offset: int, size: int) -> bool:
        """Whether the entry of this number is that of the record: then those in between are damaged."""
        at = (number - self._data_start) * self.entry_bytes
        if 0 <= at < len(self._data):
            found: Entry | None = self.layout.unpack_from(self._data, at)[:3]
        else:  # a look ahead must not cost the block
            kept = self._data, self._data_start, self.block_entries
            self.block_entries = 1
            found = self.entry(number)
            self._data, self._data_start, self.block_entries = kept
        return found is not None and found[0] == log_offset and found[1] == size

    def _is_wrong_here(self, entry_offset: int, entry_size: int, log_offset: int) -> bool:
        """Of an entry with the number of a record that lies elsewhere: whether it is the entry that is wrong, not the record that is of an earlier life."""
        if entry_size <= 0:
            return False  # never written: the queue ends here, or has a hole, which the next record tells
        if entry_offset < log_offset:
            return True
        following = self.entry(self.index + 1)
        return following is not None and 0 < following[1] < FILLER_SIZE and following[0] <= entry_offset

    def _pass_wrong(self, entry_offset: int, entry_size: int) -> None:
        if entry_size <= 0:
            self._wrong("is empty, but entries follow")
        elif self._pending is not None and self._pending[0] == self.index:
            self._wrong(f"points at {entry_offset}, but the message with this number lies at {self._pending[1]}")
        else:
            self._wrong(f"points at {entry_offset}, where no message of this queue starts")
        if self.behind and self.behind_first is not None and self.behind_first[0] <= self.index:
            self.behind -= 1
            if not self.behind:
                self.behind_first = None

    def _wrong(self, what: str) -> None:
        self.wrong += 1
        position = self.index * self.entry_bytes
        self.report.damage("queue-entry", self._path(self.index), position % self.file_size, f"entry {self.index} {what}", REBUILD_QUEUES)

    def _path(self, number: int) -> Path:
        position = number * self.entry_bytes
        return self.directory / segment_name(position - position % self.file_size)

    # Behind the last record

    def finish(self) -> None:
        """The log has ended: look at the entries that are left."""
        number, empty, block = self.index, False, -1
        while number < self.capacity:
            if not self._data_start <= number < self._data_start + len(self._data) // self.entry_bytes and number != block:
                block = self._next_data(number)  # once a block
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
                self._left_over(entry_offset, entry_size)
            number += 1

    def _left_over(self, entry_offset: int, entry_size: int) -> None:
        if entry_size == FILLER_SIZE:
            self.fillers += 1
        elif self.log.is_lost(entry_offset):
            self.lost += 1
        elif entry_size > 0 and entry_offset >= self.log.end:
            self.ahead += 1
            self.ahead_first = self.ahead_first or (self.index, entry_offset)
        elif entry_size > 0 and 0 <= entry_offset < self.log_start:
            self.expired += 1
        elif self._pending is not None and self._pending[0] == self.index:
            self._pass_wrong(entry_offset, entry_size)
        else:
            self._wrong(f"points at {entry_offset} (size {entry_size}), where no message of this queue starts")

    def _next_data(self, number: int) -> int:
        """The first entry from ``number`` on that is not in a hole of its file, which is all zeros."""
        position = number * self.entry_bytes
        base = position - position % self.file_size
        path = self.directory / segment_name(base)
        try:
            return (base + self.disk.next_data(path, position - base)) // self.entry_bytes
        except OSError:
            return number  # entry() reports it
