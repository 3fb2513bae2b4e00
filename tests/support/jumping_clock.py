"""A wall clock that jumps, for everything in this process; the steady clock goes on."""

from __future__ import annotations

import time
from typing import Any

import attrs
import pytest

DAY = 86_400.0


@attrs.define(eq=False)
class JumpingClock:
    """``offset``: seconds ahead of the real clock."""

    offset: float = 0.0
    real: Any = time.time_ns

    def time_ns(self) -> int:
        return int(self.real()) + round(self.offset * 1e9)


def jumping_clock(patch: pytest.MonkeyPatch) -> JumpingClock:
    """Put such a clock in the place of ``time.time`` and ``time.time_ns``."""
    made = JumpingClock()
    patch.setattr(time, "time_ns", made.time_ns)
    patch.setattr(time, "time", lambda: made.time_ns() / 1e9)
    return made
