"""MessageStore: append, get, query. The facade of the store, and ``open_store``, which owns its tasks and the order of start and stop."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import attrs
import trio

from triomq.broker.store.checkpoint import CheckpointFile
from triomq.broker.store.checkpointer import Checkpointer
from triomq.broker.store.cleaner import Cleaner
from triomq.broker.store.cold_reads import ColdReads
from triomq.broker.store.commitlog import CommitLog
from triomq.broker.store.config import FlushMode, StoreConfig
from triomq.broker.store.copy_ahead import CopyAhead
from triomq.broker.store.disk import Disk, DiskFeatures
from triomq.broker.store.draft import Appended, Draft, check_draft
from triomq.broker.store.durability import DurabilityResult, Flusher, Told, sync_files
from triomq.broker.store.errors import CopyRefused, DiskFull, FullAtStart, StoreIoError, start_error
from triomq.broker.store.health import Health
from triomq.broker.store.indexer import Indexer
from triomq.broker.store.key_index import KeyIndex
from triomq.broker.store.lock import StoreLock
from triomq.broker.store.log_copy import LogCopy
from triomq.broker.store.log_scan import LogScan
from triomq.broker.store.numbering import SPECIAL, dispatch_names
from triomq.broker.store.queue_table import Arrival, QueueTable
from triomq.broker.store.reader import Reader
from triomq.broker.store.reads import Buffer, Cold, Reads, until_warm
from triomq.broker.store.recovery import Recovered, Recovery
from triomq.broker.store.residency import can_tell
from triomq.broker.store.results import GetResult, QueryResult, StoreStatistics
from triomq.broker.store.retention import RetentionRules
from triomq.broker.store.segments import Segments
from triomq.broker.store.stall import Stall
from triomq.broker.store.watermark import Watermark

logger = logging.getLogger(__name__)

T = TypeVar("T")
COLD_READERS_MAX = 4
CLOSE_SECONDS_MAX = 60
QUEUES_A_STEP = 64


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def memory_bytes() -> int:
    """Physical memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@attrs.define(eq=False)
