"""The cleaner: deletes old segments, then the queue files and index files that only spoke of them; refuses messages while the disk is too full.

Law: a file is taken out of its table first, so that no new read finds it, and deleted after that. Whoever reads from it at that moment holds a descriptor or a
map, whose bytes stay until it lets go; a cold read under way finds no file, is done again, and finds no table entry. Files are only deleted, never cut: a map of a
file that is cut is a SIGBUS.

What goes, and when, is decided in retention.py.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import attrs
import trio

from triomq.broker.store.checkpointer import Checkpointer
from triomq.broker.store.clock_guard import HOLD_SECONDS, ClockGuard
from triomq.broker.store.cold_reads import ColdReads
from triomq.broker.store.commitlog import CommitLog
from triomq.broker.store.config import StoreConfig
from triomq.broker.store.consume_queue import ConsumeQueue
from triomq.broker.store.disk import Disk
from triomq.broker.store.errors import DiskReserve, StoreIoError
from triomq.broker.store.health import Health
from triomq.broker.store.indexer import Indexer
from triomq.broker.store.key_index import KeyIndex
from triomq.broker.store.queue_table import QueueTable
from triomq.broker.store.reader import Reader
from triomq.broker.store.reads import Reads, until_warm
from triomq.broker.store.retention import HOUR_MS, Decision, OldSegment, Seen, Usage, decide
from triomq.broker.store.segment import Segment
from triomq.broker.store.watermark import Watermark

logger = logging.getLogger(__name__)

ASKED_ROUNDS = 20
"""So many rounds an operator's request lasts. Source: DefaultMessageStore.java#manualDeleteFileSeveralTimes."""
QUEUES_A_STEP = 64


