"""WriteBehind: a thread writes the bytes of a log copy while the loop receives the next ones.

For a log that is far behind. Its bytes may come faster than the disk writes, and a write waits for
the disk when the page cache is full of dirty pages: the loop must not wait. Besides, the writes use
a second core. Records count as appended only when they are in the file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice

import attrs
import trio

from triomq.broker.store.core.errors import StoreError
from triomq.broker.store.io.segment import Segment
from triomq.broker.store.log.commit_log import CommitLog
from triomq.broker.store.queues.batch import Batch

WAITING_BYTES_MAX = 20 * 1024 * 1024
TURN_BYTES_MAX = 8 * 1024 * 1024
"""Limit of one write of the thread; meanwhile the loop prepares the next one. A change to a thread
takes long while the loop is busy: with a quarter of this, copying is a few percent slower.
"""
STEP_MESSAGES = 1024
"""Messages that are committed, and mostly indexed, before other tasks get their turn. With a turn
after each piece copying takes a quarter longer.
"""


@attrs.frozen(eq=False)
class Piece:
    """Whole records of one segment, or the BLANK that ends it."""

    batch: Batch
    data: bytes | memoryview
    segment: Segment
    stored: int
    """Store time of the last record; 0 without one."""
    deferred: bool
    """Whether the indexing is deferred: then the batch need not list the records."""


@attrs.define(eq=False)
class WriteBehind:
    """Writes the pieces of one log in their order."""

    log: CommitLog
    commit: Callable[[Piece], None]
    """Called when a piece is in the file, and makes it part of the log. Must not wait."""
    in_use: bool = attrs.field(default=False, init=False)
    """Whether two tasks call ``write_some`` and ``commit_some``: the next pieces are written while
    the last ones are committed.
    """
    _pieces: deque[Piece] = attrs.field(factory=deque, init=False)
    _written: int = attrs.field(default=0, init=False)
    """Number of the first pieces that are in the file."""
    _bytes: int = attrs.field(default=0, init=False)
    _piece_added: trio.Event = attrs.field(factory=trio.Event, init=False)
    _piece_written: trio.Event = attrs.field(factory=trio.Event, init=False)
    _piece_removed: trio.Event = attrs.field(factory=trio.Event, init=False)
    _limiter: trio.CapacityLimiter = attrs.field(
        factory=lambda: trio.CapacityLimiter(1), init=False
    )

    @property
    def end(self) -> int:
        """The end of the log when all waiting pieces are committed."""
        return self._pieces[-1].batch.end if self._pieces else self.log.appended.value

    @property
    def is_empty(self) -> bool:
        return not self._pieces

    @contextmanager
    def using(self) -> Iterator[None]:
        """Accept pieces inside this block; discard uncommitted ones at its end (see ``finish``)."""
        self.in_use = True
        try:
            yield
        finally:
            self.in_use = False
            if self._pieces:
                self.log.note_bytes_behind()  # some pieces may be in the file
            self._discard_all()

    def put(self, piece: Piece) -> None:
        """Add a piece. Checkpoint: never."""
        self._pieces.append(piece)
        self._bytes += len(piece.data)
        self._piece_added.set()

    @property
    def is_full(self) -> bool:
        """Whether the caller should wait before it adds more.

        The buffers that the pieces are slices of take at most the same memory again.
        """
        return self._bytes > WAITING_BYTES_MAX

    async def wait_room(self) -> None:
        """Wait until it is not full. Checkpoint: maybe, only if it is full."""
        while self.is_full:
            await self._piece_removed.wait()

    async def write_some(self) -> None:
        """Wait for pieces, and write some of them. After an error all pieces are discarded.

        Raises: DiskFull, StoreIoError. Checkpoint: always.
        """
        while len(self._pieces) == self._written:
            self._piece_added = trio.Event()
            await self._piece_added.wait()
        pieces = self._next_turn()
        segment, start = pieces[0].segment, pieces[0].batch.start
        # One call for all: after each call the thread waits for the interpreter's lock.
        data = [piece.data for piece in pieces]
        try:
            await trio.to_thread.run_sync(
                self.log.disk.write_all_at,
                segment.fd,
                data,
                start - segment.base,
                segment.path,
                limiter=self._limiter,
            )
        except StoreError:
            self.log.note_bytes_behind()
            self._discard_all()
            raise
        self._written += len(pieces)
        self._piece_written.set()

    async def commit_some(self, committed: Callable[[], None]) -> None:
        """Wait for written pieces, and commit them.

        Calls ``committed`` every ``STEP_MESSAGES`` messages and at the end. If ``committed``
        raises, the uncommitted pieces still wait.

        Raises: what ``committed`` raises. Checkpoint: always, also between commits.
        """
        while not self._written:
            self._piece_written = trio.Event()
            await self._piece_written.wait()
        messages = 0
        while self._written:
            piece = self._pieces.popleft()
            self._written -= 1
            self._bytes -= len(piece.data)
            self.commit(piece)
            messages += len(piece.batch.places)
            if messages >= STEP_MESSAGES or not self._written:
                messages = 0
                self._note_removed()
                committed()
                await trio.lowlevel.checkpoint()

    async def finish(self, committed: Callable[[], None]) -> None:
        """Write and commit all waiting pieces, when no other task does so.

        Raises: what ``write_some`` and ``commit_some`` raise.
        """
        while self._pieces:
            if not self._written:
                await self.write_some()
            await self.commit_some(committed)

    def _next_turn(self) -> list[Piece]:
        """Return the next pieces that lie in one segment, up to ``TURN_BYTES_MAX``."""
        pieces: list[Piece] = []
        size = 0
        for piece in islice(self._pieces, self._written, None):
            if size >= TURN_BYTES_MAX or (pieces and piece.segment is not pieces[0].segment):
                break
            pieces.append(piece)
            size += len(piece.data)
        return pieces

    def _discard_all(self) -> None:
        self._pieces.clear()
        self._bytes = self._written = 0
        self._note_removed()

    def _note_removed(self) -> None:
        event, self._piece_removed = self._piece_removed, trio.Event()
        event.set()
