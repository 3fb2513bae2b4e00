"""The files of a store directory and their configured sizes, from names, lengths and a few bytes.

The sizes of files are part of the format, but not stored. Unless the caller gives them, they are
guessed: the size of segments and of queue files is their most frequent length; the number of slots
of an index file of an unusual length follows from the position of its last entry.
"""

from __future__ import annotations

import mmap
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import attrs

from triomq.broker.inspect.report import Report
from triomq.broker.store.core.config import BATCH_ENTRY_BYTES, GIB, QUEUE_ENTRY_BYTES, StoreConfig
from triomq.broker.store.io.disk import Disk
from triomq.broker.store.io.segment import NAME_DIGITS, Segment, segment_name
from triomq.broker.store.io.segments import Segments
from triomq.broker.store.keys.index import NAME_DIGITS as INDEX_NAME_DIGITS
from triomq.broker.store.keys.index_file import ENTRY, HEADER, NUMBER, Geometry

REBUILD_QUEUES = (
    "delete the folder consumequeue and the file checkpoint, and the folder batchconsumequeue if"
    " there is one: the broker rebuilds all queues from the log at its next start"
)
REBUILD_INDEX = "delete the folder index: the broker rebuilds it from the log at its next start"
AHEAD_ADVICE = (
    "if the log was cut on purpose, nothing: the next start cuts queues and index, too; otherwise"
    " restore the log from a copy before any start"
)
RECOVERY_CUTS = "nothing: recovery cuts them off at the next start"
OFFSET_BYTES = 8
QUEUES, BATCH_QUEUES = "consumequeue", "batchconsumequeue"
"""The folders of consume queues; an entry of a batch queue has several messages."""


class NotAStore(Exception):
    """The directory is not a store. One line with cause and fix."""


@attrs.frozen(kw_only=True)
class Sizes:
    """The sizes that the caller knows; None is guessed."""

    commitlog: Path | None = None
    segment_size: int | None = None
    queue_file_size: int | None = None
    index_slots: int | None = None
    index_entries: int | None = None


def listing(folder: Path) -> list[Path]:
    """Return the entries of a folder, sorted; an empty list if it is missing. Raises: OSError."""
    return sorted(folder.iterdir()) if folder.is_dir() else []


def numbered(paths: Iterable[Path], digits: int, kind: str, report: Report) -> Iterator[Path]:
    """Yield the paths whose names have this number of digits; report the others."""
    for path in paths:
        if len(path.name) == digits and path.name.isdecimal():
            yield path
        else:
            report.damage(
                "foreign-file",
                path,
                f"not a {kind}: no broker starts with it in this folder",
                "move the file away",
            )


def not_empty(paths: Iterable[Path], check: str, report: Report) -> Iterator[Path]:
    """Yield the files that have content; report the others under the name ``check``."""
    for path in paths:
        if path.stat().st_size:
            yield path
        else:
            report.note(
                check,
                path,
                "the file is empty (a crash during its creation)",
                "nothing: the next start removes it",
            )