@attrs.define(eq=False)
class Cleaner:
    """``needed_from`` may be set by whoever copies the log: the smallest log offset that is still to be read."""

    config: StoreConfig
    disk: Disk
    clock: Callable[[], int]
    log: CommitLog
    flushed: Watermark
    indexer: Indexer
    queues: QueueTable
    key_index: KeyIndex
    checkpointer: Checkpointer
    reader: Reader
    health: Health
    limiter: trio.CapacityLimiter
    needed_from: Callable[[], int] | None = None
    segments_deleted: int = attrs.field(default=0, init=False)
    _asked: int = attrs.field(default=0, init=False)
    _wake: trio.Event = attrs.field(factory=trio.Event, init=False)
    disks: dict[Path, Usage] = attrs.field(factory=dict, init=False)
    """How full the file systems of the log and of the rest were when looked at last."""
    _short: bool = attrs.field(default=False, init=False)
    _cold_reads: ColdReads = attrs.field(init=False, default=attrs.Factory(lambda self: ColdReads(self.disk), takes_self=True))
    _names_pending: bool = attrs.field(default=False, init=False)
    """Whether the last deletion is not yet durable."""
    _guard: ClockGuard | None = attrs.field(default=None, init=False)
    jumps: int = attrs.field(default=0, init=False)
    """Jumps of the wall clock that were ignored."""
    _corrected_to: int = attrs.field(default=0, init=False)
    """The start of the log as queues and index know it."""

    def delete_expired_soon(self) -> None:
        """Delete expired segments now, whatever the hour, and for some rounds more. No checkpoint."""
        self._asked = ASKED_ROUNDS
        self._wake.set()

    def look_soon(self) -> None:
        """Decide anew now: the rules have changed. No checkpoint."""
        self._wake.set()

    async def run(self) -> None:
        """The task "store-cleaner"."""
        self._note_space(await self._decide(delete=False))
        while True:
            with trio.move_on_after(self.config.retention.interval_ms / 1000):
                await self._wake.wait()
            self._wake = trio.Event()
            await self.round()

    async def round(self) -> None:
        """Look, delete what may go, correct queues and index. Checkpoint: always."""
        decision = await self._decide(delete=True)
        self._asked = max(0, self._asked - 1)
        self._note_space(decision)
        if decision.short and not self._short:
            logger.warning("the disk of %s is filling up, and nothing is old enough to be deleted: free some space, or lower fileReservedTime", self.config.root)
        self._short = decision.short
        for number, base in enumerate(decision.delete):
            if number:
                await trio.sleep(self.config.retention.log_pause_ms / 1000)
            if not await self._delete_segment(base, decision.reasons[base]):
                break
        if self.log.first_offset > self._corrected_to:
            await self.correct()

    # The decision

    async def _decide(self, *, delete: bool) -> Decision:
        rules = self.config.retention
        now_ms = self.clock()
        items = self.log.segments.items
        indexed_to = self._indexed_to() if delete else 0
        candidates = items[: min(rules.batch_max, len(items) - 1)] if delete and items else []
        self.disks, segments = await trio.to_thread.run_sync(self._look, candidates, limiter=self.limiter)
        seen = Seen(
            segments=segments,
            now_ms=now_ms if self._asked else self._corrected_now(now_ms),
            hour=time.localtime(now_ms / 1000).tm_hour,
            log_disk=self.disks.get(self.config.commitlog_directory),
            queue_disk=self.disks.get(self.config.root),
            refusing=self.health.disk_reserve is not None,
            asked=self._asked > 0,
            indexed_to=indexed_to,
            needed_from=indexed_to if self.needed_from is None else self.needed_from(),
        )
        return decide(seen, rules)

    def _corrected_now(self, now_ms: int) -> int:
        """Return the wall time without jumps ahead; log a new jump."""
        steady = trio.current_time()
        if self._guard is None:
            reserved_ms = self.config.retention.reserved_hours * HOUR_MS
            self._guard = ClockGuard.starting(now_ms, steady, self.log.last_timestamp, reserved_ms)
            before = 0
        else:
            before = self._guard.ignored_ms
        corrected = self._guard.now_ms(now_ms, steady)
        if self._guard.ignored_ms > before:
            self.jumps += 1
            logger.warning(
                "the wall clock is %.1f hours ahead of the newest message, or of its own earlier course: no file is deleted for its age in the next %g hours; "
                "if the clock is right, mqadmin deleteExpiredCommitLog deletes expired files now",
                self._guard.ignored_ms / HOUR_MS,
                HOLD_SECONDS / 3600,
            )
        return corrected

    def _look(self, candidates: list[Segment]) -> tuple[dict[Path, Usage], list[OldSegment]]:
        """Space of both directories, and the age of segments, up to the first that has none. For a thread."""
        disks: dict[Path, Usage] = {}
        segments: list[OldSegment] = []
        try:
            disks = {path: self.disk.usage(path) for path in (self.config.commitlog_directory, self.config.root)}
            segments.extend(OldSegment(segment.base, segment.end, self.disk.modified_ms(segment.path)) for segment in candidates)
        except OSError as error:
            logger.warning("the disk does not say how full it is, or how old its files are: %s", error)
        return disks, segments

    def _indexed_to(self) -> int:
        """Only what the disk and all indexes have may go, and never the segment that is written to.

        The checkpoint must know it, too: in a power failure queues lose what they got since, and the log could not give them their numbers again. Only if it
        cannot move, because the disk is full, it has to give way.
        """
        self.indexer.try_settle()
        last = self.log.segments.items[-1].base if self.log.segments.items else 0
        limit = min(self.flushed.value, self.indexer.indexed.value, last) if self.indexer.settled else 0
        mark = self.checkpointer.current.mark
        saved = mark.record_offset if mark is not None else 0
        if saved < limit and self.health.queue_fault is None:
            self.checkpointer.save_soon()  # for the next round
            return saved
        return limit

    def _note_space(self, decision: Decision) -> None:
        rules = self.config.retention
        if not decision.refuse:
            if self.health.disk_reserve is not None:
                logger.warning("there is space again: messages are taken")
            self.health.disk_reserve = None
            return
        log, rest = self.config.commitlog_directory, self.config.root
        log_ratio, rest_ratio = self.disks[log].ratio, self.disks[rest].ratio
        error = DiskReserve(log if log_ratio >= rest_ratio else rest, log_ratio, rest_ratio, rules.warning_percent, rules.force_percent)
        if self.health.disk_reserve is None:
            logger.error("messages are refused: %s", error)
        self.health.disk_reserve = error

    # Deleting

    async def _delete_segment(self, base: int, reason: str) -> bool:
        segments = self.log.segments
        if len(segments.items) < 2 or segments.first_offset != base:
            return False
        if self._names_pending and not await self._sync_names(segments.directory):
            return False
        segment = segments.take_oldest()
        try:
            await trio.to_thread.run_sync(self.disk.remove, segment.path, limiter=self.limiter)
        except OSError as error:
            segments.put_back(segment)  # its successors must stay, too, or the log would have a hole
            logger.error("%s cannot be deleted: %s; give the broker's user the right to, it is tried again", segment.path, error)
            return False
        self.segments_deleted += 1
        logger.info("deleted %s: %s; the log begins at %s now", segment.path, reason, segments.first_offset)
        return await self._sync_names(segments.directory)

    async def _sync_names(self, directory: Path) -> bool:
        """Make a deletion durable.  No later segment may be deleted before: after a power failure the log would have a hole."""
        try:
            await trio.to_thread.run_sync(self.disk.sync_directory, directory, limiter=self.limiter)
        except OSError as error:
            self._names_pending = True
            logger.error("%s cannot be forced to the disk: %s; no more segments are deleted until it can", directory, error)
            return False
        self._names_pending = False
        return True

    async def correct(self) -> None:
        """Bring the queues' smallest offsets, queue files and index files to where the log begins. Checkpoint: always."""
        log_min = self.log.first_offset
        reads = Reads(self.disk, self.queues.open_files)
        files = 0
        for number, key in enumerate(list(self.queues.queues), 1):
            queue = self.queues.queues.get(key)
            if queue is None:
                continue
            if queue.end_offset > queue.min_offset:
                reads.fetched.clear()
                try:
                    await self._correct_queue(queue, log_min, reads)
                except StoreIoError as error:  # readers are told the same when they ask for these messages
                    logger.error("queue %s of %s keeps its smallest offset: %s", queue.queue_id, queue.topic, error)
            deleted = await self._delete_queue_files(key, queue)
            if deleted:
                files += deleted
                await trio.sleep(self.config.retention.queue_pause_ms / 1000)
            elif number % QUEUES_A_STEP == 0:
                await trio.lowlevel.checkpoint()
        indexes = 0
        while (path := self.key_index.take_expired(log_min)) is not None:
            self.queues.open_files.forget(path)
            indexes += await self._remove_quietly(path)
        self._corrected_to = log_min
        logger.info("the log begins at %s: deleted %s consume queue files and %s key index files", log_min, files, indexes)

    async def _correct_queue(self, queue: ConsumeQueue, log_min: int, reads: Reads) -> None:
        def step(reads: Reads) -> None:
            queue.min_offset = max(queue.min_offset, self.reader.first_kept(queue, log_min, reads))

        await until_warm(step, reads, self.limiter, self._cold_reads.fetch)

    async def _delete_queue_files(self, key: tuple[str, int], queue: ConsumeQueue) -> int:
        count = 0
        while self.queues.queues.get(key) is queue and (base := queue.take_expired()) is not None:
            if not await self._remove_quietly(queue.path(base)):
                queue.put_back(base)  # a queue's files have no gaps
                break
            count += 1
        return count

    async def _remove_quietly(self, path: Path) -> bool:
        """Delete a file that does no harm if it stays: the next start finds it again."""
        try:
            await trio.to_thread.run_sync(self.disk.remove, path, limiter=self.limiter)
        except OSError as error:
            logger.warning("%s cannot be deleted: %s", path, error)
            return False
        return True
