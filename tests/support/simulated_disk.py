"""A disk whose every operation has a number, and which remembers what would be left after any of
them.

The files are real and stand for the page cache. Beside them the disk keeps what is durable: of each
file the content at its last fsync, and of names those whose directory was forced out. An ``Image``
freezes both; from it comes the directory as ``kill -9`` leaves it, or one of those that a power
failure may leave.

The rules, as strict as POSIX allows but for the order of names:

* What was written since the last fsync of a file may be there or not, sector by sector, in any
  mixture.
* Names come and go in order, as on every journalling file system: a failure undoes the youngest
  changes. An fsync of a file says nothing about its name.
* An fsync that fails has thrown the pages away: the cache goes on showing them, the next fsync
  succeeds, and the disk never gets them (Linux since 4.13).

Changes through a memory map are no operations; they are in the next image.
"""

from __future__ import annotations

import mmap
import os
import random
from collections.abc import Callable
from pathlib import Path

import attrs

from triomq.broker.store.core.disk_space import Usage
from triomq.broker.store.io.disk import Disk, DiskFeatures

SECTOR_BYTES = 64
MAP_HEAD_BYTES = 40 + 4 * 16
"""Header and slots of the key index files of ``stores.tiny_config``."""
LOG_SECTOR_BYTES = 512
"""Smaller than a page, since the files of the tests are small. Not smaller for the log: the CRC of
a record does not cover its properties.
"""


@attrs.frozen
class Operation:
    """One call that changes the disk or makes it durable. ``data`` and ``offset`` are those of a
    write.
    """

    number: int
    kind: str
    path: Path
    data: bytes = b""
    offset: int = 0


@attrs.frozen
class Fault:
    """What an operation does instead: fail with ``number``, after ``torn_bytes`` of a write have
    reached the file.
    """

    number: int
    torn_bytes: int = 0


@attrs.frozen
class Name:
    """A name that came or went, not durably yet; ``content`` and ``durable`` are those of a file
    that went, or that another took the name of.
    """

    path: Path
    kind: str
    content: bytes = b""
    durable: bytes = b""
    before: Path | None = None
    """What a renamed file was called."""
    replaced: bool = False
    """Whether a file had the new name already."""


@attrs.frozen
class Image:
    """The disk at one moment: what the page cache shows, and what is sure. All paths are relative
    to the root.
    """

    cached: dict[Path, bytes]
    directories: frozenset[Path]
    durable: dict[Path, bytes]
    names: tuple[Name, ...]
    unsendable: dict[Path, bytes] = attrs.field(factory=dict)
    """Files of which the cache shows what the disk will never get, as the disk may get them."""

    def torn(self, operation: Operation, root: Path, count: int) -> Image:
        """The moment when ``count`` bytes of a write have reached the page cache."""
        path = operation.path.relative_to(root)
        data = bytearray(self.cached[path])
        data[operation.offset : operation.offset + count] = operation.data[:count]
        return attrs.evolve(self, cached={**self.cached, path: bytes(data)})

    def forgetful(self) -> Image:
        """The same, but nothing that no fsync has reached is on its way to the disk."""
        known = {path: self.durable.get(path, b"") for path in self.cached}
        return attrs.evolve(
            self,
            cached={
                path: known[path][: len(data)].ljust(len(data), b"\0")
                for path, data in self.cached.items()
            },
        )

    def after_kill(self, target: Path) -> None:
        """The process has died, the page cache lives on."""
        self._write(target, self.cached, self.directories)

    def after_power_failure(self, target: Path, seed: int) -> None:
        """One of the states in which the disk may be."""
        choose = random.Random(seed)
        kept = choose.randint(0, len(self.names))
        files, directories = dict(self.cached), set(self.directories)
        contents = {
            path: mixture(path, data, self.durable.get(path, b""), choose)
            for path, data in {**files, **self.unsendable}.items()
        }
        for position, name in reversed(list(enumerate(self.names))):
            if (
                position == kept - 1
                and name.kind == "create"
                and name.path in contents
                and choose.random() < 0.5
            ):
                contents[name.path] = b""  # its size was to come next
            if position < kept:
                continue
            if name.kind == "remove":
                contents[name.path] = mixture(name.path, name.content, name.durable, choose)
            elif name.kind == "remove directory":
                directories.add(name.path)
            elif name.kind == "make directory":
                directories.discard(name.path)
            elif name.kind == "rename":
                assert name.before is not None
                if name.path in contents:
                    contents[name.before] = contents.pop(name.path)
                if name.replaced:
                    contents[name.path] = mixture(name.path, name.content, name.durable, choose)
            else:
                contents.pop(name.path, None)
        self._write(target, contents, directories)

    def _write(
        self, target: Path, files: dict[Path, bytes], directories: set[Path] | frozenset[Path]
    ) -> None:
        target.mkdir()
        for path in sorted(directories):
            if path.parent == Path() or path.parent in directories:
                (target / path).mkdir(exist_ok=True)
        for path, data in files.items():
            if (target / path.parent).is_dir():  # a lost directory takes its content with it
                (target / path).write_bytes(data)


