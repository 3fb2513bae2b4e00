"""Reader: every query of a store as a synchronous function of a ``Reads`` (see ``io/reads.py``).

The limits of a get and the next offset of each status are Java's. Source:
store/…/DefaultMessageStore.java#getMessage, #queryMessage,
store/…/ConsumeQueue.java#getOffsetInQueueByTime.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache, partial
from operator import add

import attrs

from triomq.broker.store.core.config import QUEUE_ENTRY_BYTES, StoreConfig
from triomq.broker.store.core.results import (
    RANGE_LIMITS,
    GetLimits,
    GetResult,
    GetStatus,
    QueryResult,
)
from triomq.broker.store.core.stored_times import TimeSearch
from triomq.broker.store.io.reads import Buffer, Cold, Range, Reads
from triomq.broker.store.keys.index import KeyIndex
from triomq.broker.store.log.commit_log import CommitLog, Run
from triomq.broker.store.queues.batch_queue import BatchQueue
from triomq.broker.store.queues.consume_queue import ENTRY, ConsumeQueue
from triomq.broker.store.queues.search import FILLER_SIZE, Entry, first_not
from triomq.broker.store.queues.table import QueueTable
from triomq.broker.store.reading.batch_reader import BatchReader
from triomq.remoting.protocol.record import (
    BLANK,
    HEAD_V4,
    HOST_V4_BYTES,
    HOST_V6_BYTES,
    LOG_OFFSET_AT,
    MAGIC_V1,
    MAGIC_V2,
    SYS_FLAG_AT,
)
from triomq.remoting.protocol.sys_flags import BORN_HOST_V6

I8 = struct.Struct(">q")
U4 = struct.Struct(">I")
BORN_HOST_AT = 48


@lru_cache(maxsize=256)
def _places(count: int) -> struct.Struct:
    """Return the layout of log offsets and sizes of ``count`` queue entries."""
    return struct.Struct(">" + count * "qi8x")


@attrs.define(eq=False)
class Reader:
    """Reads log, queues and key index; changes nothing."""

    config: StoreConfig
    log: CommitLog
    queues: QueueTable
    key_index: KeyIndex
    memory_bytes_max: int
    """A record farther than this behind the end of the log counts as "on disk"."""
    batches: BatchReader = attrs.field(init=False)
    _limits: GetLimits = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        config = self.config
        self.batches = BatchReader(config, self.log, self.memory_bytes_max)
        self._limits = GetLimits(
            config.transfer_count_memory_max,
            config.transfer_bytes_memory_max,
            config.transfer_count_disk_max,
            config.transfer_bytes_disk_max,
        )

    def limits(self, *, is_range: bool) -> GetLimits:
        """Return the limits of one get."""
        return RANGE_LIMITS if is_range else self._limits

    # Messages of a queue

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        messages_max: int,
        bytes_max: int,
        tag_codes: frozenset[int] | None,
        is_range: bool,
        reads: Reads,
    ) -> GetResult:
        """Return messages of a queue from ``offset`` on.

        At most ``messages_max`` with at most ``bytes_max``, but always the first one. ``is_range``:
        within ``RANGE_LIMITS``, otherwise within those of the settings.

        Raises: Cold, StoreIoError.
        """
        queue = self.queues.queues.get((topic, queue_id))
        if queue is None:
            return GetResult(GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
        low, high = queue.min_offset, queue.end_offset
        if high == 0:
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, low, high)
        if offset >= high:
            if offset == high:
                return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
            return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, high, low, high)
        if offset < low:
            return GetResult(GetStatus.OFFSET_TOO_SMALL, low, low, high)
        limits = self.limits(is_range=is_range)
        if isinstance(queue, BatchQueue):
            return self.batches.get(
                queue, offset, messages_max, bytes_max, tag_codes, limits, reads
            )
        if tag_codes is None:
            scan_count = min(messages_max, limits.count_in_memory)
        else:
            scan_count = max(self.config.filter_bytes_max // QUEUE_ENTRY_BYTES, messages_max)
        entries = queue.entries_from(offset, max(1, min(scan_count, high - offset)), reads)
        if tag_codes is None:
            result = self._take_all(queue, offset, entries, bytes_max, limits, reads)
            if result is not None:
                return result
        return self._collect(
            queue, offset, entries, messages_max, bytes_max, tag_codes, limits, reads
        )

    def _take_all(
        self,
        queue: ConsumeQueue,
        offset: int,
        entries: Buffer,
        bytes_max: int,
        limits: GetLimits,
        reads: Reads,
    ) -> GetResult | None:
        """Return the result of ``_collect`` if all entries are taken; None if it is not certain.

        All are taken for a consumer that keeps up.

        It has no step per record, which halves the cost of a get.
        """
        count = len(entries) // QUEUE_ENTRY_BYTES
        if not count or count > limits.count_in_memory:
            return None
        fields = _places(count).unpack_from(entries)
        starts, sizes = fields[0::2], fields[1::2]
        size_bytes = sum(sizes)
        if (
            size_bytes > bytes_max
            or size_bytes > limits.bytes_in_memory
            or size_bytes >= FILLER_SIZE  # a filler is among them: no answer is that large
            or starts[0] < self.log.appended.value - self.memory_bytes_max
            or starts[0] < self.log.first_offset
        ):
            return None
        if starts[-1] + sizes[-1] - starts[0] == size_bytes:
            starts, sizes = starts[:1], (size_bytes,)
        chunks: Sequence[Buffer] | None = self.log.slices(starts, sizes)
        if chunks is None:
            chunks = self.log.read(list(zip(starts, map(add, starts, sizes))), reads)
        low, high = queue.min_offset, queue.end_offset
        return GetResult(GetStatus.FOUND, offset + count, low, high, chunks, count, size_bytes)

    def _collect(
        self,
        queue: ConsumeQueue,
        offset: int,
        entries: Buffer,
        messages_max: int,
        bytes_max: int,
        tag_codes: frozenset[int] | None,
        limits: GetLimits,
        reads: Reads,
    ) -> GetResult:
        """Select from ``entries``, which begin at ``offset``; adjacent records become one run."""
        end, log_min = self.log.appended.value, self.log.first_offset
        memory_start = end - self.memory_bytes_max
        in_memory = False  # records ascend: after the first one in memory all are
        count_max = min(messages_max, limits.count_on_disk)
        size_max = min(bytes_max, limits.bytes_on_disk)
        runs: list[Run] = []
        run_start = run_end = -1
        count = size_bytes = removed = passed = 0
        log_offset = end
        for log_offset, size, code in ENTRY.iter_unpack(entries):
            if size == FILLER_SIZE or log_offset < log_min:
                removed += 1
                passed += 1
                continue
            if tag_codes is not None and code not in tag_codes:
                passed += 1
                continue
            if not in_memory and log_offset >= memory_start:
                in_memory = True
                count_max = min(messages_max, limits.count_in_memory)
                size_max = min(bytes_max, limits.bytes_in_memory)
            size_bytes += size
            # The first message is taken whatever its size.
            if count and (count >= count_max or size_bytes > size_max):
                size_bytes -= size
                break
            if log_offset == run_end:
                run_end += size
            else:
                if count:
                    runs.append((run_start, run_end))
                run_start, run_end = log_offset, log_offset + size
            count += 1
        next_offset = offset + count + passed
        low, high = queue.min_offset, queue.end_offset
        if not count:
            status = GetStatus.MESSAGE_WAS_REMOVING if removed else GetStatus.NO_MATCHED_MESSAGE
            if next_offset == offset:  # the file was deleted meanwhile
                return GetResult(GetStatus.OFFSET_FOUND_NULL, min(high, offset + 1), low, high)
            return GetResult(status, next_offset, low, high)
        runs.append((run_start, run_end))
        chunks = self.log.read(runs, reads)
        far = log_offset < memory_start
        return GetResult(GetStatus.FOUND, next_offset, low, high, chunks, count, size_bytes, far)

    # Single records

    def record(self, log_offset: int, reads: Reads) -> bytes | None:
        """Return the record that begins at a log offset; None if there is none.

        Raises: Cold, StoreIoError.
        """
        head = self._head(log_offset, reads)
        if head is None:
            return None
        size, magic = BLANK.unpack_from(head)
        if (
            magic not in (MAGIC_V1, MAGIC_V2)
            or size < HEAD_V4.size
            or I8.unpack_from(head, LOG_OFFSET_AT)[0] != log_offset
        ):
            return None
        if log_offset + size > self._readable_end(log_offset):
            return None
        (data,) = self.log.read([(log_offset, log_offset + size)], reads)
        return bytes(data)

    def records(self, runs: Sequence[Run], reads: Reads) -> list[Buffer | None]:
        """Return the bytes of records, by (begin, end) in ascending order; None for deleted ones.

        Raises: Cold, StoreIoError.
        """
        there = [
            run for run in runs if run[0] >= 0 and run[0] < run[1] <= self._readable_end(run[0])
        ]
        if not there:
            return [None] * len(runs)
        found = dict(zip(there, self.log.read(there, reads)))
        return [found.get(run) for run in runs]

    def _readable_end(self, log_offset: int) -> int:
        """Return the end of the written part of the segment of a log offset; 0 if there is none."""
        segment = self.log.segments.find(log_offset)
        return min(segment.end, self.log.appended.value) if segment is not None else 0

    def _head(self, log_offset: int, reads: Reads) -> Buffer | None:
        """Return the first bytes of what may be a record; None if there are too few."""
        if log_offset < 0 or log_offset + HEAD_V4.size > self._readable_end(log_offset):
            return None
        (head,) = self.log.read([(log_offset, log_offset + HEAD_V4.size)], reads)
        return head

    def store_time(self, log_offset: int, reads: Reads) -> int:
        """Return the store time of the record at a log offset; 0 if it is deleted.

        Raises: Cold, StoreIoError.
        """
        head = self._head(log_offset, reads)
        if head is None:
            return 0
        (sys_flag,) = U4.unpack_from(head, SYS_FLAG_AT)
        (stored,) = I8.unpack_from(
            head, BORN_HOST_AT + (HOST_V6_BYTES if sys_flag & BORN_HOST_V6 else HOST_V4_BYTES)
        )
        return int(stored)

    def entry(self, queue: ConsumeQueue, offset: int, reads: Reads) -> tuple[int, int, int]:
        """Return (log offset, size, tags code) of an entry. Raises: Cold, StoreIoError."""
        if isinstance(queue, BatchQueue):
            return self.batches.entry(queue, offset, reads)[:3]
        log_offset, size, code = ENTRY.unpack(queue.entries_from(offset, 1, reads))
        return log_offset, size, code

    def entries(
        self, topic: str, queue_id: int, first: int, count: int, reads: Reads
    ) -> list[tuple[int, int, int]]:
        """Return (log offset, size, tags code) of at most ``count`` messages of a queue.

        Raises: Cold, StoreIoError.
        """
        queue = self.queues.queues.get((topic, queue_id))
        if queue is None or first < queue.min_offset:
            return []
        return [
            self.entry(queue, offset, reads)
            for offset in range(first, min(first + count, queue.end_offset))
        ]

    def first_kept(self, queue: ConsumeQueue, log_min: int, reads: Reads) -> int:
        """Return the ``min_offset`` of a queue when the log begins at ``log_min``.

        Raises: Cold, StoreIoError. Source: ConsumeQueue.java#correctMinOffset.
        """
        low, high = queue.min_offset, queue.end_offset
        if queue.log_end <= log_min:  # no message is left: no need to read
            return high
        if isinstance(queue, BatchQueue):
            return self.batches.first_kept(queue, log_min, reads)
        # The search begins at the oldest entry: most queues lose nothing.
        return first_not(
            lambda _, entry: entry[0] < log_min,
            partial(queue.next_real, partial(queue.entries_from, reads=reads)),
            low,
            high,
            first=low,
        )

    def store_time_at(self, topic: str, queue_id: int, offset: int, reads: Reads) -> int:
        """Return the store time of a message of a queue; -1 if there is no such message.

        Raises: Cold, StoreIoError.
        """
        queue = self.queues.queues.get((topic, queue_id))
        if queue is None or not queue.min_offset <= offset < queue.end_offset:
            return -1
        return self.store_time(self.entry(queue, offset, reads)[0], reads) or -1

    # By time

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, upper: bool, reads: Reads
    ) -> int:
        """Return the queue offset for a time.

        The first message stored at or after the time, or the end of the queue; with ``upper`` the
        last message stored at or before the time. Where store times go back: see ``TimeSearch``.

        Raises: Cold, StoreIoError.
        """
        queue = self.queues.queues.get((topic, queue_id))
        if queue is None:
            return 0
        steps = self.key_index.steps_back()
        if isinstance(queue, BatchQueue):
            return self.batches.offset_by_time(
                queue, timestamp_ms, upper, steps, self.log.last_timestamp, reads
            )
        next_real = partial(queue.next_real, partial(queue.entries_from, reads=reads))
        search = TimeSearch[Entry](
            lambda holds, low, high: first_not(lambda _, entry: holds(entry), next_real, low, high),
            lambda entry: entry[0],
            lambda entry: self.store_time(entry[0], reads),
            steps,
            self.log.last_timestamp,
        )
        found = search.first_from(timestamp_ms + upper, queue.min_offset, queue.end_offset)
        return max(queue.min_offset, found - 1) if upper else found

    # By key

    def query(
        self,
        topic: str,
        key: str,
        max_count: int,
        begin_ms: int,
        end_ms: int,
        unique: bool,
        reads: Reads,
    ) -> QueryResult:
        """Return records by key: their index entries have its hash, and a store time in the range.

        Raises: Cold, StoreIoError.
        """
        count = (
            self.config.query_unique_count_max
            if unique
            else min(max_count, self.config.query_count_max)
        )
        offsets = sorted(self.key_index.find(topic, key, begin_ms, end_ms, count, reads))
        return QueryResult(self._records(offsets, reads), *self.key_index.last)

    def _records(self, offsets: list[int], reads: Reads) -> list[bytes]:
        chunks: list[bytes] = []
        missing: list[Range] = []
        for log_offset in offsets:
            try:
                data = self.record(log_offset, reads)
            except Cold as cold:
                missing += cold.ranges
                continue
            if data is not None:
                chunks.append(data)
        if missing:
            raise Cold(missing)
        return chunks
