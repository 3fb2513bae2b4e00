"""Durability: the flusher task, group commit, and forcing files to the disk outside of the loop.

Law: ``flushed`` moves only after the device has said yes to everything before it. An error of fsync is fatal and never tried again, because the kernel may
have dropped the pages it could not write. With SYNC_FLUSH one fsync serves all batches that came meanwhile; there is no other pacing.

Who waits need not be a task: ``when_durable`` takes a callback, and the flusher calls them in log order as soon as the disk has answered. A task for each batch
would cost as much as storing five messages.
"""

from __future__ import annotations

import enum
import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

import attrs
import trio

from triomq.broker.store.commitlog import CommitLog
from triomq.broker.store.config import FlushMode, StoreConfig
from triomq.broker.store.disk import Disk
from triomq.broker.store.disk_thread import DiskThread
from triomq.broker.store.errors import FlushFailed
from triomq.broker.store.queued_sync import QueuedSync
from triomq.broker.store.segment import Segment
from triomq.broker.store.watermark import Watermark

logger = logging.getLogger(__name__)


class DurabilityResult(enum.Enum):
    """What ``wait_durable`` found."""

    DURABLE = "durable"
    FLUSH_DISK_TIMEOUT = "flush disk timeout"
    """The message is stored, but the disk has not confirmed it in time."""
    SLAVE_NOT_AVAILABLE = "slave not available"
    """Stored here; fewer slaves than wanted are there, or near enough (said by replication, never by the store)."""
    FLUSH_SLAVE_TIMEOUT = "flush slave timeout"
    """Stored here, but the slaves have not confirmed it in time (the same)."""


Told: TypeAlias = "Callable[[DurabilityResult | FlushFailed], None]"
"""What a sender without a task wants to be called with, once. It must not raise."""


class Durability(Protocol):
    """Who says when messages are safe: a store, or whatever waits for more than its disk."""

    def refusal(self) -> str:
        """Why no message may be stored now; empty if it may."""
        ...

    def durable_now(self, log_end: int) -> bool: ...

    async def wait_durable(self, log_end: int) -> DurabilityResult: ...

    def when_durable(self, log_end: int, told: Told) -> bool:
        """Call ``told`` with what ``wait_durable`` would give, later, in the order of the log; False: only ``wait_durable`` can tell. No checkpoint."""
        ...


class Waiting(NamedTuple):
    """Somebody to be told when the disk has the log up to ``end``, or at ``deadline`` (Trio's clock) that it has not."""

    end: int
    deadline: float
    told: Told


class Due(NamedTuple):
    """What one fsync is for: the log up to ``end``."""

    end: int
    timestamp: int
    segments: Sequence[Segment]
    unnamed: Sequence[Segment]
    """Those of them whose names are not on the disk yet."""


