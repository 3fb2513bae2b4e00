"""A histogram of latencies whose percentiles are 1 % exact, in constant memory. Pure.

As in HdrHistogram, buckets are linear within each power of two: 128 buckets, so that a bucket is at
most 1/128 of its values wide. (The histograms behind metrics have one bucket for each power of two:
their percentiles may be twice the truth.)
"""

from __future__ import annotations

import math

import attrs

SUB_BUCKET_BITS = 7
"""2 ** 7 = 128 buckets for each power of two"""
VALUE_MAX = (1 << 36) - 1
"""microseconds, 19 hours; larger values are counted as this one"""


def bucket_of(value: int) -> int:
    """Return the bucket of a whole number: values below 256 have one each."""
    shift = max(0, value.bit_length() - SUB_BUCKET_BITS - 1)
    return (shift << SUB_BUCKET_BITS) + (value >> shift)


def bucket_end(bucket: int) -> int:
    """Return the largest value of a bucket."""
    if bucket < 2 << SUB_BUCKET_BITS:
        return bucket
    shift = (bucket >> SUB_BUCKET_BITS) - 1
    return ((bucket - (shift << SUB_BUCKET_BITS) + 1) << shift) - 1


BUCKETS = bucket_of(VALUE_MAX) + 1


@attrs.define(eq=False)
class LatencyHistogram:
    """Counts latencies; all arguments and results are seconds."""

    count: int = 0
    total_seconds: float = 0.0
    min_seconds: float = math.inf
    max_seconds: float = 0.0
    _counts: list[int] = attrs.field(factory=lambda: [0] * BUCKETS, init=False)

    def note(self, seconds: float, times: int = 1) -> None:
        """Count a latency; one below 0, of clocks that differ, counts as 0."""
        seconds = max(0.0, seconds)
        self.count += times
        self.total_seconds += seconds * times
        self.min_seconds = min(self.min_seconds, seconds)
        self.max_seconds = max(self.max_seconds, seconds)
        self._counts[bucket_of(min(VALUE_MAX, round(seconds * 1e6)))] += times

    def quantile(self, share: float) -> float | None:
        """Return the latency that this share of all does not exceed; None without values.

        It is at most 1/128 too large, and never above the largest value.
        """
        if not self.count:
            return None
        wanted, seen = math.ceil(share * self.count), 0
        for bucket, count in enumerate(self._counts):
            seen += count
            if seen == self.count:
                break
            if count and seen >= wanted:
                return min(max(bucket_end(bucket) / 1e6, self.min_seconds), self.max_seconds)
        return self.max_seconds

    @property
    def mean_seconds(self) -> float | None:
        """Return the mean; None without values."""
        return self.total_seconds / self.count if self.count else None
