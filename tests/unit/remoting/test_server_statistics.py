"""Latency histograms: buckets of powers of two, quantiles from them."""

from __future__ import annotations

import pytest

from triomq.remoting.server.statistics import LATENCY_BUCKETS, CodeStatistics, latency_bucket


@pytest.mark.parametrize(
    ("seconds", "bucket"),
    [
        (0.0, 0),
        (0.9e-6, 0),
        (1e-6, 1),
        (2e-6, 2),
        (3.9e-6, 2),
        (1e-3, 10),
        (1.0, 20),
        (3600.0, 32),
        (1e12, 60),
    ],
)
def test_buckets(seconds: float, bucket: int) -> None:
    assert latency_bucket(seconds) == bucket < LATENCY_BUCKETS


def test_quantiles_are_upper_edges() -> None:
    latency = [0] * LATENCY_BUCKETS
    latency[10], latency[20] = 99, 1
    one = CodeStatistics(latency=latency)
    assert one.latency_quantile(0.5) == one.latency_quantile(0.99) == pytest.approx(1.024e-3)
    assert one.latency_quantile(1.0) == pytest.approx(1.048576)
    assert CodeStatistics().latency_quantile(0.99) == 0.0


def test_mean_wait() -> None:
    assert CodeStatistics(queued=4, wait_seconds=2.0).wait_seconds_mean == 0.5
    assert CodeStatistics().wait_seconds_mean == 0.0
