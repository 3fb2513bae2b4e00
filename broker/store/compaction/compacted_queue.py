"""CompactedQueue: a queue of a compaction topic as readers see it: its copies, then its messages.

::

    queue offsets   min ──── copies that passes went over ──── compacted_end ── the log ──► end

Passes leave the copies in the last file alone, so from ``compacted_end`` on the commit log has the
same messages, and serves them like those of any other topic. What the log has deleted is read from
the copies as well.

Threads read and change the files; ``lock`` lets one of them do so at a time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TypeVar

import attrs
import trio

from triomq.broker.store.compaction.compaction_log import CompactionLog, key_of
from triomq.broker.store.core.results import GetLimits, GetResult, GetStatus
from triomq.broker.store.queues.table import QueueTable
from triomq.remoting.protocol.record import StoredMessage
from triomq.remoting.protocol.record_reader import queue_offsets, read_record

T = TypeVar("T")


@attrs.define(eq=False)
class CompactedQueue:
    """The copies of a queue, with the queue of the log that they belong to."""

    copies: CompactionLog
    queues: QueueTable
    limiter: trio.CapacityLimiter
    covered: int = -1
    """The last queue offset that passes have covered."""
    filled: bool = False
    """Whether the copies that are older than the log have been fetched, or there is nobody to ask
    for them.
    """
    deleted: bool = attrs.field(default=False, init=False)
    copied: int = attrs.field(init=False)
    """The queue offset of the next message to copy."""
    skipped: int = attrs.field(default=0, init=False)
    """Messages without a key, which have no copy: only other brokers store them."""
    lock: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    def __attrs_post_init__(self) -> None:
        self.copied = self.copies.end_offset
        if self.covered >= self.copied:
            self.covered = -1  # noted for an earlier topic of this name

    @property
    def key(self) -> tuple[str, int]:
        return self.copies.topic, self.copies.queue_id

    # Bounds

    @property
    def log_min(self) -> int:
        """The queue offset of the first message that the log has; ``log_end`` without any."""
        queue = self.queues.queues.get(self.key)
        return queue.min_offset if queue is not None else 0

    @property
    def log_end(self) -> int:
        """One past the queue offset of the last message of the log; 0: it never had any."""
        queue = self.queues.queues.get(self.key)
        return queue.end_offset if queue is not None else 0

    @property
    def min_offset(self) -> int:
        """The smallest readable offset."""
        return self.copies.min_offset if self.copies.end_offset else self.log_min

    @property
    def end_offset(self) -> int:
        """One past the last readable offset."""
        return max(self.log_end, self.copies.end_offset)

    @property
    def lacks_older(self) -> bool:
        """Whether messages may be missing that are older than the log and have no copy here."""
        return not self.filled or self.copies.end_offset < self.log_min

    def has_copy_of(self, offset: int) -> bool:
        """Return whether a get at ``offset`` is answered by the copies, and not by the log."""
        return not self.log_end or offset < max(self.log_min, self.copies.compacted_end)

    # Reading

    async def get(
        self,
        offset: int,
        messages_max: int,
        bytes_max: int,
        tag_codes: frozenset[int] | None,
        limits: GetLimits,
    ) -> GetResult:
        """Return copies from ``offset`` on; the next one follows after a gap, if there is one.

        Raises: StoreIoError. Checkpoint: always.
        """
        count_max = max(1, min(messages_max, limits.count_in_memory))
        size_max = min(bytes_max, limits.bytes_in_memory)
        low = self.min_offset
        try:
            copies = (
                await self.work(lambda log: log.read(offset, count_max, size_max))
                if offset >= low
                else []
            )
        except QueueDeleted:
            return GetResult(GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
        low, high = self.min_offset, self.end_offset
        if not copies:
            status, following = self._nothing_at(offset, low, high)
            return GetResult(status, following, low, high)
        following = copies[-1].queue_offset + 1
        if tag_codes is not None:
            copies = [copy for copy in copies if copy.tags_code in tag_codes]
            if not copies:
                return GetResult(GetStatus.NO_MATCHED_MESSAGE, following, low, high)
        records = [copy.record for copy in copies]
        size = sum(map(len, records))
        return GetResult(GetStatus.FOUND, following, low, high, records, len(records), size)

    def _nothing_at(self, offset: int, low: int, high: int) -> tuple[GetStatus, int]:
        """Return status and next offset for a get that finds no copy."""
        if not high:
            return GetStatus.NO_MESSAGE_IN_QUEUE, 0
        if offset < low:
            return GetStatus.OFFSET_TOO_SMALL, low
        if offset > high:
            return GetStatus.OFFSET_OVERFLOW_BADLY, high
        copied = self.copies.end_offset
        if offset == high or (self.lacks_older and offset >= copied):
            return GetStatus.OFFSET_OVERFLOW_ONE, offset  # a slave gets the older ones yet
        return GetStatus.MESSAGE_WAS_REMOVING, max(offset + 1, self.log_min)

    async def message_at(self, position: int) -> StoredMessage | None:
        """Return the copy at a position of the compaction log; None: there is none.

        Raises: StoreIoError. Checkpoint: always.
        """
        with contextlib.suppress(QueueDeleted):
            return await self.work(lambda log: log.message_at(position))
        return None

    async def store_time_at(self, offset: int) -> int:
        """Return the store time of the copy with this offset; -1 if there is none.

        Raises: StoreIoError. Checkpoint: always.
        """
        with contextlib.suppress(QueueDeleted):
            copies = await self.work(lambda log: log.read(offset, 1, 0))
            if copies and copies[0].queue_offset == offset:
                return copies[0].store_timestamp
        return -1

    async def offset_by_time(self, timestamp_ms: int, *, upper: bool = False) -> int | None:
        """Return the offset of the first copy stored at or after a time; None: all are older.

        ``upper``: of the last one stored at or before it; None also if none is older.

        Raises: StoreIoError. Checkpoint: always.
        """
        with contextlib.suppress(QueueDeleted):
            return await self.work(lambda log: log.offset_by_time(timestamp_ms, upper=upper))
        return None

    # Writing

    async def append(self, records: Sequence[bytes]) -> int:
        """Copy messages, the next ones of the queue, and return how many were copied.

        Those without a key are skipped.

        Raises: IllegalMessage, DiskFull, StoreIoError, FlushFailed. Checkpoint: always.
        """

        def step(log: CompactionLog) -> int:
            count = 0
            for record in records:
                message = read_record(record, 0, len(record))
                if not isinstance(message, str) and key_of(message) is None:
                    self.skipped += 1
                else:
                    count += log.append(record)
                self.copied = queue_offsets([record])[0] + 1
            return count

        return await self.work(step)

    async def sync(self) -> None:
        """Force the copies to the disk. Raises: FlushFailed. Checkpoint: always."""
        await self.work(CompactionLog.sync)

    async def work(self, step: Callable[[CompactionLog], T]) -> T:
        """Do something with the copies, in a thread, while nobody else does.

        Raises: QueueDeleted, and what ``step`` raises. Checkpoint: always.
        """
        async with self.lock:
            if self.deleted:
                raise QueueDeleted
            try:
                return await trio.to_thread.run_sync(self._work, step, limiter=self.limiter)
            except Exception:
                if self.deleted:  # its files moved away meanwhile
                    raise QueueDeleted from None
                raise

    def _work(self, step: Callable[[CompactionLog], T]) -> T:
        try:
            return step(self.copies)
        finally:
            self.copies.close()  # there may be thousands of queues, and few open files


class QueueDeleted(Exception):
    """The topic was deleted meanwhile: there is nothing more to do for this queue."""
