"""Reads that never stop the loop: a thread fetches what the page cache lacks.

Law: every read of the running store is a plain synchronous function of a ``Reads``. The function
either returns its result or raises ``Cold`` with all file ranges that it lacked;
``ColdFetch.until_warm`` fetches those in a thread and calls the function again. So a read exists in
one form, and no other code sees its state halfway.

A fetch follows two rules. A reader of messages (not of a single record by its key) will want the
messages behind them, so the system is asked to read ahead, and the next reads find the bytes in the
page cache. And bytes farther back than memory reaches stay in the page cache for a window only: a
consumer that reads days of messages must not push out the newest ones, which all others read.
"""

from __future__ import annotations

import errno
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import attrs
import trio

from triomq.broker.store.core.errors import StoreIoError, io_error
from triomq.broker.store.io.disk import Disk
from triomq.broker.store.io.open_files import OpenFiles

T = TypeVar("T")
Range = tuple[Path, int, int]
"""(file, position, size in bytes)"""
Buffer = bytes | bytearray | memoryview

AHEAD_BYTES = 1024 * 1024
"""The system is asked to read this far ahead, so that the disk works while the bytes are used."""
AHEAD_FROM_BYTES = 4096
"""A smaller read is a single record by its key, or part of an index: what lies behind it is not
wanted next.
"""
CHUNK_BYTES = 1024 * 1024
COLD_READERS_MAX = 4
WINDOW_BYTES = 256 * 1024 * 1024


class Cold(Exception):
    """Some of the data is not in memory. Never leaves the store."""

    def __init__(self, ranges: list[Range]) -> None:
        super().__init__(f"{len(ranges)} ranges are not in the page cache")
        self.ranges = ranges


@attrs.define(eq=False)
class Reads:
    """The files as one read sees them: the page cache, and the ranges fetched for this read."""

    disk: Disk
    open_files: OpenFiles
    fetched: dict[Range, bytes] = attrs.field(factory=dict)

    def file(self, path: Path, position: int, size: int) -> Buffer:
        """Return bytes of a file that is opened when needed. Raises: Cold, StoreIoError."""
        try:
            data = self.disk.read_nowait(self.open_files.get(path), size, position)
        except OSError as error:
            raise io_error(path, error) from error
        return data if data is not None else self.fetched_or_cold(path, position, size)

    def descriptor(self, fd: int, path: Path, position: int, size: int) -> Buffer:
        """Return bytes of a file whose descriptor the caller holds. Raises: Cold, StoreIoError."""
        try:
            data = self.disk.read_nowait(fd, size, position)
        except OSError as error:
            raise io_error(path, error) from error
        return data if data is not None else self.fetched_or_cold(path, position, size)

    def fetched_or_cold(self, path: Path, position: int, size: int) -> bytes:
        data = self.fetched.get((path, position, size))
        if data is None:
            raise Cold([(path, position, size)])
        if len(data) < size:  # the tables still list the file, so this process has not deleted it
            raise StoreIoError(
                path, OSError(errno.ENOENT, f"its bytes from {position} on are missing")
            )
        return data


@attrs.define(eq=False)
class ColdFetch:
    """Fetches in threads what reads lack."""

    disk: Disk
    is_far: Callable[[Path, int], bool] = lambda path, position: False
    """Whether a byte of a file lies so far back that the page cache should not keep it for long."""
    limiter: trio.CapacityLimiter = attrs.field(
        factory=lambda: trio.CapacityLimiter(COLD_READERS_MAX)
    )
    window_bytes: int = WINDOW_BYTES
    _window: OrderedDict[tuple[Path, int], None] = attrs.field(factory=OrderedDict, init=False)
    """Far chunks that were fetched, the least recently used first."""
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)

    async def until_warm(self, read: Callable[[Reads], T], reads: Reads) -> T:
        """Call ``read`` until it does not raise Cold any more, and return its result.

        Raises: StoreIoError, and what ``read`` raises. Checkpoint: always.
        """
        await trio.lowlevel.checkpoint()
        while True:
            try:
                return read(reads)
            except Cold as cold:
                missing = cold.ranges
            reads.fetched.update(
                await trio.to_thread.run_sync(self.fetch, missing, limiter=self.limiter)
            )

    def fetch(self, ranges: list[Range]) -> dict[Range, bytes]:
        """Return the bytes of these ranges, none for a deleted file. Runs in several threads.

        Raises: StoreIoError.
        """
        by_path: dict[Path, list[Range]] = {}
        for wanted in ranges:
            by_path.setdefault(wanted[0], []).append(wanted)
        found: dict[Range, bytes] = {}
        for path, wanted_here in by_path.items():
            try:
                self._fetch_file(path, wanted_here, found)
            except FileNotFoundError:
                # The cleaner has deleted the file: the repeated read does not find it in its tables
                # any more.
                found.update(dict.fromkeys(wanted_here, b""))
            except OSError as error:
                raise io_error(path, error) from error
        return found

    def _fetch_file(self, path: Path, ranges: list[Range], found: dict[Range, bytes]) -> None:
        start = min(position for _, position, _ in ranges)
        stop = max(position + size for _, position, size in ranges)
        if sum(size for _, _, size in ranges) >= AHEAD_FROM_BYTES:
            self.disk.read_ahead(path, start, stop - start + AHEAD_BYTES)
            self._note(path, start, stop + AHEAD_BYTES)
        for wanted in ranges:
            found[wanted] = self.disk.read_path(path, wanted[2], wanted[1])

    def _note(self, path: Path, start: int, stop: int) -> None:
        """Put far chunks into the window; make the page cache forget the chunks that fall out."""
        dropped = []
        with self._lock:
            for number in range(start // CHUNK_BYTES, -(-stop // CHUNK_BYTES)):
                if self.is_far(path, (number + 1) * CHUNK_BYTES):
                    self._window[path, number] = None
                    self._window.move_to_end((path, number))
            while len(self._window) * CHUNK_BYTES > self.window_bytes:
                dropped.append(self._window.popitem(last=False)[0])
        for old, number in dropped:
            try:
                self.disk.drop_cache(old, number * CHUNK_BYTES, CHUNK_BYTES)
            except FileNotFoundError:
                continue  # deleted meanwhile
