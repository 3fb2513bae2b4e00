"""Recovery of the timer files after any end of a broker, also of a Java broker.

The wheel is rebuilt where it lacks records of the timer log. With our mark in ``timercheck`` the
timer log ends where the check says, because all before is on the disk and all behind is put into
the wheel again from the topic. Without it, as in Java, the log is read from one file before that
place up to the first bytes that are not a record. Source:
store/…/timer/TimerMessageStore.java#recover.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import attrs

from triomq.broker.store.io.disk import Disk
from triomq.broker.store.io.segment import Segment
from triomq.broker.store.timer.timer_check import TimerCheck
from triomq.broker.store.timer.timer_log import TimerLog
from triomq.broker.store.timer.timer_record import SIZE, TimerRecord, file_capacity, records_in
from triomq.broker.store.timer.wheel import SLOT, TimerWheel

logger = logging.getLogger(__name__)

CHUNK_RECORDS = 20_000


@attrs.define(eq=False)
class TimerRecovery:
    """Sets the end of the timer log and completes the wheel. Blocks: for a thread."""

    disk: Disk
    wheel: TimerWheel
    log: TimerLog
    check: TimerCheck
    data: Iterable[tuple[int, int]]
    """The parts of the wheel that may have slots: (begin, end) in bytes."""
    last: tuple[int, TimerRecord] | None = attrs.field(default=None, init=False)
    """The last record of the log, and its position."""

    def run(self) -> None:
        """Recover. Raises: StoreIoError, DiskFull, OSError."""
        segments, check = self.log.segments, self.check
        first = segments.first_offset
        if check.marked:
            end = min(check.log_end, segments.end)
            begin = min(check.wheel_end, end)
        else:
            begin = max(first, check.log_end - segments.size) // segments.size * segments.size
            end = self._end_of_records(begin)
        self.log.end = end
        begin = min(begin, self._clear_beyond(end))
        if begin < end:
            self._put_from(max(begin, first), end)
        self._find_last(end)
        self._cut(end)

    def _segments_from(self, begin: int) -> Iterable[Segment]:
        return [segment for segment in self.log.segments.items if segment.end > begin]

    def _records(self, segment: Segment, begin: int) -> Iterable[tuple[int, TimerRecord]]:
        """Yield (position, record) of a file from ``begin`` on, up to other bytes."""
        position = max(begin, segment.base)
        stop = segment.base + file_capacity(segment.size)
        while position < stop:
            size = min(CHUNK_RECORDS * SIZE, stop - position)
            data = self.disk.read(segment.fd, size, position - segment.base)
            count = 0
            for at, record in records_in(data):
                yield position + at, record
                count += 1
            if count * SIZE < size:
                return
            position += size

    def _end_of_records(self, begin: int) -> int:
        """Return the position behind the last record of an unbroken row from ``begin`` on."""
        end = begin
        for segment in self._segments_from(begin):
            position = segment.base
            for found, _ in self._records(segment, begin):
                position = found + SIZE
            if position > segment.base:
                end = position
            if position < segment.base + file_capacity(segment.size):
                break
        return end

    def _clear_beyond(self, end: int) -> int:
        """Forget slots whose records the log does not have; return where their records begin."""
        begin = end
        for first, last in self.data:
            for slot in list(self.wheel.slots_in(first, last)):
                if slot.last >= end:
                    begin = min(begin, max(0, slot.first))
                    self.wheel.clear(slot.time_ms)
        if begin < end:
            logger.warning(
                "the timer wheel has slots beyond the end %d of the timer log; reading the log"
                " again from %d on",
                end,
                begin,
            )
        return begin

    def _put_from(self, begin: int, end: int) -> None:
        """Put the records from ``begin`` on into the wheel, as far as it lacks them."""
        wheel = self.wheel
        for segment in self._segments_from(begin):
            for position, record in self._records(segment, begin):
                if position >= end:
                    return
                raw = wheel.raw(record.slot_ms)
                newer = raw.time_ms > record.slot_ms
                if newer or (raw.time_ms == record.slot_ms and raw.last >= position):
                    continue
                wheel.put(record.slot_ms, position, -1 if record.deletes else 1)

    def _find_last(self, end: int) -> None:
        segment = self.log.segments.find(end - 1) if end else None
        if segment is not None and end - SIZE >= segment.base:
            for position, record in self._records(segment, end - SIZE):
                self.last = position, record
                return

    def _cut(self, end: int) -> None:
        """Remove what lies behind the end, so that no start takes it for records."""
        segments = self.log.segments
        segments.drop_from(-(-end // segments.size) * segments.size)
        segment = segments.find(end)
        if segment is not None:
            self.disk.zero_tail(segment.fd, end - segment.base, segment.size, segment.path)


def slot_parts(begin: int, end: int) -> tuple[int, int]:
    """Return the whole slots that cover the bytes [begin, end)."""
    return begin // SLOT.size * SLOT.size, -(-end // SLOT.size) * SLOT.size
