"""Recovery: finds the valid end of the log, and brings every index to it, before anything else.

*Indexes* are consume queues and key index; ``index_…`` in settings and checkpoint is the key index
alone.

1. Find a safe start. Best is our own mark in the checkpoint: everything before it is on the disk,
   indexes included, so the indexes are cut there and the log is read from there. Without a valid
   mark, Java's rules choose a segment: after a clean stop the last one that begins no later than
   the last record of all indexes; after a crash the last one whose first record is older than the
   times of the checkpoint. If in doubt, the first segment.
2. Read the log from there with CRC checks and apply every record to the indexes, which skip the
   records that they have.
3. The first record that is not whole is the end E. Cut the indexes at E, delete the segments behind
   E, and fill the rest of its segment with zeros. Java leaves the old bytes there: if a later
   append ends exactly where an old record begins, that record is valid again after the next crash.

In controller mode the end of the log may be cut later, so step 2 only finds the end: records behind
the safe start are shown when they are confirmed. A cut (``cut_at``) is a recovery that takes the
log to end there. It is repeated whole after a crash, since ``opening`` first removes the mark of a
clean stop, and a mark of the checkpoint that lies behind the cut.

Source: store/…/CommitLog.java#recoverNormally, #recoverAbnormally,
store/…/queue/ConsumeQueueStore.java.
"""

from __future__ import annotations

import logging
import struct
from collections import deque
from collections.abc import Callable

import attrs
import trio

from triomq.broker.store.core.draft import Appended, Draft
from triomq.broker.store.core.errors import StoreDamaged
from triomq.broker.store.indexing.store_files import OpenStoreFiles
from triomq.broker.store.io.checkpoint import Checkpoint
from triomq.broker.store.io.log_blocks import LogBlocks
from triomq.broker.store.log.scan import LogScan
from triomq.broker.store.queues.batch import Batch
from triomq.broker.store.recovery_progress import RecoveryProgress
from triomq.remoting.protocol.message_properties import MULTI_DISPATCH
from triomq.remoting.protocol.sys_flags import INNER_BATCH

logger = logging.getLogger(__name__)

RECORD_PLACE = struct.Struct(">i8xi4xqqi")
"""Size, queue id, queue offset, log offset and flags at the start of a record."""
DOUBTFUL_BYTES = 3 << 30
"""More bytes than any broker writes between an fsync that succeeds and one that fails. The last
segment may be empty.
"""
WRITE_OUT_RECORDS = 65_536
"""Queue entries are moved from memory to their files after this number of records."""


@attrs.frozen(kw_only=True)
class Recovered:
    """The result of a recovery."""

    end: int
    """End of the log."""
    last: tuple[int, int, int] | None
    """(log offset, end, store time) of the last record; None for an empty log."""
    trusted: bool
    """Whether the mark of the checkpoint was valid."""
    scanned_from: int
    indexed: int
    """Up to where queues and key index have the records."""
    indexed_last: tuple[int, int, int] | None
    """The last record before ``indexed``, as ``last``; None if it was not read."""
    records: int
    """The number of records read."""


