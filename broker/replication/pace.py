"""Pace: how many bytes of the log may go to one slave now; Speed: how many did, for people.  SANS-IO.

Java counts whole seconds, and only the headers of frames (``FlowMonitor`` in DefaultHAConnection); here every byte counts.
"""

from __future__ import annotations

import attrs


@attrs.define(eq=False)
class Pace:
    """A bucket that holds a tenth of a second's worth."""

    bytes_per_second: int
    _tokens: float = attrs.field(init=False)
    _filled_at: float = attrs.field(default=float("-inf"), init=False)

    def __attrs_post_init__(self) -> None:
        self._tokens = self._capacity

    @property
    def _capacity(self) -> float:
        return max(1.0, self.bytes_per_second / 10)

    def allowance(self, now: float) -> int:
        """Bytes that may be sent now; ``spend`` says how many were."""
        if self._filled_at > float("-inf"):
            self._tokens = min(self._capacity, self._tokens + (now - self._filled_at) * self.bytes_per_second)
        self._filled_at = now
        return int(self._tokens)

    def spend(self, count: int) -> None:
        self._tokens -= count

    def seconds_to_wait(self) -> float:
        """How long until a worthwhile part of the bucket is full again."""
        return max(0.0, (self._capacity / 2 - self._tokens) / self.bytes_per_second)


@attrs.define(eq=False)
class Speed:
    """The rate of something that is counted, over the time since it was last asked for, but at least a second."""

    _count: int = 0
    _at: float = 0.0
    _rate: int = 0

    def per_second(self, count: int, now: float) -> int:
        if now - self._at >= 1.0:
            self._rate = round((count - self._count) / (now - self._at))
            self._count, self._at = count, now
        return self._rate
