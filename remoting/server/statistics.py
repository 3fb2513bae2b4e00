"""Snapshots of a server's counters since its start."""

from collections.abc import Mapping

import attrs

LATENCY_BUCKETS = 64


def latency_bucket(seconds: float) -> int:
    """Return the bucket of a latency: 0 is below 1 µs, n is from 2^(n-1) to 2^n µs."""
    return int(seconds * 1e6).bit_length()


@attrs.define
class CodeStatistics:
    """The counters of one request code.

    ``requests`` reached the handler, ``refused`` were answered busy, ``failed`` ended in an
    unexpected error. ``errors`` are answers with an error code, including failed ones; an empty
    pull is not an error. ``latency`` counts answers by the time since the request was read, see
    ``latency_bucket``; the oldest request of a batch stands for all. ``queued`` requests waited in
    the pool's queue, ``wait_seconds`` in sum, at most ``wait_seconds_max``; all others ran as soon
    as they were read.
    """

    requests: int = 0
    refused: int = 0
    failed: int = 0
    errors: int = 0
    answer_seconds: float = 0.0
    latency: list[int] = attrs.field(factory=lambda: [0] * LATENCY_BUCKETS)
    queued: int = 0
    wait_seconds: float = 0.0
    wait_seconds_max: float = 0.0

    def note_answered(self, count: int, seconds: float) -> None:
        """Count *count* answers, the oldest of which took *seconds*. Called once for each batch."""
        self.answer_seconds += count * seconds
        self.latency[latency_bucket(seconds)] += count

    def note_wait(self, count: int, seconds: float) -> None:
        """Count *count* requests that left the queue after *seconds*."""
        self.queued += count
        self.wait_seconds += count * seconds
        if seconds > self.wait_seconds_max:
            self.wait_seconds_max = seconds

    def snapshot(self) -> "CodeStatistics":
        """Return a copy that no longer changes."""
        return attrs.evolve(self, latency=self.latency.copy())

    @property
    def answered(self) -> int:
        return sum(self.latency)

    def latency_quantile(self, share: float) -> float:
        """Return the seconds in which this share was answered: the upper edge of a bucket, or 0."""
        wanted, seen = share * self.answered, 0
        for bucket, count in enumerate(self.latency):
            seen += count
            if count and seen >= wanted:
                return float(2**bucket / 1e6)
        return 0.0

    @property
    def wait_seconds_mean(self) -> float:
        """The mean wait of the queued requests, in seconds."""
        return self.wait_seconds / self.queued if self.queued else 0.0


@attrs.define
class PoolStatistics:
    """One pool. Refused requests by reason: overloaded, rejected, expired or stalled."""

    workers: int = 0
    idle_workers: int = 0
    queued_requests: int = 0
    queued_bytes: int = 0
    requests_in_place: int = 0
    requests_queued: int = 0
    overloaded: int = 0
    rejected: int = 0
    expired: int = 0
    stalled: int = 0


@attrs.frozen(kw_only=True)
class ServerStatistics:
    """The counters of one server.

    Connections were closed as ``broken`` for invalid input, as ``closed_greedy`` for the memory
    they kept. ``sent_away`` counts requests that came while the server stopped.
    """

    connections: int
    accepted: int
    accepted_by_side_port: Mapping[str, int]
    turned_away: int
    closed: int
    closed_idle: int
    closed_greedy: int
    broken: int
    received_bytes: int
    sent_bytes: int
    requests: int
    unknown_requests: int
    sent_away: int
    pools: Mapping[str, PoolStatistics]
    codes: Mapping[int, CodeStatistics]