def mixture(path: Path, now: bytes, before: bytes, choose: random.Random) -> bytes:
    """Some sectors as they are, some as they were."""
    before = before.ljust(len(now), b"\0")
    sure = (
        choose.randint(0, len(now)) if choose.random() < 0.7 else 0
    )  # the system often writes in order, but need not
    kept = choose.choice((0.0, 0.5, 0.9, 1.0))
    sector = LOG_SECTOR_BYTES if path.parent.name == "commitlog" else SECTOR_BYTES
    return b"".join(
        (now if start < sure or choose.random() < kept else before)[start : start + sector]
        for start in range(0, len(now), sector)
    )


class SimulatedDisk(Disk):
    """``before`` is called ahead of each operation; ``fault`` says whether it fails;
    ``during_sync`` is what others do while a thread waits for the device.
    """

    def __init__(self, root: Path, features: DiskFeatures | None = None) -> None:
        super().__init__(features or DiskFeatures())
        self.root = root
        self.durable: dict[Path, bytes] = {}
        self.names: list[Name] = []
        self.lost: dict[Path, dict[int, bytes]] = {}
        """Sectors (by position) that a failed fsync threw away, with what the cache shows there."""
        self.paths: dict[int, Path] = {}
        """What a descriptor was opened for."""
        self.count = 0
        self.fault: Callable[[Operation], Fault | None] = lambda operation: None
        self.before: Callable[[Operation], None] | None = None
        self.during_sync: Callable[[], None] | None = None
        self.full = False
        """Whether ``usage`` says so."""
        for path in root.rglob("*"):
            if path.is_file():
                self.durable[path.relative_to(root)] = path.read_bytes()

    def moved(self, root: Path) -> SimulatedDisk:
        """Return the same disk with its files in another folder: the next process finds the page
        cache as the last one left it.
        """
        disk = type(self)(root, self.features)
        disk.durable, disk.names = dict(self.durable), list(self.names)
        disk.lost = {root / self._relative(path): sectors for path, sectors in self.lost.items()}
        return disk

    def image(self) -> Image:
        cached: dict[Path, bytes] = {}
        directories = set()
        for path in self.root.rglob("*"):
            if path.is_file():
                cached[path.relative_to(self.root)] = path.read_bytes()
            else:
                directories.add(path.relative_to(self.root))
        unsendable = {}
        for path in self.lost:
            relative = self._relative(path)
            unsendable[relative] = self._without_lost(
                path, cached[relative], self.durable.get(relative, b"")
            )
        return Image(
            cached, frozenset(directories), dict(self.durable), tuple(self.names), unsendable
        )

    def _operate(self, kind: str, path: Path, data: bytes = b"", offset: int = 0) -> Fault | None:
        operation = Operation(self.count, kind, path, data, offset)
        self.count += 1
        if self.before is not None:
            self.before(operation)
        return self.fault(operation)

    def _refuse(self, kind: str, path: Path) -> None:
        fault = self._operate(kind, path)
        if fault is not None:
            raise OSError(fault.number, os.strerror(fault.number), str(path))

    def _relative(self, path: Path) -> Path:
        return path.relative_to(self.root)

    # Operations

    def create(self, path: Path, size: int, *, in_place: bool = False) -> int:
        fresh = not path.exists()
        if fresh:
            fault = self._operate("create", path)
            if fault is not None:
                raise self.write_error(path, OSError(fault.number, os.strerror(fault.number)))
            self.durable.pop(self._relative(path), None)  # whatever had this name before
            self.lost.pop(path, None)
            self.names.append(Name(self._relative(path), "create"))
        fd = super().create(path, size, in_place=in_place)
        self.paths[fd] = path
        return fd

    def open(self, path: Path, *, writable: bool = True) -> int:
        fd = super().open(path, writable=writable)
        self.paths[fd] = path
        return fd

    def write_at(
        self, fd: int, data: bytes | bytearray | memoryview, offset: int, path: Path
    ) -> None:
        fault = self._operate("write", path, bytes(data), offset)
        if fault is not None:
            if fault.torn_bytes:
                os.pwrite(fd, data[: fault.torn_bytes], offset)
            raise self.write_error(path, OSError(fault.number, os.strerror(fault.number)))
        super().write_at(fd, data, offset, path)
        lost = self.lost.get(path, {})
        for start in [
            start
            for start in lost
            if start < offset + len(data) and start + self._sector(path) > offset
        ]:
            del lost[start]  # written again: it will be sent again

    def allocate(self, fd: int, offset: int, length: int, path: Path) -> None:
        fault = self._operate("allocate", path)
        if fault is not None:
            raise self.write_error(path, OSError(fault.number, os.strerror(fault.number)))
        super().allocate(fd, offset, length, path)

    def make_directory(self, path: Path) -> None:
        if path.is_dir():
            return
        self._refuse("make directory", path)
        missing = [
            directory
            for directory in (path, *path.parents)
            if not directory.exists() and directory.is_relative_to(self.root)
        ]
        super().make_directory(path)
        self.names += [
            Name(self._relative(directory), "make directory")
            for directory in reversed(missing)
            if directory != self.root
        ]

    def write_file(self, path: Path, data: bytes) -> None:
        self._refuse("write file", path)
        if not path.exists():
            self.names.append(Name(self._relative(path), "create"))
        self.lost.pop(path, None)  # all of it is written again
        super().write_file(path, data)

    def remove(self, path: Path) -> None:
        if not path.exists():
            return
        self._refuse("remove", path)
        relative = self._relative(path)
        self.names.append(
            Name(relative, "remove", path.read_bytes(), self.durable.pop(relative, b""))
        )
        self.lost.pop(path, None)
        super().remove(path)

    def remove_directory(self, path: Path) -> None:
        self._refuse("remove directory", path)
        super().remove_directory(path)
        self.names.append(Name(self._relative(path), "remove directory"))

    def rename(self, path: Path, target: Path) -> None:
        """Files only: a directory's new name is durable at once."""
        self._refuse("rename", target)
        before, after = self._relative(path), self._relative(target)
        if path.is_dir():
            moved = [name for name in self.durable if name.is_relative_to(before)]
            self.durable |= {
                after / name.relative_to(before): self.durable.pop(name) for name in moved
            }
        else:
            replaced = target.exists()
            content = target.read_bytes() if replaced else b""
            self.names.append(
                Name(after, "rename", content, self.durable.pop(after, b""), before, replaced)
            )
            if before in self.durable:
                self.durable[after] = self.durable.pop(before)
            self.lost.pop(target, None)
            if path in self.lost:
                self.lost[target] = self.lost.pop(path)
        super().rename(path, target)

    def sync(self, fd: int) -> None:
        self.sync_path(self.paths[fd])

    def sync_path(self, path: Path) -> None:
        """The real disk is not waited for: what is durable is for this class to say."""
        fault = self._operate("sync", path)
        now, known = path.read_bytes(), self.durable.get(self._relative(path), b"")
        if fault is not None:
            sector = self._sector(path)
            before = known.ljust(len(now), b"\0")
            starts = [
                start
                for start in range(0, len(now), sector)
                if now[start : start + sector] != before[start : start + sector]
            ]
            self.lost.setdefault(path, {}).update(
                {start: now[start : start + sector] for start in starts}
            )
            raise OSError(fault.number, os.strerror(fault.number), str(path))
        if self.during_sync is not None:
            self.during_sync()
        self.durable[self._relative(path)] = self._without_lost(path, now, known)

    def _without_lost(self, path: Path, now: bytes, known: bytes) -> bytes:
        data = bytearray(now)
        for start, shown in self.lost.get(path, {}).items():
            if now[start : start + len(shown)] == shown:
                data[start : start + len(shown)] = known.ljust(len(now), b"\0")[
                    start : start + len(shown)
                ]
        return bytes(data)

    def sync_directory(self, path: Path) -> None:
        self._refuse("sync names", path)
        if path.is_relative_to(self.root):
            self.names = [name for name in self.names if name.path.parent != self._relative(path)]

    def sync_file_system(self, fd: int) -> None:
        """Everything at once."""
        self._refuse("sync file system", self.root)
        for path in self.root.rglob("*"):
            if path.is_file():
                known = self.durable.get(self._relative(path), b"")
                self.durable[self._relative(path)] = self._without_lost(
                    path, path.read_bytes(), known
                )
        self.names.clear()

    def drop_cache(self, path: Path, offset: int = 0, size: int = 0) -> None:
        """What a failed fsync threw away is gone from the cache, too."""
        known = self.durable.get(self._relative(path), b"")
        with path.open("r+b") as file:
            for start, shown in self.lost.pop(path, {}).items():
                file.seek(start)
                if file.read(len(shown)) == shown:
                    file.seek(start)
                    file.write(known[start : start + len(shown)].ljust(len(shown), b"\0"))

    def map(self, fd: int, size: int, *, writable: bool = False) -> mmap.mmap:
        # a repair of a key index writes its header and its slots again, which no operation
        # shows
        if writable:
            path = self.paths[fd]
            self.lost[path] = {
                start: shown
                for start, shown in self.lost.get(path, {}).items()
                if start >= MAP_HEAD_BYTES
            }
        return super().map(fd, size, writable=writable)

    def _sector(self, path: Path) -> int:
        return LOG_SECTOR_BYTES if path.parent.name == "commitlog" else SECTOR_BYTES

    # Not operations

    def usage(self, path: Path) -> Usage:
        return Usage(1 << 40, 0) if self.full else Usage(0, 1 << 40)
