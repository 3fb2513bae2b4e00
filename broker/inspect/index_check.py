"""Compare the key index with the log: headers, slots, chains, entries.

Every entry must point at a record that has a key with its hash. Entries ascend by log offset over
all files, so they are read once, in step with the log. The slots of a file, 4 bytes each, are
rebuilt from its entries and compared with those on the disk at its end. Missing entries are damage
only between the first and the last record of the index: an index that begins late was deleted by an
operator, and a crash leaves one that ends early.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs

from triomq.broker.inspect.layout import AHEAD_ADVICE, REBUILD_INDEX, RECOVERY_CUTS, StoreFiles
from triomq.broker.inspect.log_check import LogCheck
from triomq.broker.inspect.report import Report
from triomq.broker.inspect.state import StoreState
from triomq.broker.store.keys.index import entries_of, tag_hash
from triomq.broker.store.keys.index_file import (
    ENTRY,
    HEADER,
    SECONDS_MAX,
    Geometry,
    KeyIndexFile,
    to_disk_order,
)
from triomq.broker.store.queues.batch import Batch
from triomq.remoting.core.findings import Level

BLOCK_ENTRIES = 3_276
REPAIRED = "nothing: the next start rebuilds the end of the newest index file"

Row = tuple[int, int, int, int]
"""hash, log offset, seconds, previous entry of the slot"""


@attrs.define(eq=False)
class OpenIndexFile:
    """An index file while its entries are read."""

    file: KeyIndexFile
    next_entry: int
    """as in the header, before it is limited to the file"""
    newest: bool
    slots: array[int]
    number: int = 1
    """number of the next entry"""
    rows: list[Row] = attrs.field(factory=list)
    """a block of entries from ``rows_start`` on"""
    rows_start: int = 1
    offsets: list[int] = attrs.field(factory=list)
    """their log offsets, and that of the entry behind the block"""
    ordered: bool = True
    """whether the offsets ascend, as they must"""

    def expected_seconds(self, timestamp: int) -> int:
        """Return the seconds of an entry for a message of this store time (except for entry 1)."""
        begin = self.file.begin_timestamp
        return max(0, min((timestamp - begin) // 1000, SECONDS_MAX)) if begin > 0 else 0


Entry = tuple[OpenIndexFile, int, Row]
"""file, number in it, content"""


@attrs.define(eq=False)
class IndexCheck:
    """Call ``apply`` with the batches of the log in order, then ``finish``."""

    files: StoreFiles
    report: Report
    log: LogCheck
    state: StoreState
    progress: Callable[[int], None] = lambda index_bytes: None
    entries: int = attrs.field(default=0, init=False)
    """entries that point at a record with their key"""
    expired: int = attrs.field(default=0, init=False)
    file_count: int = attrs.field(default=0, init=False)
    unindexed: int = attrs.field(default=0, init=False)
    """number of keys of records outside of the index's range"""
    _found: bool = attrs.field(default=False, init=False)
    _waiting: list[Path] = attrs.field(factory=list, init=False)
    _geometry: Geometry | None = attrs.field(default=None, init=False)
    _open: OpenIndexFile | None = attrs.field(default=None, init=False)
    _begin: int = attrs.field(default=-1, init=False)
    _end: int = attrs.field(default=-1, init=False)
    """log offsets of the first and the last entry"""
    _last_offset: int = attrs.field(default=-1, init=False)

    def find_files(self) -> None:
        """List the index files and read their headers.

        Raises: OSError.
        """
        paths = self.files.index_paths(self.report)
        self._found = bool(paths)
        self._geometry = self.files.index_geometry(paths)
        if paths and self._geometry is None:
            self.report.note(
                "index-geometry",
                paths[0],
                "the number of slots is unknown: the key index is not checked",
                "give -D maxHashSlotNum=… -D maxIndexNum=…",
            )
            return
        for path in paths:
            assert self._geometry is not None
            length = path.stat().st_size
            if length != self._geometry.size_bytes:
                self.report.damage(
                    "index-size",
                    path,
                    f"the file has {length} bytes, an index file has {self._geometry.size_bytes}",
                    f"{REBUILD_INDEX}; or give the broker's maxHashSlotNum and maxIndexNum",
                    at=length,
                )
            else:
                self._waiting.append(path)
        self.file_count = len(self._waiting)
        headers = [
            HEADER.unpack(self.files.disk.read_path(path, HEADER.size, 0)) for path in self._waiting
        ]
        used = [header for header in headers if header[5] > 1]
        if used:
            self._begin, self._end = used[0][2], used[-1][3]
        self._waiting.reverse()  # so that pop() returns the oldest

    @property
    def bytes(self) -> int:
        """The size of the files that are not read yet."""
        return sum(path.stat().st_size for path in self._waiting)

    def apply(self, batch: Batch) -> None:
        """Compare the entries of these records."""
        if not self.file_count:
            return
        hashes, offsets, timestamps = entries_of(batch, -1)
        got = self._entries_before(batch.end)
        pairs = [(row[1], row[0]) for _, _, row in got]
        expected = list(zip(offsets, hashes))
        if pairs != expected:  # fast path: most batches are equal
            self._compare(got, set(expected))
            missing = set(expected).difference(pairs)
            if missing:
                self._report_missing(batch, missing)
        else:
            self.entries += len(pairs)
        self._check_times(got, dict(zip(offsets, timestamps)))

    def _compare(self, got: list[Entry], expected: set[tuple[int, int]]) -> None:
        for file, number, (value, offset, _, _) in got:
            if (offset, value) in expected:
                self.entries += 1
            elif offset < self.files.log_start:
                self.expired += 1
            elif not self.log.is_lost(offset):
                self._bad_entry(
                    file,
                    number,
                    f"points at {offset} for the hash {value}, but no message with such a key is"
                    " there",
                )

    def _report_missing(self, batch: Batch, missing: set[tuple[int, int]]) -> None:
        drafts = {place.log_offset: draft for draft, place in zip(batch.drafts, batch.places)}
        for offset, value in sorted(missing):
            draft = drafts[offset]
            if draft.tags and value == tag_hash(draft.topic, draft.tags):
                continue  # tags are indexed since RocketMQ 5.5.0 only
            if not self._begin < offset < self._end:
                self.unindexed += 1
                continue
            what = (
                f"the message at {offset} (topic {draft.topic}) has a key with hash {value}, but no"
                " entry: queries by that key do not find it"
            )
            self.report.damage("index-missing", self.files.root / "index", what, REBUILD_INDEX)

    def _check_times(self, got: list[Entry], times: dict[int, int]) -> None:
        for file, number, (_, offset, seconds, _) in got:
            timestamp = times.get(offset)
            begin = file.file.begin_timestamp
            if timestamp is None:
                continue
            if (
                number == file.file.next_entry - 1
                and not timestamp <= file.file.end_timestamp < timestamp + 1000
            ):  # exact, except for a repaired file
                self._bad_header(file, 8, "end time", file.file.end_timestamp, timestamp)
            if number == 1:  # its seconds have another begin time, which is not stored
                if timestamp != begin:
                    self._bad_header(file, 0, "begin time", begin, timestamp)
                continue
            if seconds != file.expected_seconds(timestamp):
                self._bad_entry(
                    file,
                    number,
                    f"has {seconds} s after the file's begin time, but its message was stored at"
                    f" {timestamp} ms: queries by time miss it",
                )

    # Read in step with the log

    def _entries_before(self, log_offset: int) -> list[Entry]:
        """Return the next entries, up to those of records at or after ``log_offset``."""
        got: list[Entry] = []
        while (file := self._open or self._next_file()) is not None:
            at = file.number - file.rows_start
            if file.ordered:
                stop = bisect_left(file.offsets, log_offset, at, len(file.rows))
                if stop > at:
                    numbered = enumerate(file.rows[at:stop], file.number)
                    got += [(file, number, row) for number, row in numbered]
                    self._last_offset = file.offsets[stop - 1]
            else:
                stop = self._entries_out_of_order(file, at, log_offset, got)
            file.number = file.rows_start + stop
            if stop < len(file.rows):
                break
            if not self._load(file):
                self._close(file)
        return got

    def _entries_out_of_order(
        self, file: OpenIndexFile, at: int, log_offset: int, got: list[Entry]
    ) -> int:
        """Add the entries of a block in which some are out of order; return where it stopped."""
        while at < len(file.rows):
            offset, number = file.rows[at][1], file.rows_start + at
            if offset < self._last_offset:
                self._bad_entry(
                    file,
                    number,
                    f"points at {offset}, before the message of the previous entry"
                    f" ({self._last_offset})",
                )
            elif self._is_out_of_order(file, at):
                self._bad_entry(
                    file, number, f"points at {offset}, behind the message of the next entry"
                )
            elif offset < log_offset:
                got.append((file, number, file.rows[at]))
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
            opened = OpenIndexFile(
                file,
                next_entry,
                not self._waiting,
                array("I", bytes(4 * self._geometry.slot_count)),
            )
            if not 1 <= max(1, next_entry) <= self._geometry.entry_count:
                self._finding(
                    opened,
                    "index-header",
                    36,
                    f"in the header, entry {next_entry} is the next, but the file has room for"
                    f" {self._geometry.entry_count}",
                )
            self._open = opened
            if self._load(opened):
                if (first := opened.rows[0][1]) != file.begin_offset:
                    self._bad_header(opened, 16, "first log offset", file.begin_offset, first)
                return opened
            self._close(opened)
        return None

    def _load(self, file: OpenIndexFile) -> bool:
        """Read the next block of entries and check their chains; return False at the end."""
        count = min(BLOCK_ENTRIES + 1, file.file.next_entry - file.number)
        rows = self._rows_of(file, file.number, count) if count > 0 else []
        # One more than the block has, to see whether its last entry is in order.
        offsets = [row[1] for row in rows]
        del rows[BLOCK_ENTRIES:]
        if not rows:
            return False
        slots, slot_count, number = file.slots, file.file.geometry.slot_count, file.number
        for value, _, _, previous in rows:
            if value < 0:
                self._bad_entry(file, number, f"has the hash {value}, but hashes are not negative")
            else:
                slot = value % slot_count
                if slots[slot] != previous:
                    self._bad_entry(
                        file,
                        number,
                        f"is chained to entry {previous}, but the previous entry of its slot is"
                        f" {slots[slot]}: queries miss older messages",
                    )
                slots[slot] = number
            number += 1
        file.rows, file.rows_start, file.offsets = rows, file.number, offsets
        file.ordered = (
            offsets[0] >= self._last_offset
            and offsets == sorted(offsets)
            and (len(offsets) > len(rows) or offsets[-1] <= file.file.end_offset)
        )
        self.progress(ENTRY.size * len(rows))
        return True

    def _rows_of(self, file: OpenIndexFile, number: int, count: int) -> list[Row]:
        position = file.file.geometry.entries_position + ENTRY.size * number
        try:
            data = self.files.disk.read_path(file.file.path, ENTRY.size * count, position)
        except OSError as error:
            self._finding(
                file, "index-unreadable", position, f"it cannot be read: {error.strerror or error}"
            )
            return []
        return list(ENTRY.iter_unpack(data[: len(data) - len(data) % ENTRY.size]))

    def _close(self, opened: OpenIndexFile) -> None:
        """Check slots and header of a file whose entries have all been read."""
        self._open = None
        file = opened.file
        if opened.number > 1 and opened.rows and (last := opened.rows[-1][1]) != file.end_offset:
            self._bad_header(opened, 24, "last log offset", file.end_offset, last)
        used = file.geometry.slot_count - opened.slots.count(0)
        if used != file.slots_used:
            self._bad_header(opened, 32, "number of used slots", file.slots_used, used)
        for slot, value, expected in self._wrong_slots(opened):
            what = (
                f"slot {slot} points at entry {value}, but its newest is {expected}: queries miss"
                " messages"
            )
            self._finding(opened, "index-slot", HEADER.size + 4 * slot, what)
        self.progress(
            file.geometry.entries_position
            + ENTRY.size * (file.geometry.entry_count - opened.number)
        )

    def _wrong_slots(self, opened: OpenIndexFile) -> Iterator[tuple[int, int, int]]:
        geometry = opened.file.geometry
        stored = array("I")
        stored.frombytes(
            self.files.disk.read_path(opened.file.path, 4 * geometry.slot_count, HEADER.size)
        )
        to_disk_order(stored)
        if stored != opened.slots:
            for slot, (value, expected) in enumerate(zip(stored, opened.slots)):
                if value != expected:
                    yield slot, value, expected

    # Findings

    def _bad_entry(self, file: OpenIndexFile, number: int, what: str) -> None:
        self._finding(
            file,
            "index-entry",
            file.file.geometry.entries_position + ENTRY.size * number,
            f"entry {number} {what}",
        )

    def _bad_header(
        self, file: OpenIndexFile, offset: int, name: str, found: int, expected: int
    ) -> None:
        what = f"in the header, the {name} is {found}, but it should be {expected}"
        self._finding(file, "index-header", offset, what)

    def _finding(self, file: OpenIndexFile, kind: str, offset: int, what: str) -> None:
        repaired = file.newest and self.state.crashed
        add = self.report.note if repaired else self.report.damage
        add(kind, file.file.path, what, REPAIRED if repaired else REBUILD_INDEX, at=offset)

    # Behind the last record

    def finish(self) -> None:
        """Check the entries behind the end of the log."""
        ahead = 0
        first: tuple[OpenIndexFile, int, int] | None = None
        for file, number, (_, offset, _, _) in self._entries_before(1 << 63):
            if not self.log.is_lost(offset):
                ahead += 1
                first = first or (file, number, offset)
        if first is not None:
            file, number, offset = first
            level = self.state.level_at(offset)
            self.report.add(
                level,
                "index-ahead",
                file.file.path,
                f"the key index is ahead of the log: {ahead} entries from entry {number} of this"
                f" file on point at {offset} and later, but the log ends at {self.log.end}",
                RECOVERY_CUTS if level is Level.ADVICE else AHEAD_ADVICE,
                at=file.file.geometry.entries_position + ENTRY.size * number,
            )
        if not self._found and self.log.records:
            self.report.note(
                "index-missing-files",
                self.files.root / "index",
                "the store has no key index",
                "nothing: the next start builds it from the log, if messages have keys",
            )
        elif self.unindexed:
            mark = self.state.checkpoint.mark
            what = (
                f"{self.unindexed} keys of messages outside of the index's range ({self._begin} to"
                f" {self._end}) have no entry"
            )
            advice = "nothing: the next start adds the entries behind its end"
            add = self.report.note
            if mark is not None and mark.index_position > self._end:
                what += f"; in the checkpoint, it reached {mark.index_position}"
                add, advice = self.report.damage, REBUILD_INDEX
            add("index-behind", self.files.root / "index", what, advice)
