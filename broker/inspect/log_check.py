"""The log, read from its first to its last whole record, past everything that is no record.

A running broker stops at the first record that does not count. Here the reader goes on at the next place where a whole record lies: it must carry its own
log offset, so stale bytes and bodies that look like records do not count. What is skipped is damage if records follow, and the torn end of the log if not.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator

import attrs

from triomq.broker.inspect.findings import Report
from triomq.broker.inspect.layout import StoreFiles
from triomq.broker.store.draft import Appended, Batch
from triomq.broker.store.log_scan import LogScan
from triomq.broker.store.segments import Segments
from triomq.remoting.protocol.record import BLANK, LOG_OFFSET_AT, MAGIC_BLANK, MAGIC_V1, MAGIC_V2

SEARCH_BYTES = 1 << 20
ZEROS = bytes(SEARCH_BYTES + 64)
MAGIC_AT = 4
OFFSET_END = LOG_OFFSET_AT + 8
"""So much of a record must be there to see whether it claims its place."""
MAGICS = tuple(magic.to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK))
MIDDLE_ADVICE = (
    "restore the segment from a copy or from the folder of a slave, which has the same bytes; a broker that starts after a clean stop may go on without "
    "reading it, a recovery that reads it ends the log here and loses everything behind"
)


@attrs.define(eq=False)
class LogCheck:
    """Iterate ``batches`` to the end; the other attributes are complete then."""

    files: StoreFiles
    report: Report
    check_crc: bool = True
    progress: Callable[[int], None] = lambda log_bytes: None
    """Told how many bytes of the log have been read since the last call."""
    records: int = attrs.field(default=0, init=False)
    end: int = attrs.field(default=0, init=False)
    """End of the last whole record, or of the BLANK behind it."""
    torn_bytes: int = attrs.field(default=0, init=False)
    """Bytes behind the end up to the last that is not zero."""
    stopped_by: str = attrs.field(default="", init=False)
    first: Appended | None = attrs.field(default=None, init=False)
    last: Appended | None = attrs.field(default=None, init=False)
    lost: list[tuple[int, int]] = attrs.field(factory=list, init=False)
    """[start, end) of what lies between records and is none, missing segments included; ascending."""

    def batches(self) -> Iterator[Batch]:
        """All records in log order. Raises nothing for damage: it is reported."""
        for number, run in enumerate(self.files.runs):
            if number:
                self.lost.append((self.files.runs[number - 1].end, run.first_offset))
            yield from self._run(run, last=number == len(self.files.runs) - 1)

    def is_lost(self, offset: int) -> bool:
        """Whether a log offset lies where records are known to be missing or damaged."""
        place = bisect_right(self.lost, (offset, 1 << 63)) - 1
        return place >= 0 and offset < self.lost[place][1]

    def _run(self, segments: Segments, *, last: bool) -> Iterator[Batch]:
        position = segments.first_offset
        while position < segments.end:
            scan = LogScan(self.files.disk, segments, position, segments.end, self.check_crc)
            reason = ""
            while True:
                position = scan.position
                try:
                    batch = scan.next_batch()
                except OSError as error:  # the records in front of it in this batch are gone with it
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
        self.progress(batch.end - batch.start)

    def _check_blank(self, segments: Segments, offset: int) -> None:
        segment = segments.find(offset)
        assert segment is not None
        size, _ = BLANK.unpack(self.files.disk.read_path(segment.path, BLANK.size, offset - segment.base))
        if size != segment.end - offset:
            self.report.damage(
                "blank-size",
                segment.path,
                offset,
                f"the BLANK that ends the segment says {size} bytes, but {segment.end - offset} are left",
                "restore the segment from a copy; brokers go by the end of the file, so no message is lost",
            )

    def _lose(self, start: int, end: int, reason: str) -> None:
        self.progress(end - start)
        self.lost.append((start, end))
        self.report.damage(
            "record",
            self.files.segment_path(start),
            start,
            f"damaged: {reason}; the bytes up to {end} ({end - start}) hold no whole record, records follow",
            MIDDLE_ADVICE,
        )

    # Going on behind damage

    def _resume_at(self, segments: Segments, position: int) -> int | None:
        """The next place behind ``position`` where a whole record (or the BLANK of a segment that others follow) begins; None if there is none in this run."""
        for segment in segments.covering(position, segments.end):
            start = max(position + 1, segment.base)
            if segment.base > position and self._is_record(segments, segment.base):
                return segment.base
            found = self._search(segments, start, segment.end)
            if found is not None:
                return found
        return None

    def _search(self, segments: Segments, start: int, end: int) -> int | None:
        segment = segments.find(start)
        while start < end and segment is not None:
            try:
                start = segment.base + self.files.disk.next_data(segment.path, start - segment.base)
                data = self.files.disk.read_path(segment.path, min(SEARCH_BYTES + OFFSET_END, end - start), start - segment.base)
            except OSError:
                return None  # the damage that is being reported already
            if not data:
                return None
            if not _is_zero(data):
                for at in _candidates(data):
                    offset = start + at
                    if BLANK.unpack_from(data, at)[1] == MAGIC_BLANK:
                        if BLANK.unpack_from(data, at)[0] == segment.end - offset and segment.end < segments.end and self._is_record(segments, segment.end):
                            return offset
                    elif data[at + LOG_OFFSET_AT : at + OFFSET_END] == offset.to_bytes(8, "big") and self._is_record(segments, offset):
                        return offset
            start += SEARCH_BYTES
        return None

    def _is_record(self, segments: Segments, offset: int) -> bool:
        try:
            batch = LogScan(self.files.disk, segments, offset, offset + 1, self.check_crc).next_batch()
        except OSError:
            return False  # what cannot be read is not a record to go on at
        return batch is not None and bool(batch.places)

    def _rest(self, segments: Segments, position: int) -> int:
        """How far behind ``position`` the last byte lies that is not zero."""
        last = position
        for segment in segments.covering(position, segments.end):
            start = max(position, segment.base)
            while start < segment.end:
                try:
                    start = segment.base + self.files.disk.next_data(segment.path, start - segment.base)
                    data = self.files.disk.read_path(segment.path, min(SEARCH_BYTES, segment.end - start), start - segment.base)
                except OSError:
                    return last - position
                if not data:
                    break
                if not _is_zero(data):
                    last = start + len(data.rstrip(b"\0"))
                start += len(data)
        return last - position


def _is_zero(data: bytes) -> bool:
    return data == ZEROS[: len(data)]  # ten times as fast as counting


def _candidates(data: bytes) -> list[int]:
    """Positions where a magic number stands at its place in a record."""
    found = []
    for magic in MAGICS:
        at = data.find(magic, MAGIC_AT)
        while at >= 0:
            if at - MAGIC_AT < SEARCH_BYTES:
                found.append(at - MAGIC_AT)
            at = data.find(magic, at + 1)
    return sorted(found)
