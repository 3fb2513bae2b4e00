"""LogScan: the log read from one offset on, record by record, as the batches that indexes take.

A record counts only if it is whole: known magic, lengths that add up, the CRC of its body, and its own offset written inside it. The last is stricter than
Java and tells stale bytes of an earlier life of the file from a record. Source: store/…/CommitLog.java#checkMessageAndReturnSize.
"""

from __future__ import annotations

import attrs

from triomq.broker.store.disk import Disk
from triomq.broker.store.draft import Appended, Batch, Draft, is_directory_name
from triomq.broker.store.numbering import SPECIAL
from triomq.broker.store.record_run import RecordRun
from triomq.broker.store.segment import Segment
from triomq.broker.store.segments import Segments
from triomq.remoting.protocol.message import (
    INNER_BATCH,
    INNER_NUM,
    KEYS,
    MULTI_QUEUE_OFFSET,
    TAGS,
    UNIQ_KEY,
    decode_properties,
)
from triomq.remoting.protocol.record import BLANK, HEAD_V4, MAGIC_BLANK, RecordStatus, check_record

BLOCK_BYTES = 512 * 1024
"""Read in one piece: larger ones leave the processor's caches before they are used up."""
AHEAD_BYTES = 8 * 1024 * 1024
"""What the system is asked to fetch meanwhile, so that the disk and this loop work at the same time."""
BATCH_RECORDS = 512


def record_at(data: bytes | bytearray, at: int, size: int, position: int, check_crc: bool) -> tuple[Draft, Appended] | str:
    """The record of ``size`` bytes at ``data[at]``, which lies at log offset ``position``; else why it does not count."""
    check = check_record(data, at, at + size, check_crc)
    if check.status is not RecordStatus.MESSAGE:
        return check.reason
    if check.log_offset != position:
        return f"the record says that it lies at {check.log_offset}"
    if not is_directory_name(check.topic) or check.queue_id < 0:
        return f"the record belongs to queue {check.queue_id} of {check.topic!r}, which cannot be"
    if check.properties.endswith(b"\0"):
        # The CRC covers the body only, and no stored message ends so (check_draft): a page that never reached the disk does.
        return "the end of the record was never written"
    found = decode_properties(check.properties)
    special = SPECIAL if check.sys_flag & INNER_BATCH or INNER_NUM in found or MULTI_QUEUE_OFFSET in found else 0
    draft = Draft(
        check.topic,
        check.queue_id,
        b"",
        check.properties,
        0,
        check.sys_flag & ~SPECIAL | special,
        0,
        b"",
        tags=found.get(TAGS),
        unique_key=found.get(UNIQ_KEY),
        keys=found.get(KEYS),
    )
    return draft, Appended(position, size, check.queue_offset, check.store_timestamp)


