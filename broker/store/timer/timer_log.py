"""The timer log: files of one size with the records of all timers, in the order of their writing.

A record is written once and never changed; the records of a slot form a chain from the newest to
the oldest.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from triomq.broker.store.io.reads import Buffer, Cold, Reads
from triomq.broker.store.io.segments import Segments
from triomq.broker.store.timer.timer_record import (
    SIZE,
    TimerRecord,
    decode,
    end_mark,
    file_capacity,
)
from triomq.broker.store.timer.wheel import NONE

BLOCK_RECORDS = 630
"""Records that one read of a chain covers: 32 KiB."""


@attrs.define(eq=False)
class TimerLog:
    """Appends records and reads chains. ``end``: position of the next record."""

    segments: Segments
    end: int = attrs.field(default=0, init=False)

    @property
    def _capacity(self) -> int:
        return file_capacity(self.segments.size)

    def next_position(self, position: int) -> int:
        """Return where a record goes that should be at ``position``: at a file's end, the next."""
        size = self.segments.size
        return position if position % size < self._capacity else (position // size + 1) * size

    def append(self, records: Sequence[tuple[int, TimerRecord]]) -> None:
        """Write records to the positions that ``next_position`` gave, and move ``end``.

        After an error ``end`` has not moved, so the same records can be written again.

        Raises: DiskFull, StoreIoError.
        """
        size, begin = self.segments.size, 0
        while begin < len(records):
            first = records[begin][0]
            base = first // size * size
            stop = begin
            while stop < len(records) and records[stop][0] < base + size:
                stop += 1
            self._write(first, b"".join([record.encode() for _, record in records[begin:stop]]))
            begin = stop
        if records:
            self.end = records[-1][0] + SIZE

    def _write(self, position: int, data: bytes) -> None:
        segments, size = self.segments, self.segments.size
        base = position // size * size
        if not segments.items or segments.end <= base:
            self._mark_full()
            segments.grow(base)
        segment = segments.find(position)
        assert segment is not None
        segment.disk.write_at(segment.fd, data, position - base, segment.path)

    def _mark_full(self) -> None:
        segments = self.segments
        if segments.items:
            last, at = segments.items[-1], self._capacity
            last.disk.write_at(last.fd, end_mark(segments.size - at), at, last.path)

    def chain(
        self, position: int, count_max: int, reads: Reads
    ) -> tuple[list[tuple[int, TimerRecord]], int]:
        """Return (position, record) of a chain from ``position`` back, and where it goes on.

        At most ``count_max``, newest first. The last number is -1 at the chain's end, and where the
        rest was deleted or is damaged.

        Raises: Cold, StoreIoError.
        """
        found: list[tuple[int, TimerRecord]] = []
        block: Buffer = b""
        start = 0
        while position >= 0 and len(found) < count_max:
            if not found or position < start:
                try:
                    start, block = self._block(position, reads)
                except Cold:
                    if found:  # these first; the thread reads the next ones
                        break
                    raise
            record = decode(block, position - start) if block else None
            if record is None:
                return found, NONE
            found.append((position, record))
            position = record.previous if record.previous < position else NONE
        return found, position

    def _block(self, position: int, reads: Reads) -> tuple[int, Buffer]:
        """Return the bytes that end with the record at ``position``, and their start."""
        segment = self.segments.find(position)
        if segment is None or position + SIZE > self.end:
            return position, b""
        start = max(segment.base, position - (BLOCK_RECORDS - 1) * SIZE)
        return start, reads.descriptor(
            segment.fd, segment.path, start - segment.base, position + SIZE - start
        )

    def last_in_oldest(self) -> int | None:
        """Return the position of the last record of the oldest file; None if it is in use."""
        if len(self.segments.items) < 2:
            return None
        return self.segments.items[0].base + self._capacity - SIZE
