"""Bytes a second to a slave, as ``RateMeter`` measures them. SANS-IO.

Java counts whole seconds, and only the headers of frames (``FlowMonitor`` in DefaultHAConnection);
here every byte counts.
"""

from __future__ import annotations

import attrs


@attrs.define(eq=False)
class RateMeter:
    """The rate of a counter since the last question, over at least a second."""

    _count: int = 0
    _at: float = 0.0
    _rate: int = 0

    def per_second(self, count: int, now: float) -> int:
        """Return the rate at which the counter has come to ``count``."""
        if now - self._at >= 1.0:
            self._rate = round((count - self._count) / (now - self._at))
            self._count, self._at = count, now
        return self._rate