@attrs.define(eq=False)
class LogScan:
    """Iterate by ``next_batch``; it may wait for the disk, so call it at start-up, in a thread, or without ``fetch``. A draft made from a record has what indexes look at, no more."""

    disk: Disk
    segments: Segments
    position: int
    """Where the next record is expected; at the end of the scan, the end of the last whole record (or of the BLANK behind it)."""
    end: int
    """Not read beyond. Must be a boundary of records, or the end of the last segment."""
    check_crc: bool = True
    stopped_by: str = attrs.field(default="", init=False)
    """Why the record at ``position`` does not count; empty while the scan goes on, and when it came to ``end``."""
    until: int = attrs.field(init=False)
    """No batch goes on behind this log offset, the end of what has been given; ``end`` for a scan that reads for itself."""
    _segment: Segment | None = attrs.field(default=None, init=False)
    _data: bytes = attrs.field(default=b"", init=False)
    _data_start: int = attrs.field(default=0, init=False)
    _ahead: int = attrs.field(default=0, init=False)
    """How far the system has been asked to fetch."""
    _run: RecordRun = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._run = RecordRun(self.check_crc)
        self.until = self.end

    def give(self, start: int, data: bytes) -> None:
        """Read the records that begin in this block, which follows the last one; ``next_batch`` then comes to its end, and reads no more than the rest of the last."""
        self.until = min(self.end, start + len(data))
        if start <= self.position < self.until:
            self._segment, self._data, self._data_start = self.segments.find(start), data, start

    def take_over(self) -> None:
        """Nothing is given any more: read what is left."""
        self.until = self.end

    def next_batch(self, *, fetch: bool = True) -> Batch | None:
        """The next records; None at the end (of what was given), or at the first that does not count. A batch may have no records, only a BLANK. Raises OSError.

        Without ``fetch`` it ends before a record that is not all in memory, and is None if that comes first.
        """
        start = self.position
        drafts: list[Draft] = []
        places: list[Appended] = []
        while len(places) < BATCH_RECORDS and self.position < self.until and not self.stopped_by:
            if self._take_run(BATCH_RECORDS - len(places), drafts, places):
                continue
            if not (fetch or self._has_next()):
                break
            record = self._next_record()
            if isinstance(record, str):
                self.stopped_by = record
            elif record is not None:
                drafts.append(record[0])
                places.append(record[1])
        return Batch(drafts, places, start, self.position) if self.position > start else None

    def _take_run(self, count_max: int, drafts: list[Draft], places: list[Appended]) -> bool:
        """Take the usual records that are in memory; False if the next one is not such a one."""
        at, limit = self.position - self._data_start, min(len(self._data), self.end - self._data_start)
        if not 0 <= at < limit:
            return False
        stop = self._run.take(self._data, at, limit, self.position, count_max, drafts, places)
        self.position = self._data_start + stop
        return stop > at

    def _has_next(self) -> bool:
        """Whether the next record, or a BLANK, is in memory."""
        at = self.position - self._data_start
        if self._segment is None or at < 0 or at + BLANK.size > len(self._data):
            return False
        size, magic = BLANK.unpack_from(self._data, at)
        return bool(magic == MAGIC_BLANK or 0 < size <= len(self._data) - at)

    def _next_record(self) -> tuple[Draft, Appended] | str | None:
        """One step: a record, None after a BLANK, or why there is no record."""
        position = self.position
        at = self._load(position, BLANK.size)
        if at is None:
            return "the segment ends, or is missing"
        segment = self._segment
        assert segment is not None
        size, magic = BLANK.unpack_from(self._data, at)
        if magic == MAGIC_BLANK:
            self.position = segment.end
            return None
        if size < HEAD_V4.size or position + size > segment.end:
            return "no record was ever written there" if magic == 0 else f"no record starts there: size {size}, magic {magic:08x}"
        at = self._load(position, size)
        if at is None:
            return "the file is too short"
        found = record_at(self._data, at, size, position, self.check_crc)
        if not isinstance(found, str):
            self.position = position + size
        return found

    def _load(self, position: int, size: int) -> int | None:
        """Place of ``size`` bytes from log offset ``position`` in ``_data``; None if the segment has not so many."""
        at = position - self._data_start
        if self._segment is not None and at >= 0 and at + size <= len(self._data):
            return at
        self._segment = self.segments.find(position)
        if self._segment is None or position + size > self._segment.end:
            return None
        stop = min(self._segment.end, position + max(size, BLOCK_BYTES))
        if self.until < self.end:
            stop = min(stop, max(position + size, self.until))
        elif stop < self.end and self._ahead < stop + AHEAD_BYTES // 2 and self._ahead < self._segment.end:
            start, self._ahead = max(stop, self._ahead), min(self._segment.end, stop + AHEAD_BYTES)
            self.disk.read_ahead(self._segment.path, start - self._segment.base, self._ahead - start)
        self._data = self.disk.read_path(self._segment.path, stop - position, position - self._segment.base)
        self._data_start = position
        return 0 if len(self._data) >= size else None
