"""Read the log from its first to its last whole record, past damaged bytes.

A running broker stops at the first invalid record. Here the reader resumes at the next whole
record: it must have its own log offset, so stale bytes and bodies that look like records are not
mistaken for records. Skipped bytes are damage if records follow, otherwise the torn end of the log.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator

import attrs

from triomq.broker.inspect.layout import StoreFiles
from triomq.broker.inspect.report import Report
from triomq.broker.store.core.draft import Appended
from triomq.broker.store.io.segment import Segment
from triomq.broker.store.io.segments import Segments
from triomq.broker.store.log.scan import LogScan
from triomq.broker.store.queues.batch import Batch
from triomq.remoting.protocol.record import BLANK, LOG_OFFSET_AT, MAGIC_BLANK, MAGIC_V1, MAGIC_V2

SEARCH_BYTES = 1 << 20
ZEROS = bytes(SEARCH_BYTES + 64)
MAGIC_AT = 4
OFFSET_END = LOG_OFFSET_AT + 8
"""the length up to the end of a record's log offset"""
MAGICS = tuple(magic.to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK))
MIDDLE_ADVICE = (
    "restore the segment from a copy or from the folder of a slave, which has the same bytes; a"
    " broker that starts after a clean stop may not read it, but a recovery that reads it ends the"
    " log here and loses everything behind"
)


