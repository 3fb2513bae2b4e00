"""Binary search among the entries of a consume queue, some of which may be fillers.

A filler (size 0x7FFFFFFF) stands for an entry whose record the log lacks. It says nothing about its
neighbours, so the search reads the next real entry instead.

Fillers stand at the beginning of a queue whose first message had a number above 0, and wherever a
number was skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

FILLER_SIZE = 0x7FFFFFFF

Entry = tuple[int, int, int]
"""(log offset, size, tags code)"""
E = TypeVar("E")


def first_not(
    holds: Callable[[int, E], bool],
    next_real: Callable[[int, int], tuple[int, E] | None],
    low: int,
    high: int,
    *,
    first: int | None = None,
) -> int:
    """Return the number of the first real entry in [low, high) that does not hold, or ``high``.

    ``holds(number, entry)`` must be true up to some entry and false from there on.
    ``next_real(start, stop)`` returns the first entry in [start, stop) that is not a filler; None
    if all are fillers. ``first``: where the search begins, if not in the middle.
    """
    found = high
    middle = (low + high) // 2 if first is None else first
    while low < high:
        real = next_real(middle, high)
        if real is None:
            high = middle
        elif holds(*real):
            low = real[0] + 1
        else:
            found, high = real[0], middle
        middle = (low + high) // 2
    return found
