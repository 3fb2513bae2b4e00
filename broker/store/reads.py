"""Reads that never stop the loop: what the page cache has is taken at once, what it has not is fetched by a thread, and then the read is done again.

Law: every read of the running store is a plain synchronous function of a ``Reads``. It either returns its result or raises ``Cold`` with all the file
ranges it lacked; ``until_warm`` fetches those in a thread and calls the function again. So a read has one form, and its state is never seen halfway.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import attrs
import trio

from triomq.broker.store.disk import Disk
from triomq.broker.store.errors import StoreIoError
from triomq.broker.store.open_files import OpenFiles

T = TypeVar("T")
Range = tuple[Path, int, int]
"""(file, position, size in bytes)"""
Buffer = bytes | bytearray | memoryview


class Cold(Exception):
    """Some of the data is not in memory. Never leaves the store."""

    def __init__(self, ranges: list[Range]) -> None:
        super().__init__(f"{len(ranges)} ranges are not in the page cache")
        self.ranges = ranges


@attrs.define(eq=False)
class Reads:
    """Files as one read sees them: the page cache, and what has been fetched for it."""

    disk: Disk
    open_files: OpenFiles
    fetched: dict[Range, bytes] = attrs.field(factory=dict)

    def file(self, path: Path, position: int, size: int) -> Buffer:
        """Bytes of a file that is open by need. Raises Cold, StoreIoError."""
        try:
            data = self.disk.read_nowait(self.open_files.get(path), size, position)
        except OSError as error:
            raise StoreIoError(path, error) from error
        return data if data is not None else self.fetched_or_cold(path, position, size)

    def descriptor(self, fd: int, path: Path, position: int, size: int) -> Buffer:
        """The same for a file whose descriptor the caller holds."""
        try:
            data = self.disk.read_nowait(fd, size, position)
        except OSError as error:
            raise StoreIoError(path, error) from error
        return data if data is not None else self.fetched_or_cold(path, position, size)

    def fetched_or_cold(self, path: Path, position: int, size: int) -> bytes:
        data = self.fetched.get((path, position, size))
        if data is None:
            raise Cold([(path, position, size)])
        if len(data) < size:  # still in a table, so nobody of this process has deleted it
            raise StoreIoError(path, OSError(errno.ENOENT, f"its bytes from {position} on are missing"))
        return data


async def until_warm(
    read: Callable[[Reads], T], reads: Reads, limiter: trio.CapacityLimiter, fetch: Callable[[list[Range]], dict[Range, bytes]]
) -> T:
    """Call ``read`` until nothing is cold any more; ``fetch`` gets what it lacks, in a thread. Raises StoreIoError and what ``read`` raises. Checkpoint: always."""
    await trio.lowlevel.checkpoint()
    while True:
        try:
            return read(reads)
        except Cold as cold:
            missing = cold.ranges
        reads.fetched.update(await trio.to_thread.run_sync(fetch, missing, limiter=limiter))
