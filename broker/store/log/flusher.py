"""The flusher: forces the log to the disk outside of the loop, and commits sends in groups.

Law: ``flushed`` moves only after the device has confirmed everything before it. An error of fsync
is fatal and never tried again, because the kernel may have dropped the pages that it could not
write. With SYNC_FLUSH one fsync serves all batches that arrived during the fsync before; there is
no other pacing.

Senders wait by callback: the flusher calls them in log order as soon as the disk has answered. A
task for each batch would cost as much as storing five messages.
"""

from __future__ import annotations

import logging
import math
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

import attrs
import trio

from triomq.broker.store.core.config import FlushMode, StoreConfig
from triomq.broker.store.core.errors import FlushFailed, StoreIoError
from triomq.broker.store.core.watermark import Watermark
from triomq.broker.store.io.disk import Disk
from triomq.broker.store.io.queued_sync import QueuedSync
from triomq.broker.store.io.segment import Segment
from triomq.broker.store.log.commit_log import CommitLog
from triomq.broker.store.log.durability import DurabilityResult, OnDurable
from triomq.remoting.core.open_files import explained, none_left

logger = logging.getLogger(__name__)

DESCRIPTOR_PAUSE_SECONDS = 0.05


@attrs.define
class SyncTimes:
    """How long the fsyncs of the log took: a histogram with upper ``edges`` in seconds."""

    edges: ClassVar[tuple[float, ...]] = (
        0.0001,
        0.0003,
        0.001,
        0.003,
        0.01,
        0.03,
        0.1,
        0.3,
        1.0,
        3.0,
        10.0,
    )
    counts: list[int] = attrs.field(factory=lambda: [0] * (len(SyncTimes.edges) + 1))
    seconds: float = 0.0

    def note(self, seconds: float) -> None:
        """Count one fsync."""
        self.counts[bisect_left(self.edges, seconds)] += 1
        self.seconds += seconds


class PendingSend(NamedTuple):
    """A sender that waits for the log up to ``end``, until ``deadline`` (Trio's clock) at most."""

    end: int
    deadline: float
    on_durable: OnDurable


class Due(NamedTuple):
    """What one fsync covers: the log up to ``end``."""

    end: int
    timestamp: int
    segments: Sequence[Segment]
    unnamed: Sequence[Segment]
    """The segments whose names are not on the disk yet."""


def sync_files(disk: Disk, files: Sequence[Path], directories: Sequence[Path]) -> None:
    """Force files, then the names in directories, to the disk. Skip files deleted meanwhile.

    Runs in a thread, which sleeps while too many files are open.

    Raises: FlushFailed.
    """
    waited = 0.0
    for sync, paths in ((disk.sync_path, files), (disk.sync_directory, directories)):
        for path in paths:
            while True:
                try:
                    sync(path)
                except FileNotFoundError:
                    pass
                except OSError as error:
                    # The file was not even opened, so the kernel has dropped no pages.
                    if none_left(error) and waited < disk.descriptor_wait_seconds:
                        if not waited:
                            logger.error(
                                "an fsync of %s waits for a descriptor: %s", path, explained(error)
                            )
                        time.sleep(DESCRIPTOR_PAUSE_SECONDS)
                        waited += DESCRIPTOR_PAUSE_SECONDS
                        continue
                    raise FlushFailed(path, error) from error
                break


