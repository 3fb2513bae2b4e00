"""Decide which connection of the monitor port makes room for a new connection. Pure.

A probe sends its request at once. When all places are taken, the oldest connection without a
complete request is closed, or the oldest of all if every request is complete: a peer that sends
nothing or reads nothing cannot keep a probe out.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs


@attrs.define(eq=False)
class MonitorConnection:
    """One connection; ``close`` ends it, in a later turn of its task."""

    close: Callable[[], None]
    asked: bool = False
    """whether its request is complete"""


@attrs.define(eq=False)
class MonitorConnections:
    """At most ``count`` connections at once."""

    count: int
    closed: int = attrs.field(default=0, init=False)
    """connections that made room for others"""
    _open: dict[MonitorConnection, None] = attrs.field(factory=dict, init=False)
    """in order of arrival"""

    def admit(self, connection: MonitorConnection) -> bool:
        """Count a new connection; return whether another one was closed to make room."""
        full = len(self._open) >= self.count
        if full:
            loser = min(self._open, key=lambda one: one.asked)  # of equals, the first
            del self._open[loser]
            self.closed += 1
            loser.close()
        self._open[connection] = None
        return full

    def release(self, connection: MonitorConnection) -> None:
        """Free the place of a connection, unless it was taken from it. Checkpoint: never."""
        self._open.pop(connection, None)
