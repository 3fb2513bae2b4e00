"""A disk that forgets: what was not synced disappears when the power of its machine is cut.

The files are real and stand for the page cache, which a killed process leaves behind. Beside them
is a journal, written ahead of every change: the content before the change, and how far each fsync
has come. ``cut_power``, called after the process was killed, undoes what no fsync had reached: all
of it, or a random part, down to parts of one write. Names (files created, removed, renamed) are
undone from the youngest on, back to the last fsync of their directory, since journalling file
systems keep their order. Changes through memory maps (the key index) are not operations: the system
may have written them back at any moment.

The journal outlives the process, as a page cache does: what one process has not synced, the next
process must sync before it acknowledges. ``sync_seconds`` in the process's ``Controls`` makes every
fsync that slow, so that more is in flight when a fault comes.
"""

from __future__ import annotations

import base64
import json
import mmap
import os
import random
import shutil
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import fault_clock
import trio

from triomq.broker.store.io.disk import Disk

BLOCK_BYTES = 4096
SECTOR_BYTES = 512


class Controls:
    """Numbers that a test changes while a process runs: a page of memory that both have mapped."""

    LAYOUT = struct.Struct("<dd")

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(BLOCK_BYTES))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), BLOCK_BYTES)

    @property
    def values(self) -> tuple[float, float]:
        return self.LAYOUT.unpack_from(self._map)

    def set(self, **changes: Any) -> None:
        names = ("sync_seconds", "delay_seconds")
        self.LAYOUT.pack_into(
            self._map,
            0,
            *[changes.pop(name, value) for name, value in zip(names, self.values, strict=True)],
        )
        assert not changes, changes

    @property
    def sync_seconds(self) -> float:
        return self.values[0]

    @property
    def delay_seconds(self) -> float:
        """What a relay waits."""
        return self.values[1]


class ForgetfulDisk(Disk):
    """Writes the journal. Operations may come from the loop and from threads."""

    def __init__(self, journal: Path, kept: Path, controls: Controls) -> None:
        super().__init__()
        journal.parent.mkdir(parents=True, exist_ok=True)
        self.kept = kept
        """Contents of removed files, until their names are gone for sure."""
        self.kept.mkdir(parents=True, exist_ok=True)
        self.controls = controls
        self.paths: dict[int, Path] = {}
        """What a descriptor was opened for."""
        self._changing = threading.Lock()
        self._count = len(journal.read_bytes().split(b"\n")) if journal.exists() else 0
        self._journal = os.open(
            journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644
        )
        if self._count:  # the last line of the former life may be torn
            os.write(self._journal, b"\n")

    def open_sync_queue(self) -> ForgetfulQueue:  # type: ignore[override]
        return ForgetfulQueue(self)

    def _note(self, *fields: object) -> None:
        os.write(self._journal, json.dumps(fields).encode() + b"\n")
        self._count += 1

    def open(self, path: Path, *, writable: bool = True) -> int:
        fd = super().open(path, writable=writable)
        self.paths[fd] = path
        return fd

    def create(self, path: Path, size: int, *, in_place: bool = False) -> int:
        with self._changing:
            if not path.exists():
                self._note("create", str(path))
            fd = super().create(path, size, in_place=in_place)
            self.paths[fd] = path
            return fd

    def write_at(
        self, fd: int, data: bytes | bytearray | memoryview, offset: int, path: Path
    ) -> None:
        with self._changing:
            before = os.pread(fd, len(data), offset)
            self._note(
                "write",
                str(path),
                offset,
                len(data),
                base64.b64encode(before.rstrip(b"\0")).decode(),
            )
            super().write_at(fd, data, offset, path)

    def make_directory(self, path: Path) -> None:
        with self._changing:
            missing = [directory for directory in (path, *path.parents) if not directory.exists()]
            for directory in reversed(missing):
                self._note("make directory", str(directory))
            super().make_directory(path)

    def rename(self, path: Path, target: Path) -> None:
        with self._changing:
            kept = self.kept / str(self._count)
            if target.is_file():
                os.link(target, kept)
            self._note("rename", str(path), str(target), str(kept))
            super().rename(path, target)

    def write_file(self, path: Path, data: bytes) -> None:
        with self._changing:
            if path.exists():
                before = path.read_bytes()
                self._note("write", str(path), 0, len(before), base64.b64encode(before).decode())
            else:
                self._note("create", str(path))
            super().write_file(path, data)

    def remove(self, path: Path) -> None:
        with self._changing:
            if path.exists():
                kept = self.kept / str(self._count)
                os.link(path, kept)
                self._note("remove", str(path), str(kept))
            super().remove(path)

    def remove_directory(self, path: Path) -> None:
        with self._changing:
            super().remove_directory(path)
            self._note("remove directory", str(path))

    def sync(self, fd: int) -> None:
        fault_clock.sleep(
            self.controls.sync_seconds
        )  # the real disk is not waited for: what is durable is for the journal to say

    def sync_path(self, path: Path) -> None:
        count = self.changes()
        super().sync_path(path)
        self.synced(path, count)

    def changes(self) -> int:
        """Lines so far: what an fsync that begins now will cover."""
        with self._changing:
            return self._count

    def synced(self, path: Path, count: int) -> None:
        with self._changing:
            self._note("sync", str(path), count)

    def sync_directory(self, path: Path) -> None:
        with self._changing:
            self._note("sync names", str(path), self._count)

    def sync_file_system(self, fd: int) -> None:
        count = self.changes()
        self.sync(fd)
        with self._changing:
            self._note("sync all", "", count)


