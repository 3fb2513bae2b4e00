"""LogBlocks: the log in large blocks, read by a thread while the loop works on the block before.

For recovery and the indexer, which read the log from one offset to its end.

The system fetches the pages, waits for the disk and copies without holding Python's lock. So with a
second core the reading costs recovery nothing: otherwise a quarter of its time, and more if the
disk is slower than the loop.
"""

from __future__ import annotations

from pathlib import Path

import attrs
import trio

from triomq.broker.store.io.disk import Disk
from triomq.broker.store.io.reads import AHEAD_BYTES
from triomq.broker.store.io.segments import Segments

FIRST_BYTES = 256 * 1024
"""The first block is short, because a start often has little to read. Each further block is twice
as long, up to ``BLOCK_BYTES_MAX``.
"""
BLOCK_BYTES_MAX = 4 * 1024 * 1024


@attrs.define(eq=False)
class LogBlocks:
    """``run`` is a task that sends blocks ahead; ``next`` is for a caller that waits for each."""

    disk: Disk
    segments: Segments
    position: int
    """Log offset of the next byte."""
    end: int
    """Log offset where the reading stops."""
    _size: int = attrs.field(factory=lambda: FIRST_BYTES, init=False)

    async def run(self, send: trio.MemorySendChannel[tuple[int, bytes]]) -> None:
        """Send (log offset, bytes) in order; close the channel at the end, or at a disk error.

        Checkpoint: always.
        """
        async with send:
            while (block := await self.next()) is not None:
                await send.send(block)

    async def next(self) -> tuple[int, bytes] | None:
        """Return (log offset, bytes) of the next block; None at the end, and after an error.

        After an error of the disk the scan reads those bytes itself and raises the error.

        Checkpoint: maybe, not at the end.
        """
        start = self.position
        segment = self.segments.find(start) if start < self.end else None
        if segment is None:
            return None
        stop = min(segment.end, self.end, start + self._size)
        try:
            data = await trio.to_thread.run_sync(
                self._read, segment.path, stop - start, start - segment.base
            )
        except OSError:
            return None
        self.position, self._size = stop, min(2 * self._size, BLOCK_BYTES_MAX)
        return start, data

    def _read(self, path: Path, size: int, position: int) -> bytes:
        """Read a block, in the thread: with few calls, since each one takes Python's lock again."""
        self.disk.read_ahead(path, position, size + AHEAD_BYTES)
        return self.disk.read_path(path, size, position)
