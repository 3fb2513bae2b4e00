"""Store times that go back: where a clock that was ahead was set right. Pure.

A store time is at least that of the message before it, so that a search by time is exact although
the clock goes back a little. But a time of the far future must not count for as long as the clock
is behind it: beyond ``AHEAD_MS_MAX`` store times go by the clock again. There the key index begins
a new file, and between two such steps back times grow. The logs of Java's brokers may have more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Generic, TypeVar

import attrs

AHEAD_MS_MAX = 600_000
"""How far store times may be ahead of the clock before they go back to it. A clock that is kept
right by small steps, or the clock of another master, is not so wrong; and so much of a search by
time may be wrong without harm.
"""

E = TypeVar("E")


def steps_back(times: Sequence[int], before: int) -> list[int]:
    """Return the indexes of the times that are far smaller than the one in front of them.

    ``before``: the time in front of the first one.
    """
    if times[0] + AHEAD_MS_MAX >= before and max(times) - min(times) <= AHEAD_MS_MAX:
        return []
    return [
        number
        for number, (earlier, later) in enumerate(pairwise((before, *times)))
        if later + AHEAD_MS_MAX < earlier
    ]


@attrs.frozen
class TimeSearch(Generic[E]):
    """A search by time among the entries of a queue.

    ``first_not(holds, low, high)`` returns the number of the first entry in [low, high) that does
    not hold, or ``high``. ``place`` and ``time`` return log offset and store time of an entry's
    message.
    """

    first_not: Callable[[Callable[[E], bool], int, int], int]
    place: Callable[[E], int]
    time: Callable[[E], int]
    steps: Sequence[int]
    """The log offsets where times go back, in ascending order."""
    newest_ms: int
    """Store time of the last message of the log."""

    def first_from(self, bound_ms: int, low: int, high: int) -> int:
        """Return the first entry in [low, high) of a time or later; ``high``: there is none.

        A message that is later than the newest one was stored while the clock was ahead. It counts
        as stored just before the next one that is not. Nobody asks with a right clock for a time
        behind the newest, unless that one was stored while the clock was behind: then all count as
        they are.
        """
        known_ms = self.newest_ms if bound_ms <= self.newest_ms else math.inf
        doubtful: int | None = None
        for begin, end in self._growing(low, high):
            found = self.first_not(lambda entry: self.time(entry) < bound_ms, begin, end)
            if found != begin:
                doubtful = None  # what follows it is older than the bound
            if found == end:
                continue
            first = found if doubtful is None else doubtful
            if self.first_not(lambda entry: self.time(entry) <= known_ms, found, found + 1) > found:
                return first
            doubtful = first
        return high if doubtful is None else doubtful

    def _growing(self, low: int, high: int) -> list[tuple[int, int]]:
        """Return the parts [begin, end) in which times grow."""
        bounds = [low]
        for step in self.steps:
            bounds.append(self._first_behind(step, bounds[-1], high))
        return [(begin, end) for begin, end in pairwise((*bounds, high)) if begin < end]

    def _first_behind(self, log_offset: int, low: int, high: int) -> int:
        return self.first_not(lambda entry: self.place(entry) < log_offset, low, high)
