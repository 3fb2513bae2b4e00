"""Cleaner: deletes old segments and their indexes; refuses messages while the disk is too full.

Queue files and index files follow when all their records are deleted.

Law: a file is removed from its table first, so that no new read finds it, and then deleted. A read
at that moment holds a descriptor or a map, whose bytes stay until it is closed; a cold read in
flight finds no file, is repeated, and finds no table entry. Files are only deleted, never
shortened: reading the map of a shortened file is a SIGBUS.

``retention.py`` decides which segments to delete, ``disk_space.py`` when to refuse messages.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import attrs
import trio

from triomq.broker.store.compaction.compacted_queues import CompactedQueues
from triomq.broker.store.core.clock_guard import HOLD_SECONDS, ClockGuard
from triomq.broker.store.core.disk_space import Usage
from triomq.broker.store.core.errors import DiskReserve, StoreIoError
from triomq.broker.store.core.health import Health
from triomq.broker.store.core.retention import (
    HOUR_MS,
    Decision,
    OldSegment,
    Seen,
    decide,
    without_future,
)
from triomq.broker.store.core.stored_times import AHEAD_MS_MAX
from triomq.broker.store.core.watermark import Watermark
from triomq.broker.store.indexing.index_syncer import IndexSyncer
from triomq.broker.store.indexing.indexer import Indexer
from triomq.broker.store.indexing.store_files import OpenStoreFiles
from triomq.broker.store.io.reads import ColdFetch, Reads
from triomq.broker.store.io.segment import Segment
from triomq.broker.store.queues.consume_queue import ConsumeQueue
from triomq.broker.store.reading.reader import Reader

logger = logging.getLogger(__name__)

ASKED_ROUNDS = 20
"""Rounds for which an operator's request holds.

