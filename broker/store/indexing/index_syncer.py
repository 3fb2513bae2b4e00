"""IndexSyncer: writes and syncs consume queues and key index, and then moves the checkpoint.

Law: first the log, then queues and key index, then the checkpoint. So the checkpoint is true after
any crash, and recovery starts there. It also lets store times go back to the clock: see
``stored_times.py``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import attrs
import trio

from triomq.broker.store.core.errors import DiskFull
from triomq.broker.store.core.health import Health
from triomq.broker.store.core.stored_times import AHEAD_MS_MAX
from triomq.broker.store.indexing.indexer import Indexer
from triomq.broker.store.indexing.store_files import OpenStoreFiles
from triomq.broker.store.io.checkpoint import Checkpoint, CheckpointFile, Mark
from triomq.broker.store.io.file_system import FileSystem
from triomq.broker.store.log.flusher import Flusher, sync_files

logger = logging.getLogger(__name__)

STEP_SECONDS = 0.002
"""Other tasks get their turn after this time: a queue takes 10 µs, or 100 µs if its file is
created.
"""
FILES_A_STEP = 64
"""The flusher gets its turn after this number of files: senders may wait for it."""
TAIL_BYTES_LEAST = 4096
"""Bytes that a queue must have in memory to be written between two checkpoints, if there are more
queues to write than open files.
"""


@attrs.define(eq=False)
class IndexSyncer:
    """Writes the file ``checkpoint``; ``current`` is its content."""

    files: OpenStoreFiles
    file: CheckpointFile
    flusher: Flusher
    indexer: Indexer
    health: Health
    limiter: trio.CapacityLimiter
    current: Checkpoint
    clock: Callable[[], int]
    """Wall time in ms."""
    steps_back: int = attrs.field(default=0, init=False)
    """How often store times went back to the clock."""
    _untimed_to: int = attrs.field(default=0, init=False)
    """The checkpoint names no times of records before this log offset."""
    _soon: trio.Event = attrs.field(factory=trio.Event, init=False)
    _file_system: FileSystem = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._file_system = FileSystem(self.files.disk, self.files.config.root)

    def save_soon(self) -> None:
        """Save without waiting for the interval: recovery would bring back what was deleted."""
        self._soon.set()

    async def sync_in_rounds(self) -> None:
        """Run the task "store-index-syncer". Raises: FlushFailed."""
        due = trio.current_time() + self.files.config.checkpoint_interval_ms / 1000
        saving = False
        while True:
            with trio.move_on_after(self.files.config.index_write_interval_ms / 1000):
                await self._soon.wait()
            try:
                await self._follow_clock()
                saving = saving or self._soon.is_set() or trio.current_time() >= due
                await self._write_out(
                    0
                    if saving or len(self.files.queues.dirty) <= self.files.config.open_files_max
                    else TAIL_BYTES_LEAST
                )
                saving = saving or self._soon.is_set()
                if saving:
                    self._soon = trio.Event()
                    await self.save()
                    saving = False
                    due = trio.current_time() + self.files.config.checkpoint_interval_ms / 1000
            except DiskFull as error:  # entries stay in memory, and appends are refused
                if self.health.queue_fault is None:
                    logger.error(
                        "queue entries cannot be written, messages are refused until they can: %s",
                        error,
                    )
                self.health.queue_fault = error
                saving = saving or self._soon.is_set()
                self._soon = trio.Event()  # the next try comes after the interval
            else:
                self.health.queue_fault = None

    async def _write_out(self, least_bytes: int) -> None:
        """Write the entries of queues that have at least ``least_bytes`` of them in memory.

        Other tasks run in between. After an error the unwritten entries are still in memory.

        Raises: DiskFull, StoreIoError.
        """
        self.indexer.try_flush_deferred()
        begun = time.perf_counter()
        for _ in self.files.queues.write_out(least_bytes):
            if time.perf_counter() - begun > STEP_SECONDS:
                await trio.lowlevel.checkpoint()
                begun = time.perf_counter()

    async def save(self) -> None:
        """Force everything up to the last indexed record to the disk, and write the checkpoint.

        Raises: FlushFailed, DiskFull. Checkpoint: always.
        """
        self.indexer.try_flush_deferred()
        last = self.indexer.last
        index_position = self.files.key_index.last_offset
        full_timestamp = self.files.key_index.full_timestamp
        if (
            last is None
            or self.indexer.has_deferred
            or self.current.mark == self._mark(last, index_position)
        ):
            await trio.lowlevel.checkpoint()
            return
        await self._write_out(0)  # records that come meanwhile lie behind the mark
        if self.flusher.flushed.value < last[1]:
            await self.flusher.flush()
        # Shielded: the files are no longer listed as unsynced, so the next checkpoint would count
        # them as forced out.
        with trio.CancelScope(shield=True):
            await self._force_out()
        record_offset, _, timestamp = last
        timed = record_offset >= self._untimed_to
        self.current = Checkpoint(
            log_timestamp=self.flusher.flushed_timestamp if timed else 0,
            queue_timestamp=timestamp if timed else 0,
            index_timestamp=full_timestamp if timed else 0,
            confirmed=record_offset,
            queue_log_offset=record_offset,
            mark=self._mark(last, index_position),
        )
        await self._write()

    async def _write(self) -> None:
        """Write the checkpoint and force it to the disk. Raises: FlushFailed, DiskFull."""
        self.file.write(self.current)
        await trio.to_thread.run_sync(
            sync_files, self.files.disk, [self.file.path], [], limiter=self.limiter
        )

    async def _follow_clock(self) -> None:
        """Let store times go by the clock again if the newest one is far ahead of it.

        First the checkpoint on the disk loses its times: they are later than those of the records
        to come, and Java's recovery would take these for records that are in the indexes.

        Without a key index nothing tells searches by time where times go back: they stay.

        Raises: FlushFailed, DiskFull, StoreIoError. Checkpoint: maybe.
        """
        log = self.flusher.log
        if log.ahead_ms <= AHEAD_MS_MAX or not self.files.config.index_enabled:
            return
        self.current = attrs.evolve(
            self.current, log_timestamp=0, queue_timestamp=0, index_timestamp=0
        )
        await self._write()
        now_ms, newest_ms, log.ahead_ms = self.clock(), log.last_timestamp, 0
        if newest_ms - now_ms <= AHEAD_MS_MAX:
            return  # the clock went ahead again meanwhile
        log.last_timestamp = now_ms
        self._untimed_to = log.appended.value
        self.steps_back += 1
        logger.warning(
            "the newest message was stored %.1f hours ahead of the clock: what is stored from log"
            " offset %s on has the time of the clock again; if the clock is wrong, set it right",
            (newest_ms - now_ms) / 3_600_000,
            self._untimed_to,
        )

    async def _force_out(self) -> None:
        """Force to the disk what queues and key index have written. Raises: FlushFailed."""
        files, directories = self.files.queues.take_unsynced()
        more_files, more_directories = self.files.key_index.take_unsynced()
        files += more_files
        directories += more_directories
        if len(files) > self.files.config.open_files_max:
            files, directories = await trio.to_thread.run_sync(
                self._file_system.force_out, files, directories, limiter=self.limiter
            )
        for start in range(0, len(files), FILES_A_STEP):
            await trio.to_thread.run_sync(
                sync_files,
                self.files.disk,
                files[start : start + FILES_A_STEP],
                [],
                limiter=self.limiter,
            )
        await trio.to_thread.run_sync(
            sync_files, self.files.disk, [], directories, limiter=self.limiter
        )

    def close(self) -> None:
        self._file_system.close()
        self.file.close()

    def _mark(self, last: tuple[int, int, int], index_position: int) -> Mark:
        return Mark(last[0], last[1], index_position, bool(self.files.queues.queues))

    def forget_queues(self) -> None:
        """Note in the checkpoint that the last queue goes: recovery must not count it as missing.

        Raises: DiskFull, StoreIoError.
        """
        if self.current.mark is not None and self.current.mark.has_queues:
            self.current = attrs.evolve(
                self.current, mark=attrs.evolve(self.current.mark, has_queues=False)
            )
            self.file.write(self.current)
