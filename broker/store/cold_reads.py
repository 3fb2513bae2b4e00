"""ColdReads: what threads fetch from the disk for readers who are far behind.

Two rules. Whoever reads messages (and not one record by its key) will want those behind them, so the system
is asked for them at once, and the next reads find them in the page cache. And what lies farther back than memory reaches anyway stays in the page cache for a window
only: a consumer that reads days of messages must not push out what the others read, which is the newest.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import attrs

from triomq.broker.store.disk import Disk
from triomq.broker.store.errors import StoreIoError
from triomq.broker.store.reads import Range

AHEAD_BYTES = 1024 * 1024
AHEAD_FROM_BYTES = 4096
"""A smaller read is one record by its key, or a look into an index: nobody wants what lies behind it."""
CHUNK_BYTES = 1024 * 1024
WINDOW_BYTES = 256 * 1024 * 1024


@attrs.define(eq=False)
class ColdReads:
    """``fetch`` is for threads, several at a time."""

    disk: Disk
    is_far: Callable[[Path, int], bool] = lambda path, position: False
    """Whether a byte of a file lies so far back that the page cache should not keep it for long."""
    window_bytes: int = WINDOW_BYTES
    _window: OrderedDict[tuple[Path, int], None] = attrs.field(factory=OrderedDict, init=False)
    """Far chunks that were fetched, the one not asked for longest first."""
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)

    def fetch(self, ranges: list[Range]) -> dict[Range, bytes]:
        """The bytes of these ranges; none of those whose file has been deleted meanwhile. Raises StoreIoError."""
        by_path: dict[Path, list[Range]] = {}
        for wanted in ranges:
            by_path.setdefault(wanted[0], []).append(wanted)
        found: dict[Range, bytes] = {}
        for path, wanted_here in by_path.items():
            try:
                self._fetch_file(path, wanted_here, found)
            except FileNotFoundError:
                # Deleted in between by the cleaner: the read, done again, does not find it in its tables any more.
                found.update(dict.fromkeys(wanted_here, b""))
            except OSError as error:
                raise StoreIoError(path, error) from error
        return found

    def _fetch_file(self, path: Path, ranges: list[Range], found: dict[Range, bytes]) -> None:
        start, stop = min(position for _, position, _ in ranges), max(position + size for _, position, size in ranges)
        if sum(size for _, _, size in ranges) >= AHEAD_FROM_BYTES:
            self.disk.read_ahead(path, start, stop - start + AHEAD_BYTES)
            self._note(path, start, stop + AHEAD_BYTES)
        for wanted in ranges:
            found[wanted] = self.disk.read_path(path, wanted[2], wanted[1])

    def _note(self, path: Path, start: int, stop: int) -> None:
        """Put far chunks into the window, and have the page cache forget those that fall out of it."""
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
                self.disk.drop_part(old, number * CHUNK_BYTES, CHUNK_BYTES)
            except FileNotFoundError:
                continue  # deleted meanwhile
