"""One queue of the revive topic: check points and acks in, messages that come again out.

Pure. The caller reads the queue in order, and says up to which time the queue is complete: all
records that were due by then are in it. Until then a check point may still get acknowledgements.

Source: broker/processor/PopReviveService.java.
"""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple

import attrs

from triomq.remoting.protocol.bodies.check_point import Ack, CheckPoint, Key

KEEP_MS = 600_000
"""How long a check point that is over is remembered."""


class Decided(NamedTuple):
    """A check point that is over."""

    point: CheckPoint
    again: list[int]
    """The queue offsets of its unacknowledged messages."""


@attrs.define(eq=False)
class OpenPoint:
    """A check point that is not over."""

    point: CheckPoint
    left: set[int]
    """Offsets that are not acknowledged."""


class EarlyAcks(NamedTuple):
    """Acknowledgements whose check point was not read yet."""

    offset: int
    """Of the first of them in the queue."""
    stored_ms: int
    offsets: set[int]


@attrs.define(eq=False)
class ReviveQueue:
    """The check points between the last one that is done and the end of the queue."""

    done: int
    """The offset of the last record that is done; -1: none. The offset of Java's revive group."""
    first: int
    """Where to begin to read: earlier than ``done``, so that equal check points are known."""
    _done_before: int = attrs.field(init=False)
    _read: int = attrs.field(init=False)
    """The offset of the last record that was read."""
    _waiting: dict[int, OpenPoint] = attrs.field(factory=dict, init=False)
    """By the offset of the check point, in the order of the queue."""
    _by_key: dict[Key, int] = attrs.field(factory=dict, init=False)
    _early: dict[Key, EarlyAcks] = attrs.field(factory=dict, init=False)
    """In the order of the queue. A slave that acted for its master reports acknowledgements to the
    master that is back, before the timers of this one bring their check point.
    """
    _finished: dict[Key, int] = attrs.field(factory=dict, init=False)
    """Check points that are over, with the end of their time: after a crash the timers may deliver
    the same one again.
    """

    def __attrs_post_init__(self) -> None:
        self._done_before = self.done
        self._read = min(self.first - 1, self.done)

    @property
    def next_offset(self) -> int:
        """The offset of the next record to read."""
        return self._read + 1

    @property
    def oldest_ms(self) -> int:
        """When the first check point that is not done ended or ends; 0: there is none."""
        return next((each.point.visible_at for each in self._waiting.values()), 0)

    def check_point(self, offset: int, point: CheckPoint) -> None:
        """Take the next record of the queue, a check point; the first of equal ones counts."""
        if offset <= self._done_before:
            self._finished[point.key] = point.visible_at
        if point.key in self._by_key or point.key in self._finished:
            self._pass(offset)
            return
        offsets = point.offsets
        acknowledged = {each for place, each in enumerate(offsets) if point.bits >> place & 1}
        early = self._early.pop(point.key, None)
        if early is not None:
            acknowledged |= early.offsets
        self._waiting[offset] = OpenPoint(point, set(offsets) - acknowledged)
        self._by_key[point.key] = offset
        self._pass(offset)

    def acknowledged(self, offset: int, ack: Ack, stored_ms: int = 0) -> None:
        """Take the next record of the queue, an acknowledgement.

        ``stored_ms``: when it was stored. Its check point is in the queue when the timers have
        delivered all that was due by then.
        """
        waiting = self._waiting.get(self._by_key.get(ack.key, -1))
        if waiting is not None:
            waiting.left.difference_update(ack.offsets)
        elif ack.key not in self._finished:
            early = self._early.get(ack.key) or EarlyAcks(offset, 0, set())
            known = early.offsets.union(ack.offsets)
            self._early[ack.key] = EarlyAcks(early.offset, stored_ms, known)
        self._pass(offset)

    def skip(self, offset: int) -> None:
        """Pass a record that is neither, or that cannot be read; or a gap up to it."""
        self._pass(offset)

    def _pass(self, offset: int) -> None:
        assert offset > self._read, "records come in the order of the queue"
        self._read = offset
        self._advance()

    @property
    def is_open(self) -> bool:
        """Whether any check point waits for its end, or any acknowledgement for its check point."""
        return bool(self._waiting or self._early)

    def due(self, complete_to_ms: int, in_flight: Container[Key] = ()) -> list[Decided]:
        """Return the check points whose time ended before ``complete_to_ms``, in queue order.

        What is ``in_flight`` comes again from there: here it ends when all is acknowledged.
        """
        while self._finished and next(iter(self._finished.values())) < complete_to_ms - KEEP_MS:
            del self._finished[next(iter(self._finished))]
        for key in [key for key, each in self._early.items() if each.stored_ms < complete_to_ms]:
            del self._early[key]
        self._advance()
        return [
            Decided(waiting.point, sorted(waiting.left))
            for waiting in self._waiting.values()
            if waiting.point.visible_at < complete_to_ms
            and not (waiting.left and waiting.point.key in in_flight)
        ]

    def finish(self, point: CheckPoint) -> None:
        """Forget a check point whose messages are in their retry topic; ``done`` moves on."""
        offset = self._by_key.pop(point.key)
        self._finished[point.key] = point.visible_at
        del self._waiting[offset]
        self._advance()

    def _advance(self) -> None:
        first = next(iter(self._waiting), self._read + 1)
        if self._early:
            first = min(first, next(iter(self._early.values())).offset)
        self.done = max(self.done, first - 1)
