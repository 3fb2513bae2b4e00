"""Progress that a slave copied from its master, used only as far as the own log has what it tells of.  Pure.

A table of the master says "done up to here", and what was done lies in the master's log.  A slave whose log is shorter would, as the new master, skip
what it does not have.  So each copy is held together with the end of the master's log at that time, until the own log reaches it.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

import attrs

T = TypeVar("T")

HELD_MAX = 64
"""A slave that is far behind keeps so many; of the rest the newest counts."""


@attrs.define(eq=False)
class CopiedProgress(Generic[T]):
    """Copies of one table, oldest first, each with the end of the log that it needs."""

    _held: deque[tuple[int, T]] = attrs.field(factory=deque, init=False)
    _newest: T | None = attrs.field(default=None, init=False)

    def is_news(self, table: T) -> bool:
        """Whether a table is another one than the last that was held."""
        return table != self._newest

    def hold(self, log_end: int, table: T) -> None:
        """Keep a copy; ``log_end``: the end of the master's log, asked after the table."""
        self._newest = table
        if len(self._held) == HELD_MAX:
            self._held.pop()
        self._held.append((log_end, table))

    def take(self, own_end: int) -> T | None:
        """Return the newest copy that the own log, readable up to ``own_end``, supports; None if there is no new one."""
        found = None
        while self._held and self._held[0][0] <= own_end:
            found = self._held.popleft()[1]
        return found
