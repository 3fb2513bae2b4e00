"""Decide which connection of the monitor port makes room for a new connection. Pure.

A probe sends its request at once. When all seats are taken, the oldest connection without a
complete request is closed, or the oldest of all if every request is complete: a peer that sends
nothing or reads nothing cannot keep a probe out.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs


@attrs.define(eq=False)
class Seat:
    """One connection; ``close`` ends it, in a later turn of its task."""

    close: Callable[[], None]
    asked: bool = False
    """whether its request is complete"""


@attrs.define(eq=False)
class Seats:
    """At most ``count`` connections at once."""

    count: int
    closed: int = attrs.field(default=0, init=False)
    """connections that made room for others"""
    _taken: dict[Seat, None] = attrs.field(factory=dict, init=False)  # in order of arrival

    def take(self, seat: Seat) -> bool:
        """Assign a seat to this connection; return whether another connection lost its seat."""
        full = len(self._taken) >= self.count
        if full:
            loser = min(self._taken, key=lambda one: one.asked)  # of equals, the first
            del self._taken[loser]
            self.closed += 1
            loser.close()
        self._taken[seat] = None
        return full

    def leave(self, seat: Seat) -> None:
        """Release the seat, unless another connection has it. Checkpoint: never."""
        self._taken.pop(seat, None)