@attrs.define(eq=False, kw_only=True)
class StoreFiles:
    """The files of one store, by name."""

    root: Path
    commitlog: Path
    disk: Disk
    sizes: Sizes
    segment_size: int = GIB
    queue_file_sizes: dict[str, int] = attrs.field(factory=dict)
    """folder -> length of a file of its queues"""
    runs: list[Segments] = attrs.field(factory=list)
    """the log in runs without a hole; one run if no segment is missing"""
    lengths: dict[int, int] = attrs.field(factory=dict)
    """base of a segment -> length of its file"""

    @classmethod
    def find(cls, root: Path, sizes: Sizes, report: Report) -> StoreFiles:
        """List the files of a directory.

        Raises: NotAStore, OSError.
        """
        if not root.is_dir():
            raise NotAStore(f"{root} is not a directory; name the broker's storePathRootDir")
        commitlog = sizes.commitlog or root / "commitlog"
        if not commitlog.is_dir():
            if not (root / QUEUES).is_dir() and not (root / "checkpoint").exists():
                raise NotAStore(
                    f"{root} is not a store (it has no commitlog, consumequeue or checkpoint); name"
                    " the broker's storePathRootDir"
                )
            report.note(
                "log-missing",
                commitlog,
                "the store has no commit log",
                "nothing if the broker never stored a message; otherwise restore it, or name it"
                " with storePathCommitLog",
            )
        files = cls(root=root, commitlog=commitlog, disk=Disk(), sizes=sizes)
        files._find_segments(report)
        files.queue_file_sizes = {
            QUEUES: sizes.queue_file_size
            or files._usual_file_size(QUEUES, QUEUE_ENTRY_BYTES, 6_000_000),
            BATCH_QUEUES: files._usual_file_size(BATCH_QUEUES, BATCH_ENTRY_BYTES, 13_800_000),
        }
        return files

    def _find_segments(self, report: Report) -> None:
        # The store skips folders, too.
        paths = (path for path in listing(self.commitlog) if not path.is_dir())
        self.lengths = {
            int(path.name): path.stat().st_size
            for path in numbered(paths, NAME_DIGITS, "log segment", report)
        }
        self.segment_size = self.sizes.segment_size or self._guess_segment_size()
        newest = max(self.lengths, default=0)
        for base, length in self.lengths.items():
            path = self.commitlog / segment_name(base)
            last = base == newest
            if length == 0 and last:
                report.note(
                    "empty-segment",
                    path,
                    "the last segment is empty (a crash during its creation)",
                    "nothing: the next start removes it",
                    at=base,
                )
                continue
            if base % self.segment_size:
                report.damage(
                    "segment-name",
                    path,
                    f"the name is not a multiple of the segment size {self.segment_size}",
                    "give the mappedFileSizeCommitLog of the broker",
                    at=base,
                )
            if length != self.segment_size:
                report.damage(
                    "segment-size",
                    path,
                    f"the file has {length} bytes, a segment has {self.segment_size}",
                    self._length_advice(path, length, last=last),
                    at=base + length,
                )
            if not self.runs or self.runs[-1].end != base:
                if self.runs:
                    start = self.runs[-1].end
                    report.damage(
                        "segment-missing",
                        self.commitlog / segment_name(start),
                        f"the log has a hole: the bytes from {start} to {base} ({base - start}) are"
                        " missing",
                        "restore the missing segments from a copy or from the folder of a slave;"
                        " otherwise move this and all later segments away, and lose their messages",
                        at=start,
                    )
                self.runs.append(Segments(self.disk, self.commitlog, self.segment_size))
            self.runs[-1].items.append(Segment(self.disk, self.commitlog, base, self.segment_size))

    def _guess_segment_size(self) -> int:
        lengths = Counter(length for length in self.lengths.values() if length)
        if not lengths:
            return GIB
        most = max(lengths.values())
        likely = [length for length, count in lengths.items() if count == most]
        # Of two files of different length, one was cut: names are multiples of the right size.
        fitting = [
            length for length in likely if all(base % length == 0 for base in self.lengths)
        ] or likely
        return GIB if GIB in fitting else max(fitting)

    def _length_advice(self, path: Path, length: int, *, last: bool) -> str:
        if length > self.segment_size:
            return (
                f"set mappedFileSizeCommitLog={length} if the broker used that size; otherwise"
                " restore the file from a copy"
            )
        if last:
            return (
                "restore the file from a copy; or restore its length (truncate -s"
                f" {self.segment_size} {path.name}): the next start ends the log at the last whole"
                " record"
            )
        return (
            "restore the file from a copy or from the folder of a slave: brokers refuse to start"
            " with it, and the missing bytes are not in this store"
        )

    def _usual_file_size(self, folder: str, entry_bytes: int, default: int) -> int:
        lengths: Counter[int] = Counter()
        for _, _, directory in self.queues(folder):
            lengths.update(
                entry.stat().st_size
                for entry in os.scandir(directory)
                if len(entry.name) == NAME_DIGITS
            )
            if lengths.total() >= 1_000:
                break
        del lengths[0]
        return next(
            (length for length, _ in lengths.most_common() if length % entry_bytes == 0), default
        )

    # Paths

    @property
    def log_start(self) -> int:
        return self.runs[0].first_offset if self.runs else 0

    def segment_path(self, offset: int) -> Path:
        """Return the path of the segment of a log offset."""
        return self.commitlog / segment_name(offset - offset % self.segment_size)

    def queues(self, folder: str) -> Iterator[tuple[str, int, Path]]:
        """Yield (topic, queue id, directory) of every queue in ``QUEUES`` or ``BATCH_QUEUES``."""
        for topic in listing(self.root / folder):
            for directory in listing(topic):
                if directory.is_dir() and directory.name.isdecimal():
                    yield topic.name, int(directory.name), directory

    def index_paths(self, report: Report) -> list[Path]:
        """Return the files of the key index, oldest first."""
        files = listing(self.root / "index")
        named = numbered(files, INDEX_NAME_DIGITS, "key index file", report)
        return list(not_empty(named, "empty-index", report))

    def index_geometry(self, paths: list[Path]) -> Geometry | None:
        """Return slots and entries of the index files; None if they are neither given nor found."""
        defaults = StoreConfig(root=self.root)
        given = Geometry(
            self.sizes.index_slots or defaults.index_slot_count,
            self.sizes.index_entries or defaults.index_entry_count,
        )
        if (
            self.sizes.index_slots
            or self.sizes.index_entries
            or any(path.stat().st_size == given.size_bytes for path in paths)
        ):
            return given
        return next((found for path in paths if (found := _geometry_of(path)) is not None), None)


def _geometry_of(path: Path) -> Geometry | None:
    """Return the geometry of an index file of an unusual length; None if it stays unknown.

    The last entry is found by its log offset, which the header has. The slot of that entry, and the
    first entry, must confirm the position.
    """
    length = path.stat().st_size
    if length < HEADER.size + ENTRY.size:
        return None
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        _, _, begin_offset, end_offset, _, next_entry = HEADER.unpack_from(data)
        if next_entry < 2 or end_offset <= 0:
            return None
        pattern = end_offset.to_bytes(OFFSET_BYTES, "big")
        at = data.find(pattern, HEADER.size)
        while at >= 0:
            slot_bytes = at - NUMBER.size - ENTRY.size * (next_entry - 1) - HEADER.size
            slots, odd = divmod(slot_bytes, NUMBER.size)
            entries, rest = divmod(length - HEADER.size - slot_bytes, ENTRY.size)
            if slots > 0 and not odd and not rest and entries >= next_entry:
                geometry = Geometry(slots, entries)
                value = NUMBER.unpack_from(data, at - NUMBER.size)[0]
                first = ENTRY.unpack_from(data, geometry.entries_position + ENTRY.size)[1]
                newest = NUMBER.unpack_from(data, HEADER.size + NUMBER.size * (value % slots))[0]
                if first == begin_offset and newest == next_entry - 1:
                    return geometry
            at = data.find(pattern, at + 1)
    return None
