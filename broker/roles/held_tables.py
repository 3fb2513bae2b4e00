"""Tables of progress that a slave copies from its master, and holds until it may use them. SANS-IO.

A table of the master says "done up to here". The results of that work are in the master's log. A
slave with a shorter log that used the table would, as the new master, skip the rest. So a slave
holds each copy until its own log reaches the end that the master's log had.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

import attrs

T = TypeVar("T")

HELD_MAX = 64
"""Copies that a slave far behind its master holds. Beyond that a new copy replaces the newest, so
the oldest can still come into use.
"""


@attrs.define(eq=False)
class HeldTables(Generic[T]):
    """Copies of one table, oldest first, each with the end of the log that it needs."""

    newest: T | None = attrs.field(default=None, init=False)
    """The last copy that was held."""
    _held: deque[tuple[int, T]] = attrs.field(factory=deque, init=False)

    def hold(self, log_end: int, table: T) -> None:
        """Hold a copy. ``log_end``: the end of the master's log, read after the table."""
        self.newest = table
        if len(self._held) == HELD_MAX:
            self._held.pop()
        self._held.append((log_end, table))

    def take(self, own_end: int) -> T | None:
        """Return the newest copy that needs no more than the own log up to ``own_end``, or None."""
        found = None
        while self._held and self._held[0][0] <= own_end:
            found = self._held.popleft()[1]
        return found
