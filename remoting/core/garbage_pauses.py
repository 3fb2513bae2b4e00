"""Bounded pauses of Python's garbage collector, for servers that hold millions of objects.

A full collection visits every object of the process, which takes about 0.5 µs each and stops the
loop: for 290 ms with 100,000 popped messages. Here every full collection ends with
``gc.freeze()``: later ones skip what has survived, and see only what was made since. Reference
counts still free frozen objects; only cycles among them stay. Therefore one collection visits
everything when the number of frozen objects has doubled, at most once an hour.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping

import attrs

THRESHOLDS = 700, 5, 1
"""A full collection sees at most about 12,000 objects. The first is the default of Python."""
CHECK_SECONDS = 3600.0
FROZEN_MIN = 50_000
"""Visiting fewer objects than these takes about 25 ms: their growth is not checked."""


@attrs.define(eq=False)
class GarbagePauses:
    """Freezes what survives full collections of this process, between ``begin`` and ``end``.

    Where Python collects in increments (3.14), this changes nothing.
    """

    _frozen: int = attrs.field(default=FROZEN_MIN, init=False)
    """Frozen objects when a collection last visited everything."""
    _check_at: float = attrs.field(default=0.0, init=False)
    _thresholds: tuple[int, int, int] = attrs.field(factory=gc.get_threshold, init=False)

    def begin(self) -> None:
        """Set the thresholds of this process, and watch its full collections."""
        gc.set_threshold(*THRESHOLDS)
        gc.callbacks.append(self._collected)

    def started(self) -> None:
        """Freeze what the start has loaded; only what comes on top of it counts as growth."""
        gc.freeze()
        self._frozen = max(FROZEN_MIN, gc.get_freeze_count())
        self._check_at = time.monotonic() + CHECK_SECONDS

    def end(self) -> None:
        """Undo all of it."""
        gc.callbacks.remove(self._collected)
        gc.set_threshold(*self._thresholds)
        gc.unfreeze()

    def _collected(self, phase: str, info: Mapping[str, int]) -> None:
        if phase != "stop" or info["generation"] != 2:
            return
        gc.freeze()
        if not self._check_at or time.monotonic() < self._check_at:
            return
        self._check_at = time.monotonic() + CHECK_SECONDS
        frozen = gc.get_freeze_count()
        if frozen > 2 * self._frozen:
            self._frozen = frozen
            gc.unfreeze()  # the next full collection visits everything
