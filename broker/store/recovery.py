"""Recovery: find the valid end of the log and bring every index to it. Runs before anything else, with the lock held.

1. A safe start. Best is our own mark in the checkpoint: everything before it is on the disk, indexes included, so they are cut there and the log is read
   from there. Without a (believable) mark, Java's rules name a segment: after a clean stop the last one that begins no later than what all indexes have,
   after a crash the last one whose first record is older than the checkpoint's times. If in doubt, the first segment.
2. Read the log from there with CRC checks and apply every record to the indexes, which skip what they have.
3. The first record that is not whole is the end E. Cut indexes at E, delete segments behind it, and fill the rest of its segment with zeros: Java leaves the
   old bytes, and a later append that ends just where an old record begins would bring that one back to life in the next crash.

Source: store/…/CommitLog.java#recoverNormally, #recoverAbnormally, store/…/queue/ConsumeQueueStore.java.
"""

from __future__ import annotations

import logging
import struct
from collections import deque
from collections.abc import Callable

import attrs
import trio

from triomq.broker.store.blocks_ahead import BlocksAhead
from triomq.broker.store.checkpoint import Checkpoint
from triomq.broker.store.commitlog import CommitLog
from triomq.broker.store.config import StoreConfig
from triomq.broker.store.disk import Disk
from triomq.broker.store.draft import Appended, Batch, Draft
from triomq.broker.store.errors import StoreDamaged
from triomq.broker.store.key_index import KeyIndex
from triomq.broker.store.log_scan import LogScan
from triomq.broker.store.progress import Progress
from triomq.broker.store.queue_table import QueueTable
from triomq.remoting.protocol.message import INNER_BATCH, MULTI_DISPATCH

logger = logging.getLogger(__name__)

RECORD_PLACE = struct.Struct(">i8xi4xqqi")
"""Size, queue id, queue offset, log offset and flags, at the head of a record."""
DOUBTFUL_BYTES = 3 << 30
"""More than any broker writes between an fsync that succeeds and one that fails; the last segment may be empty."""
WRITE_OUT_RECORDS = 65_536
"""Queue entries leave memory so often while the log is read."""


@attrs.frozen(kw_only=True)
class Recovered:
    """What recovery found."""

    end: int
    """End of the log."""
    last: tuple[int, int, int] | None
    """(log offset, end, store time) of the last record, None for an empty log."""
    trusted: bool
    """Whether the checkpoint's mark was believed."""
    scanned_from: int
    records: int
    """Records read."""
    stopped_by: str
    """Why the log ends where it ends; for people."""