Source: DefaultMessageStore.java#manualDeleteFileSeveralTimes.
"""
QUEUES_A_STEP = 64


@attrs.define(eq=False)
class Cleaner:
    """Deletes old segments, queue files and index files."""

    files: OpenStoreFiles
    clock: Callable[[], int]
    flushed: Watermark
    indexer: Indexer
    index_syncer: IndexSyncer
    reader: Reader
    compacted: CompactedQueues
    health: Health
    _limiter: trio.CapacityLimiter = attrs.field(
        factory=lambda: trio.CapacityLimiter(1), init=False
    )
    needed_from: list[Callable[[], int]] = attrs.field(factory=list, init=False)
    """Return the smallest log offset that some reader of the log, such as a slave, still needs."""
    _asked: int = attrs.field(default=0, init=False)
    _wake: trio.Event = attrs.field(factory=trio.Event, init=False)
    disks: dict[Path, Usage] = attrs.field(factory=dict, init=False)
    """How full the file systems of the log and of the other files were in the last round."""
    _short: bool = attrs.field(default=False, init=False)
    _cold_fetch: ColdFetch = attrs.field(init=False)
    _names_pending: bool = attrs.field(default=False, init=False)
    """Whether the last deletion is not yet durable."""
    _guard: ClockGuard | None = attrs.field(default=None, init=False)
    _corrected_to: int = attrs.field(default=0, init=False)
    """The start of the log as queues and index know it."""

    def __attrs_post_init__(self) -> None:
        self._cold_fetch = ColdFetch(self.files.disk, limiter=self._limiter)

    def delete_expired_soon(self) -> None:
        """Delete expired segments now and in the next rounds, at any hour. Checkpoint: never."""
        self._asked = ASKED_ROUNDS
        self._wake.set()

    def begin_round_soon(self) -> None:
        """Begin a round now, because the rules have changed. Checkpoint: never."""
        self._wake.set()

    async def clean_in_rounds(self) -> None:
        """Run the task "store-cleaner"."""
        self._note_space(await self._decide(delete=False))
        while True:
            with trio.move_on_after(self.files.config.retention.interval_ms / 1000):
                await self._wake.wait()
            self._wake = trio.Event()
            await self.round()

    async def round(self) -> None:
        """Decide, delete segments, and adjust queues and key index. Checkpoint: always."""
        decision = await self._decide(delete=True)
        self._asked = max(0, self._asked - 1)
        self._note_space(decision)
        if decision.short and not self._short:
            logger.warning(
                "the disk of %s is filling up, and nothing is old enough to be deleted: free some"
                " space, or lower fileReservedTime",
                self.files.config.root,
            )
        self._short = decision.short
        for number, (base, reason) in enumerate(decision.delete.items()):
            if number:
                await trio.sleep(self.files.config.retention.log_pause_ms / 1000)
            if not await self._delete_segment(base, reason):
                break
        if self.files.log.first_offset > self._corrected_to:
            await self.correct()

    # The decision

    async def _decide(self, *, delete: bool) -> Decision:
        rules = self.files.config.retention
        now_ms = self.clock()
        items = self.files.log.segments.items
        indexed_to = self._indexed_to() if delete else 0
        candidates = items[: min(rules.batch_max, len(items) - 1)] if delete and items else []
        self.disks, segments = await trio.to_thread.run_sync(
            self._observe, candidates, items[len(candidates) :], now_ms, limiter=self._limiter
        )
        seen = Seen(
            segments=segments,
            now_ms=now_ms if self._asked else self._corrected_now(now_ms),
            hour=time.localtime(now_ms / 1000).tm_hour,
            log_disk=self.disks.get(self.files.config.commitlog),
            queue_disk=self.disks.get(self.files.config.root),
            refusing=self.health.disk_reserve is not None,
            asked=self._asked > 0,
            indexed_to=indexed_to,
            needed_from=min([needed() for needed in self.needed_from], default=indexed_to),
        )
        return decide(seen, rules)

    def _corrected_now(self, now_ms: int) -> int:
        """Return the wall time without jumps ahead; log a new jump."""
        steady = trio.current_time()
        if self._guard is None:
            reserved_ms = self.files.config.retention.reserved_hours * HOUR_MS
            self._guard = ClockGuard.starting(
                now_ms, steady, self.files.log.last_timestamp, reserved_ms
            )
            before = 0
        else:
            before = self._guard.ignored_ms
        corrected = self._guard.now_ms(now_ms, steady)
        if self._guard.ignored_ms > before:
            logger.warning(
                "the wall clock is %.1f hours ahead of the newest message, or of its own earlier"
                " course: no file is deleted for its age in the next %g hours; if the clock is"
                " right, mqadmin broker delete-expired-log deletes expired files now",
                self._guard.ignored_ms / HOUR_MS,
                HOLD_SECONDS / 3600,
            )
        return corrected

    def _observe(
        self, candidates: list[Segment], others: list[Segment], now_ms: int
    ) -> tuple[dict[Path, Usage], list[OldSegment]]:
        """Return the space of both directories and the ages of segments. For a thread.

        ``others``: the segments behind the candidates. An error ends either list early.
        """
        disks: dict[Path, Usage] = {}
        segments: list[OldSegment] = []
        try:
            disks = {
                path: self.files.disk.usage(path)
                for path in (self.files.config.commitlog, self.files.config.root)
            }
            times = [self.files.disk.modified_ms(segment.path) for segment in candidates]
            latest = now_ms + AHEAD_MS_MAX
            for segment in others:  # what a time of the future stands for: see `without_future`
                if not times or times[-1] <= latest:
                    break
                times.append(self.files.disk.modified_ms(segment.path))
            segments.extend(
                OldSegment(segment.base, segment.end, time)
                for segment, time in zip(candidates, without_future(times, latest))
            )
        except OSError as error:
            logger.warning(
                "the disk does not say how full it is, or how old its files are: %s", error
            )
        return disks, segments

    def _indexed_to(self) -> int:
        """Return the log offset up to which segments may be deleted.

        The disk and all indexes have the records before it, compaction topics have their copies,
        and the last segment stays.

        The checkpoint must have them, too: a power failure takes later entries from the queues, and
        the log could not restore their numbers. Only a checkpoint that cannot move, because the
        disk is full, does not count.
        """
        self.indexer.try_flush_deferred()
        last = self.files.log.segments.items[-1].base if self.files.log.segments.items else 0
        limit = (
            min(self.flushed.value, self.indexer.indexed.value, self.compacted.copied_to, last)
            if not self.indexer.has_deferred
            else 0
        )
        mark = self.index_syncer.current.mark
        saved = mark.record_offset if mark is not None else 0
        if saved < limit and self.health.queue_fault is None:
            self.index_syncer.save_soon()  # for the next round
            return saved
        return limit

    def _note_space(self, decision: Decision) -> None:
        rules = self.files.config.retention
        if not decision.refuse:
            if self.health.disk_reserve is not None:
                logger.warning("the disk has room again: messages are taken")
            self.health.disk_reserve = None
            return
        log, rest = self.files.config.commitlog, self.files.config.root
        log_ratio, rest_ratio = self.disks[log].ratio, self.disks[rest].ratio
        error = DiskReserve(
            log if log_ratio >= rest_ratio else rest,
            log_ratio,
            rest_ratio,
            rules.warning_percent,
            rules.force_percent,
        )
        if self.health.disk_reserve is None:
            logger.error("messages are refused: %s", error)
        self.health.disk_reserve = error

    # Deleting

    async def _delete_segment(self, base: int, reason: str) -> bool:
        segments = self.files.log.segments
        if len(segments.items) < 2 or segments.first_offset != base:
            return False
        if self._names_pending and not await self._sync_names(segments.directory):
            return False
        segment = segments.take_oldest()
        try:
            await trio.to_thread.run_sync(
                self.files.disk.remove, segment.path, limiter=self._limiter
            )
        except OSError as error:
            # Its successors must stay, too, or the log would have a hole.
            segments.put_back(segment)
            logger.error(
                "%s cannot be deleted: %s; give the broker's user permission, it is tried again",
                segment.path,
                error,
            )
            return False
        logger.info(
            "deleted %s: %s; the log begins at %s now", segment.path, reason, segments.first_offset
        )
        return await self._sync_names(segments.directory)

    async def _sync_names(self, directory: Path) -> bool:
        """Make a deletion durable, and return whether it is.

        A later deletion must wait for it: after a power failure the log would have a hole.
        """
        try:
            await trio.to_thread.run_sync(
                self.files.disk.sync_directory, directory, limiter=self._limiter
            )
        except OSError as error:
            self._names_pending = True
            logger.error(
                "%s cannot be forced to the disk: %s; no more segments are deleted until it can",
                directory,
                error,
            )
            return False
        self._names_pending = False
        return True

    async def correct(self) -> None:
        """Adjust queue offsets, queue files and index files to the start of the log.

        Checkpoint: always.
        """
        log_min = self.files.log.first_offset
        files = 0
        for number, key in enumerate(list(self.files.queues.queues), 1):
            queue = self.files.queues.queues.get(key)
            if queue is None:
                continue
            if queue.end_offset > queue.min_offset:
                try:
                    await self._correct_queue(queue, log_min)
                except StoreIoError as error:  # readers of these messages get the same error
                    logger.error(
                        "queue %s of %s keeps its smallest offset: %s",
                        queue.queue_id,
                        queue.topic,
                        error,
                    )
            deleted = await self._delete_queue_files(key, queue)
            if deleted:
                files += deleted
                await trio.sleep(self.files.config.retention.queue_pause_ms / 1000)
            elif number % QUEUES_A_STEP == 0:
                await trio.lowlevel.checkpoint()
        indexes = 0
        while (path := self.files.key_index.take_expired(log_min)) is not None:
            self.files.queues.open_files.forget(path)
            indexes += await self._remove_quietly(path)
        self._corrected_to = log_min
        logger.info(
            "the log begins at %s: deleted %s consume queue files and %s key index files",
            log_min,
            files,
            indexes,
        )

    async def _correct_queue(self, queue: ConsumeQueue, log_min: int) -> None:
        def step(reads: Reads) -> None:
            queue.min_offset = max(queue.min_offset, self.reader.first_kept(queue, log_min, reads))

        await self._cold_fetch.until_warm(
            step, Reads(self.files.disk, self.files.queues.open_files)
        )

    async def _delete_queue_files(self, key: tuple[str, int], queue: ConsumeQueue) -> int:
        count = 0
        while (
            self.files.queues.queues.get(key) is queue
            and (base := queue.take_expired()) is not None
        ):
            if not await self._remove_quietly(queue.path(base)):
                queue.put_back(base)  # the files of a queue have no gaps
                break
            count += 1
        return count

    async def _remove_quietly(self, path: Path) -> bool:
        """Delete a file; return whether that worked. If it stays, the next start finds it again."""
        try:
            await trio.to_thread.run_sync(self.files.disk.remove, path, limiter=self._limiter)
        except OSError as error:
            logger.warning("%s cannot be deleted: %s", path, error)
            return False
        return True
