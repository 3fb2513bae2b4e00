"""Which files a store directory has, and with which sizes they were made. Reads names, lengths and a few bytes; changes nothing.

The sizes of files are part of the format and stand nowhere in it. What the caller does not give is taken from the files themselves: a segment's size is the
length that most segments have, a queue file's likewise; an index file of an unusual length tells its number of slots by where its last entry lies.
"""

from __future__ import annotations

import mmap
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import attrs

from triomq.broker.inspect.findings import Report
from triomq.broker.store.config import BATCH_ENTRY_BYTES, GIB, QUEUE_ENTRY_BYTES, StoreConfig
from triomq.broker.store.disk import Disk
from triomq.broker.store.key_index import NAME_DIGITS as INDEX_NAME_DIGITS
from triomq.broker.store.key_index_file import ENTRY, HEADER, NUMBER, Geometry
from triomq.broker.store.segment import NAME_DIGITS, Segment
from triomq.broker.store.segments import Segments

REBUILD_QUEUES = "delete the folder consumequeue and the file checkpoint, and the folder batchconsumequeue if there is one: the broker makes all queues again from what the log holds at its next start"
REBUILD_INDEX = "delete the folder index: the broker makes it again from what the log still holds at its next start"
OFFSET_BYTES = 8


class NotAStore(Exception):
    """The directory cannot be looked at. One line with cause and fix."""


@attrs.frozen(kw_only=True)
class Sizes:
    """What the caller knows about the geometry; None = find out."""

    commitlog: Path | None = None
    segment_size: int | None = None
    queue_file_size: int | None = None
    index_slots: int | None = None
    index_entries: int | None = None


