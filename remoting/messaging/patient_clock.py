"""PatientClock: the wall clock, but for jumps ahead, by which no receipt handle may end.

Pure. Handles have times of their broker's wall clock, and brokers count invisible times by the
steady one. A handle that is called valid too long harms nothing: its broker decides.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs


@attrs.define(eq=False)
class PatientClock:
    """``window_ms``: for how long a jump ahead is ignored, the longest invisible time."""

    wall_ms: Callable[[], int]
    steady_ms: Callable[[], int]
    window_ms: int
    _apart: int = attrs.field(init=False)
    """How far the wall clock is ahead of the steady one, at least."""
    _at: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._at = self.steady_ms()
        self._apart = self.wall_ms() - self._at

    def now_ms(self) -> int:
        """Return the wall time without jumps ahead of the last ``window_ms``. Checkpoint: never."""
        steady = self.steady_ms()
        apart = self.wall_ms() - steady
        if apart <= self._apart or steady - self._at > self.window_ms:
            self._apart, self._at = apart, steady
        return steady + self._apart
