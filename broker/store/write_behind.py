"""WriteBehind: what a log copy has checked goes into the file in a thread, while the loop takes what comes next.

For a log that is far behind. More may come then than the disk takes, and a write into the page cache waits for the disk as soon as that is full: the loop must not.
And the machine has more than one processor: what a write costs, others save. Nothing counts as appended before it is in the file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice

import attrs
import trio

from triomq.broker.store.commitlog import CommitLog
from triomq.broker.store.draft import Batch
from triomq.broker.store.errors import StoreError
from triomq.broker.store.segment import Segment

WAITING_BYTES_MAX = 20 * 1024 * 1024
TURN_BYTES_MAX = 8 * 1024 * 1024
"""What the thread gets at once: while it writes that, the loop prepares more. To turn to a thread takes long where the loop is busy: with a quarter of this, copying is slower by some percent."""
STEP_MESSAGES = 1024
"""So many are committed, and mostly indexed, before others get their turn. (After each piece: copying takes a quarter longer.)"""


@attrs.frozen(eq=False)
class Piece:
    """Whole records of one segment, or the BLANK that ends it."""

    batch: Batch
    data: bytes | memoryview
    segment: Segment
    stored: int
    """Store time of the last of them, 0 without one."""
    left: bool
    """The batch may not have them all: the indexer reads them from the log."""


@attrs.define(eq=False)
class WriteBehind:
    """Of one log: pieces are written in their order."""

    log: CommitLog
    commit: Callable[[Piece], None]
    """Called when a piece is in the file: from now on it is part of the log. No checkpoint."""
    in_use: bool = attrs.field(default=False, init=False)
    """Somebody calls ``write_some`` and ``commit_some``, each in a task of its own: while pieces are committed the next ones are written."""
    _pieces: deque[Piece] = attrs.field(factory=deque, init=False)
    _written: int = attrs.field(default=0, init=False)
    """So many of them, the first, are in the file."""
    _bytes: int = attrs.field(default=0, init=False)
    _come: trio.Event = attrs.field(factory=trio.Event, init=False)
    _grown: trio.Event = attrs.field(factory=trio.Event, init=False)
    """Some are in the file."""
    _gone: trio.Event = attrs.field(factory=trio.Event, init=False)
    """Some wait no more."""
    _limiter: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(1), init=False)

    @property
    def end(self) -> int:
        """Where the log will end when all that waits is written."""
        return self._pieces[-1].batch.end if self._pieces else self.log.appended.value

    @property
    def is_empty(self) -> bool:
        return not self._pieces

    @contextmanager
    def using(self) -> Iterator[None]:
        """In here pieces are taken. At the end what is not committed is forgotten: whoever wants it calls ``finish`` before."""
        self.in_use = True
        try:
            yield
        finally:
            self.in_use = False
            if self._pieces:
                self.log.note_bytes_behind()  # such as were written ahead for one of them
            self._forget_all()

    def put(self, piece: Piece) -> None:
        """No checkpoint."""
        self._pieces.append(piece)
        self._bytes += len(piece.data)
        self._come.set()

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be put: so much waits (and as much again, at most, of the buffers in which it came)."""
        return self._bytes > WAITING_BYTES_MAX

    async def wait_room(self) -> None:
        """Checkpoint: only if it is full."""
        while self.is_full:
            await self._gone.wait()

    async def write_some(self) -> None:
        """Wait for pieces, and write some of them. Checkpoint: always. Raises DiskFull, StoreIoError: then none waits any more."""
        while len(self._pieces) == self._written:
            self._come = trio.Event()
            await self._come.wait()
        pieces = self._next_turn()
        segment, start = pieces[0].segment, pieces[0].batch.start
        data = [piece.data for piece in pieces]  # one call: for each the thread would have to wait for the interpreter again
        try:
            await trio.to_thread.run_sync(self.log.disk.write_all_at, segment.fd, data, start - segment.base, segment.path, limiter=self._limiter)
        except StoreError:
            self.log.note_bytes_behind()
            self._forget_all()
            raise
        self._written += len(pieces)
        self._grown.set()

    async def commit_some(self, committed: Callable[[], None]) -> None:
        """Wait for pieces that are written, and commit these; call ``committed`` after some of them and the last. Checkpoint: always, also between some commits.

        Raises what ``committed`` raises: then what is not committed waits still.
        """
        while not self._written:
            self._grown = trio.Event()
            await self._grown.wait()
        messages = 0
        while self._written:
            piece = self._pieces.popleft()
            self._written -= 1
            self._bytes -= len(piece.data)
            self.commit(piece)
            messages += len(piece.batch.places)
            if messages >= STEP_MESSAGES or not self._written:
                messages = 0
                self._tell_gone()
                committed()
                await trio.lowlevel.checkpoint()

    async def finish(self, committed: Callable[[], None]) -> None:
        """Write and commit all that waits, where nobody else does. Raises what both raise."""
        while self._pieces:
            if not self._written:
                await self.write_some()
            await self.commit_some(committed)

    def _next_turn(self) -> list[Piece]:
        """The next ones that lie in one segment."""
        pieces: list[Piece] = []
        size = 0
        for piece in islice(self._pieces, self._written, None):
            if size >= TURN_BYTES_MAX or (pieces and piece.segment is not pieces[0].segment):
                break
            pieces.append(piece)
            size += len(piece.data)
        return pieces

    def _forget_all(self) -> None:
        self._pieces.clear()
        self._bytes = self._written = 0
        self._tell_gone()

    def _tell_gone(self) -> None:
        event, self._gone = self._gone, trio.Event()
        event.set()
