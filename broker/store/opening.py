"""Open a store: lock the directory, recover, start the tasks; close it in the reverse order.

The order is what makes a crash at any point recoverable: the lock before the first read, the file
``abort`` before the first append, and its removal only after everything is on the disk.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import ExitStack, asynccontextmanager
from functools import partial

import attrs
import trio

from triomq.broker.store.cleaner import Cleaner
from triomq.broker.store.compaction.compacted_queues import CompactedQueues
from triomq.broker.store.compaction.compactor import Compactor
from triomq.broker.store.core.config import FlushMode, StoreConfig
from triomq.broker.store.core.confirmations import Confirmations
from triomq.broker.store.core.errors import (
    DiskFull,
    FullAtStart,
    NoFilesLeft,
    start_error,
    starting,
)
from triomq.broker.store.core.health import Health
from triomq.broker.store.indexing.index_syncer import IndexSyncer
from triomq.broker.store.indexing.indexer import Indexer
from triomq.broker.store.indexing.store_files import OpenStoreFiles
from triomq.broker.store.io.checkpoint import CheckpointFile
from triomq.broker.store.io.disk import Disk, DiskFeatures
from triomq.broker.store.io.residency import has_mincore
from triomq.broker.store.io.segments import Segments
from triomq.broker.store.keys.index import KeyIndex
from triomq.broker.store.lock import StoreLock
from triomq.broker.store.log.commit_log import CommitLog
from triomq.broker.store.log.flusher import Flusher, sync_files
from triomq.broker.store.log.scan import LogScan
from triomq.broker.store.queues.table import QueueTable
from triomq.broker.store.reading.queue_messages import DamagedRecords
from triomq.broker.store.reading.reader import Reader
from triomq.broker.store.recovery import Recovery
from triomq.broker.store.store import MessageStore

logger = logging.getLogger(__name__)

CLOSE_SECONDS_MAX = 60


def wall_clock_ms() -> int:
    """Return the time for records and tables."""
    return time.time_ns() // 1_000_000


def memory_bytes() -> int:
    """Return the physical memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@asynccontextmanager
async def open_store(
    config: StoreConfig,
    clock: Callable[[], int] = wall_clock_ms,
    *,
    disk: Disk | None = None,
    batch_topics: Callable[[], Collection[str]] = frozenset,
    compaction_topics: Callable[[], Mapping[str, int]] = dict,
    holds_tail: bool = False,
    cut_at: int | None = None,
) -> AsyncIterator[MessageStore]:
    """Lock the directory, recover, and run the store's tasks.

    At the end flush, index the rest, move the checkpoint, and unlock.

    ``clock`` returns the wall time in ms. ``batch_topics``, called once after the lock, returns the
    topics with batch consume queues. ``compaction_topics`` returns the compaction topics, with the
    number of their queues. ``holds_tail``: readers see the log only as far as
    ``MessageStore.confirmations`` says. ``cut_at``: first cut the log there, or at the last whole
    record before.

    If a task fails, the body is cancelled and the error comes out in an exception group. The store
    is then closed as it is, and the next start recovers.

    Raises: StartError, DiskFull, StoreIoError, FlushFailed, before the body runs.
    """
    disk = disk or Disk(
        DiskFeatures(queued_sync=True, gather=hasattr(os, "pwritev"), residency=has_mincore())
    )
    disk.descriptor_wait_seconds = math.inf
    with starting(config.root):
        disk.make_durable_directory(config.root)
    lock = StoreLock(config.root / "lock")
    lock.take()
    try:
        try:
            with ExitStack() as opened:
                store = await load_store(
                    config,
                    clock,
                    disk,
                    batch_topics,
                    compaction_topics,
                    opened,
                    holds_tail=holds_tail,
                    cut_at=cut_at,
                )
                opened.pop_all()
        except NoFilesLeft:
            raise
        except DiskFull as error:
            raise FullAtStart(error.path) from error
        try:
            async with trio.open_nursery() as nursery:
                tasks = {
                    "flusher": store.flusher.flush_appended,
                    "flush-deadlines": store.flusher.run_deadlines,
                    "indexer": store.indexer.index_backlog,
                    "index-syncer": store.index_syncer.sync_in_rounds,
                    "cleaner": store.cleaner.clean_in_rounds,
                    "remover": store.queue_table.remover.remove_folders,
                    "compaction-copies": store.compactor.run_copies,
                    "compaction-passes": store.compactor.run_passes,
                }
                for name, run in tasks.items():
                    nursery.start_soon(_fail_with, run, store.health, name=f"store-{name}")
                try:
                    yield store
                finally:
                    store.prepare_to_close()
                nursery.cancel_scope.cancel()
        finally:
            with trio.move_on_after(CLOSE_SECONDS_MAX, shield=True):
                await finish_store(store)
            close_files(store)
    finally:
        lock.release()