class ForgetfulQueue:
    """In place of the kernel's queue (``queued_sync``): one fsync at a time, as slow as the
    others.
    """

    def __init__(self, disk: ForgetfulDisk) -> None:
        self.disk = disk
        self._begun: tuple[Path, int, float] | None = None

    def begin(self, fd: int) -> None:
        assert self._begun is None, "one at a time"
        self._begun = (
            self.disk.paths[fd],
            self.disk.changes(),
            trio.current_time() + self.disk.controls.sync_seconds,
        )

    async def finished(self) -> None:
        assert self._begun is not None
        path, count, due = self._begun
        with trio.CancelScope(shield=True):
            await trio.sleep_until(due)
        self._begun = None
        self.disk.synced(path, count)

    def close(self) -> None:
        """Forget an operation that has begun: it may have reached the disk or not, and it was not
        acknowledged.
        """
        self._begun = None


@attrs.frozen
class Lost:
    """What a power cut took."""

    bytes: int = 0
    writes: int = 0
    names: int = 0


def read_journal(journal: Path) -> Iterator[tuple[int, list[Any]]]:
    """Numbered lines; a last line that was torn is left out (its change had not begun)."""
    if not journal.exists():
        return
    for number, line in enumerate(journal.read_bytes().split(b"\n")):
        try:
            yield number, json.loads(line)
        except ValueError:
            continue


def cut_power(journal: Path, kept: Path, seed: object, *, everything: bool = False) -> Lost:
    """Undo what was not forced out; the journal ends, since all that is left is on the disk. The
    process that wrote it must be dead.
    """
    choose = random.Random(str(seed))
    entries = list(read_journal(journal))
    synced: dict[str, int] = {}
    names_synced: dict[str, int] = {}
    all_synced = 0
    for _, (kind, path, *fields) in entries:
        if kind == "sync":
            synced[path] = max(synced.get(path, 0), fields[0])
        elif kind == "sync names":
            names_synced[path] = max(names_synced.get(path, 0), fields[0])
        elif kind == "sync all":
            all_synced = max(all_synced, fields[0])
    names = [
        number
        for number, (kind, path, *_) in entries
        if kind in ("create", "remove", "rename", "make directory", "remove directory")
        and number >= max(all_synced, names_synced.get(str(Path(path).parent), 0))
    ]
    undone = set(
        names if everything else names[choose.choice((0, choose.randint(0, len(names)))) :]
    )
    share = 0.0 if everything else choose.choice((0.0, 0.0, 0.5))
    """Of the writes, which the system had written back by itself."""
    lost_bytes = lost_writes = 0
    for number, (kind, name, *fields) in reversed(entries):
        path = Path(name)
        if kind == "write":
            if (
                number >= max(all_synced, synced.get(name, 0))
                and choose.random() >= share
                and path.exists()
            ):
                offset, length, before = fields
                content = base64.b64decode(before).ljust(length, b"\0")
                stays = 0
                if share and choose.random() < 0.3:  # some sectors of it
                    stays = max(
                        0,
                        (offset + choose.randrange(length + 1)) // SECTOR_BYTES * SECTOR_BYTES
                        - offset,
                    )
                with path.open("r+b") as file:
                    file.seek(offset + stays)
                    file.write(content[stays:])
                lost_bytes += length - stays
                lost_writes += 1
        elif number in undone:
            undo_name(kind, path, fields)
    journal.unlink(missing_ok=True)
    shutil.rmtree(kept, ignore_errors=True)
    return Lost(lost_bytes, lost_writes, len(undone))


def undo_name(kind: str, path: Path, fields: list[Any]) -> None:
    if kind == "create":
        path.unlink(missing_ok=True)
    elif kind == "remove" and not path.exists() and path.parent.is_dir():
        os.link(fields[0], path)
    elif kind == "rename" and Path(fields[0]).exists() and not path.exists():
        os.rename(fields[0], path)
        if Path(fields[1]).exists():
            os.link(fields[1], fields[0])
    elif kind == "make directory" and path.is_dir():
        shutil.rmtree(path)
    elif kind == "remove directory":
        path.mkdir(exist_ok=True)
