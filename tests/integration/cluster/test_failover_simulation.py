"""Groups in controller mode under faults in virtual time: every promise is kept."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from simulated_failover import play_controlled
from simulated_plan import HistoryResult
from simulated_reading import scratch_folder

SEEDS = range(6)
"""``make simulate ARGS=--controllers`` plays more."""


def played(seed: int) -> HistoryResult:
    with scratch_folder() as folder:
        return play_controlled(seed, folder / "history")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Hide what brokers log about crashes."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_failover_breaks_a_promise() -> None:
    results = [played(seed) for seed in SEEDS]
    assert [(one.seed, one.broken) for one in results if one.broken] == []
    assert sum(one.elected for one in results) > 2 * len(results)
    assert sum(one.acknowledged for one in results) > 50 * len(results)