class MessageStore:
    """Made by ``open_store``. Methods without ``async`` are atomic: no checkpoint.

    Every read has two forms: the plain one answers at once, or None when the disk would have to be waited for; ``…_cold`` waits, in a thread.
    """

    config: StoreConfig
    disk: Disk
    clock: Callable[[], int]
    log: CommitLog
    queue_table: QueueTable
    key_index: KeyIndex
    flusher: Flusher
    indexer: Indexer
    checkpointer: Checkpointer
    reader: Reader
    cleaner: Cleaner
    health: Health
    recovered: Recovered
    _cold_limiter: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(COLD_READERS_MAX), init=False)
    _warm: Reads = attrs.field(init=False)
    _cold_reads: ColdReads = attrs.field(init=False)
    append_count: int = attrs.field(default=0, init=False)
    append_bytes: int = attrs.field(default=0, init=False)
    append_max_seconds: float = attrs.field(default=0.0, init=False)
    stall: Stall = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._warm = self._reads()
        self._cold_reads = ColdReads(self.disk, self._is_far)
        self.stall = Stall(self.config.append_stall_ms / 1000)

    def _reads(self) -> Reads:
        return Reads(self.disk, self.queue_table.open_files)

    async def _wait(self, read: Callable[[Reads], T]) -> T:
        return await until_warm(read, self._reads(), self._cold_limiter, self._cold_reads.fetch)

    def _is_far(self, path: Path, position: int) -> bool:
        """Whether a byte of the log is farther behind its end than the share of memory that messages may take."""
        return path.parent == self.config.commitlog_directory and int(path.name) + position < self.log.appended.value - self.reader.memory_bytes_max

    # Writing

    def check_draft(self, draft: Draft) -> None:
        """Raise IllegalMessage if this draft can never be stored; call it for every draft before ``append``."""
        self._mark_special(draft)  # what is added to such a message must have room
        check_draft(draft, self.config)

    def append(self, drafts: Sequence[Draft]) -> list[Appended]:
        """Store all drafts or none, one behind the other in log and queues. Raises StoreUnavailable, DiskFull, StoreIoError.

        When it returns, the page cache has the messages (they survive the death of this process), and with ASYNC_FLUSH readers see them already.
        """
        for draft in drafts:
            self._mark_special(draft)
        places = self.append_unindexed(drafts)
        self.indexer.index_offered()
        return places

    def _mark_special(self, draft: Draft) -> None:
        """For those who do not know what the message is that they store: see numbering.py."""
        if self.queue_table.has_batch_queues(draft.topic) or (self.config.multi_dispatch and dispatch_names(draft.properties)):
            draft.sys_flag |= SPECIAL

    def append_unindexed(self, drafts: Sequence[Draft]) -> list[Appended]:
        """``append`` but for the indexes: the caller calls ``index_appended`` when it has answered the sender, before its next checkpoint."""
        if not self.health.writable:
            self.health.check_writable()
        if not drafts:
            return []
        begun = time.perf_counter()
        batch = self.log.append(drafts, self.queue_table, self.clock())
        self.log.appended.advance(batch.end)
        self.indexer.offer(batch)
        self.append_count += len(drafts)
        self.append_bytes += batch.end - batch.start
        seconds = time.perf_counter() - begun
        if seconds > self.append_max_seconds:
            self.append_max_seconds = seconds
        if seconds > self.stall.limit_seconds:
            self.stall.note(seconds)
        return batch.places

    def index_appended(self) -> None:
        """Show readers what ``append_unindexed`` has stored. Atomic: no checkpoint."""
        self.indexer.index_offered()

    def refusal(self) -> str:
        """A store's disk never keeps messages from being stored: see ``Durability``."""
        return ""

    def durable_now(self, log_end: int) -> bool:
        """Whether a sender of messages up to ``log_end`` may be answered without waiting; always true with ASYNC_FLUSH."""
        return self.flusher.durable_now(log_end)

    async def wait_durable(self, log_end: int) -> DurabilityResult:
        """Wait until the disk has everything up to ``log_end`` (``Appended.log_offset + size`` of the last one)."""
        return await self.flusher.wait_durable(log_end)

    def when_durable(self, log_end: int, told: Told) -> bool:
        """The same for a sender without a task: ``told`` is called, by the flusher. Raises FlushFailed if an fsync has failed already."""
        return self.flusher.when_durable(log_end, told)

    @property
    def on_arrival(self) -> Callable[[list[Arrival]], None] | None:
        """Called after each indexed batch with ``(topic, queue id, new end offset, tags code)``, once per queue and tag."""
        return self.indexer.on_arrival

    @on_arrival.setter
    def on_arrival(self, callback: Callable[[list[Arrival]], None] | None) -> None:
        self.indexer.on_arrival = callback

    def follow(self) -> LogCopy:
        """From now on the log is a copy of another broker's: ``append`` is refused, what is returned is the one who writes."""
        self.health.following = True
        ahead = CopyAhead(self.indexer, memory_bytes() // 4, self._free_bytes)
        return LogCopy(self.log, self.flusher, self.indexer, self.health, ahead)

    def _free_bytes(self) -> int:
        """Room for the log; 0 if the disk does not say."""
        try:
            return self.disk.usage(self.config.commitlog_directory).free
        except OSError:
            return 0

    # Reading the log as bytes, for whoever copies it

    @property
    def first_offset(self) -> int:
        """Where the log begins."""
        return self.log.first_offset

    def log_bytes(self, start: int, end: int) -> Buffer | None:
        """The bytes [start, end) of the log, which lie in one segment; None if some of them are not in memory: then use ``log_bytes_cold``. Raises StoreIoError."""
        if start < self.log.first_offset:  # deleted since the caller looked
            return None
        try:
            return self._log_read(start, end, self._warm)
        except Cold:
            return None

    async def log_bytes_cold(self, start: int, end: int) -> Buffer:
        """The same, waiting for the disk in a thread. Raises StoreIoError; CopyRefused if they are deleted meanwhile."""

        def read(reads: Reads) -> Buffer:
            if start < self.log.first_offset:
                raise CopyRefused(f"log offset {start} has been deleted, the log begins at {self.log.first_offset}")
            return self._log_read(start, end, reads)

        return await self._wait(read)

    def _log_read(self, start: int, end: int, reads: Reads) -> Buffer:
        try:
            return self.log.read([(start, end)], reads)[0]
        except OSError as error:  # no descriptor or no memory left for the map of a segment
            raise StoreIoError(self.config.root, error) from error

    # Reading messages

    def get(
        self, topic: str, queue_id: int, offset: int, *, messages_max: int, bytes_max: int, tag_codes: frozenset[int] | None = None
    ) -> GetResult | None:
        """Messages of a queue from ``offset`` on; None if some of them are not in memory: then use ``get_cold``."""
        try:
            return self.reader.get(topic, queue_id, offset, messages_max, bytes_max, tag_codes, self._warm)
        except Cold:
            return None

    async def get_cold(
        self, topic: str, queue_id: int, offset: int, *, messages_max: int, bytes_max: int, tag_codes: frozenset[int] | None = None
    ) -> GetResult:
        """The same, waiting for the disk in a thread. Raises StoreIoError."""
        return await self._wait(lambda reads: self.reader.get(topic, queue_id, offset, messages_max, bytes_max, tag_codes, reads))

    async def read_record(self, log_offset: int) -> bytes | None:
        """The whole record that begins at ``log_offset``, None if none does."""
        return await self._wait(lambda reads: self.reader.record(log_offset, reads))

    async def query(self, topic: str, key: str, *, max_count: int, begin_ms: int, end_ms: int, unique: bool = False) -> QueryResult:
        """Records that carry the key, or one with the same hash: the asker compares. ``unique``: the key is a UNIQ_KEY."""
        self.indexer.try_settle()
        return await self._wait(lambda reads: self.reader.query(topic, key, max_count, begin_ms, end_ms, unique, reads))

    # Facts about queues

    def queues(self) -> dict[str, list[int]]:
        """Topic -> ids of its queues, ascending."""
        found: dict[str, list[int]] = {}
        for topic, queue_id in sorted(self.queue_table.queues):
            found.setdefault(topic, []).append(queue_id)
        return found

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Smallest readable offset; 0 for a queue that does not exist."""
        queue = self.queue_table.queues.get((topic, queue_id))
        return queue.min_offset if queue is not None else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        """One past the last readable offset; 0 for a queue that does not exist."""
        queue = self.queue_table.queues.get((topic, queue_id))
        return queue.end_offset if queue is not None else 0

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool = False) -> int | None:
        """First offset stored at or after the time (``upper``: last one at or before it), within min and max; None if cold."""
        try:
            return self.reader.offset_by_time(topic, queue_id, timestamp_ms, upper, self._warm)
        except Cold:
            return None

    async def offset_by_time_cold(self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool = False) -> int:
        return await self._wait(lambda reads: self.reader.offset_by_time(topic, queue_id, timestamp_ms, upper, reads))

    async def entries(self, topic: str, queue_id: int, first: int, count: int) -> list[tuple[int, int, int]]:
        """(log offset, size, tags code) of some messages of a queue, as many as there are; none before the first kept one."""
        return await self._wait(lambda reads: self.reader.entries(topic, queue_id, first, count, reads))

    def store_time_at(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Store time (ms) of one message, -1 if there is none; None if cold."""
        try:
            return self.reader.store_time_at(topic, queue_id, offset, self._warm)
        except Cold:
            return None

    async def store_time_at_cold(self, topic: str, queue_id: int, offset: int) -> int:
        return await self._wait(lambda reads: self.reader.store_time_at(topic, queue_id, offset, reads))

    def earliest_store_time(self, topic: str, queue_id: int) -> int | None:
        """Store time of the queue's first message, -1 if it is empty; None if cold."""
        return self.store_time_at(topic, queue_id, self.min_offset(topic, queue_id))

    async def earliest_store_time_cold(self, topic: str, queue_id: int) -> int:
        return await self.store_time_at_cold(topic, queue_id, self.min_offset(topic, queue_id))

    # The whole

    @property
    def appended(self) -> Watermark:
        """End of the log."""
        return self.log.appended

    @property
    def flushed(self) -> Watermark:
        """What the disk has."""
        return self.flusher.flushed

    @property
    def confirmed(self) -> Watermark:
        """What may be shown to readers: ``flushed`` with SYNC_FLUSH, else ``appended``."""
        return self.indexer.confirmed

    @property
    def indexed(self) -> Watermark:
        """What readers find."""
        return self.indexer.indexed

    def reconfigure(
        self, *, retention: RetentionRules, flush_interval_ms: int, index_write_interval_ms: int, checkpoint_interval_ms: int, sync_flush_timeout_ms: int
    ) -> None:
        """Go on with other settings: retention from now on, the others when the pause that runs is over. No checkpoint."""
        self.config = attrs.evolve(
            self.config,
            retention=retention,
            flush_interval_ms=flush_interval_ms,
            index_write_interval_ms=index_write_interval_ms,
            checkpoint_interval_ms=checkpoint_interval_ms,
            sync_flush_timeout_ms=sync_flush_timeout_ms,
        )
        self.flusher.config = self.checkpointer.config = self.cleaner.config = self.config
        self.cleaner.look_soon()

    def delete_topic(self, topic: str) -> None:
        """Remove a topic's queues (their files in a thread, later); its records stay in the log until that is deleted. No checkpoint. Raises StoreError."""
        if all(name == topic for name, _ in self.queue_table.queues):
            self.checkpointer.forget_queues()
        self.queue_table.delete_topic(topic)
        self.checkpointer.save_soon()

    async def delete_expired_queues(self, keep: Callable[[str], bool]) -> list[tuple[str, int]]:
        """Forget queues that have no message any more, with their numbers, but for topics to ``keep``; (topic, queue id) of each. Raises StoreError.

        Checkpoint: always, and between some queues, so that others may run; a queue that got a message meanwhile stays.
        """
        await trio.lowlevel.checkpoint()
        table, log_min = self.queue_table, self.log.first_offset
        candidates = table.expired(log_min, keep)
        if candidates:
            self.checkpointer.forget_queues()
        expired = []
        for number, key in enumerate(candidates, 1):
            queue = table.queues.get(key)
            if queue is not None and table.is_expired(queue, log_min):
                table.delete(key)
                expired.append(key)
            if number % QUEUES_A_STEP == 0:
                await trio.lowlevel.checkpoint()
        table.forget_empty_topics({topic for topic, _ in expired})
        self.checkpointer.save_soon()
        return expired

    def statistics(self) -> StoreStatistics:
        self.indexer.try_settle()
        return StoreStatistics(
            oldest=self.log.first_offset,
            appended=self.log.appended.value,
            flushed=self.flusher.flushed.value,
            confirmed=self.indexer.confirmed.value,
            indexed=self.indexer.indexed.value,
            segment_count=len(self.log.segments.items),
            queue_count=len(self.queue_table.queues),
            index_file_count=len(self.key_index.files),
            backlog_bytes=self.indexer.backlog_bytes,
            backlog_overruns=self.indexer.overruns,
            flush_count=self.flusher.flush_count,
            last_store_timestamp=self.log.last_timestamp,
            append_count=self.append_count,
            append_bytes=self.append_bytes,
            append_max_ms=self.append_max_seconds * 1000,
            open_queue_files=len(self.queue_table.open_files),
            writable=self.health.writable,
        )


@asynccontextmanager
async def open_store(
    config: StoreConfig,
    clock: Callable[[], int] = wall_clock_ms,
    *,
    disk: Disk | None = None,
    batch_topics: Callable[[], Collection[str]] = frozenset,
) -> AsyncIterator[MessageStore]:
    """Lock the directory, recover, run the store's tasks; at the end index what is left, flush, move the checkpoint, unlock.

    ``clock`` gives wall time in ms; ``batch_topics``, asked once when the directory is locked, names the topics with batch consume queues. Raises StartError and
    its kin before the body runs. If a task fails, the body is cancelled and the failure comes out in an exception group; the store is then closed as it is, and
    the next start recovers.
    """
    disk = disk or Disk(DiskFeatures(queued_sync=True, gather=hasattr(os, "pwritev"), residency=can_tell()))
    try:
        disk.make_durable_directory(config.root)
    except OSError as error:
        raise start_error(config.root, error) from error
    lock = StoreLock(config.root / "lock")
    lock.take()
    try:
        try:
            store = await load_store(config, clock, disk, batch_topics)
        except DiskFull as error:
            raise FullAtStart(error.path) from error
        try:
            async with trio.open_nursery() as nursery:
                tasks = {
                    "flusher": store.flusher.run,
                    "flush-deadlines": store.flusher.run_deadlines,
                    "indexer": store.indexer.run,
                    "checkpointer": store.checkpointer.run,
                    "cleaner": store.cleaner.run,
                    "remover": store.queue_table.remover.run,
                }
                for name, run in tasks.items():
                    nursery.start_soon(_fail_with, run, store.health, name=f"store-{name}")
                yield store
                nursery.cancel_scope.cancel()
        finally:
            with trio.move_on_after(CLOSE_SECONDS_MAX, shield=True):
                await finish_store(store)
            close_files(store)
    finally:
        lock.release()


async def load_store(
    config: StoreConfig, clock: Callable[[], int], disk: Disk, batch_topics: Callable[[], Collection[str]] = frozenset
) -> MessageStore:
    """Build the parts and recover."""
    abort = config.root / "abort"
    log = CommitLog(config, disk, Segments(disk, config.commitlog_directory, config.segment_size_bytes))
    queues = QueueTable(config, disk)
    key_index = KeyIndex(config, disk, clock)
    checkpoint_file = CheckpointFile(disk, config.root / "checkpoint")
    health = Health()
    sync_limiter = trio.CapacityLimiter(1)
    flusher = Flusher(config, disk, log, sync_limiter)
    try:
        clean = not abort.exists()
        checkpoint = checkpoint_file.load()
        log.segments.load()
        queues.has_batch_queues = frozenset(batch_topics()).__contains__
        queues.load()
        if config.index_enabled:
            key_index.load()
        recovered = await Recovery(config, disk, log, queues, key_index, checkpoint, clean, clock).run()
        log.start_at(recovered.end, recovered.last[2] if recovered.last is not None else 0)
        flusher.flushed.advance(recovered.scanned_from)
        if recovered.end > recovered.scanned_from:
            await flusher.flush()
        if not clean:  # what recovery cut off must not come back either
            touched = [segment.path for segment in log.segments.covering(recovered.end, recovered.end + 1)]
            await trio.to_thread.run_sync(sync_files, disk, touched, [config.commitlog_directory], limiter=sync_limiter)
        disk.write_file(abort, str(os.getpid()).encode())
        # It must outlive a power failure, or the next start would take what is left for the work of a clean stop.
        await trio.to_thread.run_sync(sync_files, disk, [abort], [config.root], limiter=sync_limiter)
    except OSError as error:
        raise start_error(config.root, error) from error
    indexer = Indexer(
        queues=queues,
        others=(key_index,) if config.index_enabled else (),
        confirmed=log.appended if config.flush_mode is FlushMode.ASYNC else flusher.flushed,
        health=health,
        scan=lambda start, end: LogScan(disk, log.segments, start, end, check_crc=False),
        backlog_bytes_max=config.backlog_bytes_max,
        limiter=trio.CapacityLimiter(1),
    )
    indexer.start_at(recovered.end, recovered.last)
    if config.flush_mode is FlushMode.SYNC:
        flusher.on_flushed = indexer.index_confirmed
    current = checkpoint if recovered.trusted else attrs.evolve(checkpoint, mark=None)
    checkpointer = Checkpointer(config, disk, checkpoint_file, flusher, indexer, queues, key_index, health, sync_limiter, current)
    reader = Reader(config, log, queues, key_index, memory_bytes() * config.memory_percent_max // 100)
    cleaner = Cleaner(
        config, disk, clock, log, flusher.flushed, indexer, queues, key_index, checkpointer, reader, health, trio.CapacityLimiter(1)
    )
    return MessageStore(config, disk, clock, log, queues, key_index, flusher, indexer, checkpointer, reader, cleaner, health, recovered)


async def _fail_with(run: Callable[[], Awaitable[None]], health: Health) -> None:
    """Run a task of the store; if it fails, nothing on the disk may say that all is well."""
    try:
        await run()
    except Exception as error:
        health.failed = True
        health.cause = str(error)
        raise


async def finish_store(store: MessageStore) -> None:
    """Bring everything to the end of the log; then, and only then, ``abort`` goes. Raises FlushFailed."""
    store.health.closing = True
    if store.health.failed:
        return
    try:
        await store.flusher.flush()
        await store.indexer.finish()
        await store.checkpointer.save()
    except DiskFull as error:
        logger.error("the store is closed with work left, the next start does it: %s", error)
        return
    if store.indexed.value == store.appended.value:
        store.disk.remove(store.config.root / "abort")


def close_files(store: MessageStore) -> None:
    store.key_index.close()
    store.queue_table.close()
    store.log.close()
    store.checkpointer.close()
