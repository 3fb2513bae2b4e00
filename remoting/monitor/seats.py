"""Decide which connection of the monitor port makes room for a new one.  Pure: it calls functions, it opens nothing.

A probe sends its request at once. So when all seats are taken the connection that has kept its seat longest without a whole request is
closed, and if there is none, the oldest of all: a peer that says nothing, or reads nothing, can never keep a probe out.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs


@attrs.define(eq=False)
class Seat:
    """One connection: `close` ends it, in a later turn of its task."""

    close: Callable[[], None]
    asked: bool = False
    """whether its request is complete"""


@attrs.define(eq=False)
class Seats:
    """At most `count` connections at once."""

    count: int
    closed: int = attrs.field(default=0, init=False)
    """how many connections made room for others"""
    _taken: dict[Seat, None] = attrs.field(factory=dict, init=False)  # in order of arrival

    def take(self, seat: Seat) -> bool:
        """Give this connection a seat; return whether another one lost its own for it.  Checkpoint: never."""
        full = len(self._taken) >= self.count
        if full:
            loser = next((one for one in self._taken if not one.asked), None) or next(iter(self._taken))
            del self._taken[loser]
            self.closed += 1
            loser.close()
        self._taken[seat] = None
        return full

    def leave(self, seat: Seat) -> None:
        """Give the seat back, unless another connection has it.  Checkpoint: never."""
        self._taken.pop(seat, None)
