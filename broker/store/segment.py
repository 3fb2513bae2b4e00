"""One file of the commit log: fixed size from its creation, named by the log offset of its first byte."""

from __future__ import annotations

from pathlib import Path

import attrs

from triomq.broker.store.disk import Disk
from triomq.broker.store.residency import Residency

NAME_DIGITS = 20


def segment_name(base: int) -> str:
    """20 decimal digits, so that names sort as numbers. Source: store/…/UtilAll.java#offset2FileName."""
    return f"{base:0{NAME_DIGITS}d}"


@attrs.define(eq=False)
class Segment:
    """A full-size file and its memory map, both opened when first needed."""

    disk: Disk
    directory: Path
    base: int
    """Log offset of the first byte."""
    size: int
    name_durable: bool = True
    """False until the directory has been forced to the disk after creation: without it a power failure loses the whole file."""
    path: Path = attrs.field(init=False)
    _fd: int | None = attrs.field(default=None, init=False)
    _view: memoryview | None = attrs.field(default=None, init=False)
    _residency: Residency | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.path = self.directory / segment_name(self.base)

    @classmethod
    def create(cls, disk: Disk, directory: Path, base: int, size: int) -> Segment:
        """Make the file. Raises DiskFull or StoreIoError."""
        segment = cls(disk, directory, base, size, name_durable=False)
        segment._fd = disk.create(segment.path, size)
        return segment

    @property
    def end(self) -> int:
        return self.base + self.size

    @property
    def fd(self) -> int:
        if self._fd is None:
            self._fd = self.disk.open(self.path)
        return self._fd

    @property
    def view(self) -> memoryview:
        """Read-only memory map of the whole file. Reading a page that is not in the page cache stops the loop: see ``hot``."""
        if self._view is None:
            self._view = memoryview(self.disk.map(self.fd, self.size))
        return self._view

    def in_page_cache(self, start: int, stop: int) -> bool:
        """Whether the page cache has all bytes from position ``start`` to ``stop``; False where nobody can tell at once."""
        residency = self._residency
        if residency is None:
            if not (self.disk.features.residency and self.disk.nowait):
                return False
            residency = self._residency = Residency(self.view)
        return residency.has(start, stop)

    def close(self) -> None:
        """Close the descriptor. The map goes when the last slice of it goes: an answer under way may still hold one."""
        self._view = self._residency = None
        if self._fd is not None:
            self.disk.close(self._fd)
            self._fd = None
