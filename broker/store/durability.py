"""Durability: the flusher task, group commit, and forcing files to the disk in a thread.

Law: ``flushed`` moves only after the device has said yes to everything before it. An error of fsync is fatal and never tried again, because the kernel may
have dropped the pages it could not write. With SYNC_FLUSH one fsync serves all batches that came meanwhile; there is no other pacing.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import attrs
import trio

from triomq.broker.store.commitlog import CommitLog
from triomq.broker.store.config import FlushMode, StoreConfig
from triomq.broker.store.disk import Disk
from triomq.broker.store.disk_thread import DiskThread
from triomq.broker.store.errors import FlushFailed
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


class Durability(Protocol):
    """Who says when messages are safe: a store, or whatever waits for more than its disk."""

    def refusal(self) -> str:
        """Why no message may be stored now; empty if it may."""
        ...

    def durable_now(self, log_end: int) -> bool: ...

    async def wait_durable(self, log_end: int) -> DurabilityResult: ...


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
    flushed: Watermark = attrs.field(factory=Watermark, init=False)
    flushed_timestamp: int = attrs.field(default=0, init=False)
    """Store time of the last record that is on the disk."""
    flush_count: int = attrs.field(default=0, init=False)
    failure: FlushFailed | None = attrs.field(default=None, init=False)
    """The fsync that failed: from then on nothing is flushed any more, and nobody is told that it was."""
    _thread: DiskThread | None = attrs.field(default=None, init=False)
    """While ``run`` runs; before and after it nobody is in a hurry."""

    async def run(self) -> None:
        """The task "store-flusher". Raises FlushFailed."""
        async with DiskThread() as thread:
            self._thread = thread
            try:
                while True:
                    await self.log.appended.wait_beyond(self.flushed.value)
                    if self.config.flush_mode is FlushMode.ASYNC:
                        await trio.sleep(self.config.flush_interval_ms / 1000)
                    await self.flush()
            finally:
                self._thread = None

    async def flush(self) -> None:
        """Force everything appended so far to the disk. Checkpoint: always. Raises FlushFailed."""
        target, timestamp = self.log.appended.value, self.log.last_timestamp
        segments = self.log.segments.covering(self.flushed.value, target)
        unnamed = [segment for segment in segments if not segment.name_durable]
        files = [segment.path for segment in segments]
        directories = list({path: None for segment in unnamed for path in (segment.directory, segment.directory.parent)})
        async with self.limiter:
            if self.failure is not None:  # while this one waited for its turn
                raise FlushFailed(self.failure.path, self.failure.cause)
            thread = self._thread
            try:
                if thread is not None:
                    await thread.run(partial(sync_files, self.disk, files, directories))
                else:
                    await trio.to_thread.run_sync(sync_files, self.disk, files, directories)
            except FlushFailed as error:
                self._fail(error)
                raise
        for segment in unnamed:
            segment.name_durable = True
        self.flush_count += 1
        self.flushed_timestamp = max(self.flushed_timestamp, timestamp)
        self.flushed.advance(target)

    def _fail(self, error: FlushFailed) -> None:
        """Tell whoever waits. Now: when the store's tasks are cancelled, which comes next, nobody can be told any more."""
        self.failure = error
        self.flushed.wake_all()

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
