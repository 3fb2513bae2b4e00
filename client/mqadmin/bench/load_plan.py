"""What load a run makes, and when each request of it is due. Pure.

With a rate the load is an open loop: request n is due at ``n / rate``, whatever happened to those
before it, and its latency counts from then. A broker that stalls for a second therefore shows in
the percentiles of all requests that were due in that second; measured from the send, only those in
flight would show it (coordinated omission). Without a rate each worker sends its next request when
the last one is answered.
"""

from __future__ import annotations

import math

import attrs


@attrs.frozen(kw_only=True)
class LoadPlan:
    """The load of one run."""

    seconds: float
    """no request begins later"""
    requests_max: int | None = None
    """the run ends after this number of requests"""
    in_flight_max: int = 64
    rate: float | None = None
    """requests per second; None: as many as ``in_flight_max`` allows"""

    def due_after(self, number: int) -> float | None:
        """Return when request ``number`` (from 0) is due, in seconds after the begin.

        None: when a worker is free.
        """
        return None if self.rate is None else number / self.rate

    def due_count(self, elapsed: float) -> int | None:
        """Return the number of requests that are due before ``elapsed``; None without a rate."""
        if self.rate is None:
            return None
        count = math.ceil(min(elapsed, self.seconds) * self.rate - 1e-9)
        return count if self.requests_max is None else min(count, self.requests_max)

    def wants(self, number: int, elapsed: float) -> bool:
        """Return whether request ``number`` belongs to the run, given the time that has passed."""
        if elapsed >= self.seconds or (
            self.requests_max is not None and number >= self.requests_max
        ):
            return False
        due = self.due_after(number)
        return due is None or due < self.seconds