@attrs.define(eq=False)
class Flusher:
    """Moves ``flushed`` towards ``appended``."""

    config: StoreConfig
    disk: Disk
    log: CommitLog
    limiter: trio.CapacityLimiter
    on_flushed: Callable[[], None] | None = None
    """Called whenever ``flushed`` has moved, after the callbacks of the senders. Must not wait."""
    flushed: Watermark = attrs.field(factory=Watermark, init=False)
    flushed_timestamp: int = attrs.field(default=0, init=False)
    """Store time (ms) of the last record that is on the disk."""
    syncs: SyncTimes = attrs.field(factory=SyncTimes, init=False)
    failure: FlushFailed | None = attrs.field(default=None, init=False)
    """The fsync that failed. From then on nothing is flushed, and no sender gets DURABLE."""
    _queue: QueuedSync | None = attrs.field(default=None, init=False)
    """The kernel's queue, the fast path for a single file. None outside of ``flush_appended``, and
    on systems without such a queue.
    """
    _pending: deque[PendingSend] = attrs.field(factory=deque, init=False)
    """Ascending in ``end``; in ``deadline``, too, unless the time-out was made shorter
    meanwhile.
    """
    _new_pending: trio.lowlevel.ParkingLot = attrs.field(
        factory=trio.lowlevel.ParkingLot, init=False
    )

    async def flush_appended(self) -> None:
        """Run the task "store-flusher". Raises: FlushFailed."""
        self._queue = self.disk.open_sync_queue()
        try:
            while True:
                if self.log.appended.value <= self.flushed.value:
                    await self.log.appended.wait_beyond(self.flushed.value)
                if self.config.flush_mode is FlushMode.ASYNC:
                    await trio.sleep(self.config.flush_interval_ms / 1000)
                await self._flush(once=self.config.flush_mode is FlushMode.ASYNC)
        finally:
            # Another task's fsync may be in flight, and a task that waits for a closed queue is
            # never woken.
            with trio.CancelScope(shield=True):
                async with self.limiter:
                    if self._queue is not None:
                        self._queue.close()
                        self._queue = None

    async def run_deadlines(self) -> None:
        """Run the task "store-flush-deadlines": end the wait of senders whose time is over."""
        while True:
            if not self._pending:
                await self._new_pending.park()
            await trio.sleep_until(self._pending[0].deadline if self._pending else 0.0)
            now = trio.current_time()
            while self._pending and self._pending[0].deadline <= now:
                self._pending.popleft().on_durable(DurabilityResult.FLUSH_DISK_TIMEOUT)

    async def flush(self) -> None:
        """Force everything appended so far to the disk. Raises: FlushFailed. Checkpoint: always."""
        await self._flush(once=True)

    async def _flush(self, *, once: bool) -> None:
        """Flush once, or until nothing was appended since the last fsync began.

        The next fsync begins before the senders of the last one get their answers.
        """
        try:
            # `async with` would let every other task run first.
            self.limiter.acquire_nowait()
        except trio.WouldBlock:
            await self.limiter.acquire()
        try:
            if self.failure is not None:  # while this task waited for its turn
                raise FlushFailed(self.failure.path, self.failure.cause)
            due: Due | None = self._due()
            begun = False
            while due is not None:
                since = time.perf_counter()
                begun = begun or self._begin(due)
                try:
                    await self._force_out(due, begun)
                except FlushFailed as error:
                    self._fail(error)
                    raise
                self.syncs.note(time.perf_counter() - since)
                for segment in due.unnamed:
                    segment.name_durable = True
                self.flushed_timestamp = due.timestamp
                done, due = due, None if once or self._must_pause(due.end) else self._due()
                begun = due is not None and self._begin(due)
                self._advance(done.end)
        finally:
            self.limiter.release()

    def _must_pause(self, end: int) -> bool:
        """Return whether nothing is left to flush, or another task waits for its turn."""
        return (
            self.log.appended.value <= end
            or self.limiter.statistics().tasks_waiting > 0
            or trio.current_effective_deadline() == -math.inf
        )

    def _due(self) -> Due:
        end = self.log.appended.value
        segments = self.log.segments.covering(self.flushed.value, end)
        return Due(
            end,
            self.log.last_timestamp,
            segments,
            [segment for segment in segments if not segment.name_durable],
        )

    def _begin(self, due: Due) -> bool:
        """Start the fsync in the kernel's queue; return False if a thread has to do it.

        Checkpoint: never.
        """
        if self._queue is None or len(due.segments) != 1 or due.unnamed:
            return False
        try:
            fd = due.segments[0].fd
        except StoreIoError:
            # Deleted meanwhile, or out of reach: `sync_files` handles both.
            return False
        try:
            self._queue.begin(fd)
        except OSError as error:  # the fsync has not begun, so it has not failed either
            logger.warning(
                "the kernel's queue takes no fsync of %s (%s): a thread does it",
                due.segments[0].path,
                error,
            )
            self._queue.close()
            self._queue = None
            return False
        return True

    async def _force_out(self, due: Due, begun: bool) -> None:
        """Wait for the disk to have the files and the names of new ones, even if cancelled.

        Raises: FlushFailed.
        """
        if begun:
            assert self._queue is not None
            try:
                await self._queue.finished()
            except OSError as error:
                raise FlushFailed(due.segments[0].path, error) from error
            return
        files = [segment.path for segment in due.segments]
        directories = list(
            {
                path: None
                for segment in due.unnamed
                for path in (segment.directory, segment.directory.parent)
            }
        )
        await trio.to_thread.run_sync(sync_files, self.disk, files, directories)

    def _advance(self, target: int) -> None:
        """Note that the disk has the log up to ``target``: answer senders, then show the messages.

        Checkpoint: never.
        """
        self.flushed.advance(target)
        pending = self._pending
        while pending and pending[0].end <= target:
            pending.popleft().on_durable(DurabilityResult.DURABLE)
        if self.on_flushed is not None:
            self.on_flushed()

    def _fail(self, error: FlushFailed) -> None:
        """Give the error to all waiting senders now: the store's tasks are cancelled next."""
        self.failure = error
        self.flushed.wake_all()
        while self._pending:
            self._pending.popleft().on_durable(FlushFailed(error.path, error.cause))

    # As a ``Durability``

    def refusal(self) -> str:
        """Return an empty string: the disk alone refuses no messages."""
        return ""

    def durable_now(self, log_end: int) -> bool:
        """Return whether a sender need not wait; always True with ASYNC_FLUSH."""
        return self.config.flush_mode is FlushMode.ASYNC or self.flushed.value >= log_end

    def when_durable(self, log_end: int, on_durable: OnDurable) -> None:
        """Call ``on_durable``, at the latest after ``sync_flush_timeout_ms``; see ``Durability``.

        Raises: FlushFailed, if an earlier fsync has failed. Checkpoint: never.
        """
        if self.durable_now(log_end):
            on_durable(DurabilityResult.DURABLE)
            return
        if self.failure is not None:
            raise FlushFailed(self.failure.path, self.failure.cause)
        if not self._pending:
            self._new_pending.unpark()
        timeout = self.config.sync_flush_timeout_ms / 1000
        self._pending.append(PendingSend(log_end, trio.current_time() + timeout, on_durable))
