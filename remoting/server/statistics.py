"""Snapshots of a server's counters: what the runtime-information command and a metrics page read. Counts since the start."""

from collections.abc import Mapping

import attrs

LATENCY_BUCKETS = 64


def latency_bucket(seconds: float) -> int:
    """Bucket 0 is below 1 µs, bucket n from 2^(n-1) to 2^n µs."""
    return int(seconds * 1e6).bit_length()


@attrs.frozen(kw_only=True)
class CodeStatistics:
    """One request code: `requests` came to the handler, `refused` were answered busy, `failed` ended in an unexpected error.

    `errors` are answers that say no (failed ones included; finding no message is none). `latency` counts answers by the time from
    the read of the request, see `latency_bucket`; the oldest request of a batch stands for all. `queued` requests waited in the
    pool's queue, `wait_seconds` together, the longest `wait_seconds_max`; all others ran as soon as they were read.
    """

    requests: int
    refused: int
    failed: int
    errors: int
    answered: int
    answer_seconds: float
    latency: tuple[int, ...]
    queued: int
    wait_seconds: float
    wait_seconds_max: float

    def latency_quantile(self, share: float) -> float:
        """Seconds within which this share of the answers was given: the upper edge of a bucket, 0 without answers."""
        wanted, seen = share * sum(self.latency), 0
        for bucket, count in enumerate(self.latency):
            seen += count
            if count and seen >= wanted:
                return float(2**bucket / 1e6)
        return 0.0

    @property
    def wait_seconds_mean(self) -> float:
        """Of those that waited."""
        return self.wait_seconds / self.queued if self.queued else 0.0


@attrs.frozen(kw_only=True)
class PoolStatistics:
    """One business pool. `overloaded`, `rejected`, `expired` and `stalled` are the four ways to be refused."""

    workers: int
    idle_workers: int
    queued_requests: int
    queued_bytes: int
    requests_in_place: int
    requests_queued: int
    overloaded: int
    rejected: int
    expired: int
    stalled: int


@attrs.frozen(kw_only=True)
class StageStatistics:
    """Selectors or codecs, summed. A batch runs in place or through the mailbox of the next stage."""

    turns: int
    batches_in_place: int
    batches_queued: int


@attrs.frozen(kw_only=True)
class ServerStatistics:
    """All of one server. `broken` counts connections closed for what they sent, `closed_greedy` those closed for the memory they kept, `sent_away`
    requests that came while it stopped.
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
    selectors: StageStatistics
    pools: Mapping[str, PoolStatistics]
    codes: Mapping[int, CodeStatistics]
