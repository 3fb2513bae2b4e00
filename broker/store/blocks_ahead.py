"""BlocksAhead: the log in large blocks, read in a thread while the loop works on the block before; for recovery, which reads all there is to read.

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
    """``run`` is a task that ends at the end of the segments, or at the first fault of the disk: whoever needs those bytes reads them and gets it, too."""

    disk: Disk
    segments: Segments
    start: int
    """Log offset of the first byte."""
    _fetched: int = attrs.field(default=0, init=False)
    """Log offset up to which the system has been asked."""
    _limiter: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(1), init=False)

    async def run(self, send: trio.MemorySendChannel[tuple[int, bytes]]) -> None:
        """Send (log offset, bytes), in order, and close the channel. Checkpoint: always."""
        size = FIRST_BYTES
        async with send:
            for segment in self.segments.covering(self.start, self.segments.end):
                position = max(self.start, segment.base)
                try:
                    fd = self.disk.open(segment.path, writable=False)
                except OSError:
                    return
                try:
                    while position < segment.end:
                        stop = min(segment.end, position + size)
                        data = await trio.to_thread.run_sync(self._read, segment, fd, position, stop, limiter=self._limiter)
                        await send.send((position, data))
                        position, size = stop, min(2 * size, BLOCK_BYTES_MAX)
                except OSError:
                    return
                finally:
                    self.disk.close(fd)

    def _read(self, segment: Segment, fd: int, position: int, stop: int) -> bytes:
        """In the thread: as few calls as can be, since it waits for Python's lock after each."""
        if self._fetched < stop + FETCH_BYTES // 2 and self._fetched < segment.end and stop - position == BLOCK_BYTES_MAX:  # else it may be the only block
            start, self._fetched = max(stop, self._fetched), min(segment.end, stop + FETCH_BYTES)
            self.disk.read_ahead_of(fd, start - segment.base, self._fetched - start)
        return self.disk.read(fd, stop - position, position - segment.base)
