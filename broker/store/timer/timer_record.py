"""The records of the timer log: which message waits, and until when. SANS-IO.

========  ====  =========================================================================
position  type  field
========  ====  =========================================================================
0         i4    52, the size of a record
4         i8    position of the record before it in the same slot, -1 if it is the first
12        i4    1, plus 2 if the message waits in several steps, plus 4 if it deletes one
16        i8    time of the write, a multiple of the precision (ms)
24        i4    time of the slot minus time of the write (ms)
28        i8    log offset of the message, which lies in the topic rmq_sys_wheel_timer
36        i4    size of the message
40        i4    Java's hash code of the message's real topic
44        i8    Java writes 0; here the exact time of the delivery (ms), 0 if not known
========  ====  =========================================================================

A file ends with ``i4 bytes left, i8 0, i4 0xCBD43194`` if no further record fits into it. Source:
store/…/timer/TimerLog.java, TimerMessageStore.java#doEnqueue.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

RECORD = Struct(">iqiqiqiiq")
SIZE = RECORD.size
BLANK = Struct(">iqI")
BLANK_MAGIC = 0xCBD43194
PLAIN, ROLL, DELETE = 1, 2, 4
MAGIC_MAX = 0xF
WAIT_MAX = 2_147_000_000
"""Longest distance of a slot from the write (ms): below 2**31, and whole seconds."""


class TimerRecord(NamedTuple):
    """A record without its size; times are in ms."""

    previous: int
    magic: int
    write_ms: int
    slot_ms: int
    log_offset: int
    size: int
    topic_hash: int
    due_ms: int

    def encode(self) -> bytes:
        """Return the bytes; they name the slot exactly.

        A clock that was set back, or a broker that was stopped for a month, makes a wait longer
        than 2**31 ms either way: the time of the write gives way, which nobody reads.
        """
        wait = max(-WAIT_MAX, min(self.slot_ms - self.write_ms, WAIT_MAX))
        return RECORD.pack(
            SIZE,
            self.previous,
            self.magic,
            self.slot_ms - wait,
            wait,
            self.log_offset,
            self.size,
            self.topic_hash,
            self.due_ms,
        )

    @property
    def deletes(self) -> bool:
        """Whether it deletes a message of its slot; one that still has a step to wait does not."""
        return bool(self.magic & DELETE) and not self.magic & ROLL

    @property
    def rolls(self) -> bool:
        return bool(self.magic & ROLL)


def decode(data: bytes | bytearray | memoryview, at: int) -> TimerRecord | None:
    """Return the record at ``at``; None if there is none."""
    size, previous, magic, write, wait, offset, message, topic_hash, due = RECORD.unpack_from(
        data, at
    )
    if size != SIZE or not 0 < magic <= MAGIC_MAX:
        return None
    return TimerRecord(previous, magic, write, write + wait, offset, message, topic_hash, due)


def records_in(data: bytes | bytearray | memoryview) -> Iterator[tuple[int, TimerRecord]]:
    """Yield (position, record) from the start of ``data``, up to other bytes."""
    for at in range(0, len(data) - SIZE + 1, SIZE):
        record = decode(data, at)
        if record is None:
            return
        yield at, record


def file_capacity(file_bytes: int) -> int:
    """Return the bytes of a file that records can take; behind them is the end mark."""
    return (file_bytes - BLANK.size) // SIZE * SIZE


def end_mark(bytes_left: int) -> bytes:
    return BLANK.pack(bytes_left, 0, BLANK_MAGIC)
