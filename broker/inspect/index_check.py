"""The key index against the log: header, slots, chains, and that every entry names a record that carries a key with its hash.

Entries ascend by log offset over all files, so they are read once, in step with the log. The slots of a file are made again from its entries, 4 bytes each, and
compared with those on the disk at its end. Missing entries are told between the first and the last record that the index knows: an index that begins late or
ends early is one that an operator deleted, or that a crash left behind.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs

from triomq.broker.inspect.findings import Finding, Report, Severity
from triomq.broker.inspect.layout import REBUILD_INDEX, StoreFiles
from triomq.broker.inspect.log_check import LogCheck
from triomq.broker.inspect.state import StoreState
from triomq.broker.store.draft import Batch
from triomq.broker.store.key_index import entries_of, tag_hash
from triomq.broker.store.key_index_file import ENTRY, HEADER, SECONDS_MAX, Geometry, KeyIndexFile, to_disk_order

BLOCK_ENTRIES = 3_276
REPAIRED = "nothing: the next start makes the end of the newest index file again"

Row = tuple[int, int, int, int]
"""hash, log offset, seconds, previous entry of the slot"""


@attrs.define(eq=False)
class OpenIndexFile:
    """One file while its entries are read."""

    file: KeyIndexFile
    next_entry: int
    """As the header has it, before it was put into bounds."""
    newest: bool
    slots: array[int]
    number: int = 1
    """Of the entry that comes next."""
    rows: list[Row] = attrs.field(factory=list)
    """A block of entries from ``rows_start`` on."""
    rows_start: int = 1
    offsets: list[int] = attrs.field(factory=list)
    """Their log offsets, and that of the entry behind the block."""
    ordered: bool = True
    """Whether these ascend, as they should."""

    def expected_seconds(self, timestamps: list[int]) -> list[int]:
        """The seconds of entries for messages stored then (but for entry 1)."""
        begin = self.file.begin_timestamp
        return [max(0, min((timestamp - begin) // 1000, SECONDS_MAX)) for timestamp in timestamps] if begin > 0 else [0] * len(timestamps)


@attrs.frozen
class Span:
    """Entries of one file that follow each other."""

    file: OpenIndexFile
    number: int
    rows: list[Row]

    @property
    def is_inner(self) -> bool:
        """Neither the first nor the last entry of the file, of which the header tells the times, is in it."""
        return self.number > 1 and self.number + len(self.rows) < self.file.file.next_entry


def rows_of(spans: list[Span]) -> Iterator[tuple[OpenIndexFile, int, Row]]:
    """Each entry with its file and number."""
    for span in spans:
        for number, row in enumerate(span.rows, span.number):
            yield span.file, number, row


@attrs.define(eq=False)
class IndexCheck:
    """``apply`` takes the batches of the log in order, ``finish`` comes last."""

    files: StoreFiles
    report: Report
    log: LogCheck
    state: StoreState
    progress: Callable[[int], None] = lambda index_bytes: None
    entries: int = attrs.field(default=0, init=False)
    """Entries that name a record with their key."""
    expired: int = attrs.field(default=0, init=False)
    lost: int = attrs.field(default=0, init=False)
    file_count: int = attrs.field(default=0, init=False)
    unindexed: int = attrs.field(default=0, init=False)
    """Entries that records outside of the index's range would have."""
    _found: bool = attrs.field(default=False, init=False)
    _waiting: list[Path] = attrs.field(factory=list, init=False)
    _geometry: Geometry | None = attrs.field(default=None, init=False)
    _open: OpenIndexFile | None = attrs.field(default=None, init=False)
    _begin: int = attrs.field(default=-1, init=False)
    _end: int = attrs.field(default=-1, init=False)
    """Log offsets of the first and the last entry that there is."""
    _last_offset: int = attrs.field(default=-1, init=False)

    def find_files(self) -> None:
        """Raises OSError."""
        paths = self.files.index_paths(self.report)
        self._found = bool(paths)
        self._geometry = self.files.index_geometry(paths)
        if paths and self._geometry is None:
            self.report.note(
                "index-geometry", paths[0], None, "the number of slots cannot be seen: the key index is not checked", "give -D maxHashSlotNum=… -D maxIndexNum=…"
            )
            return
        for path in paths:
            assert self._geometry is not None
            length = path.stat().st_size
            if length != self._geometry.size_bytes:
                self.report.damage(
                    "index-size", path, length, f"the file has {length} bytes, an index file has {self._geometry.size_bytes}", f"{REBUILD_INDEX}; or give maxHashSlotNum and maxIndexNum as they were"
                )
            else:
                self._waiting.append(path)
        self.file_count = len(self._waiting)
        headers = [HEADER.unpack(self.files.disk.read_path(path, HEADER.size, 0)) for path in self._waiting]
        used = [header for header in headers if header[5] > 1]
        if used:
            self._begin, self._end = used[0][2], used[-1][3]
        self._waiting.reverse()  # the oldest last, to be taken first

    @property
    def bytes(self) -> int:
        """How much there is to read."""
        return sum(path.stat().st_size for path in self._waiting)

    def apply(self, batch: Batch) -> None:
        """Compare the entries of these records."""
        if not self.file_count:
            return
        hashes, offsets, timestamps = entries_of(batch, -1)
        got = self._entries_before(batch.end)
        pairs = [(row[1], row[0]) for span in got for row in span.rows]
        expected = list(zip(offsets, hashes))
        if pairs != expected:  # often equal, and then there is nothing to look for
            self._compare(got, set(expected))
            missing = set(expected).difference(pairs)
            if missing:
                self._tell_missing(batch, missing)
        else:
            self.entries += len(pairs)
            one_file = bool(got) and got[0].file is got[-1].file and all(span.is_inner for span in got)
            if one_file and [row[2] for span in got for row in span.rows] == got[0].file.expected_seconds(timestamps):
                return
        self._check_times(got, dict(zip(offsets, timestamps)))

    def _compare(self, got: list[Span], expected: set[tuple[int, int]]) -> None:
        for file, number, (value, offset, _, _) in rows_of(got):
            if (offset, value) in expected:
                self.entries += 1
            elif offset < self.files.log_start:
                self.expired += 1
            elif self.log.is_lost(offset):
                self.lost += 1
            else:
                self._bad_entry(file, number, f"names the message at {offset} for the hash {value}, but no message with such a key lies there")

    def _tell_missing(self, batch: Batch, missing: set[tuple[int, int]]) -> None:
        drafts = {place.log_offset: draft for draft, place in zip(batch.drafts, batch.places)}
        for offset, value in sorted(missing):
            draft = drafts[offset]
            if draft.tags and value == tag_hash(draft.topic, draft.tags):
                continue  # tags are indexed since RocketMQ 5.5.0 only
            if not self._begin < offset < self._end:
                self.unindexed += 1
                continue
            what = f"the message at {offset} (topic {draft.topic}) has a key with hash {value} that no entry names: queries by that key do not find it"
            self.report.damage("index-missing", self.files.root / "index", None, what, REBUILD_INDEX)

    def _check_times(self, got: list[Span], times: dict[int, int]) -> None:
        for file, number, (_, offset, seconds, _) in rows_of(got):
            timestamp = times.get(offset)
            begin = file.file.begin_timestamp
            if timestamp is None:
                continue
            if number == file.file.next_entry - 1 and not timestamp <= file.file.end_timestamp < timestamp + 1000:  # exact, but for a file that was repaired
                self._finding(file, "index-header", 8, f"the header's end time is {file.file.end_timestamp}, but the last message was stored at {timestamp}")
            if number == 1:  # its seconds count from a begin time that is gone
                if timestamp != begin:
                    self._finding(file, "index-header", 0, f"the header's begin time is {begin}, but the first message was stored at {timestamp}")
                continue
            if seconds != file.expected_seconds([timestamp])[0]:
                self._bad_entry(file, number, f"says {seconds} s after the file's begin time, but its message was stored at {timestamp} ms: queries by time miss it")

    # Reading in step with the log

    def _entries_before(self, log_offset: int) -> list[Span]:
        """The next entries up to those of records that start at or after ``log_offset``."""
        got: list[Span] = []
        while (file := self._open or self._next_file()) is not None:
            at = file.number - file.rows_start
            if file.ordered:
                stop = bisect_left(file.offsets, log_offset, at, len(file.rows))
                if stop > at:
                    got.append(Span(file, file.number, file.rows[at:stop]))
                    self._last_offset = file.offsets[stop - 1]
            else:
                stop = self._take_one_by_one(file, at, log_offset, got)
            file.number = file.rows_start + stop
            if stop < len(file.rows):
                break
            if not self._load(file):
                self._close(file)
        return got

    def _take_one_by_one(self, file: OpenIndexFile, at: int, log_offset: int, got: list[Span]) -> int:
        """The same for a block in which some entries are out of order; where it stopped."""
        while at < len(file.rows):
            offset, number = file.rows[at][1], file.rows_start + at
            if offset < self._last_offset:
                self._bad_entry(file, number, f"names the message at {offset}, before that of the entry in front of it ({self._last_offset})")
            elif self._is_out_of_order(file, at):
                self._bad_entry(file, number, f"names the message at {offset}, behind that of the entry after it")
            elif offset < log_offset:
                got.append(Span(file, number, [file.rows[at]]))
                self._last_offset = offset
            else:
                break
            at += 1
        return at

    def _is_out_of_order(self, file: OpenIndexFile, at: int) -> bool:
        following = file.offsets[at + 1] if at + 1 < len(file.offsets) else file.file.end_offset
        return following < file.rows[at][1]

    def _next_file(self) -> OpenIndexFile | None:
        while self._waiting and self._geometry is not None:
            path = self._waiting.pop()
            file = KeyIndexFile.load(self.files.disk, path, self._geometry)
            (next_entry,) = HEADER.unpack(self.files.disk.read_path(path, HEADER.size, 0))[5:]
            opened = OpenIndexFile(file, next_entry, not self._waiting, array("I", bytes(4 * self._geometry.slot_count)))
            if not 1 <= max(1, next_entry) <= self._geometry.entry_count:
                self._finding(opened, "index-header", 36, f"the header says that entry {next_entry} comes next, but the file has room for {self._geometry.entry_count}")
            self._open = opened
            if self._load(opened):
                if (first := opened.rows[0][1]) != file.begin_offset:
                    self._finding(opened, "index-header", 16, f"the header says that the first entry is of {file.begin_offset}, but it is of {first}")
                return opened
            self._close(opened)
        return None

    def _load(self, file: OpenIndexFile) -> bool:
        """The next block of entries, with their chains checked; False at the end."""
        count = min(BLOCK_ENTRIES + 1, file.file.next_entry - file.number)
        rows = self._read(file, file.number, count) if count > 0 else []
        offsets = [row[1] for row in rows]  # one more than the block has, to see whether its last entry is in order
        del rows[BLOCK_ENTRIES:]
        if not rows:
            return False
        slots, slot_count, number = file.slots, file.file.geometry.slot_count, file.number
        for value, _, _, previous in rows:
            if value < 0:
                self._bad_entry(file, number, f"has the hash {value}, which no key has")
            else:
                slot = value % slot_count
                if slots[slot] != previous:
                    self._bad_entry(file, number, f"is chained to entry {previous}, but the one before it in its slot is {slots[slot]}: queries miss older messages")
                slots[slot] = number
            number += 1
        file.rows, file.rows_start, file.offsets = rows, file.number, offsets
        file.ordered = offsets[0] >= self._last_offset and offsets == sorted(offsets) and (len(offsets) > len(rows) or offsets[-1] <= file.file.end_offset)
        self.progress(ENTRY.size * len(rows))
        return True

    def _read(self, file: OpenIndexFile, number: int, count: int) -> list[Row]:
        position = file.file.geometry.entries_position + ENTRY.size * number
        try:
            data = self.files.disk.read_path(file.file.path, ENTRY.size * count, position)
        except OSError as error:
            self._finding(file, "index-unreadable", position, f"it cannot be read: {error.strerror or error}")
            return []
        return list(ENTRY.iter_unpack(data[: len(data) - len(data) % ENTRY.size]))

    def _close(self, opened: OpenIndexFile) -> None:
        """All entries of a file have been read: its slots and the rest of its header can be judged."""
        self._open = None
        file = opened.file
        if opened.number > 1 and opened.rows:
            end_offset = opened.rows[-1][1]
            if end_offset != file.end_offset:
                self._finding(opened, "index-header", 24, f"the header says that the last entry is of {file.end_offset}, but it is of {end_offset}")
        slot_count = file.geometry.slot_count
        used = slot_count - opened.slots.count(0)
        if used != file.slots_used:
            self._finding(opened, "index-header", 32, f"the header says that {file.slots_used} slots are in use, but {used} are")
        for slot, value, expected in self._wrong_slots(opened):
            what = f"slot {slot} names entry {value}, but its newest is {expected}: queries miss messages"
            self._finding(opened, "index-slot", HEADER.size + 4 * slot, what)
        self.progress(file.geometry.entries_position + ENTRY.size * (file.geometry.entry_count - opened.number))

    def _wrong_slots(self, opened: OpenIndexFile) -> Iterator[tuple[int, int, int]]:
        geometry = opened.file.geometry
        stored = array("I")
        stored.frombytes(self.files.disk.read_path(opened.file.path, 4 * geometry.slot_count, HEADER.size))
        to_disk_order(stored)
        if stored != opened.slots:
            for slot, (value, expected) in enumerate(zip(stored, opened.slots)):
                if value != expected:
                    yield slot, value, expected

    # Findings

    def _bad_entry(self, file: OpenIndexFile, number: int, what: str) -> None:
        self._finding(file, "index-entry", file.file.geometry.entries_position + ENTRY.size * number, f"entry {number} {what}")

    def _finding(self, file: OpenIndexFile, kind: str, offset: int, what: str) -> None:
        repaired = file.newest and self.state.crashed
        severity = Severity.NOTE if repaired else Severity.DAMAGE
        self.report.add(Finding(severity, kind, file.file.path, offset, what, REPAIRED if repaired else REBUILD_INDEX))

    # Behind the last record

    def finish(self) -> None:
        """The log has ended: look at the entries that are left."""
        ahead = 0
        first: tuple[OpenIndexFile, int, int] | None = None
        while left := self._entries_before(self.log.end + 1) or self._rest():
            for file, number, (_, offset, _, _) in rows_of(left):
                if self.log.is_lost(offset):
                    self.lost += 1
                else:
                    ahead += 1
                    first = first or (file, number, offset)
        if first is not None:
            file, number, offset = first
            what = f"the key index is ahead of the log: {ahead} entries from entry {number} of this file on name messages at {offset} and later, the log ends at {self.log.end}"
            position = file.file.geometry.entries_position + ENTRY.size * number
            if self.state.repairs(offset):
                self.report.note("index-ahead", file.file.path, position, what, "nothing: recovery cuts them off at the next start")
            else:
                self.report.damage("index-ahead", file.file.path, position, what, "if the log was cut on purpose, nothing: the next start cuts the index, too; else restore the log from a copy before any start")
        if not self._found and self.log.records:
            self.report.note(
                "index-missing-files", self.files.root / "index", None, "there is no key index", "nothing, unless messages have keys: then the next start makes it from the log"
            )
        elif self.unindexed:
            mark = self.state.checkpoint.mark
            what = f"{self.unindexed} keys of messages outside of the index's range ({self._begin} to {self._end}) have no entry"
            if mark is not None and mark.index_position > self._end:
                self.report.damage("index-behind", self.files.root / "index", None, f"{what}; the checkpoint says that it reached {mark.index_position}", REBUILD_INDEX)
            else:
                self.report.note("index-behind", self.files.root / "index", None, what, "nothing: the next start adds what is behind its end")

    def _rest(self) -> list[Span]:
        return self._entries_before(1 << 63)
