"""Segment: a file of the commit log, of full size from its creation.

Its name is the log offset of its first byte.
"""

from __future__ import annotations

from pathlib import Path

import attrs

from triomq.broker.store.core.errors import io_error
from triomq.broker.store.io.disk import Disk
from triomq.broker.store.io.residency import Residency

NAME_DIGITS = 20


def segment_name(base: int) -> str:
    """Return the file name of a log offset: 20 decimal digits, so that names sort as numbers.

    Source: store/…/UtilAll.java#offset2FileName.
    """
    return f"{base:0{NAME_DIGITS}d}"


@attrs.define(eq=False)
class Segment:
    """A file and its memory map, both opened when first needed."""

    disk: Disk
    directory: Path
    base: int
    """Log offset of the first byte."""
    size: int
    name_durable: bool = True
    """False until the directory has been forced to the disk after the creation of the file: before
    that a power failure loses the whole file.
    """
    path: Path = attrs.field(init=False)
    _fd: int | None = attrs.field(default=None, init=False)
    _view: memoryview | None = attrs.field(default=None, init=False)
    _residency: Residency | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.path = self.directory / segment_name(self.base)

    @classmethod
    def create(cls, disk: Disk, directory: Path, base: int, size: int) -> Segment:
        """Create the file. Raises: DiskFull, StoreIoError."""
        segment = cls(disk, directory, base, size, name_durable=False)
        segment._fd = disk.create(segment.path, size)
        return segment

    @property
    def end(self) -> int:
        return self.base + self.size

    @property
    def fd(self) -> int:
        """The descriptor of the file. Raises: StoreIoError."""
        if self._fd is None:
            try:
                self._fd = self.disk.open(self.path)
            except OSError as error:
                raise io_error(self.path, error) from error
        return self._fd

    @property
    def view(self) -> memoryview:
        """A read-only map of the file. Reading it may block the loop: see ``CommitLog.read``.

        Raises: StoreIoError (a map takes a descriptor, and address space).
        """
        if self._view is None:
            try:
                self._view = memoryview(self.disk.map(self.fd, self.size))
            except OSError as error:
                raise io_error(self.path, error) from error
        return self._view

    def in_page_cache(self, start: int, stop: int) -> bool:
        """Return whether the page cache is known to have all bytes from ``start`` to ``stop``."""
        residency = self._residency
        if residency is None:
            if not (self.disk.features.residency and self.disk.nowait):
                return False
            residency = self._residency = Residency(self.view)
        return residency.has(start, stop)

    def close(self) -> None:
        """Close the descriptor. The map stays: an answer in flight may hold slices of it."""
        self._view = self._residency = None
        if self._fd is not None:
            self.disk.close(self._fd)
            self._fd = None
