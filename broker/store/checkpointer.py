"""The checkpointer: moves queue entries from memory to their files, and the checkpoint behind what is on the disk.

Law: first the log, then queues and index, then the checkpoint. What the checkpoint says is true after any crash, so recovery starts there.
"""

from __future__ import annotations

import logging

import attrs
import trio

from triomq.broker.store.checkpoint import Checkpoint, CheckpointFile, Mark
from triomq.broker.store.config import StoreConfig
from triomq.broker.store.disk import Disk
from triomq.broker.store.durability import Flusher, sync_files
from triomq.broker.store.errors import DiskFull
from triomq.broker.store.health import Health
from triomq.broker.store.indexer import Indexer
from triomq.broker.store.key_index import KeyIndex
from triomq.broker.store.queue_table import QueueTable

logger = logging.getLogger(__name__)

QUEUES_A_STEP = 64


@attrs.define(eq=False)
class Checkpointer:
    """Writes ``checkpoint``; ``current`` is its content."""

    config: StoreConfig
    disk: Disk
    file: CheckpointFile
    flusher: Flusher
    indexer: Indexer
    queues: QueueTable
    key_index: KeyIndex
    health: Health
    limiter: trio.CapacityLimiter
    current: Checkpoint
    _soon: trio.Event = attrs.field(factory=trio.Event, init=False)

    def save_soon(self) -> None:
        """Do not wait for the interval: something was deleted that recovery would bring back."""
        self._soon.set()

    async def run(self) -> None:
        """The task "store-checkpointer". Raises FlushFailed."""
        due = trio.current_time() + self.config.checkpoint_interval_ms / 1000
        while True:
            with trio.move_on_after(self.config.index_write_interval_ms / 1000):
                await self._soon.wait()
            try:
                await self._write_out()
                if self._soon.is_set() or trio.current_time() >= due:
                    self._soon = trio.Event()
                    await self.save()
                    due = trio.current_time() + self.config.checkpoint_interval_ms / 1000
            except DiskFull as error:  # entries stay in memory; no more may come
                if self.health.queue_fault is None:
                    logger.error("queue entries cannot be written, messages are refused until they can: %s", error)
                self.health.queue_fault = error
            else:
                self.health.queue_fault = None

    async def _write_out(self) -> None:
        """Write queue entries, letting others run in between. Raises DiskFull; what was not written stays in memory."""
        self.indexer.try_settle()
        for number, _ in enumerate(self.queues.write_out(), 1):
            if number % QUEUES_A_STEP == 0:
                await trio.lowlevel.checkpoint()

    async def save(self) -> None:
        """Force everything up to the last indexed record to the disk and write that down. Checkpoint: always. Raises FlushFailed, DiskFull."""
        self.indexer.try_settle()
        last = self.indexer.last
        index_position = self.key_index.last_offset
        full_timestamp = self.key_index.full_timestamp
        if last is None or not self.indexer.settled or self.current.mark == self._mark(last, index_position):
            await trio.lowlevel.checkpoint()
            return
        for _ in self.queues.write_out():  # what came since the last step
            pass
        if self.flusher.flushed.value < last[1]:
            await self.flusher.flush()
        with trio.CancelScope(shield=True):  # cancelled between taking and forcing, the next save would believe that these files are safe
            await self._force_and_write(last, index_position, full_timestamp)

    async def _force_and_write(self, last: tuple[int, int, int], index_position: int, full_timestamp: int) -> None:
        files, directories = self.queues.take_unsynced()
        more_files, more_directories = self.key_index.take_unsynced()
        await trio.to_thread.run_sync(sync_files, self.disk, files + more_files, directories + more_directories, limiter=self.limiter)
        record_offset, _, timestamp = last
        self.current = Checkpoint(
            log_timestamp=self.flusher.flushed_timestamp,
            queue_timestamp=timestamp,
            index_timestamp=full_timestamp,
            confirmed=record_offset,
            queue_log_offset=record_offset,
            mark=self._mark(last, index_position),
        )
        self.file.write(self.current)
        await trio.to_thread.run_sync(sync_files, self.disk, [self.file.path], [], limiter=self.limiter)

    def _mark(self, last: tuple[int, int, int], index_position: int) -> Mark:
        return Mark(last[0], last[1], index_position, bool(self.queues.queues))

    def forget_queues(self) -> None:
        """The last queue is about to be deleted; a crash right now must not make recovery believe that it is missing. Raises DiskFull, StoreIoError."""
        if self.current.mark is not None and self.current.mark.has_queues:
            self.current = attrs.evolve(self.current, mark=attrs.evolve(self.current.mark, has_queues=False))
            self.file.write(self.current)
