"""The age of files although the wall clock jumps ahead.  Pure: times are given in.

Files expire by wall time.  A clock that jumps ahead by days would make all of them expire at once, so a jump is not believed for `HOLD_SECONDS`:
long enough for an operator to notice.  A full disk deletes all the same, and so does an operator's request.
"""

from __future__ import annotations

import attrs

JUMP_MS_MAX = 3_600_000
"""By how much the wall clock may gain on the steady one between two looks."""
HOLD_SECONDS = 24 * 3600.0
"""How long a jump is not believed."""


@attrs.define(eq=False)
class ClockGuard:
    """Tells the time by which files are old, in ms; starts from the newest message and the time of the start."""

    _wall_ms: int
    _steady: float
    disbelieved_ms: int = attrs.field(default=0, init=False)
    """How far the wall clock is ahead of the time that is believed."""
    _hold_until: float = attrs.field(default=0.0, init=False)

    @classmethod
    def starting(cls, wall_ms: int, steady: float, newest_ms: int, reserved_ms: int) -> ClockGuard:
        """Begin.  Newest message so old that all files would expire: the clock may have jumped while the broker was off, or the broker was off for long."""
        guard = cls(wall_ms, steady)
        if newest_ms and wall_ms - newest_ms > reserved_ms:
            guard._disbelieve(wall_ms - newest_ms, steady)
        return guard

    def now_ms(self, wall_ms: int, steady: float) -> int:
        """Return the time by which files are old.  ``wall_ms``, ``steady`` (seconds): the clocks now."""
        gained = wall_ms - self._wall_ms - int((steady - self._steady) * 1000)
        self._wall_ms, self._steady = wall_ms, steady
        if gained > JUMP_MS_MAX:
            self._disbelieve(gained, steady)
        elif gained < -JUMP_MS_MAX:
            self.disbelieved_ms = max(0, self.disbelieved_ms + gained)
        if steady >= self._hold_until:
            self.disbelieved_ms = 0
        return wall_ms - self.disbelieved_ms

    def _disbelieve(self, gained_ms: int, steady: float) -> None:
        self.disbelieved_ms += gained_ms
        self._hold_until = steady + HOLD_SECONDS
