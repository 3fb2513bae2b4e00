"""Reads of batch consume queues, whose records hold several messages each.

Any queue offset inside a record finds the record, which is returned as a whole; the client unwraps
it. So a result may begin before the requested offset, and the next offset is the end of its last
record. Source: store/…/queue/BatchConsumeQueue.java, store/…/DefaultMessageStore.java#getMessage,
#isTheBatchFull.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import attrs

from triomq.broker.store.core.config import BATCH_ENTRY_BYTES, StoreConfig
from triomq.broker.store.core.results import GetLimits, GetResult, GetStatus
from triomq.broker.store.core.stored_times import TimeSearch
from triomq.broker.store.io.reads import Reads
from triomq.broker.store.log.commit_log import CommitLog, Run
from triomq.broker.store.queues.batch_queue import BATCH_ENTRY, BatchEntry, BatchQueue
from triomq.broker.store.queues.search import first_not


@attrs.define(eq=False)
class BatchReader:
    """Reads the batch consume queues of a store. Every function may raise Cold."""

    config: StoreConfig
    log: CommitLog
    memory_bytes_max: int
    """Records farther than this from the end of the log count as "on disk"."""

    def batches(self, queue: BatchQueue, number: int, count: int, reads: Reads) -> list[BatchEntry]:
        """Return at most ``count`` entries from a number on, up to the end of their file."""
        found = queue.entries.entries_from(number, count, reads)
        return [BatchEntry(*fields[:6]) for fields in BATCH_ENTRY.iter_unpack(found)]

    def _next(
        self, queue: BatchQueue, reads: Reads, start: int, _stop: int
    ) -> tuple[int, BatchEntry] | None:
        found = self.batches(queue, start, 1, reads)
        return (start, found[0]) if found else None

    def _first_not(
        self, queue: BatchQueue, holds: Callable[[BatchEntry], bool], reads: Reads
    ) -> int:
        """Return the number of the first entry that does not hold, or one past the last entry."""
        entries = queue.entries
        low = max(entries.min_offset, entries.first_offset)
        return first_not(
            lambda _, entry: holds(entry),
            partial(self._next, queue, reads),
            low,
            entries.end_offset,
        )

    def number_of(self, queue: BatchQueue, offset: int, reads: Reads) -> int:
        """Return the number of the entry with a queue offset, or else of the next entry."""
        return self._first_not(queue, lambda entry: entry.end <= offset, reads)

    def entry(self, queue: BatchQueue, offset: int, reads: Reads) -> BatchEntry:
        """Return the entry with a queue offset that the queue has."""
        return self.batches(queue, self.number_of(queue, offset, reads), 1, reads)[0]

    def first_kept(self, queue: BatchQueue, log_min: int, reads: Reads) -> int:
        """Return the first queue offset whose record is left when the log begins at ``log_min``.

        Also sets the queue's first entry.
        """
        entries = queue.entries
        number = self._first_not(queue, lambda entry: entry.log_offset < log_min, reads)
        found = self.batches(queue, number, 1, reads) if number < entries.end_offset else []
        entries.min_offset = max(entries.min_offset, number)
        return found[0].base if found else queue.end_offset

    def offset_by_time(
        self,
        queue: BatchQueue,
        timestamp_ms: int,
        upper: bool,
        steps: Sequence[int],
        newest_ms: int,
        reads: Reads,
    ) -> int:
        """Return the queue offset for a time.

        Lower: the first message stored at or after the time, or the end of the queue. Upper: the
        first message of the last record stored at or before the time.

        ``steps``, ``newest_ms``: see ``TimeSearch``.
        """
        entries = queue.entries
        search = TimeSearch[BatchEntry](
            lambda holds, low, high: first_not(
                lambda _, entry: holds(entry), partial(self._next, queue, reads), low, high
            ),
            lambda entry: entry.log_offset,
            lambda entry: entry.store_timestamp,
            steps,
            newest_ms,
        )
        low = max(entries.min_offset, entries.first_offset)
        number = search.first_from(timestamp_ms + upper, low, entries.end_offset) - upper
        if number < low:
            return queue.min_offset
        return (
            max(queue.min_offset, self.batches(queue, number, 1, reads)[0].base)
            if number < entries.end_offset
            else queue.end_offset
        )

    def get(
        self,
        queue: BatchQueue,
        offset: int,
        messages_max: int,
        bytes_max: int,
        tag_codes: frozenset[int] | None,
        limits: GetLimits,
        reads: Reads,
    ) -> GetResult:
        """Return the records from the one with ``offset``, which the queue has, on.

        The first record is always returned, however many messages it holds.
        """
        config, log_min = self.config, self.log.first_offset
        low, high = queue.min_offset, queue.end_offset
        memory_start = self.log.appended.value - self.memory_bytes_max
        scan_max = max(config.filter_bytes_max // BATCH_ENTRY_BYTES, messages_max)
        number = self.number_of(queue, offset, reads)
        found = (
            self.batches(
                queue, number, scan_max if tag_codes is not None else max(1, messages_max), reads
            )
            if number < queue.entries.end_offset
            else []
        )
        runs: list[Run] = []
        messages = size_bytes = removed = 0
        next_offset, last = offset, memory_start
        for entry in found:
            if entry.base - offset >= scan_max:
                break
            if entry.log_offset < log_min:
                removed += 1
            elif tag_codes is None or entry.tags_code in tag_codes:
                if messages and self._is_full(
                    entry, messages, size_bytes, messages_max, bytes_max, memory_start, limits
                ):
                    break
                messages += entry.messages
                size_bytes += entry.size
                runs.append((entry.log_offset, entry.log_offset + entry.size))
                last = entry.log_offset
            next_offset = entry.end
        if not runs:
            if next_offset == offset:  # the file was deleted while it was read
                return GetResult(GetStatus.OFFSET_FOUND_NULL, min(high, offset + 1), low, high)
            status = GetStatus.MESSAGE_WAS_REMOVING if removed else GetStatus.NO_MATCHED_MESSAGE
            return GetResult(status, next_offset, low, high)
        chunks, far = self.log.read(runs, reads), last < memory_start
        return GetResult(GetStatus.FOUND, next_offset, low, high, chunks, messages, size_bytes, far)

    def _is_full(
        self,
        entry: BatchEntry,
        messages: int,
        size_bytes: int,
        messages_max: int,
        bytes_max: int,
        memory_start: int,
        limits: GetLimits,
    ) -> bool:
        """Return whether a result that has a record already has no room for this one."""
        if entry.log_offset >= memory_start:
            count_max, size_max = limits.count_in_memory, limits.bytes_in_memory
        else:
            count_max, size_max = limits.count_on_disk, limits.bytes_on_disk
        return (
            messages + entry.messages > messages_max
            or messages >= count_max
            or size_bytes + entry.size > min(bytes_max, size_max)
        )
