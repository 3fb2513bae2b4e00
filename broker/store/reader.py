"""Reader: everything that is asked of a store, each as one synchronous function of a ``Reads`` (see reads.py).

Scan and size limits of a get, and the next offset of each status, are Java's. Source: store/…/DefaultMessageStore.java#getMessage, #queryMessage,
store/…/ConsumeQueue.java#getOffsetInQueueByTime.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache, partial
from operator import add

import attrs

from triomq.broker.store.batch_queue import BatchQueue
from triomq.broker.store.batch_reader import BatchReader
from triomq.broker.store.commitlog import CommitLog, Run
from triomq.broker.store.config import QUEUE_ENTRY_BYTES, StoreConfig
from triomq.broker.store.consume_queue import ENTRY, SCAN_ENTRIES, ConsumeQueue
from triomq.broker.store.entries_ahead import EntriesAhead
from triomq.broker.store.key_index import KeyIndex
from triomq.broker.store.queue_search import FILLER_SIZE, Entry, first_not
from triomq.broker.store.queue_table import QueueTable
from triomq.broker.store.reads import Buffer, Cold, Range, Reads
from triomq.broker.store.results import GetResult, GetStatus, QueryResult
from triomq.remoting.protocol.message import BORN_HOST_V6
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

I8 = struct.Struct(">q")
U4 = struct.Struct(">I")
BORN_HOST_AT = 48
QUERY_ROUNDS_MAX = 3


@lru_cache(maxsize=256)
def _places(count: int) -> struct.Struct:
    """Log offset and size of so many queue entries, without their tags codes."""
    return struct.Struct(">" + count * "qi8x")


@attrs.define(eq=False)
class Reader:
    """Reads only; owns nothing."""

    config: StoreConfig
    log: CommitLog
    queues: QueueTable
    key_index: KeyIndex
    memory_bytes_max: int
    """Records farther than this behind the end of the log count as "on disk"."""
    batches: BatchReader = attrs.field(init=False)
    _ahead: EntriesAhead = attrs.field(factory=EntriesAhead, init=False)

    def __attrs_post_init__(self) -> None:
        self.batches = BatchReader(self.config, self.log, self.memory_bytes_max)

    # Messages of a queue

    def get(
        self, topic: str, queue_id: int, offset: int, messages_max: int, bytes_max: int, tag_codes: frozenset[int] | None, reads: Reads
    ) -> GetResult:
        """Messages from ``offset`` on, at most so many and so many bytes (the first one always, whatever its size). Raises Cold."""
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
        if isinstance(queue, BatchQueue):
            return self.batches.get(queue, offset, messages_max, bytes_max, tag_codes, reads)
        if tag_codes is None:
            scan_count = min(messages_max, self.config.transfer_count_memory_max)
        else:
            scan_count = max(self.config.filter_bytes_max // QUEUE_ENTRY_BYTES, messages_max)
        entries = self._entries(queue, offset, max(1, min(scan_count, high - offset)), reads)
        if tag_codes is None:
            result = self._take_all(queue, offset, entries, bytes_max, reads)
            if result is not None:
                return result
        return self._collect(queue, offset, entries, messages_max, bytes_max, tag_codes, reads)

    def _entries(self, queue: ConsumeQueue, offset: int, count: int, reads: Reads) -> Buffer:
        data = queue.in_memory(offset, count)
        return data if data is not None else self._ahead.read(queue, offset, count, reads)

    def _take_all(self, queue: ConsumeQueue, offset: int, entries: Buffer, bytes_max: int, reads: Reads) -> GetResult | None:
        """What ``_collect`` gives when every entry goes, which is the rule for a consumer that keeps up; None when it must look closer.

        No step of Python for each record, which halves the cost of a get.
        """
        count = len(entries) // QUEUE_ENTRY_BYTES
        if not count or count > self.config.transfer_count_memory_max:
            return None
        fields = _places(count).unpack_from(entries)
        starts, sizes = fields[0::2], fields[1::2]
        size_bytes = sum(sizes)
        if (
            size_bytes > bytes_max
            or size_bytes > self.config.transfer_bytes_memory_max
            or size_bytes >= FILLER_SIZE  # as it is with a single filler; no answer holds so much
            or starts[0] < self.log.appended.value - self.memory_bytes_max
            or starts[0] < self.log.first_offset
        ):
            return None
        if starts[-1] + sizes[-1] - starts[0] == size_bytes:
            starts, sizes = starts[:1], (size_bytes,)
        chunks: Sequence[Buffer] | None = self.log.slices(starts, sizes)
        if chunks is None:
            chunks = self.log.read(list(zip(starts, map(add, starts, sizes))), reads)
        return GetResult(GetStatus.FOUND, offset + count, queue.min_offset, queue.end_offset, chunks, count, size_bytes, False)

    def _collect(
        self, queue: ConsumeQueue, offset: int, entries: Buffer, messages_max: int, bytes_max: int, tag_codes: frozenset[int] | None, reads: Reads
    ) -> GetResult:
        """Choose among ``entries``, which begin with number ``offset``; adjacent records become one run."""
        end, log_min = self.log.appended.value, self.log.first_offset
        memory_start = end - self.memory_bytes_max
        config = self.config
        in_memory = False  # records ascend: once they are, all later ones are
        count_max, size_max = min(messages_max, config.transfer_count_disk_max), min(bytes_max, config.transfer_bytes_disk_max)
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
                count_max, size_max = min(messages_max, config.transfer_count_memory_max), min(bytes_max, config.transfer_bytes_memory_max)
            size_bytes += size
            if (count >= count_max or size_bytes > size_max) and count:  # the first one goes, whatever its size
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
            if next_offset == offset:  # the file was deleted while it was read
                return GetResult(GetStatus.OFFSET_FOUND_NULL, min(high, offset + 1), low, high)
            return GetResult(status, next_offset, low, high)
        runs.append((run_start, run_end))
        chunks = self.log.read(runs, reads)
        return GetResult(GetStatus.FOUND, next_offset, low, high, chunks, count, size_bytes, log_offset < memory_start)

    # Single records

    def record(self, log_offset: int, reads: Reads) -> bytes | None:
        """The record that begins at a log offset; None if none does. Raises Cold."""
        head = self._head(log_offset, reads)
        if head is None:
            return None
        size, magic = BLANK.unpack_from(head)
        if magic not in (MAGIC_V1, MAGIC_V2) or size < HEAD_V4.size or I8.unpack_from(head, LOG_OFFSET_AT)[0] != log_offset:
            return None
        if log_offset + size > self._readable_end(log_offset):
            return None
        (data,) = self.log.read([(log_offset, log_offset + size)], reads)
        return bytes(data)

    def _readable_end(self, log_offset: int) -> int:
        """End of what is written in the segment of a log offset; 0 if there is none."""
        segment = self.log.segments.find(log_offset)
        return min(segment.end, self.log.appended.value) if segment is not None else 0

    def _head(self, log_offset: int, reads: Reads) -> Buffer | None:
        """The fixed part of what may be a record."""
        if log_offset < 0 or log_offset + HEAD_V4.size > self._readable_end(log_offset):
            return None
        (head,) = self.log.read([(log_offset, log_offset + HEAD_V4.size)], reads)
        return head

    def store_time(self, log_offset: int, reads: Reads) -> int:
        """Store time of the record at a log offset, 0 if it is gone. Raises Cold."""
        head = self._head(log_offset, reads)
        if head is None:
            return 0
        (sys_flag,) = U4.unpack_from(head, SYS_FLAG_AT)
        (stored,) = I8.unpack_from(head, BORN_HOST_AT + (HOST_V6_BYTES if sys_flag & BORN_HOST_V6 else HOST_V4_BYTES))
        return int(stored)

    def entry(self, queue: ConsumeQueue, offset: int, reads: Reads) -> tuple[int, int, int]:
        """(log offset, size, tags code) of one entry. Raises Cold."""
        if isinstance(queue, BatchQueue):
            return self.batches.entry(queue, offset, reads)[:3]
        log_offset, size, code = ENTRY.unpack(self._entries(queue, offset, 1, reads))
        return log_offset, size, code

    def entries(self, topic: str, queue_id: int, first: int, count: int, reads: Reads) -> list[tuple[int, int, int]]:
        """(log offset, size, tags code) of some messages of a queue, as many as there are. Raises Cold."""
        queue = self.queues.queues.get((topic, queue_id))
        if queue is None or first < queue.min_offset:
            return []
        return [self.entry(queue, offset, reads) for offset in range(first, min(first + count, queue.end_offset))]

    def first_kept(self, queue: ConsumeQueue, log_min: int, reads: Reads) -> int:
        """What the queue's ``min_offset`` becomes when the log begins at ``log_min``. Source: ConsumeQueue.java#correctMinOffset. Raises Cold."""
        low, high = queue.min_offset, queue.end_offset
        if queue.log_end <= log_min:  # nothing is left, and nothing need be read
            return high
        if isinstance(queue, BatchQueue):
            return self.batches.first_kept(queue, log_min, reads)
        # The first look is at the oldest entry: most queues lose nothing.
        return first_not(lambda _, entry: entry[0] < log_min, partial(self._next_real, queue, reads), low, high, first=low)

    def _next_real(self, queue: ConsumeQueue, reads: Reads, start: int, stop: int) -> tuple[int, Entry] | None:
        """The first entry in [start, stop) that is no filler. Raises Cold."""
        count = 1
        while start < stop:
            entries = self._entries(queue, start, min(count, stop - start), reads)
            if not entries:
                return None  # its file has been deleted meanwhile
            for entry in ENTRY.iter_unpack(entries):
                if entry[1] != FILLER_SIZE:
                    return start, entry
                start += 1
            count = SCAN_ENTRIES
        return None

    def store_time_at(self, topic: str, queue_id: int, offset: int, reads: Reads) -> int:
        """Store time of a queue's message, -1 if there is none. Raises Cold."""
        queue = self.queues.queues.get((topic, queue_id))
        if queue is None or not queue.min_offset <= offset < queue.end_offset:
            return -1
        return self.store_time(self.entry(queue, offset, reads)[0], reads) or -1

    # By time

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, upper: bool, reads: Reads) -> int:
        """Lower: the first message stored at or after the time, or the end of the queue. Upper: the last one stored at or before it. Raises Cold."""
        queue = self.queues.queues.get((topic, queue_id))
        if queue is None:
            return 0
        if isinstance(queue, BatchQueue):
            return self.batches.offset_by_time(queue, timestamp_ms, upper, reads)
        low, high = queue.min_offset, queue.end_offset
        bound = timestamp_ms + 1 if upper else timestamp_ms
        low = first_not(lambda _, entry: self.store_time(entry[0], reads) < bound, partial(self._next_real, queue, reads), low, high)
        return max(queue.min_offset, low - 1) if upper else low

    # By key

    def query(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int, unique: bool, reads: Reads) -> QueryResult:
        """Records whose index entries have the hash of the key and a store time in the range. Raises Cold."""
        count = self.config.query_unique_count_max if unique else min(max_count, self.config.query_count_max)
        chunks: list[bytes] = []
        for _ in range(QUERY_ROUNDS_MAX):
            offsets = sorted(self.key_index.find(topic, key, begin_ms, end_ms, count, reads))
            if not offsets:
                break
            chunks = self._records(offsets, reads)
            if chunks:
                break
            end_ms = self.store_time(offsets[0], reads)  # all gone: what is older may still be there
        last_update_ms, last_update_offset = self.key_index.last
        return QueryResult(chunks, last_update_ms, last_update_offset)

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
