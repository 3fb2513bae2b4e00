"""The version of a table that other nodes copy.

It grows with every change, and carries the wall clock's time. Source:
remoting/protocol/DataVersion.java.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from triomq.remoting.protocol.bodies.topics import DataVersion


@attrs.define(eq=False)
class Version:
    """The present version of one table."""

    clock_ms: Callable[[], int]
    current: DataVersion = attrs.field()
    on_bump: Callable[[], None] = attrs.field(default=lambda: None, kw_only=True)
    """Called after every change, so that slaves of TrioMQ hear of it at once."""

    @current.default
    def _fresh(self) -> DataVersion:
        return DataVersion(timestamp=self.clock_ms())

    def bump(self) -> None:
        self.current = self.current.next(self.clock_ms())
        self.on_bump()

    def load(self, saved: DataVersion | None) -> None:
        """Go on from a saved version; 4.9 releases save none with the offsets."""
        if saved is not None and saved.timestamp:
            self.current = saved
