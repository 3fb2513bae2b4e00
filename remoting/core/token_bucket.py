"""A limit of so much a second, which lets short bursts through. SANS-IO."""

from __future__ import annotations

import attrs


@attrs.define(eq=False)
class TokenBucket:
    """Holds what comes in ``burst_seconds`` at the rate; it is full at first.

    Clocks are the caller's, in seconds, and never go back.
    """

    per_second: int
    burst_seconds: float = 0.1
    _tokens: float = attrs.field(default=0.0, init=False)
    _filled_at: float = attrs.field(default=float("-inf"), init=False)

    @property
    def _capacity(self) -> float:
        return max(1.0, self.per_second * self.burst_seconds)

    def allowance(self, now: float) -> int:
        """Return how much may be spent now; call ``spend`` with what was."""
        self._tokens = min(self._capacity, self._tokens + (now - self._filled_at) * self.per_second)
        self._filled_at = now
        return int(self._tokens)

    def spend(self, count: int) -> None:
        """Take out what was spent; more than there is leaves a debt."""
        self._tokens -= count

    def seconds_to_wait(self) -> float:
        """Return the time until half of the bucket is full again."""
        return max(0.0, (self._capacity / 2 - self._tokens) / self.per_second)
