"""BlocksAhead: the log in large blocks, read in a thread while the loop works on the block before; for recovery and the indexer, which read all there is to read.

The system fetches the pages, starts the disk and copies without Python's lock, so with a second core these cost recovery nothing: a quarter of its time, and all
the waiting where the disk is slower than the loop.
"""

from __future__ import annotations

import attrs
import trio

from triomq.broker.store.disk import Disk
from triomq.broker.store.segment import Segment
from triomq.broker.store.segments import Segments

FIRST_BYTES = 256 * 1024
"""A start that has next to nothing to read should read no more; each further block is twice as long, up to this:"""
BLOCK_BYTES_MAX = 4 * 1024 * 1024
FETCH_BYTES = 8 * 1024 * 1024
"""What the system is asked to fetch beyond a block, so that the disk has its next work before it has done the last."""


@attrs.define(eq=False)
class BlocksAhead:
    """``run`` is a task; ``next`` is for those who wait for each block."""

    disk: Disk
    segments: Segments
    position: int
    """Log offset of the next byte."""
    end: int
    """Where nothing more is read."""
    _size: int = attrs.field(factory=lambda: FIRST_BYTES, init=False)
    _open: tuple[Segment, int] | None = attrs.field(default=None, init=False)
    """The segment being read, and its descriptor."""
    _fetched: int = attrs.field(default=0, init=False)
    """Log offset up to which the system has been asked."""
    _limiter: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(1), init=False)

    async def run(self, send: trio.MemorySendChannel[tuple[int, bytes]]) -> None:
        """Send (log offset, bytes), in order, and close the channel: at the end, or at the first fault of the disk. Checkpoint: always."""
        async with send:
            try:
                while (block := await self.next()) is not None:
                    await send.send(block)
            finally:
                self.close()

    async def next(self) -> tuple[int, bytes] | None:
        """(Log offset, bytes) of the next block; None at the end, and at a fault of the disk: whoever needs those bytes reads them and gets it, too. Checkpoint: always, but at the end."""
        try:
            if self._open is not None and self.position >= self._open[0].end:
                self.close()
            if self.position >= self.end:
                return None
            if self._open is None:
                segment = self.segments.find(self.position)
                if segment is None:
                    return None
                self._open = segment, self.disk.open(segment.path, writable=False)
            segment, fd = self._open
            start, stop = self.position, min(segment.end, self.end, self.position + self._size)
            data = await trio.to_thread.run_sync(self._read, segment, fd, start, stop, limiter=self._limiter)
        except OSError:
            return None
        self.position, self._size = stop, min(2 * self._size, BLOCK_BYTES_MAX)
        return start, data

    def close(self) -> None:
        """No block is read any more."""
        if self._open is not None:
            self.disk.close(self._open[1])
            self._open = None

    def _read(self, segment: Segment, fd: int, position: int, stop: int) -> bytes:
        """In the thread: as few calls as can be, since it waits for Python's lock after each."""
        limit = min(segment.end, self.end)
        if self._fetched < stop + FETCH_BYTES // 2 and self._fetched < limit and stop - position == BLOCK_BYTES_MAX:  # else it may be the only block
            start, self._fetched = max(stop, self._fetched), min(limit, stop + FETCH_BYTES)
            self.disk.read_ahead_of(fd, start - segment.base, self._fetched - start)
        return self.disk.read(fd, stop - position, position - segment.base)
