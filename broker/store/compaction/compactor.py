"""Compactor: the tasks that copy the messages of compaction topics and remove old values.

Only messages that are on the disk of the commit log are copied, since a copy with a newer value
removes an older one for good. The commit log keeps what has no durable copy.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

import attrs
import trio

from triomq.broker.store.compaction.compacted_queue import CompactedQueue, QueueDeleted
from triomq.broker.store.compaction.compacted_queues import CompactedQueues
from triomq.broker.store.compaction.compaction_pass import CompactionPass
from triomq.broker.store.core.errors import DiskFull, IllegalMessage, StoreDamaged, StoreIoError
from triomq.broker.store.core.watermark import Watermark
from triomq.broker.store.indexing.indexer import Indexer
from triomq.broker.store.io.reads import ColdFetch, Reads
from triomq.broker.store.reading.queue_messages import DamagedRecords, QueueMessages, read_queue
from triomq.broker.store.reading.reader import Reader
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.core.periodic import every
from triomq.remoting.protocol.record import LOG_OFFSET_AT

logger = logging.getLogger(__name__)

COPY_SECONDS = 1.0
"""Pause between two rounds of copying. Readers do not wait for copies."""
QUEUES_A_STEP = 64
COPY_MESSAGES = 1024
COPY_BYTES = 1024 * 1024
STEP_BYTES = 1024 * 1024
"""What a pass reads and writes at a time, before others may use the queue."""


class OlderCopies(Protocol):
    """Where a broker gets copies from that are older than its log: a slave has its master."""

    async def fill(self, queue: CompactedQueue) -> None:
        """Append the copies that are missing, as far as they can be had now.

        Raises: RemotingError, and what ``CompactedQueue.append`` raises.
        """


@attrs.define(eq=False)
class Compactor:
    """Copies each message once it is on the disk; goes over the copies from time to time."""

    compacted: CompactedQueues
    reader: Reader
    flushed: Watermark
    indexer: Indexer
    clock: Callable[[], int]
    damaged: DamagedRecords
    older: OlderCopies | None = attrs.field(default=None, init=False)
    copies_total: int = attrs.field(default=0, init=False)
    """Messages copied since the start."""
    removed_total: int = attrs.field(default=0, init=False)
    """Old values removed since the start."""
    failures: int = attrs.field(default=0, init=False)
    """Rounds of copying, and passes, that ended with an error."""
    _begun: trio.Event = attrs.field(factory=trio.Event, init=False)
    _cold_fetch: ColdFetch = attrs.field(init=False)
    _limit: LogLimit = attrs.field(factory=LogLimit, init=False)

    def __attrs_post_init__(self) -> None:
        self._cold_fetch = ColdFetch(self.compacted.disk)

    @property
    def lag_bytes(self) -> int:
        """How many bytes of the log may have messages without a copy."""
        return max(0, self.indexer.indexed.value - self.compacted.copied_to)

    def begin(self, older: OlderCopies | None = None) -> None:
        """Let the tasks begin, which wait until it is known where older copies come from."""
        self.older = older
        self._begun.set()

    # Copying

    async def run_copies(self) -> None:
        """Run the task "store-compaction-copies". Raises: FlushFailed."""
        await self._begun.wait()
        while True:
            await self.copy_all()
            await trio.sleep(COPY_SECONDS)

    async def copy_all(self) -> None:
        """Copy what has no copy yet. Raises: FlushFailed. Checkpoint: always."""
        await trio.lowlevel.checkpoint()
        goal = min(self.flushed.value, self.indexer.indexed.value)
        complete = True
        for number, key in enumerate(self.compacted.names(), 1):
            if number % QUEUES_A_STEP == 0:
                await trio.lowlevel.checkpoint()
            try:
                await self._copy_queue(key, goal)
            except QueueDeleted:
                continue
            except (DiskFull, StoreIoError, StoreDamaged, IllegalMessage, RemotingError) as error:
                complete = False
                self._failed("%s-%s: messages stay in the log, no copy is made: %s", key, error)
        if complete:
            self.compacted.copied_to = goal

    def _failed(self, text: str, key: tuple[str, int], error: Exception) -> None:
        self.failures += 1
        self._limit.log(logger, logging.ERROR, text, *key, error)

    async def _copy_queue(self, key: tuple[str, int], goal: int) -> None:
        table = self.compacted.table
        if key not in table.queues and self.older is None:
            return
        queue = self.compacted.queues.get(key) or await self.compacted.open(key)
        if queue.lacks_older:
            await self._fill(queue)
        while not queue.deleted and max(queue.copied, queue.log_min) < queue.log_end:
            offset = max(queue.copied, queue.log_min)
            found = await self._messages(key, offset)
            self.damaged.note(found.damaged)
            ready = [record for record in found.records if log_end_of(record) <= goal]
            self.copies_total += await queue.append(ready)
            if len(ready) < len(found.records) or found.next_offset <= offset:
                break
            queue.copied = found.next_offset
        if queue.copies.durable_end < queue.copies.end_offset:
            await queue.sync()

    async def _fill(self, queue: CompactedQueue) -> None:
        if self.older is not None:
            await self.older.fill(queue)
            return
        if not queue.filled and queue.copies.end_offset < queue.log_min:
            logger.warning(
                "%s-%s: the log has deleted the messages before queue offset %s, and the folder"
                " compaction has copies up to %s only: values in between are gone",
                *queue.key,
                queue.log_min,
                queue.copies.end_offset,
            )
        queue.filled = True

    async def _messages(self, key: tuple[str, int], offset: int) -> QueueMessages:
        """Return messages of the log in queue order."""
        return await self._cold_fetch.until_warm(
            lambda reads: read_queue(
                self.reader, *key, offset, COPY_MESSAGES, COPY_BYTES, None, reads
            ),
            Reads(self.compacted.disk, self.compacted.table.open_files),
        )

    # Removing old values

    async def run_passes(self) -> None:
        """Run the task "store-compaction-passes"."""
        await self._begun.wait()
        await every(self.compacted.rules.pass_interval_ms / 1000, self.pass_over_all)

    async def pass_over_all(self) -> None:
        """Go over all queues that have something new. Checkpoint: always."""
        await trio.lowlevel.checkpoint()
        for key, queue in list(self.compacted.queues.items()):
            if queue.copies.compacted_end - 1 <= queue.covered:
                continue
            try:
                await self._pass_over(queue)
            except QueueDeleted:
                continue
            except (DiskFull, StoreIoError, StoreDamaged, OSError) as error:
                self._failed("%s-%s: old values stay for now: %s", key, error)

    async def _pass_over(self, queue: CompactedQueue) -> None:
        rules, positions = self.compacted.rules, self.compacted.positions
        work = await queue.work(
            lambda log: CompactionPass(
                log, queue.covered, rules.keys_max, self.clock() - rules.tombstone_ms
            )
        )
        try:
            while not work.done:
                size = await queue.work(lambda _: work.step(STEP_BYTES))
                await trio.sleep(size / rules.bytes_per_second)
        finally:
            with trio.CancelScope(shield=True):
                async with queue.lock:  # readers may use the same files
                    work.stop()
        queue.covered = positions.offsets[queue.key] = work.reached
        self.removed_total += work.removed
        if work.removed:
            logger.info(
                "%s-%s: removed %d old values, %d are left", *queue.key, work.removed, work.kept
            )
        await trio.to_thread.run_sync(
            positions.save,
            dict(positions.offsets),
            self.compacted.disk,
            limiter=self.compacted.limiter,
        )


def log_end_of(record: bytes) -> int:
    """Return the log offset behind a record."""
    return int.from_bytes(record[LOG_OFFSET_AT : LOG_OFFSET_AT + 8], "big") + len(record)