@attrs.define(eq=False, kw_only=True)
class StoreFiles:
    """The files of one store, by name."""

    root: Path
    commitlog: Path
    disk: Disk
    sizes: Sizes
    segment_size: int = GIB
    queue_file_size: int = 6_000_000
    batch_queue_file_size: int = 13_800_000
    runs: list[Segments] = attrs.field(factory=list)
    """The log in pieces that have no hole inside; one piece if no segment is missing."""
    lengths: dict[int, int] = attrs.field(factory=dict)
    """Base of a segment -> length of its file."""

    @classmethod
    def find(cls, root: Path, sizes: Sizes, report: Report) -> StoreFiles:
        """Look at a directory. Raises NotAStore, OSError."""
        if not root.is_dir():
            raise NotAStore(f"{root} is not a directory; name the folder that storePathRootDir of the broker names")
        commitlog = sizes.commitlog or root / "commitlog"
        if not commitlog.is_dir():
            if not (root / "consumequeue").is_dir() and not (root / "checkpoint").exists():
                raise NotAStore(f"{root} holds no store (no commitlog, consumequeue or checkpoint in it); name the folder that storePathRootDir names")
            report.note("log-missing", commitlog, None, "there is no commit log", "nothing if the broker never stored a message; else restore it, or name it with storePathCommitLog")
        files = cls(root=root, commitlog=commitlog, disk=Disk(), sizes=sizes)
        files._find_segments(report)
        files.queue_file_size = sizes.queue_file_size or files._usual_file_size(files.queue_directories(), QUEUE_ENTRY_BYTES, files.queue_file_size)
        files.batch_queue_file_size = files._usual_file_size(files.batch_queue_directories(), BATCH_ENTRY_BYTES, files.batch_queue_file_size)
        return files

    def _find_segments(self, report: Report) -> None:
        names = []
        for path in sorted(self.commitlog.iterdir()) if self.commitlog.is_dir() else []:
            if path.is_dir():
                continue
            if len(path.name) != NAME_DIGITS or not path.name.isdecimal():
                report.damage("foreign-file", path, None, "not a log segment: no broker starts with it in this folder", "move the file away")
                continue
            names.append((int(path.name), path.stat().st_size))
        self.lengths = dict(names)
        self.segment_size = self.sizes.segment_size or self._guess_segment_size(names)
        for base, length in names:
            path = self.commitlog / f"{base:0{NAME_DIGITS}d}"
            last = base == names[-1][0]
            if length == 0 and last:
                report.note("empty-segment", path, base, "the last segment is empty (a crash while it was made)", "nothing: the next start removes it")
                continue
            if base % self.segment_size:
                report.damage("segment-name", path, base, f"the name is not a multiple of the segment size {self.segment_size}", "set mappedFileSizeCommitLog as it was")
            if length != self.segment_size:
                report.damage("segment-size", path, base + length, self._wrong_length(length), self._length_advice(path, length, last=last))
            if not self.runs or self.runs[-1].end != base:
                if self.runs:
                    start = self.runs[-1].end
                    report.damage(
                        "segment-missing",
                        self.commitlog / f"{start:0{NAME_DIGITS}d}",
                        start,
                        f"the log has a hole: the bytes from {start} to {base} ({base - start}) are missing",
                        "restore the missing segments from a copy or from the folder of a slave; else move this and all later segments away and lose their messages",
                    )
                self.runs.append(Segments(self.disk, self.commitlog, self.segment_size))
            self.runs[-1].items.append(Segment(self.disk, self.commitlog, base, self.segment_size))

    def _guess_segment_size(self, names: list[tuple[int, int]]) -> int:
        lengths = Counter(length for _, length in names if length)
        if not lengths:
            return GIB
        most = max(lengths.values())
        likely = [length for length, count in lengths.items() if count == most]
        # Of two files of different length one was cut: names are multiples of the right size.
        fitting = [length for length in likely if all(base % length == 0 for base, _ in names)] or likely
        return GIB if GIB in fitting else max(fitting)

    def _wrong_length(self, length: int) -> str:
        return f"the file has {length} bytes, a segment has {self.segment_size}"

    def _length_advice(self, path: Path, length: int, *, last: bool) -> str:
        if length > self.segment_size:
            return f"set mappedFileSizeCommitLog={length} if the whole store was written so; otherwise restore the file from a copy"
        if last:
            return (
                f"restore the file from a copy; or give it its length back (truncate -s {self.segment_size} {path.name}): "
                "the next start ends the log at the last whole record"
            )
        return "restore the file from a copy or from the folder of a slave: brokers refuse to start with it, and what was cut off is not in this store"

    def _usual_file_size(self, directories: Iterable[tuple[str, int, Path]], entry_bytes: int, default: int) -> int:
        lengths: Counter[int] = Counter()
        for _, _, directory in directories:
            lengths.update(entry.stat().st_size for entry in os.scandir(directory) if len(entry.name) == NAME_DIGITS)
            if lengths.total() >= 1_000:
                break
        del lengths[0]
        return next((length for length, _ in lengths.most_common() if length % entry_bytes == 0), default)

    # What there is

    @property
    def log_start(self) -> int:
        return self.runs[0].first_offset if self.runs else 0

    @property
    def log_bytes(self) -> int:
        return sum(self.lengths.values())

    def segment_path(self, offset: int) -> Path:
        """The file in which a log offset lies, or would."""
        return self.commitlog / f"{offset - offset % self.segment_size:0{NAME_DIGITS}d}"

    def queue_directories(self) -> Iterator[tuple[str, int, Path]]:
        """(topic, queue id, folder) of every queue."""
        return self._directories(self.root / "consumequeue")

    def batch_queue_directories(self) -> Iterator[tuple[str, int, Path]]:
        """The same of those whose entries stand for several messages."""
        return self._directories(self.root / "batchconsumequeue")

    def _directories(self, root: Path) -> Iterator[tuple[str, int, Path]]:
        for topic in sorted(root.iterdir()) if root.is_dir() else []:
            if topic.is_dir():
                for directory in sorted(topic.iterdir()):
                    if directory.is_dir() and directory.name.isdecimal():
                        yield topic.name, int(directory.name), directory

    def index_paths(self, report: Report) -> list[Path]:
        """The files of the key index, oldest first."""
        folder = self.root / "index"
        paths = []
        for path in sorted(folder.iterdir()) if folder.is_dir() else []:
            if len(path.name) != INDEX_NAME_DIGITS or not path.name.isdecimal():
                report.damage("foreign-file", path, None, "not a key index file: no broker starts with it in this folder", "move the file away")
            elif path.stat().st_size == 0:
                report.note("empty-index", path, None, "the file is empty (a crash while it was made)", "nothing: the next start removes it")
            else:
                paths.append(path)
        return paths

    def index_geometry(self, paths: Iterable[Path]) -> Geometry | None:
        """Slots and entries of the index files; None if neither the caller nor any file tells."""
        defaults = StoreConfig(root=self.root)
        given = Geometry(self.sizes.index_slots or defaults.index_slot_count, self.sizes.index_entries or defaults.index_entry_count)
        paths = list(paths)
        if self.sizes.index_slots or self.sizes.index_entries or any(path.stat().st_size == given.size_bytes for path in paths):
            return given
        return next((found for path in paths if (found := _geometry_of(path)) is not None), None)


def _geometry_of(path: Path) -> Geometry | None:
    """Find the last entry by the log offset that the header gives for it; a slot that names it, and the first entry, must confirm the find."""
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