def sole(error: BaseException) -> BaseException:
    """Return the only exception of a group, besides cancellations; or else the group itself."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    _, others = error.split(trio.Cancelled)
    left = (others or error).exceptions
    return sole(left[0]) if len(left) == 1 else error


@attrs.define(eq=False)
class Recovery:
    """One run over files that are loaded already."""

    files: OpenStoreFiles
    checkpoint: Checkpoint
    clean: bool
    """Whether the last stop was clean (there is no file ``abort``)."""
    clock: Callable[[], int]
    """Wall time in ms."""
    holds_tail: bool = False
    """Whether records behind the safe start wait until they are confirmed."""
    cut_at: int | None = None
    """Where the log ends at most, or the last whole record before; None: where its records do."""
    _records: int = attrs.field(default=0, init=False)
    """The number of records read."""
    _last: tuple[int, int, int] | None = attrs.field(default=None, init=False)
    """(log offset, end, store time) of the last record read."""

    async def run(self) -> Recovered:
        """Recover. Raises: StoreError, OSError. Checkpoint: always, every few hundred records.

        After a clean stop reading begins at the checkpoint's mark, or, if that does not fit, at the
        last segment that begins before the end of all indexes. After a crash the last entries are
        also compared with the log; without a mark, key index files are dropped by their times and
        queues cut at the start.
        """
        segments = self.files.log.segments
        self._distrust_names()
        if not segments.items:
            if self.files.queues.queues:
                logger.warning("there is no commit log: the consume queues are deleted")
            # Entries without a log point to nothing, and new messages would get offsets behind
            # them.
            self.files.queues.delete_all()
            self.files.key_index.truncate(0)
            return Recovered(
                end=0,
                last=None,
                trusted=False,
                scanned_from=0,
                indexed=0,
                indexed_last=None,
                records=0,
            )
        last = self._trust_mark()
        trusted = last is not None
        start = last[1] if last is not None else self._start_by_java_rules()
        stop = segments.end if self.cut_at is None else min(self.cut_at, segments.end)
        cut = segments.find(stop)
        if start > stop and cut is not None:
            # The safe start lies behind the cut: begin at the segment of the cut, since nothing
            # else says where a record begins.
            last, start, trusted = None, cut.base, False
        marked = last
        if not trusted and not self.clean:
            # Any file or page behind the start may be missing: those entries are rebuilt.
            self.files.queues.truncate(start, is_record=self._is_record)
        if not self.clean:
            # Read what the disk has: the last fsync may have failed, and the page cache would go on
            # showing the lost bytes.
            for segment in segments.covering(
                max(start, segments.end - DOUBTFUL_BYTES), segments.end
            ):
                self.files.disk.drop_cache(segment.path)
        scan = LogScan(
            self.files.disk, segments, start, stop, self.files.config.check_crc_on_recover
        )
        await self._read_log(scan)
        last, records = self._last or last, self._records
        end = scan.position
        # A scan ends between two records, so it may pass the wanted cut by part of one.
        if end > stop and self._last is not None:
            end = self._last[0]  # the cut is inside of a record
        self._check_damage(end, scan.stopped_by)
        if self.files.queues.log_end > end:
            logger.warning(
                "the consume queues know messages up to log offset %s, but the log ends at %s:"
                " their last entries are cut off",
                self.files.queues.log_end,
                end,
            )
        self.files.queues.truncate(end)
        # The key index has no entry behind its position: a file that ends before needs no cut.
        if self.files.key_index.position >= end:
            self.files.key_index.truncate(end)
        # Only now, when all entries for these bytes are gone: after a crash in between, the next
        # recovery finds the same end again.
        dropped = segments.drop_from(end)
        self.files.log.erase_from(end)
        # Retention may have deleted segments whose entries are still in the queues.
        for queue in self.files.queues.queues.values():
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
        held = self.holds_tail
        return Recovered(
            end=end,
            last=last,
            trusted=trusted,
            scanned_from=start,
            indexed=start if held else end,
            indexed_last=marked if held else last,
            records=records,
        )

    def _distrust_names(self) -> None:
        """After a crash have the names of all files forced to the disk again, with their files."""
        for segment in self.files.log.segments.items:
            segment.name_durable = self.clean
        for queue in self.files.queues.queues.values():
            queue.names_durable = self.clean
        self.files.key_index.names_durable = self.clean

    async def _read_log(self, scan: LogScan) -> None:
        """Apply every record from the position of the scan on.

        Raises: StoreError, OSError, and any other exception that comes alone, without a group.
        """
        progress = RecoveryProgress(scan.position, scan.end, self.clock)
        # One block ahead: a thread reads the next one while this task checks the last.
        send, receive = trio.open_memory_channel[tuple[int, bytes]](1)
        fault: BaseException | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(
                    LogBlocks(self.files.disk, scan.segments, scan.position, scan.end).run,
                    send,
                    name="store-log-blocks",
                )
                async for start, data in receive:
                    scan.give(start, data)
                    await self._apply_all(scan, progress)
                    if scan.stopped_by or scan.position >= scan.end:
                        break
                else:
                    # The last block ended before the last record did.
                    scan.take_over()
                    await self._apply_all(scan, progress)
                nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            fault = sole(group)
        if fault is not None:
            raise fault  # outside of `except`, so that it keeps its own cause and context

    async def _apply_all(self, scan: LogScan, progress: RecoveryProgress) -> None:
        """Apply the records that the scan has. Checkpoint: maybe, every few hundred records."""
        while (batch := scan.next_batch()) is not None:
            self._apply(batch)
            before = self._records
            self._records += len(batch.places)
            if before // WRITE_OUT_RECORDS != self._records // WRITE_OUT_RECORDS:
                # Recovery of a whole log would otherwise keep the entries of all its messages in
                # memory.
                deque(self.files.queues.write_out(), maxlen=0)
            if batch.places:
                place = batch.places[-1]
                end = place.log_offset + place.size
                self._last = place.log_offset, end, place.store_timestamp
            progress.note(scan.position)
            await trio.lowlevel.checkpoint()

    def _apply(self, batch: Batch) -> None:
        if self.holds_tail:
            return
        self.files.queues.apply(batch)
        if self.files.config.index_enabled:
            self.files.key_index.apply(batch)
        self.files.queues.take_arrivals()

    def _check_damage(self, end: int, stopped_by: str) -> None:
        """Refuse a bad record before good segments, if the last stop was clean.

        Then no record is torn: it is damage, and must not cost those segments. After a crash the
        kernel may have written whole segments behind a torn record.

        Raises: StoreDamaged.
        """
        if not self.clean:
            return
        for segment in self.files.log.segments.items:
            if segment.base > end and self._record_at(segment.base) is not None:
                bad = self.files.log.segments.find(end)
                raise StoreDamaged(
                    bad.path if bad is not None else self.files.log.segments.directory,
                    f"the record at log offset {end} is damaged ({stopped_by}), but later segments"
                    " hold messages",
                    "restore the file from a copy; or move all later segments away, which loses"
                    " their messages",
                )

    # Where to start

    def _trust_mark(self) -> tuple[int, int, int] | None:
        """Cut queues and key index at the mark of the checkpoint, if log and indexes fit it.

        What is cut for a mark that turns out not to fit comes back when the log is read.

        Returns: (log offset, end, store time) of the marked record; None if the mark does not fit.
        """
        mark = self.checkpoint.mark
        if mark is None:
            return None
        found = self._record_at(mark.record_offset)
        # The file of the checkpoint may be from another life of this store: copied, restored, or
        # kept when the log was deleted. The record at the mark tells.
        if found is None or found[1].log_offset + found[1].size != mark.record_end:
            logger.warning("the checkpoint does not fit the log; recovery goes by Java's rules")
            return None
        self.files.queues.truncate(
            mark.record_end, clean=self.clean, is_record=None if self.clean else self._is_record
        )
        if self.files.config.index_enabled and not (
            self.clean and self.files.key_index.last_offset == mark.index_position
        ):
            self.files.key_index.truncate(mark.record_end)
        if mark.has_queues and not self.files.queues.queues:
            logger.warning("the consume queues are missing; they are rebuilt by Java's rules")
            return None
        if (
            self.files.config.index_enabled
            and self.files.key_index.last_offset != mark.index_position
        ):
            logger.warning(
                "the key index is not as the checkpoint says; recovery goes by Java's rules"
            )
            return None
        return mark.record_offset, mark.record_end, found[1].store_timestamp

    def _start_by_java_rules(self) -> int:
        """Return the base of the segment to start at; find the ends of all queues on the way.

        After a crash it deletes the files of the key index that may lack pages.
        """
        segments = self.files.log.segments.items
        if self.files.config.index_enabled and not self.files.key_index.files:
            logger.warning("there is no key index: it is rebuilt from the log")
        if self.files.config.index_enabled and not self.clean:
            # Any page of the later files may be missing.
            self.files.key_index.drop_after(self.checkpoint.index_timestamp)
        elif self.files.key_index.damaged:
            self.files.key_index.position -= 1  # index the last record again, as in `drop_after`
        for queue in self.files.queues.queues.values():
            queue.find_end_by_scan()
        if all(queue.batched for queue in self.files.queues.queues.values()):
            # Also true if there are no queues. The times of the checkpoint do not cover queues that
            # are missing.
            return segments[0].base
        for segment in reversed(segments):
            found = self._record_at(segment.base)
            if found is None or found[1].store_timestamp == 0:
                continue
            place = found[1]
            # The key index would lack the records between its position and this segment.
            if self.files.config.index_enabled and place.log_offset > max(
                0, self.files.key_index.position
            ):
                continue
            if self.clean:
                # A clean stop wrote all entries out, so the newest one says how far all queues are.
                if place.log_offset <= self.files.queues.log_end:
                    return segment.base
            elif place.store_timestamp <= self.checkpoint.safe_timestamp and (
                self.checkpoint.queue_log_offset <= 0
                or place.log_offset <= self.checkpoint.queue_log_offset
            ):
                return segment.base
        return segments[0].base

    def _is_record(self, queue_id: int, queue_offset: int, log_offset: int, size: int) -> bool:
        """Return whether the log has this record.

        An expired record counts, and so does a record with entries under other numbers than its
        own.
        """
        segment = self.files.log.segments.find(log_offset)
        # Below the log, retention has deleted the record; a queue keeps such entries until it is
        # cleaned.
        if segment is None or log_offset + RECORD_PLACE.size > segment.end:
            return log_offset < self.files.log.segments.first_offset
        data = self.files.disk.read_path(
            segment.path, max(size, RECORD_PLACE.size), log_offset - segment.base
        )
        found_size, found_id, found_number, found_offset, flags = RECORD_PLACE.unpack_from(data)
        if (found_size, found_offset) != (size, log_offset):
            return False
        return (
            (found_id, found_number) == (queue_id, queue_offset)
            or bool(flags & INNER_BATCH)
            or f"{MULTI_DISPATCH}\1".encode() in data
        )

    def _record_at(self, offset: int) -> tuple[Draft, Appended] | None:
        """Return the whole record at a log offset; None if there is none."""
        if self.files.log.segments.find(offset) is None:
            return None
        batch = LogScan(self.files.disk, self.files.log.segments, offset, offset + 1).next_batch()
        return (batch.drafts[0], batch.places[0]) if batch is not None and batch.places else None