def sync_files(disk: Disk, files: Sequence[Path], directories: Sequence[Path]) -> None:
    """Force files, then names, to the disk; files deleted meanwhile do not matter. For a thread. Raises FlushFailed."""
    for path in files:
        try:
            disk.sync_path(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise FlushFailed(path, error) from error
    for path in directories:
        try:
            disk.sync_directory(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise FlushFailed(path, error) from error


@attrs.define(eq=False)
class Flusher:
    """Moves ``flushed`` towards ``appended``."""

    config: StoreConfig
    disk: Disk
    log: CommitLog
    limiter: trio.CapacityLimiter
    on_flushed: Callable[[], None] | None = None
    """Called whenever ``flushed`` has moved, after those who wait were told. No checkpoint."""
    flushed: Watermark = attrs.field(factory=Watermark, init=False)
    flushed_timestamp: int = attrs.field(default=0, init=False)
    """Store time of the last record that is on the disk."""
    flush_count: int = attrs.field(default=0, init=False)
    failure: FlushFailed | None = attrs.field(default=None, init=False)
    """The fsync that failed: from then on nothing is flushed any more, and nobody is told that it was."""
    _thread: DiskThread | None = attrs.field(default=None, init=False)
    """While ``run`` runs; before and after it nobody is in a hurry."""
    _queue: QueuedSync | None = attrs.field(default=None, init=False)
    """The quicker way for a single file, if this system has it; also while ``run`` runs."""
    _waiting: deque[Waiting] = attrs.field(factory=deque, init=False)
    """Ascending in end and, but for a time-out that is made shorter meanwhile, in deadline."""
    _somebody_waits: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)

    async def run(self) -> None:
        """The task "store-flusher". Raises FlushFailed."""
        async with DiskThread() as thread:
            self._thread = thread
            self._queue = self.disk.open_sync_queue()
            try:
                while True:
                    if self.log.appended.value <= self.flushed.value:
                        await self.log.appended.wait_beyond(self.flushed.value)
                    if self.config.flush_mode is FlushMode.ASYNC:
                        await trio.sleep(self.config.flush_interval_ms / 1000)
                    await self._flush(once=self.config.flush_mode is FlushMode.ASYNC)
            finally:
                # Another task's fsync may be under way: who waits for a queue that is closed is never woken.
                with trio.CancelScope(shield=True):
                    async with self.limiter:
                        self._thread = None
                        if self._queue is not None:
                            self._queue.close()
                            self._queue = None

    async def run_deadlines(self) -> None:
        """The task "store-flush-deadlines": tell those who have waited too long."""
        while True:
            if not self._waiting:
                await self._somebody_waits.park()
            await trio.sleep_until(self._waiting[0].deadline if self._waiting else 0.0)
            now = trio.current_time()
            while self._waiting and self._waiting[0].deadline <= now:
                self._waiting.popleft().told(DurabilityResult.FLUSH_DISK_TIMEOUT)

    async def flush(self) -> None:
        """Force everything appended so far to the disk. Checkpoint: always. Raises FlushFailed."""
        await self._flush(once=True)

    async def _flush(self, *, once: bool) -> None:
        """``flush``; unless ``once``, go on as long as more was appended meanwhile: the next fsync has begun when the senders of the last one get their answers."""
        try:
            self.limiter.acquire_nowait()  # `async with` would let every other task run first
        except trio.WouldBlock:
            await self.limiter.acquire()
        try:
            if self.failure is not None:  # while this one waited for its turn
                raise FlushFailed(self.failure.path, self.failure.cause)
            due: Due | None = self._due()
            begun = False
            while due is not None:
                begun = begun or self._begin(due)
                try:
                    await self._force_out(due, begun)
                except FlushFailed as error:
                    self._fail(error)
                    raise
                for segment in due.unnamed:
                    segment.name_durable = True
                self.flush_count += 1
                self.flushed_timestamp = max(self.flushed_timestamp, due.timestamp)
                done, due = due, None if once or self._must_pause(due.end) else self._due()
                begun = due is not None and self._begin(due)
                self._advance(done.end)
        finally:
            self.limiter.release()

    def _must_pause(self, end: int) -> bool:
        """Whether nothing is left to do, or somebody else wants to go on."""
        return self.log.appended.value <= end or self.limiter.statistics().tasks_waiting > 0 or trio.current_effective_deadline() == -math.inf

    def _due(self) -> Due:
        end = self.log.appended.value
        segments = self.log.segments.covering(self.flushed.value, end)
        return Due(end, self.log.last_timestamp, segments, [segment for segment in segments if not segment.name_durable])

    def _begin(self, due: Due) -> bool:
        """Ask the kernel's queue, if that is possible. No checkpoint."""
        if self._queue is None or len(due.segments) != 1 or due.unnamed:
            return False
        try:
            fd = due.segments[0].fd
        except OSError:  # deleted meanwhile, or out of reach: `sync_files` knows what that means, and the queue has nothing to do with it
            return False
        try:
            self._queue.begin(fd)
        except OSError as error:  # nothing has been forced out, and nothing said of it
            logger.warning("the kernel's queue takes no fsync of %s (%s): a thread does it", due.segments[0].path, error)
            self._queue.close()
            self._queue = None
            return False
        return True

    async def _force_out(self, due: Due, begun: bool) -> None:
        """Files and, where they are new, their names. Not interrupted by a cancellation. Raises FlushFailed."""
        if begun:
            assert self._queue is not None
            try:
                await self._queue.finished()
            except OSError as error:
                raise FlushFailed(due.segments[0].path, error) from error
            return
        files = [segment.path for segment in due.segments]
        directories = list({path: None for segment in due.unnamed for path in (segment.directory, segment.directory.parent)})
        if self._thread is not None:
            await self._thread.run(partial(sync_files, self.disk, files, directories))
        else:
            await trio.to_thread.run_sync(sync_files, self.disk, files, directories)

    def _advance(self, target: int) -> None:
        """The disk has the log up to here: the next fsync may begin, senders are answered, then the messages are shown. No checkpoint."""
        self.flushed.advance(target)
        waiting = self._waiting
        while waiting and waiting[0].end <= target:
            waiting.popleft().told(DurabilityResult.DURABLE)
        if self.on_flushed is not None:
            self.on_flushed()

    def _fail(self, error: FlushFailed) -> None:
        """Tell whoever waits. Now: when the store's tasks are cancelled, which comes next, nobody can be told any more."""
        self.failure = error
        self.flushed.wake_all()
        while self._waiting:
            self._waiting.popleft().told(FlushFailed(error.path, error.cause))

    def durable_now(self, log_end: int) -> bool:
        """Whether a sender need not wait: always with ASYNC_FLUSH."""
        return self.config.flush_mode is FlushMode.ASYNC or self.flushed.value >= log_end

    async def wait_durable(self, log_end: int) -> DurabilityResult:
        """Wait until the log up to ``log_end`` is on the disk, at most ``sync_flush_timeout_ms``. Checkpoint: always. Raises FlushFailed."""
        if self.durable_now(log_end):
            await trio.lowlevel.checkpoint()
            return DurabilityResult.DURABLE
        if self.failure is None:
            with trio.move_on_after(self.config.sync_flush_timeout_ms / 1000):
                await self.flushed.wait_reached(log_end)
                if self.flushed.value >= log_end:
                    return DurabilityResult.DURABLE
        if self.failure is not None:
            raise FlushFailed(self.failure.path, self.failure.cause)
        return DurabilityResult.FLUSH_DISK_TIMEOUT

    def when_durable(self, log_end: int, told: Told) -> bool:
        """The same by a callback. No checkpoint. Raises FlushFailed."""
        if self.failure is not None:
            raise FlushFailed(self.failure.path, self.failure.cause)
        if not self._waiting:
            self._somebody_waits.unpark()
        self._waiting.append(Waiting(log_end, trio.current_time() + self.config.sync_flush_timeout_ms / 1000, told))
        return True
