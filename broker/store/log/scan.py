"""The log read again from one offset on, in batches for the indexes.

A record counts only if it is whole: known magic, lengths that add up, the CRC of its body, and its
own log offset written inside it. Java does not check the offset, which tells stale bytes of an
earlier life of the file from a record. Source:
store/…/CommitLog.java#checkMessageAndReturnSize.
"""

from __future__ import annotations

import attrs

from triomq.broker.store.core.draft import Appended, Draft
from triomq.broker.store.io.disk import Disk
from triomq.broker.store.io.reads import AHEAD_BYTES
from triomq.broker.store.io.segment import Segment
from triomq.broker.store.io.segments import Segments
from triomq.broker.store.log.draft_reader import DraftReader, read_draft
from triomq.broker.store.queues.batch import Batch
from triomq.remoting.protocol.record import BLANK, HEAD_V4, MAGIC_BLANK

BLOCK_BYTES = 512 * 1024
"""Size of one read: larger blocks leave the processor's caches before they are read."""
BATCH_RECORDS = 512


@attrs.define(eq=False)
class LogScan:
    """A scan of the log, read by calls of ``next_batch``.

    A call may wait for the disk: use it at start-up, in a thread, or without ``fetch``. The drafts
    have what the indexes need, and no bodies.
    """

    disk: Disk
    segments: Segments
    position: int
    """The log offset of the next record; after the scan, the end of the last whole record, or of
    the BLANK that follows it.
    """
    end: int
    """The log offset to stop at: a boundary of records, or the end of the last segment."""
    check_crc: bool = True
    stopped_by: str = attrs.field(default="", init=False)
    """Why the record at ``position`` does not count; empty during the scan, and at ``end``."""
    until: int = attrs.field(init=False)
    """The log offset at which batches end: the end of the given block, or ``end`` if the scan reads
    the files itself.
    """
    _segment: Segment | None = attrs.field(default=None, init=False)
    _data: bytes = attrs.field(default=b"", init=False)
    _data_start: int = attrs.field(default=0, init=False)
    _reader: DraftReader = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._reader = DraftReader(self.check_crc)
        self.until = self.end

    def give(self, start: int, data: bytes) -> None:
        """Scan the records that begin in this block, which follows the last one.

        ``next_batch`` then ends with the block, and reads only the rest of its last record from the
        file.
        """
        self.until = min(self.end, start + len(data))
        if start <= self.position < self.until:
            self._segment, self._data, self._data_start = self.segments.find(start), data, start

    def take_over(self) -> None:
        """Read the rest from the files; no more blocks are given."""
        self.until = self.end

    def next_batch(self, *, fetch: bool = True) -> Batch | None:
        """Return the next records; None at the end, or at the first record that does not count.

        `fetch`: whether to read from the disk; otherwise the batch ends before the first record
        that is not wholly in memory, and is None without any other record.

        A batch may have no records but a BLANK.

        Raises: OSError.
        """
        start = self.position
        drafts: list[Draft] = []
        places: list[Appended] = []
        while len(places) < BATCH_RECORDS and self.position < self.until and not self.stopped_by:
            if self._read_common(BATCH_RECORDS - len(places), drafts, places):
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

    def _read_common(self, count_max: int, drafts: list[Draft], places: list[Appended]) -> bool:
        """Read the common records in memory; return False if the next record is not one of them."""
        at = self.position - self._data_start
        limit = min(len(self._data), self.end - self._data_start)
        if not 0 <= at < limit:
            return False
        stop = self._reader.read(self._data, at, limit, self.position, count_max, drafts, places)
        self.position = self._data_start + stop
        return stop > at

    def _has_next(self) -> bool:
        """Return whether the next record, or a BLANK, is in memory."""
        at = self.position - self._data_start
        if self._segment is None or at < 0 or at + BLANK.size > len(self._data):
            return False
        size, magic = BLANK.unpack_from(self._data, at)
        return bool(magic == MAGIC_BLANK or 0 < size <= len(self._data) - at)

    def _next_record(self) -> tuple[Draft, Appended] | str | None:
        """Return the next record, None after a BLANK, or why no record is there."""
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
            return (
                "no record was ever written there"
                if magic == 0
                else f"no record starts there: size {size}, magic {magic:08x}"
            )
        at = self._load(position, size)
        if at is None:
            return "the file is too short"
        found = read_draft(self._data, at, size, position, self.check_crc)
        if not isinstance(found, str):
            self.position = position + size
        return found

    def _load(self, position: int, size: int) -> int | None:
        """Return the position in ``_data`` of ``size`` bytes at a log offset.

        Reads them if need be. Returns None if the segment does not have that many.
        """
        at = position - self._data_start
        if self._segment is not None and at >= 0 and at + size <= len(self._data):
            return at
        self._segment = self.segments.find(position)
        if self._segment is None or position + size > self._segment.end:
            return None
        stop = min(self._segment.end, position + max(size, BLOCK_BYTES))
        if self.until < self.end:
            stop = min(stop, max(position + size, self.until))
        elif stop < self.end:
            self.disk.read_ahead(
                self._segment.path, position - self._segment.base, stop - position + AHEAD_BYTES
            )
        self._data = self.disk.read_path(
            self._segment.path, stop - position, position - self._segment.base
        )
        self._data_start = position
        return 0 if len(self._data) >= size else None
