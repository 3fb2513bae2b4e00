"""The timer wheel: one slot of 32 bytes for each second of two weeks. SANS-IO.

========  ====  =====================================================================
position  type  field of a slot
========  ====  =====================================================================
0         i8    time of the slot divided by the precision (ms; 1,000 by default)
8         i8    position of its oldest record in the timer log
16        i8    position of its newest record; each record names the one before it
24        i4    messages; a record that deletes one counts as -1
28        i4    0
========  ====  =====================================================================

Index of a slot: (time / precision) mod 1,209,600. A slot is valid only for the time in its first
field. The bytes are those of the file ``timerwheel``; parts that were never used take no memory.
Source: store/…/timer/TimerWheel.java, Slot.java.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

import attrs

SLOT = Struct(">qqqii")
SLOT_COUNT = 2 * 7 * 24 * 3600
"""Slots whatever the precision: two weeks with 1,000 ms."""
WHEEL_BYTES = SLOT_COUNT * SLOT.size
BLOCK_BYTES = 4096
"""The unit in which changes are written to the file."""
NONE = -1
"""Position of a record that does not exist."""


class Slot(NamedTuple):
    """The content of a slot; ``time_ms`` is in ms."""

    time_ms: int
    first: int
    last: int
    messages: int


@attrs.define(eq=False)
class TimerWheel:
    """The slots in memory, and which blocks of them differ from the file."""

    precision_ms: int
    data: mmap.mmap = attrs.field(factory=lambda: mmap.mmap(-1, WHEEL_BYTES))
    """Memory of its own, not of a file: pages that were never used take none, unlike those of a
    bytearray.
    """
    dirty: set[int] = attrs.field(factory=set, init=False)
    """Numbers of the blocks that were changed since ``take_dirty``."""

    def position(self, time_ms: int) -> int:
        """Return where the slot of a time begins, in bytes."""
        return time_ms // self.precision_ms % SLOT_COUNT * SLOT.size

    def raw(self, time_ms: int) -> Slot:
        """Return what lies at the index of a time, whichever time it belongs to."""
        time, first, last, count, _ = SLOT.unpack_from(self.data, self.position(time_ms))
        return Slot(time * self.precision_ms, first, last, count)

    def find(self, time_ms: int) -> Slot | None:
        """Return the slot of a time; None if it has no records."""
        slot = self.raw(time_ms)
        return slot if slot.time_ms == time_ms and slot.time_ms and slot.last >= 0 else None

    def put(self, time_ms: int, position: int, change: int) -> None:
        """Make the record at ``position`` the newest of a slot; add ``change`` to its messages."""
        slot = self.find(time_ms)
        first, count = (slot.first, slot.messages) if slot is not None else (position, 0)
        self._write(time_ms, Slot(time_ms, first, position, count + change))

    def clear(self, time_ms: int) -> None:
        """Forget the records of a slot."""
        self._write(time_ms, Slot(0, 0, 0, 0))

    def _write(self, time_ms: int, slot: Slot) -> None:
        at = self.position(time_ms)
        SLOT.pack_into(
            self.data,
            at,
            slot.time_ms // self.precision_ms,
            slot.first,
            slot.last,
            slot.messages,
            0,
        )
        self.dirty.add(at // BLOCK_BYTES)

    def slots_in(self, begin: int, end: int) -> Iterator[Slot]:
        """Yield the slots with records in the bytes [begin, end), whole slots."""
        for time, first, last, count, _ in SLOT.iter_unpack(memoryview(self.data)[begin:end]):
            if time and last >= 0:
                yield Slot(time * self.precision_ms, first, last, count)

    def take_dirty(self) -> list[tuple[int, bytes]]:
        """Return (position, bytes) of everything changed since the last call, ascending."""
        runs: list[tuple[int, int]] = []
        for block in sorted(self.dirty):
            if runs and runs[-1][1] == block:
                runs[-1] = runs[-1][0], block + 1
            else:
                runs.append((block, block + 1))
        self.dirty.clear()
        return [
            (begin * BLOCK_BYTES, bytes(self.data[begin * BLOCK_BYTES : end * BLOCK_BYTES]))
            for begin, end in runs
        ]
