"""What is asked of a batch consume queue: its records are given as they are, each with all the messages it holds.

A record is found by any queue offset inside of it, and given as a whole: the client takes it apart. So an answer may begin before the offset that was asked for,
and the next offset is the end of its last record. Source: store/…/queue/BatchConsumeQueue.java, store/…/DefaultMessageStore.java#getMessage, #isTheBatchFull.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import attrs

from triomq.broker.store.batch_queue import BATCH_ENTRY, BatchEntry, BatchQueue
from triomq.broker.store.commitlog import CommitLog, Run
from triomq.broker.store.config import BATCH_ENTRY_BYTES, StoreConfig
from triomq.broker.store.queue_search import first_not
from triomq.broker.store.reads import Reads
from triomq.broker.store.results import GetResult, GetStatus


@attrs.define(eq=False)
class BatchReader:
    """Reads only; owns nothing. Every function may raise Cold."""

    config: StoreConfig
    log: CommitLog
    memory_bytes_max: int
    """Records farther than this behind the end of the log count as "on disk"."""

    def batches(self, queue: BatchQueue, number: int, count: int, reads: Reads) -> list[BatchEntry]:
        """Entries from a number on, at most so many, up to the end of their file."""
        entries = queue.entries
        data = entries.in_memory(number, count)
        found = data if data is not None else reads.file(*entries.place(number, count))
        return [BatchEntry(*fields[:6]) for fields in BATCH_ENTRY.iter_unpack(found)]

    def _next(self, queue: BatchQueue, reads: Reads, start: int, _stop: int) -> tuple[int, BatchEntry] | None:
        found = self.batches(queue, start, 1, reads)
        return (start, found[0]) if found else None

    def _first_not(self, queue: BatchQueue, holds: Callable[[BatchEntry], bool], reads: Reads) -> int:
        """Number of the first entry that does not hold; one past the last if all do."""
        entries = queue.entries
        low = max(entries.min_offset, entries.first_offset)
        return first_not(lambda _, entry: holds(entry), partial(self._next, queue, reads), low, entries.end_offset)

    def number_of(self, queue: BatchQueue, offset: int, reads: Reads) -> int:
        """Number of the entry whose record has a queue offset, or else of the first one behind it."""
        return self._first_not(queue, lambda entry: entry.end <= offset, reads)

    def entry(self, queue: BatchQueue, offset: int, reads: Reads) -> BatchEntry:
        """The entry of a queue offset that the queue has."""
        return self.batches(queue, self.number_of(queue, offset, reads), 1, reads)[0]

    def first_kept(self, queue: BatchQueue, log_min: int, reads: Reads) -> int:
        """The first queue offset whose record is left when the log begins at ``log_min``. Notes the number of its entry."""
        entries = queue.entries
        number = self._first_not(queue, lambda entry: entry.log_offset < log_min, reads)
        found = self.batches(queue, number, 1, reads) if number < entries.end_offset else []
        entries.min_offset = max(entries.min_offset, number)
        return found[0].base if found else queue.end_offset

    def offset_by_time(self, queue: BatchQueue, timestamp_ms: int, upper: bool, reads: Reads) -> int:
        """Lower: the first message stored at or after the time, or the end of the queue. Upper: the first one of the last record stored at or before it."""
        entries = queue.entries
        bound = timestamp_ms + 1 if upper else timestamp_ms
        number = self._first_not(queue, lambda entry: entry.store_timestamp < bound, reads) - upper
        if number < max(entries.min_offset, entries.first_offset):
            return queue.min_offset
        return max(queue.min_offset, self.batches(queue, number, 1, reads)[0].base) if number < entries.end_offset else queue.end_offset

    def get(
        self, queue: BatchQueue, offset: int, messages_max: int, bytes_max: int, tag_codes: frozenset[int] | None, reads: Reads
    ) -> GetResult:
        """Records from the one with ``offset`` on; the first one always, however many messages it holds. ``offset`` lies between the queue's bounds."""
        config, log_min, low, high = self.config, self.log.first_offset, queue.min_offset, queue.end_offset
        memory_start = self.log.appended.value - self.memory_bytes_max
        scan_max = max(config.filter_bytes_max // BATCH_ENTRY_BYTES, messages_max)
        number = self.number_of(queue, offset, reads)
        found = self.batches(queue, number, scan_max if tag_codes is not None else max(1, messages_max), reads) if number < queue.entries.end_offset else []
        runs: list[Run] = []
        messages = size_bytes = removed = 0
        next_offset, last = offset, memory_start
        for entry in found:
            if entry.base - offset >= scan_max:
                break
            if entry.log_offset < log_min:
                removed += 1
            elif tag_codes is None or entry.tags_code in tag_codes:
                if messages and self._is_full(entry, messages, size_bytes, messages_max, bytes_max, memory_start):
                    break
                messages += entry.messages
                size_bytes += entry.size
                runs.append((entry.log_offset, entry.log_offset + entry.size))
                last = entry.log_offset
            next_offset = entry.end
        if not runs:
            if next_offset == offset:  # the file was deleted while it was read
                return GetResult(GetStatus.OFFSET_FOUND_NULL, min(high, offset + 1), low, high)
            return GetResult(GetStatus.MESSAGE_WAS_REMOVING if removed else GetStatus.NO_MATCHED_MESSAGE, next_offset, low, high)
        return GetResult(GetStatus.FOUND, next_offset, low, high, self.log.read(runs, reads), messages, size_bytes, last < memory_start)

    def _is_full(self, entry: BatchEntry, messages: int, size_bytes: int, messages_max: int, bytes_max: int, memory_start: int) -> bool:
        """Whether an answer that holds something already has no room for this record."""
        config = self.config
        if entry.log_offset >= memory_start:
            count_max, size_max = config.transfer_count_memory_max, config.transfer_bytes_memory_max
        else:
            count_max, size_max = config.transfer_count_disk_max, config.transfer_bytes_disk_max
        return messages + entry.messages > messages_max or messages >= count_max or size_bytes + entry.size > min(bytes_max, size_max)
