"""Due times of delayed messages under a wall clock that jumps. SANS-IO: the caller passes times.

A message carries the wall time at which it was stored, so a clock that is set back or forward would
stretch or cut its delay. The broker therefore notes by the steady clock when the messages of a
level became readable, and trusts the wall clock only within ``TOLERANCE_SECONDS`` of it. For
messages from before the start it uses the wall time of the start; they wait no longer than their
delay from then on.
"""

from __future__ import annotations

from collections import deque

import attrs

TOLERANCE_SECONDS = 1.0
"""Largest difference between the clocks at which the wall clock is trusted."""
MARKS_PER_DELAY = 500
MARK_SECONDS_MIN = 0.05
MARKS_MAX = 1_000
"""For each level. Beyond it the two oldest are merged, which only widens the span in which the wall
clock is trusted.
"""


@attrs.define
class ArrivalMark:
    """The messages from the mark before up to the queue offset ``end``.

    They became readable between ``first`` and ``last`` (steady clock, seconds).
    """

    end: int
    first: float
    last: float


@attrs.define(eq=False)
class ArrivalTimes:
    """The times at which the messages of one level became readable.

    ``delay``: the level's delay, seconds; ``known_from``: the queue's end at the start; ``wall_ms``
    and ``steady``: the two clocks at the start. ``replicated``: the messages come from a master,
    perhaps long after they were stored, so their arrival gives only the latest due time.
    """

    delay: float
    known_from: int
    wall_ms: int
    steady: float
    replicated: bool = False
    _marks: deque[ArrivalMark] = attrs.field(factory=deque, init=False)

    def note(self, end: int, steady: float) -> None:
        """Record that the queue is readable up to ``end``."""
        newest = self._marks[-1] if self._marks else None
        if newest is not None and (
            end <= newest.end
            or steady - newest.first < max(MARK_SECONDS_MIN, self.delay / MARKS_PER_DELAY)
        ):
            newest.end, newest.last = max(newest.end, end), steady
            return
        self._marks.append(ArrivalMark(end, steady, steady))
        if len(self._marks) > MARKS_MAX:
            oldest = self._marks.popleft()
            self._marks[0].first = oldest.first

    def forget(self, queue_offset: int) -> None:
        """Drop marks of messages below ``queue_offset``: they are delivered."""
        while self._marks and self._marks[0].end <= queue_offset:
            self._marks.popleft()

    def wait(self, queue_offset: int, store_ms: int, wall_ms: int, steady: float) -> float:
        """Return the seconds until a message is due; 0 or less: it is due.

        ``store_ms``: its store time; ``wall_ms``, ``steady``: the present times.
        """
        since_start = steady - self.steady
        if queue_offset < self.known_from:
            return min((store_ms - self.wall_ms) / 1000, 0.0) + self.delay - since_start
        by_wall = (store_ms - wall_ms) / 1000 + self.delay
        mark = next((mark for mark in self._marks if mark.end > queue_offset), None)
        if mark is None:
            return min(by_wall, self.delay)
        longest = mark.last + TOLERANCE_SECONDS + self.delay - steady
        shortest = (
            float("-inf")
            if self.replicated
            else mark.first - TOLERANCE_SECONDS + self.delay - steady
        )
        return min(max(by_wall, shortest), longest)
