"""The age of files under a wall clock that jumps ahead. Pure: the caller passes the times.

Files expire by wall time, so a clock that jumps ahead by days would expire all of them at once. The
guard therefore ignores a jump for ``HOLD_SECONDS``, long enough for an operator to notice. A full
disk and an operator's request delete files regardless.
"""

from __future__ import annotations

import attrs

JUMP_MS_MAX = 3_600_000
"""Largest gain of the wall clock on the steady one between two rounds that is not a jump."""
HOLD_SECONDS = 24 * 3600.0
"""How long a jump is ignored."""


@attrs.define(eq=False)
class ClockGuard:
    """Corrects the wall clock for jumps ahead."""

    _wall_ms: int
    _steady: float
    ignored_ms: int = attrs.field(default=0, init=False)
    """How far the wall clock is ahead of the corrected time."""
    _hold_until: float = attrs.field(default=0.0, init=False)

    @classmethod
    def starting(cls, wall_ms: int, steady: float, newest_ms: int, reserved_ms: int) -> ClockGuard:
        """Return a guard for a broker that starts.

        If even the newest message has expired, the clock may have jumped while the broker was off.
        """
        guard = cls(wall_ms, steady)
        if newest_ms and wall_ms - newest_ms > reserved_ms:
            guard._ignore(wall_ms - newest_ms, steady)
        return guard

    def now_ms(self, wall_ms: int, steady: float) -> int:
        """Return the corrected wall time (ms) for ``wall_ms`` and ``steady`` (seconds) of now."""
        gained = wall_ms - self._wall_ms - int((steady - self._steady) * 1000)
        self._wall_ms, self._steady = wall_ms, steady
        if gained > JUMP_MS_MAX:
            self._ignore(gained, steady)
        elif gained < -JUMP_MS_MAX:
            self.ignored_ms = max(0, self.ignored_ms + gained)
        if steady >= self._hold_until:
            self.ignored_ms = 0
        return wall_ms - self.ignored_ms

    def _ignore(self, gained_ms: int, steady: float) -> None:
        self.ignored_ms += gained_ms
        self._hold_until = steady + HOLD_SECONDS