@attrs.define(eq=False)
class LogCheck:
    """Iterate ``batches`` to the end; then the other attributes are complete."""

    files: StoreFiles
    report: Report
    progress: Callable[[int], None] = lambda log_bytes: None
    """called with the number of bytes of the log read since the last call"""
    records: int = attrs.field(default=0, init=False)
    end: int = attrs.field(default=0, init=False)
    """end of the last whole record, or of the BLANK behind it"""
    torn_bytes: int = attrs.field(default=0, init=False)
    """bytes behind the end, up to the last byte that is not zero"""
    stopped_by: str = attrs.field(default="", init=False)
    first: Appended | None = attrs.field(default=None, init=False)
    last: Appended | None = attrs.field(default=None, init=False)
    newest_ms: int = attrs.field(default=0, init=False)
    """The latest store time; that of the last record, unless a clock was set back."""
    lost: list[tuple[int, int]] = attrs.field(factory=list, init=False)
    """[start, end) of damaged bytes between records and of missing segments, ascending"""

    def batches(self) -> Iterator[Batch]:
        """Yield all records in log order. Damage is reported, not raised."""
        for number, run in enumerate(self.files.runs):
            if number:
                self.lost.append((self.files.runs[number - 1].end, run.first_offset))
            yield from self._batches_of(run, last=number == len(self.files.runs) - 1)

    def is_lost(self, offset: int) -> bool:
        """Return whether a log offset is in a damaged or missing part."""
        place = bisect_right(self.lost, (offset, 1 << 63)) - 1
        return place >= 0 and offset < self.lost[place][1]

    def _batches_of(self, segments: Segments, *, last: bool) -> Iterator[Batch]:
        position = segments.first_offset
        while position < segments.end:
            scan = LogScan(self.files.disk, segments, position, segments.end)
            reason = ""
            while True:
                position = scan.position
                try:
                    batch = scan.next_batch()
                except OSError as error:  # also loses the records before it in this batch
                    scan.position = position
                    reason = f"it cannot be read: {error.strerror or error}"
                    break
                if batch is None:
                    break
                self._note(batch, segments)
                yield batch
            position = scan.position
            reason = reason or scan.stopped_by
            if not reason:
                break
            resume = self._resume_at(segments, position)
            if resume is None:
                if last:
                    self.end, self.stopped_by = position, reason
                    self.torn_bytes = self._rest(segments, position)
                    self.progress(segments.end - position)
                    return
                resume = segments.end
            self._lose(position, resume, reason)
            position = resume
        self.end = segments.end

    def _note(self, batch: Batch, segments: Segments) -> None:
        expected = batch.start
        for place in batch.places:
            if place.log_offset != expected:
                self._check_blank(segments, expected)
            expected = place.log_offset + place.size
        if expected != batch.end:
            self._check_blank(segments, expected)
        if batch.places:
            self.first = self.first or batch.places[0]
            self.last = batch.places[-1]
            self.records += len(batch.places)
            newest = max(place.store_timestamp for place in batch.places)
            self.newest_ms = max(self.newest_ms, newest)
        self.progress(batch.end - batch.start)

    def _check_blank(self, segments: Segments, offset: int) -> None:
        segment = segments.find(offset)
        assert segment is not None
        size, _ = BLANK.unpack(
            self.files.disk.read_path(segment.path, BLANK.size, offset - segment.base)
        )
        if size != segment.end - offset:
            self.report.damage(
                "blank-size",
                segment.path,
                f"the BLANK that ends the segment has the size {size}, but {segment.end - offset}"
                " bytes are left",
                "restore the segment from a copy; brokers use the end of the file, so no message is"
                " lost",
                at=offset,
            )

    def _lose(self, start: int, end: int, reason: str) -> None:
        self.progress(end - start)
        self.lost.append((start, end))
        self.report.damage(
            "record",
            self.files.segment_path(start),
            f"damaged: {reason}; the bytes up to {end} ({end - start}) are not whole records, but"
            " records follow",
            MIDDLE_ADVICE,
            at=start,
        )

    # Resume behind damage

    def _resume_at(self, segments: Segments, position: int) -> int | None:
        """Return the offset of the next whole record behind ``position``; None if there is none.

        A BLANK that a segment follows is as good as a record.
        """
        for segment in segments.covering(position, segments.end):
            start = max(position + 1, segment.base)
            if segment.base > position and self._is_record(segments, segment.base):
                return segment.base
            found = self._search(segments, segment, start)
            if found is not None:
                return found
        return None

    def _search(self, segments: Segments, segment: Segment, start: int) -> int | None:
        for begin, data in self._data(segment, start, OFFSET_END):
            for at in _candidates(data):
                offset = begin + at
                size, magic = BLANK.unpack_from(data, at)
                if magic == MAGIC_BLANK:
                    found = (
                        size == segment.end - offset
                        and segment.end < segments.end
                        and self._is_record(segments, segment.end)
                    )
                else:
                    stored_offset = data[at + LOG_OFFSET_AT : at + OFFSET_END]
                    found = stored_offset == offset.to_bytes(8, "big") and self._is_record(
                        segments, offset
                    )
                if found:
                    return offset
        return None

    def _data(self, segment: Segment, start: int, overlap: int = 0) -> Iterator[tuple[int, bytes]]:
        """Yield (log offset, bytes) of parts of a segment that are not zero, up to a read error."""
        while start < segment.end:
            try:
                start = segment.base + self.files.disk.next_data(segment.path, start - segment.base)
                size = min(SEARCH_BYTES + overlap, segment.end - start)
                data = self.files.disk.read_path(segment.path, size, start - segment.base)
            except OSError:
                return  # part of the damage that is reported already
            if not data:
                return
            if data != ZEROS[: len(data)]:  # ten times as fast as `data.count(0)`
                yield start, data
            start += SEARCH_BYTES

    def _is_record(self, segments: Segments, offset: int) -> bool:
        try:
            batch = LogScan(self.files.disk, segments, offset, offset + 1).next_batch()
        except OSError:
            return False  # reading cannot resume at an unreadable record
        return batch is not None and bool(batch.places)

    def _rest(self, segments: Segments, position: int) -> int:
        """Return the distance from ``position`` to the last byte that is not zero."""
        last = position
        for segment in segments.covering(position, segments.end):
            for begin, data in self._data(segment, max(position, segment.base)):
                last = begin + len(data.rstrip(b"\0"))
        return last - position


def _candidates(data: bytes) -> list[int]:
    """Return the positions of possible records: a magic number is at its place."""
    found = []
    for magic in MAGICS:
        at = data.find(magic, MAGIC_AT)
        while at >= 0:
            if at - MAGIC_AT < SEARCH_BYTES:
                found.append(at - MAGIC_AT)
            at = data.find(magic, at + 1)
    return sorted(found)
