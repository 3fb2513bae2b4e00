"""The file ``config/timercheck``: how far the timers are done. 4096 bytes, 56 of them Java's.

========  ====  ==============================================================================
position  type  field
========  ====  ==============================================================================
0         i8    slots before this time (ms) are delivered
8         i8    end of the timer log as far as it is on the disk
16        i8    next message of rmq_sys_wheel_timer to put into the wheel
24        i8    the same on the master
32        3 i8  version: state, time, counter
3016      2 i8  older bounds of what is delivered, as at 4072 and 4080, up to 64; 0, 0 ends them
4040      8 B   b"TRIOMQT1": our mark, in a part of the file that Java keeps as it is
4048      2 i8  the fields at 0 and 8 again: a difference means that Java has used the files
4064      i8    end of the timer log up to which the file ``timerwheel`` has all records
4072      i8    messages due up to this time (ms) are delivered …
4080      i8    … if their record lies before this position of the timer log
4088      i8    messages whose own slot, TIMER_OUT_MS, lies before this time are delivered
========  ====  ==============================================================================

Law: a value may be too low, never too high. It is written only after the disk has the delivered
copies, the messages that the timer log names, the timer log and the wheel. Source:
store/…/timer/TimerCheckpoint.java.
"""

from __future__ import annotations

import itertools
import struct
from typing import NamedTuple

import attrs

SIZE_BYTES = 4096
JAVA_FIELDS = struct.Struct(">7q")
MARK = struct.Struct(">8s6q")
MARK_POSITION = 4040
MAGIC = b"TRIOMQT1"
BOUND = struct.Struct(">2q")
OLDER_BOUNDS_MAX = 64
OLDER_POSITION = MARK_POSITION - OLDER_BOUNDS_MAX * BOUND.size


class DeliveredBound(NamedTuple):
    """Messages due up to ``due_ms`` are delivered if their record lies before ``below``."""

    due_ms: int
    below: int


@attrs.frozen(kw_only=True)
class TimerCheck:
    """The content of the file. All zeros: nothing is known."""

    read_ms: int = 0
    log_end: int = 0
    queue_offset: int = 0
    master_queue_offset: int = 0
    version: tuple[int, int, int] = (0, 0, 0)
    marked: bool = False
    """Whether the following fields are known."""
    wheel_end: int = 0
    delivered: tuple[DeliveredBound, ...] = ()
    """Each bound has a later position and an earlier time than the one before it."""
    passed_ms: int = 0
    """Without the mark ``read_ms``."""

    def encode(self) -> bytes:
        data = bytearray(SIZE_BYTES)
        JAVA_FIELDS.pack_into(
            data,
            0,
            self.read_ms,
            self.log_end,
            self.queue_offset,
            self.master_queue_offset,
            *self.version,
        )
        if self.marked:
            *older, newest = self.delivered or (DeliveredBound(0, 0),)
            for index, bound in enumerate(older[:OLDER_BOUNDS_MAX]):
                BOUND.pack_into(data, OLDER_POSITION + index * BOUND.size, *bound)
            MARK.pack_into(
                data,
                MARK_POSITION,
                MAGIC,
                self.read_ms,
                self.log_end,
                self.wheel_end,
                *newest,
                self.passed_ms,
            )
        return bytes(data)

    @classmethod
    def decode(cls, data: bytes) -> TimerCheck:
        """Return the content; what a short file lacks is zero. A mark that Java outran is none."""
        data = data.ljust(SIZE_BYTES, b"\0")
        read, end, queue, master, *version = JAVA_FIELDS.unpack_from(data)
        known = cls(
            read_ms=read,
            log_end=end,
            queue_offset=queue,
            master_queue_offset=master,
            version=(version[0], version[1], version[2]),
            passed_ms=read,
        )
        magic, mark_read, mark_end, wheel, due, below, passed = MARK.unpack_from(
            data, MARK_POSITION
        )
        if magic != MAGIC or (mark_read, mark_end) != (read, end):
            return known
        older = itertools.starmap(
            DeliveredBound, BOUND.iter_unpack(data[OLDER_POSITION:MARK_POSITION])
        )
        bounds = [*itertools.takewhile(any, older), DeliveredBound(due, below)]
        return attrs.evolve(
            known, marked=True, wheel_end=wheel, delivered=tuple(bounds), passed_ms=passed
        )
