"""Orderly POP: what of a queue is in flight, and what that means for the next pop.

Pure. An orderly group has no check points: its committed offset is the first message that is not
acknowledged, and the next pop begins there. While any message of the last pop may still be
acknowledged in time, the queue gives none.

Source: broker/offset/ConsumerOrderInfoManager.java.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import attrs

from triomq.remoting.protocol.bodies.pop import OrderedPopBody


class Refused(enum.Enum):
    """Why an acknowledgement has no effect."""

    LATE = "it is of an earlier pop"
    UNKNOWN = "the last pop has no such message"


@attrs.define(eq=False)
class OrderedPop:
    """The last pop of a queue by a group."""

    pop_time: int
    invisible_ms: int
    offsets: list[int]
    """In ascending order."""
    attempt_id: str | None = None
    counts: dict[int, int] = attrs.field(factory=dict)
    """Offset -> how often it was popped before."""
    visible_at: dict[int, int] = attrs.field(factory=dict)
    """Offset -> when it is visible again, if its invisible time was changed."""
    bits: int = 0
    last_ms: int = 0
    done: frozenset[int] = frozenset()
    """Acknowledged offsets that the last pop, which wanted fewer messages, has not read."""
    begun: float = 0.0
    """The steady clock at ``pop_time``, in seconds."""
    since: int | None = None
    """The wall time of the first start that called ``pop_time`` later than now (ms)."""

    def restart(self, steady: float, wall_ms: int) -> bool:
        """Go on after a start; return whether ``since`` has changed.

        A pop of a time that the clock has not reached begins again, but only once: it is over if
        the clock was set back a second time.
        """
        before = self.since
        if self.pop_time <= wall_ms:
            self.since = None
        elif self.since is None:
            self.since = wall_ms
        elif self.since > wall_ms:
            self.since = 0
        if self.since == 0:
            waited_ms = self.free_at(None) - self.pop_time
        else:
            waited_ms = wall_ms - (self.since or self.pop_time)
        self.begun = steady - waited_ms / 1000
        return self.since != before

    def now_ms(self, steady: float) -> int:
        """Return the time with which those of this pop compare: a wall clock that never jumps."""
        return self.pop_time + int((steady - self.begun) * 1000)

    def _open(self) -> list[int]:
        return [each for place, each in enumerate(self.offsets) if not self.bits >> place & 1]

    @property
    def acknowledged(self) -> frozenset[int]:
        """The offsets that are acknowledged, though an earlier one may not be."""
        return self.done | (frozenset(self.offsets) - frozenset(self._open()))

    def _visible_at(self, offset: int) -> int:
        return self.visible_at.get(offset, self.pop_time + self.invisible_ms)

    def open_count(self, now_ms: int) -> int:
        """Return how many messages are hidden and not acknowledged."""
        return sum(self._visible_at(offset) > now_ms for offset in self._open())

    def free_at(self, attempt_id: str | None) -> int:
        """Return when the queue gives messages again (ms); 0: now.

        ``attempt_id``: a client that repeats its last request, since the answer was lost, is never
        made to wait.
        """
        if attempt_id is not None and attempt_id == self.attempt_id:
            return 0
        return max(map(self._visible_at, self._open()), default=0)

    def next(
        self, pop_time: int, invisible_ms: int, offsets: Sequence[int], attempt_id: str | None
    ) -> OrderedPop:
        """Return the state after the next pop, which has read ``offsets``.

        Those that are acknowledged stay so: they are not delivered again.
        """
        again = attempt_id is not None and attempt_id == self.attempt_id
        acknowledged, before = self.acknowledged, set(self._open())
        counts = {
            offset: self.counts.get(offset, 0) + (0 if again else 1)
            for offset in offsets
            if offset in before and (not again or offset in self.counts)
        }
        bits = sum(1 << place for place, each in enumerate(offsets) if each in acknowledged)
        return OrderedPop(
            pop_time,
            invisible_ms,
            list(offsets),
            attempt_id,
            counts,
            bits=bits,
            last_ms=pop_time,
            done=acknowledged - frozenset(offsets),
        )

    def acknowledge(self, offset: int, pop_time: int) -> int | Refused:
        """Note an acknowledged message; return the offset to commit."""
        if pop_time != self.pop_time:
            return Refused.LATE
        if offset not in self.offsets:
            return Refused.UNKNOWN
        self.bits |= 1 << self.offsets.index(offset)
        self.last_ms = max(self.last_ms, pop_time)
        return next(iter(self._open()), self.offsets[-1] + 1)

    def change(self, offset: int, pop_time: int, visible_at: int) -> bool:
        """Give a message another time; return whether the last pop has it."""
        if pop_time != self.pop_time or offset not in self.offsets:
            return False
        self.visible_at[offset] = visible_at
        return True

    def encode(self) -> OrderedPopBody:
        """Return the form of the file."""
        first, *rest = self.offsets
        return OrderedPopBody(
            pop_time=self.pop_time,
            invisible_ms=self.invisible_ms,
            offsets=[first, *(offset - first for offset in rest)],
            visible_at=dict(self.visible_at),
            counts=dict(self.counts),
            last_ms=self.last_ms,
            bits=self.bits,
            attempt_id=self.attempt_id,
            done=sorted(self.done) or None,
            since=self.since,
        )

    @classmethod
    def decode(cls, body: OrderedPopBody) -> OrderedPop | None:
        """Return the state of an entry of the file; None for one without messages."""
        if not body.offsets:
            return None
        first, *rest = body.offsets
        return cls(
            body.pop_time,
            body.invisible_ms,
            [first, *(first + difference for difference in rest)],
            body.attempt_id,
            dict(body.counts),
            dict(body.visible_at),
            body.bits & ((1 << len(body.offsets)) - 1),
            body.last_ms,
            frozenset(body.done or ()),
            since=body.since,
        )
