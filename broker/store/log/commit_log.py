"""CommitLog: the records of all topics, one behind the other. The only truth of the store.

A segment ends with a BLANK record (rest of the segment i4, magic CBD43194) when the next record
does not fit with 8 bytes to spare. Record layout: ``triomq.remoting.protocol.record``. Source:
store/…/CommitLog.java.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Sequence

import attrs

from triomq.broker.store.core.config import StoreConfig
from triomq.broker.store.core.draft import UNQUEUED, Appended, Draft
from triomq.broker.store.core.errors import IllegalMessage, StoreError
from triomq.broker.store.core.numbering import (
    BATCH_BASE,
    BATCH_COUNT,
    DISPATCH_OFFSETS,
    batch_count,
    dispatch_fault,
    dispatch_names,
    may_dispatch,
    with_properties,
)
from triomq.broker.store.core.watermark import Watermark
from triomq.broker.store.io.disk import Disk
from triomq.broker.store.io.reads import Buffer, Cold, Range, Reads
from triomq.broker.store.io.segment import Segment
from triomq.broker.store.io.segments import Segments
from triomq.broker.store.queues.batch import Batch
from triomq.broker.store.queues.consume_queue import ConsumeQueue
from triomq.broker.store.queues.table import QueueTable
from triomq.remoting.protocol.checksum import crc32
from triomq.remoting.protocol.record import (
    BLANK,
    HOST_V4_BYTES,
    HOST_V6_BYTES,
    LENGTH,
    encode_blank,
    head_struct,
    host_flags,
)
from triomq.remoting.protocol.sys_flags import BORN_HOST_V6, STORE_HOST_V6, TRANSACTION_MASK

logger = logging.getLogger(__name__)

pack_length = LENGTH.pack
CRC_MASK = 0x7FFFFFFF
SPAN_FACTOR_MAX = 4
"""Scattered records are read as one range, with one system call, if the range has at most this many
times their own bytes.
"""
PROBE_BYTES = 64 * 1024
NO_HOST_FLAGS = ~(BORN_HOST_V6 | STORE_HOST_V6)
Run = tuple[int, int]
"""Adjacent records in one segment: [start, end)."""


@attrs.define(eq=False)
class CommitLog:
    """Appends and reads. ``appended`` is the end of the log."""

    config: StoreConfig
    disk: Disk
    segments: Segments
    appended: Watermark = attrs.field(factory=Watermark, init=False)
    last_timestamp: int = attrs.field(default=0, init=False)
    """Store time of the last record. The next one is not smaller, unless this is set back."""
    ahead_ms: int = attrs.field(default=0, init=False)
    """How far the store time of the last append was ahead of the clock."""
    _heads: dict[int, tuple[Callable[..., bytes], int, int]] = attrs.field(init=False)
    """Length of the born host -> (packer of the record up to its body, size of all fixed fields,
    bits of sysFlag).
    """
    _erase_due: bool = attrs.field(default=False, init=False)
    """Whether bytes of a failed append, or bytes written ahead, may lie behind the end."""
    _hot_start: int = attrs.field(default=0, init=False)
    """Where the bytes written by this process begin. The newest of them are in the page cache."""

    def __attrs_post_init__(self) -> None:
        flags = {
            size: host_flags(bytes(size), self.config.store_host)
            for size in (HOST_V4_BYTES, HOST_V6_BYTES)
        }
        self._heads = {
            size: (head_struct(bits).pack, head_struct(bits).size + LENGTH.size, bits)
            for size, bits in flags.items()
        }

    def start_at(self, end: int, last_timestamp: int) -> None:
        """Set the end of the log, after recovery."""
        self.appended.advance(end)
        self.last_timestamp = last_timestamp
        self._hot_start = end

    # Appending

    def append(self, drafts: Sequence[Draft], queues: QueueTable, now_ms: int) -> Batch:
        """Give every draft its queue offset and place, and write all records with one call.

        The caller advances ``appended``. After an error nothing of the batch is in the log, and no
        queue offset is used up.

        One Struct per record and one join per batch: see tests/bench/bench_store.py before changing
        the loop.

        Raises: DiskFull, StoreIoError, IllegalMessage. Checkpoint: never.
        """
        # Store times never fall: searches by time bisect them, and recovery compares them with the
        # checkpoint. The clock guard limits how far they may be ahead of the clock.
        timestamp = max(now_ms, self.last_timestamp)
        start = offset = piece_start = self.appended.value
        if self._erase_due:
            self.erase_from(start)
        segment = self._segment_at(start)
        # 8 bytes stay free for the BLANK that ends a segment:
        # CommitLog.java#END_FILE_MIN_BLANK_LENGTH.
        stop = segment.end - BLANK.size
        table, heads, store_host = queues.queues, self._heads, self.config.store_host
        parts: list[bytes] = []
        places: list[Appended] = []
        found: list[ConsumeQueue] = []
        taken: list[ConsumeQueue] = []
        try:
            for draft in drafts:
                queue = table.get((draft.topic, draft.queue_id)) or queues.open(
                    draft.topic, draft.queue_id
                )
                body, properties = draft.body, draft.properties
                topic, flags = queue.record_topic, draft.sys_flag
                numbers = 1
                if draft.special or flags & TRANSACTION_MASK:
                    properties, numbers = self._number(draft, queue, queues, taken)
                body_size, properties_size = len(body), len(properties)
                pack, head_size, host_bits = heads[len(draft.born_host)]
                size = head_size + body_size + len(topic) + properties_size
                if offset + size > stop:
                    segment = self._roll(segment, parts, piece_start, offset)
                    parts, offset, stop = [], segment.base, segment.end - BLANK.size
                    piece_start = offset
                    if offset + size > stop:
                        raise IllegalMessage(
                            f"a record of {size} bytes does not fit into a segment of"
                            f" {segment.size} bytes"
                        )
                # A half and a rollback have no place in a queue; Java writes 0 there.
                queue_offset = queue.next_offset if numbers else 0
                parts += (
                    pack(
                        size,
                        queue.record_magic,
                        crc32(body) & CRC_MASK,
                        draft.queue_id,
                        draft.flag,
                        queue_offset,
                        offset,
                        flags & NO_HOST_FLAGS | host_bits,
                        draft.born_timestamp,
                        draft.born_host,
                        timestamp,
                        store_host,
                        draft.reconsume_times,
                        draft.prepared_transaction_offset,
                        body_size,
                    ),
                    body,
                    topic,
                    pack_length(properties_size),
                    properties,
                )
                places.append(Appended(offset, size, queue_offset, timestamp))
                found.append(queue)
                if numbers:
                    # At once, as the next draft of the batch may be for the same queue; `_undo`
                    # takes it back.
                    queue.next_offset = queue_offset + numbers
                offset += size
            self.disk.write_at(
                segment.fd, b"".join(parts), piece_start - segment.base, segment.path
            )
        # struct.error: a number of the sender does not fit its field.
        except (StoreError, struct.error) as error:
            self._undo(drafts, places, found, taken, start)
            if isinstance(error, struct.error):
                raise IllegalMessage(f"a number of the message is out of range: {error}") from error
            raise
        # Only after the write: a failed append must not move the store time.
        self.last_timestamp = timestamp
        self.ahead_ms = timestamp - now_ms
        return Batch(drafts, places, start, offset, found)

    def append_copied(
        self, data: bytes | memoryview, last_timestamp: int, *, erase: bool = True
    ) -> None:
        """Write whole records of another broker's log at the end, all in one segment.

        The caller advances ``appended``.

        ``last_timestamp``: store time of the last record, 0 without one. ``erase``: False if the
        bytes of ``write_ahead`` become part of the log.

        Raises: DiskFull, StoreIoError.
        """
        start = self.appended.value
        segment = self.prepare_copied(start, erase=erase)
        try:
            self.disk.write_at(segment.fd, data, start - segment.base, segment.path)
        except StoreError:
            self.note_bytes_behind()
            raise
        self.note_copied(last_timestamp)

    def prepare_copied(self, start: int, *, erase: bool) -> Segment:
        """Return the segment for records to be copied to ``start``.

        A caller that does not write them after all calls ``note_bytes_behind``. ``erase``: see
        ``append_copied``.

        Raises: DiskFull, StoreIoError.
        """
        # The bytes that were written ahead are the record that comes now.
        if not erase:
            self._erase_due = False
        elif self._erase_due:
            self.erase_from(start)
        return self._segment_at(start)

    def note_copied(self, last_timestamp: int) -> None:
        """Note that prepared records are in the file. The caller advances ``appended``.

        Checkpoint: never.
        """
        if last_timestamp:
            self.last_timestamp = last_timestamp

    def note_bytes_behind(self) -> None:
        """Note that bytes may lie behind the end: the next append erases them.

        Checkpoint: never.
        """
        self._erase_due = True

    def write_ahead(self, data: bytes, offset: int, end: int, *, erase: bool) -> None:
        """Write bytes of another broker's log behind ``end``, where the next record begins.

        They lie in the same segment. The next append erases them, unless it is a copied one without
        ``erase``.

        ``erase``: True for the first such bytes.

        Raises: DiskFull, StoreIoError.
        """
        segment = self.prepare_copied(end, erase=erase)
        self.note_bytes_behind()
        self.disk.write_at(segment.fd, data, offset - segment.base, segment.path)

    def _segment_at(self, offset: int) -> Segment:
        return self.segments.find(offset) or self.segments.grow(offset)

    def _roll(self, segment: Segment, parts: list[bytes], piece_start: int, offset: int) -> Segment:
        """Write the collected records and the BLANK that ends the segment; return the next one."""
        data = b"".join(parts) + encode_blank(segment.end - offset)
        self.disk.write_at(segment.fd, data, piece_start - segment.base, segment.path)
        return self._segment_at(segment.end)

    def _number(
        self, draft: Draft, queue: ConsumeQueue, queues: QueueTable, taken: list[ConsumeQueue]
    ) -> tuple[bytes, int]:
        """Return the properties of an unusual draft with its further numbers, and a count.

        The count is that of the numbers that it takes from its own queue.

        Each further queue that has given a number is added to ``taken``.
        """
        if draft.sys_flag & TRANSACTION_MASK in UNQUEUED:
            return draft.properties, 0
        if not draft.special:
            return draft.properties, 1
        values: dict[bytes, bytes] = {}
        numbers = 1
        if queue.batched:
            numbers = batch_count(draft.properties)
            values |= {BATCH_COUNT: b"%d" % numbers, BATCH_BASE: b"%d" % queue.next_offset}
        names = (
            dispatch_names(draft.properties)
            if self.config.multi_dispatch and may_dispatch(draft.topic)
            else []
        )
        # Unchecked names come from messages stored with the setting off: they must not take numbers
        # of other topics.
        if names and dispatch_fault(names) is None:
            light = [queues.open(name, 0) for name in names]
            values[DISPATCH_OFFSETS] = b",".join(b"%d" % target.next_offset for target in light)
            for target in dict.fromkeys(light):
                target.next_offset += 1
                taken.append(target)
        draft.properties = with_properties(draft.properties, values)
        return draft.properties, numbers

    def _undo(
        self,
        drafts: Sequence[Draft],
        places: Sequence[Appended],
        queues: Sequence[ConsumeQueue],
        taken: Sequence[ConsumeQueue],
        start: int,
    ) -> None:
        """Undo a failed append: its queue offsets, and its bytes, which recovery would accept."""
        # Backwards, so that each queue ends with the offset of its first draft.
        for draft, place, queue in reversed(list(zip(drafts, places, queues))):
            if draft.sys_flag & TRANSACTION_MASK not in UNQUEUED:
                queue.next_offset = place.queue_offset
        for queue in taken:
            queue.next_offset -= 1
        self._erase_due = True
        try:
            self.erase_from(start)
        except (StoreError, OSError) as error:
            logger.error("the bytes of a failed append cannot be erased yet: %s", error)

    def erase_from(self, offset: int) -> None:
        """Overwrite all bytes of the log from ``offset`` on with zeros.

        Raises: DiskFull, StoreIoError, OSError.
        """
        for segment in self.segments.covering(offset, self.segments.end):
            self.disk.zero_tail(
                segment.fd, max(0, offset - segment.base), segment.size, segment.path
            )
        self._erase_due = False

    # Reading

    @property
    def first_offset(self) -> int:
        return self.segments.first_offset

    def slices(self, starts: Sequence[int], sizes: Sequence[int]) -> list[memoryview] | None:
        """Return the bytes of ascending records at half the cost of ``read``.

        None unless all of them are certainly in memory and in one segment.
        """
        first, last = starts[0], starts[-1]
        segment = self._segment_at(first)
        base = segment.base
        if last >= segment.end or not (
            self._hot(first) or segment.in_page_cache(first - base, last + sizes[-1] - base)
        ):
            return None
        view = segment.view
        if not base:
            return [view[start : start + size] for start, size in zip(starts, sizes)]
        return [view[start - base : start - base + size] for start, size in zip(starts, sizes)]

    def _hot(self, offset: int) -> bool:
        """Return whether the page cache certainly has the bytes from ``offset`` on."""
        return (
            offset >= self._hot_start and offset >= self.appended.value - self.config.hot_bytes_max
        )

    def read(self, runs: Sequence[Run], reads: Reads) -> list[Buffer]:
        """Return the bytes of ``runs``, which ascend and lie in the log.

        They are slices of the memory map if the page cache has them, otherwise bytes read by calls.

        Raises: Cold, StoreIoError.
        """
        first = runs[0][0]
        if not self._hot(first) and not self._resident(runs):
            return self._read_files(runs, reads)
        chunks: list[Buffer] = []
        segment = self._segment_at(first)
        view, base, end = segment.view, segment.base, segment.end
        for start, stop in runs:
            if start >= end:
                segment = self._segment_at(start)
                view, base, end = segment.view, segment.base, segment.end
            chunks.append(view[start - base : stop - base])
        return chunks

    def _resident(self, runs: Sequence[Run]) -> bool:
        """Return whether the page cache seems to have these records.

        Without ``mincore`` it is asked for one byte in 64 KiB, because it takes and drops data in
        larger pieces.

        Reading through the map is three times as fast as a call for each record, but waits for the
        disk if this answer is wrong.
        """
        first, stop = runs[0][0], runs[-1][1]
        segment = self._segment_at(first)
        if stop <= segment.end and segment.in_page_cache(first - segment.base, stop - segment.base):
            return True
        due = 0
        for start, stop in runs:
            while due < stop:
                at = max(due, start)
                if not self._has(at):
                    return False
                due = at + PROBE_BYTES
        return self._has(runs[-1][1] - 1)

    def _has(self, offset: int) -> bool:
        segment = self._segment_at(offset)
        return self.disk.read_nowait(segment.fd, 1, offset - segment.base) is not None

    def _read_files(self, runs: Sequence[Run], reads: Reads) -> list[Buffer]:
        chunks: list[Buffer] = []
        missing: list[Range] = []
        index = 0
        while index < len(runs):
            segment = self._segment_at(runs[index][0])
            start, stop = runs[index]
            last, wanted = index + 1, stop - start
            while last < len(runs) and runs[last][1] <= segment.end:
                wanted += runs[last][1] - runs[last][0]
                if runs[last][1] - start > SPAN_FACTOR_MAX * wanted:
                    break
                stop = runs[last][1]
                last += 1
            try:
                data = memoryview(
                    reads.descriptor(segment.fd, segment.path, start - segment.base, stop - start)
                )
                chunks += [
                    data[run_start - start : run_stop - start]
                    for run_start, run_stop in runs[index:last]
                ]
            except Cold as cold:
                missing += cold.ranges
            index = last
        if missing:
            raise Cold(missing)
        return chunks

    def close(self) -> None:
        self.segments.close()