def sole(error: BaseException) -> BaseException:
    """The one exception in what a nursery raises, cancellations aside; the group itself if there are several."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    _, others = error.split(trio.Cancelled)
    left = (others or error).exceptions
    return sole(left[0]) if len(left) == 1 else error


@attrs.define(eq=False)
class Recovery:
    """One run over files that are already loaded."""

    config: StoreConfig
    disk: Disk
    log: CommitLog
    queues: QueueTable
    key_index: KeyIndex
    checkpoint: Checkpoint
    clean: bool
    """Whether the last stop was clean (no ``abort``)."""
    clock: Callable[[], int]
    """Wall time in ms."""
    _records: int = attrs.field(default=0, init=False)
    """Read from the log."""
    _last: tuple[int, int, int] | None = attrs.field(default=None, init=False)
    """(log offset, end, store time) of the last of them."""

    async def run(self) -> Recovered:
        """Do it all. Checkpoint: every few hundred records. Raises StoreError, OSError."""
        segments = self.log.segments
        self._distrust_names()
        if not segments.items:
            if self.queues.queues:
                logger.warning("there is no commit log: the consume queues are deleted")
            self.queues.delete_all()
            self.key_index.truncate(0)
            return Recovered(end=0, last=None, trusted=False, scanned_from=0, records=0, stopped_by="no log")
        last = self._trust_mark()
        trusted = last is not None
        start = last[1] if last is not None else self._start_by_java_rules()
        if not trusted and not self.clean:
            self.queues.truncate(start, is_record=self._is_record)  # of what lies behind, any file or page may be missing: it is made again
        if not self.clean:
            # What is read must be what the disk has, or will have: the last fsync may have failed, and the cache would go on showing what is lost.
            for segment in segments.covering(max(start, segments.end - DOUBTFUL_BYTES), segments.end):
                self.disk.drop_cache(segment.path)
        scan = LogScan(self.disk, segments, start, segments.end, self.config.check_crc_on_recover)
        await self._read_log(scan)
        last, records = self._last or last, self._records
        end = scan.position
        self._check_damage(end, scan.stopped_by)
        if self.queues.log_end > end:
            logger.warning("the consume queues know messages up to log offset %s, but the log ends at %s: their last entries are cut off", self.queues.log_end, end)
        self.queues.truncate(end)
        if self.key_index.position >= end:
            self.key_index.truncate(end)
        dropped = segments.drop_from(end)
        self.log.erase_from(end)
        for queue in self.queues.queues.values():
            queue.find_min(segments.first_offset)
        (logger.info if self.clean else logger.warning)(
            "the log ends at %s (%s records read from %s; %s%s)%s",
            end,
            records,
            start,
            "clean stop" if self.clean else "after a crash",
            f"; {scan.stopped_by}" if scan.stopped_by else "",
            f"; deleted {len(dropped)} segments behind it" if dropped else "",
        )
        return Recovered(end=end, last=last, trusted=trusted, scanned_from=start, records=records, stopped_by=scan.stopped_by)

    def _distrust_names(self) -> None:
        """After a crash the names of files may exist in memory only; they are forced to the disk again with their files."""
        for segment in self.log.segments.items:
            segment.name_durable = self.clean
        for queue in self.queues.queues.values():
            queue.names_durable = self.clean
        self.key_index.names_durable = self.clean

    async def _read_log(self, scan: LogScan) -> None:
        """Apply every record from the scan's position on. Raises StoreError, OSError, and any other exception that comes alone, as they are."""
        progress = Progress(scan.position, scan.end, self.clock)
        send, receive = trio.open_memory_channel[tuple[int, bytes]](1)
        fault: BaseException | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(BlocksAhead(self.disk, scan.segments, scan.position, scan.end).run, send, name="store-blocks-ahead")
                async for start, data in receive:
                    scan.give(start, data)
                    await self._apply_all(scan, progress)
                    if scan.stopped_by or scan.position >= scan.end:
                        break
                else:
                    scan.take_over()
                    await self._apply_all(scan, progress)
                nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            fault = sole(group)
        if fault is not None:
            raise fault  # here, so that it keeps its own cause and context

    async def _apply_all(self, scan: LogScan, progress: Progress) -> None:
        """Apply what the scan has. Checkpoint: every few hundred records."""
        while (batch := scan.next_batch()) is not None:
            self._apply(batch)
            before = self._records
            self._records += len(batch.places)
            if before // WRITE_OUT_RECORDS != self._records // WRITE_OUT_RECORDS:
                deque(self.queues.write_out(), maxlen=0)
            if batch.places:
                place = batch.places[-1]
                self._last = (place.log_offset, place.log_offset + place.size, place.store_timestamp)
            progress.note(scan.position)
            await trio.lowlevel.checkpoint()

    def _apply(self, batch: Batch) -> None:
        self.queues.apply(batch)
        if self.config.index_enabled:
            self.key_index.apply(batch)
        self.queues.take_arrivals()

    def _check_damage(self, end: int, stopped_by: str) -> None:
        """After a clean stop no record can be torn: a bad one with good segments behind it is damage, and must not cost those. Raises StoreDamaged."""
        if not self.clean:
            return
        for segment in self.log.segments.items:
            if segment.base > end and self._record_at(segment.base) is not None:
                bad = self.log.segments.find(end)
                raise StoreDamaged(
                    bad.path if bad is not None else self.log.segments.directory,
                    f"the record at log offset {end} is damaged ({stopped_by}), but later segments hold messages",
                    "restore the file from a copy; or move all later segments away, which loses their messages",
                )

    # Where to start

    def _trust_mark(self) -> tuple[int, int, int] | None:
        """(log offset, end, store time) of the marked record if the mark fits log, queues and index; then these are cut there, ready to go on."""
        mark = self.checkpoint.mark
        if mark is None:
            return None
        found = self._record_at(mark.record_offset)
        if found is None or found[1].log_offset + found[1].size != mark.record_end:
            logger.warning("the checkpoint does not fit the log; recovery goes by Java's rules")
            return None
        self.queues.truncate(mark.record_end, clean=self.clean, is_record=None if self.clean else self._is_record)
        if self.config.index_enabled and not (self.clean and self.key_index.last_offset == mark.index_position):
            self.key_index.truncate(mark.record_end)
        if mark.has_queues and not self.queues.queues:
            logger.warning("the consume queues are gone; they are made again by Java's rules")
            return None
        if self.config.index_enabled and self.key_index.last_offset != mark.index_position:
            logger.warning("the key index is not as the checkpoint says; recovery goes by Java's rules")
            return None
        return mark.record_offset, mark.record_end, found[1].store_timestamp

    def _start_by_java_rules(self) -> int:
        """Base of the segment to start at."""
        segments = self.log.segments.items
        if self.config.index_enabled and not self.key_index.files:
            logger.warning("there is no key index: it is made again from the log")
        if self.config.index_enabled and not self.clean:
            self.key_index.drop_after(self.checkpoint.index_timestamp)  # any page of the others may be missing
        elif self.key_index.damaged:
            self.key_index.position -= 1  # the last record is indexed again, as in drop_after
        for queue in self.queues.queues.values():
            queue.find_end_by_scan()
        if all(queue.batched for queue in self.queues.queues.values()):
            return segments[0].base  # the times of the checkpoint tell nothing about queues that are gone
        for segment in reversed(segments):
            found = self._record_at(segment.base)
            if found is None or found[1].store_timestamp == 0:
                continue
            place = found[1]
            if self.config.index_enabled and place.log_offset > max(0, self.key_index.position):
                continue
            if self.clean:
                if place.log_offset <= self.queues.log_end:
                    return segment.base
            elif place.store_timestamp <= self.checkpoint.safe_timestamp and (
                self.checkpoint.queue_log_offset <= 0 or place.log_offset <= self.checkpoint.queue_log_offset
            ):
                return segment.base
        return segments[0].base

    def _is_record(self, queue_id: int, queue_offset: int, log_offset: int, size: int) -> bool:
        """Whether the log has this record; one that has expired counts, and so does one that has entries under other numbers than its own."""
        segment = self.log.segments.find(log_offset)
        if segment is None or log_offset + RECORD_PLACE.size > segment.end:
            return log_offset < self.log.segments.first_offset
        data = self.disk.read_path(segment.path, max(size, RECORD_PLACE.size), log_offset - segment.base)
        found_size, found_id, found_number, found_offset, flags = RECORD_PLACE.unpack_from(data)
        if (found_size, found_offset) != (size, log_offset):
            return False
        return (found_id, found_number) == (queue_id, queue_offset) or bool(flags & INNER_BATCH) or f"{MULTI_DISPATCH}\1".encode() in data

    def _record_at(self, offset: int) -> tuple[Draft, Appended] | None:
        """The whole record at a log offset, None if there is none."""
        if self.log.segments.find(offset) is None:
            return None
        batch = LogScan(self.disk, self.log.segments, offset, offset + 1).next_batch()
        return (batch.drafts[0], batch.places[0]) if batch is not None and batch.places else None
