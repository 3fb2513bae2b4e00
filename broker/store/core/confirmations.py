"""Confirmations: how far readers may see the log of a broker in controller mode.

What is confirmed is told as any log offset: slaves report the ends of what they have, and those of
Java cut records. Readers and indexes go by whole appends, so the offset is rounded down to the end
of one.
"""

from __future__ import annotations

from collections import deque

import attrs

from triomq.broker.store.core.watermark import Watermark


@attrs.define(eq=False)
class Confirmations:
    """``confirmed`` is the end of an append, and never beyond ``has``."""

    appended: Watermark
    has: Watermark
    """What this broker has by its own rule: with SYNC_FLUSH what its disk has."""
    confirmed: Watermark = attrs.field(factory=Watermark, init=False)
    _ends: deque[int] = attrs.field(factory=deque, init=False)
    """Ends of appends beyond ``confirmed``, ascending."""

    def __attrs_post_init__(self) -> None:
        self.appended.callbacks.append(self._note_append)

    def start_at(self, end: int) -> None:
        """Begin with a log up to ``end``, of which readers see nothing new yet."""
        self._ends.append(end)

    def _note_append(self) -> None:
        self._ends.append(self.appended.value)

    def confirm(self, offset: int) -> None:
        """Show the log up to ``offset``, as far as this broker has it. Checkpoint: never."""
        limit = min(offset, self.has.value)
        ends, end = self._ends, 0
        while ends and ends[0] <= limit:
            end = ends.popleft()
        if end:
            self.confirmed.advance(end)
