"""The histogram of benchmarks: percentiles are those of the sorted values, 1 % exact."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq.client.mqadmin.bench.latency_histogram import (
    BUCKETS,
    VALUE_MAX,
    LatencyHistogram,
    bucket_end,
    bucket_of,
)


@given(st.integers(0, VALUE_MAX))
def test_a_bucket_holds_its_value_and_is_narrow(value: int) -> None:
    bucket = bucket_of(value)
    assert 0 <= bucket < BUCKETS
    end = bucket_end(bucket)
    assert value <= end <= value + value / 128
    assert bucket_of(end) == bucket
    assert bucket_of(end + 1) == bucket + 1


@pytest.mark.parametrize("spread", [1e-5, 1e-3, 0.1, 30.0])
def test_percentiles_are_those_of_the_sorted_values(spread: float) -> None:
    chance = random.Random(7)
    values = sorted(chance.expovariate(1 / spread) for _ in range(5000))
    histogram = LatencyHistogram()
    for value in values:
        histogram.note(value)
    for share in (0.0001, 0.5, 0.9, 0.99, 0.999, 1.0):
        exact = values[math.ceil(share * len(values)) - 1]
        found = histogram.quantile(share)
        assert found is not None
        assert exact - 1e-6 <= found <= exact * (1 + 1 / 128) + 1e-6, share
    assert histogram.quantile(1.0) == values[-1]
    assert (histogram.min_seconds, histogram.max_seconds) == (values[0], values[-1])
    assert histogram.mean_seconds == pytest.approx(sum(values) / len(values))


def test_a_batch_counts_once_for_each_message() -> None:
    histogram = LatencyHistogram()
    histogram.note(0.001, times=99)
    histogram.note(1.0)
    assert histogram.count == 100
    assert histogram.quantile(0.99) == pytest.approx(0.001, rel=0.01)
    assert histogram.quantile(0.991) == 1.0


def test_nothing_is_unknown_and_clocks_that_differ_are_0() -> None:
    histogram = LatencyHistogram()
    assert (histogram.quantile(0.5), histogram.mean_seconds) == (None, None)
    histogram.note(-3.0)
    assert (histogram.quantile(0.5), histogram.min_seconds) == (0.0, 0.0)
    histogram.note(1e9)
    assert histogram.quantile(1.0) == histogram.max_seconds == 1e9
