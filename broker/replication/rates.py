"""Bytes a second: ``TokenBucket`` limits what goes to a slave, ``RateMeter`` measures it. SANS-IO.

Java counts whole seconds, and only the headers of frames (``FlowMonitor`` in DefaultHAConnection);
here every byte counts.
"""

from __future__ import annotations

import attrs


@attrs.define(eq=False)
class TokenBucket:
    """Holds the bytes of a tenth of a second."""

    bytes_per_second: int
    _tokens: float = attrs.field(default=0.0, init=False)
    _filled_at: float = attrs.field(default=float("-inf"), init=False)

    @property
    def _capacity(self) -> float:
        return max(1.0, self.bytes_per_second / 10)

    def allowance(self, now: float) -> int:
        """Return how many bytes may be sent now; call ``spend`` with the number that were."""
        self._tokens = min(
            self._capacity, self._tokens + (now - self._filled_at) * self.bytes_per_second
        )
        self._filled_at = now
        return int(self._tokens)

    def spend(self, count: int) -> None:
        """Take out the bytes that were sent."""
        self._tokens -= count

    def seconds_to_wait(self) -> float:
        """Return the time until half of the bucket is full again."""
        return max(0.0, (self._capacity / 2 - self._tokens) / self.bytes_per_second)


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
