"""Latency histograms: their buckets, Java's buckets and quantiles from them."""

from __future__ import annotations

from bisect import bisect_left

import pytest

from triomq.remoting.server.statistics import (
    LATENCY_BUCKETS,
    LATENCY_EDGES,
    RPC_EDGES_SECONDS,
    CodeStatistics,
    rebucketed,
)


@pytest.mark.parametrize("seconds", [0.0, 0.9e-6, 1e-6, 2e-6, 3.9e-6, 1e-3, 1.0, 3600.0])
def test_buckets_end_at_their_edges(seconds: float) -> None:
    bucket = bisect_left(LATENCY_EDGES, seconds)
    assert seconds <= LATENCY_EDGES[bucket]
    assert bucket == 0 or LATENCY_EDGES[bucket - 1] < seconds
    assert bisect_left(LATENCY_EDGES, 1e12) == LATENCY_BUCKETS - 1


def test_quantiles_are_upper_edges() -> None:
    latency = [0] * LATENCY_BUCKETS
    latency[bisect_left(LATENCY_EDGES, 1.01e-3)], latency[bisect_left(LATENCY_EDGES, 1.04)] = 99, 1
    one = CodeStatistics(latency=latency)
    assert one.latency_quantile(0.5) == one.latency_quantile(0.99) == pytest.approx(1.024e-3)
    assert one.latency_quantile(1.0) == pytest.approx(1.048576)
    assert CodeStatistics().latency_quantile(0.99) == 0.0


def test_java_s_buckets_and_response_codes() -> None:
    one = CodeStatistics()
    for seconds in (0.0005, 0.001, 0.002, 0.0031, 0.5, 7.0):
        one.note_answered(2, seconds)
    one.note_code(19)
    one.note_answered(3, 0.002)
    assert rebucketed(one.latency, RPC_EDGES_SECONDS) == [4, 5, 2, 0, 0, 0, 2, 0, 0, 2]
    assert rebucketed(one.coded[19].latency, RPC_EDGES_SECONDS) == [0, 1] + [0] * 8
    done = one.successes()
    assert rebucketed(done.latency, RPC_EDGES_SECONDS) == [4, 4, 2, 0, 0, 0, 2, 0, 0, 2]
    assert done.seconds == pytest.approx(one.answer_seconds - 0.002)
    twice = one.snapshot().plus(one.snapshot())
    assert twice.answered == 2 * one.answered == 30
    assert sum(twice.coded[19].latency) == 2


def test_mean_wait() -> None:
    assert CodeStatistics(queued=4, wait_seconds=2.0).wait_seconds_mean == 0.5
    assert CodeStatistics().wait_seconds_mean == 0.0