async def load_store(
    config: StoreConfig,
    clock: Callable[[], int],
    disk: Disk,
    batch_topics: Callable[[], Collection[str]] = frozenset,
    compaction_topics: Callable[[], Mapping[str, int]] = dict,
    opened: ExitStack | None = None,
    *,
    holds_tail: bool = False,
    cut_at: int | None = None,
) -> MessageStore:
    """Build the parts of a store and recover. ``opened`` closes their files if that fails.

    Raises: StartError, DiskFull, StoreIoError, FlushFailed. Checkpoint: always.
    """
    abort = config.root / "abort"
    log = CommitLog(config, disk, Segments(disk, config.commitlog, config.segment_size_bytes))
    queues = QueueTable(config, disk)
    key_index = KeyIndex(config, disk, clock)
    checkpoint_file = CheckpointFile(disk, config.root / "checkpoint")
    files = OpenStoreFiles(config, disk, log, queues, key_index)
    opened = opened or ExitStack()
    for part in (checkpoint_file, log, queues, key_index):
        opened.callback(part.close)
    health = Health()
    sync_limiter = trio.CapacityLimiter(1)
    flusher = Flusher(config, disk, log, sync_limiter)
    try:
        clean = not abort.exists()
        checkpoint = checkpoint_file.load()
        log.segments.load()
        if cut_at is not None:
            # A crash during the cut must not look like a clean stop, nor start behind the cut.
            clean = False
            disk.write_file(abort, str(os.getpid()).encode())
            if checkpoint.mark is not None and checkpoint.mark.record_end > cut_at:
                checkpoint = attrs.evolve(checkpoint, mark=None)
                checkpoint_file.write(checkpoint)
            await trio.to_thread.run_sync(
                sync_files, disk, [abort, checkpoint_file.path], [config.root], limiter=sync_limiter
            )
        queues.has_batch_queues = frozenset(batch_topics()).__contains__
        queues.load()
        if config.index_enabled:
            key_index.load()
        recovered = await Recovery(files, checkpoint, clean, clock, holds_tail, cut_at).run()
        log.start_at(recovered.end, recovered.last[2] if recovered.last is not None else 0)
        flusher.flushed.advance(recovered.scanned_from)
        if recovered.end > recovered.scanned_from:
            await flusher.flush()
        if not clean:  # records cut off by recovery must not come back either
            touched = [
                segment.path for segment in log.segments.covering(recovered.end, recovered.end + 1)
            ]
            await trio.to_thread.run_sync(
                sync_files, disk, touched, [config.commitlog], limiter=sync_limiter
            )
        disk.write_file(abort, str(os.getpid()).encode())
        # Without it a start after a power failure would take the files for those of a clean stop.
        await trio.to_thread.run_sync(
            sync_files, disk, [abort], [config.root], limiter=sync_limiter
        )
    except OSError as error:
        raise start_error(config.root, error) from error
    has = log.appended if config.flush_mode is FlushMode.ASYNC else flusher.flushed
    confirmations = Confirmations(log.appended, has) if holds_tail else None
    indexer = Indexer(
        queues=queues,
        key_index=key_index if config.index_enabled else None,
        confirmed=has if confirmations is None else confirmations.confirmed,
        health=health,
        scan=lambda start, end: LogScan(disk, log.segments, start, end, check_crc=False),
        backlog_bytes_max=config.backlog_bytes_max,
        limiter=trio.CapacityLimiter(1),
    )
    indexer.start_at(recovered.indexed, recovered.indexed_last)
    if confirmations is not None:
        confirmations.start_at(recovered.end)
        confirmations.confirmed.advance(recovered.indexed)
        confirmations.confirmed.callbacks.append(indexer.index_confirmed)
    compacted = CompactedQueues(config.root, disk, config.compaction, queues, compaction_topics)
    opened.callback(compacted.close)
    with starting(config.root):
        await trio.to_thread.run_sync(partial(compacted.load, clean=clean), limiter=sync_limiter)
    if config.flush_mode is FlushMode.SYNC and confirmations is None:
        flusher.on_flushed = indexer.index_confirmed
    current = checkpoint if recovered.trusted else attrs.evolve(checkpoint, mark=None)
    index_syncer = IndexSyncer(
        files, checkpoint_file, flusher, indexer, health, sync_limiter, current, clock
    )
    memory = memory_bytes()
    reader = Reader(config, log, queues, key_index, memory * config.memory_percent_max // 100)
    cleaner = Cleaner(
        files, clock, flusher.flushed, indexer, index_syncer, reader, compacted, health
    )
    compactor = Compactor(compacted, reader, flusher.flushed, indexer, clock, DamagedRecords())
    return MessageStore(
        files, clock, flusher, indexer, cleaner, compactor, recovered, memory, confirmations
    )


async def _fail_with(run: Callable[[], Awaitable[None]], health: Health) -> None:
    """Run a task of the store. If it fails, no file may show a clean stop."""
    try:
        await run()
    except Exception as error:
        health.failed = True
        health.cause = str(error)
        raise


async def finish_store(store: MessageStore) -> None:
    """Flush and index everything up to the end of the log. Only then remove the file ``abort``.

    Raises: FlushFailed. Checkpoint: always.
    """
    store.health.closing = True
    if store.health.failed:
        return
    try:
        await store.flusher.flush()
        await store.indexer.finish()
        await store.index_syncer.save()
        await trio.to_thread.run_sync(store.compacted.sync)
    except DiskFull as error:
        logger.error(
            "the store is closed before all is indexed, the next start does the rest: %s", error
        )
        return
    if store.indexed.value == store.confirmed.value:  # what lies behind is read at each start
        store.disk.remove(store.config.root / "abort")


def close_files(store: MessageStore) -> None:
    store.compacted.close()
    store.key_index.close()
    store.queue_table.close()
    store.log.close()
    store.index_syncer.close()
