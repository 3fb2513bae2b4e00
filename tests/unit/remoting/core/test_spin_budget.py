"""When a loop spins before it sleeps, and for how long."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from triomq.remoting.core import busy_poll as module
from triomq.remoting.core.busy_poll import SpinBudget

LIMIT = 100e-6


@pytest.fixture(autouse=True)
def no_yield(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.os, "sched_yield", lambda: None)


class Clock:
    """Each reading is one step later."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.step = 0.0
        self.now = 0.0
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=self.read))

    def read(self) -> float:
        self.now += self.step
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def spin(budget: SpinBudget, clock: Clock, seconds: float) -> bool:
    """Spin once; the input comes after *seconds*, by the clock."""
    clock.step = seconds
    return budget.spin(lambda: True, budget.seconds)


def waits_until_due(budget: SpinBudget) -> int:
    return next(count for count in itertools.count() if budget.due())


def test_each_failed_spin_doubles_the_waits_until_the_next(clock: Clock) -> None:
    budget = SpinBudget(LIMIT)
    waits = []
    for _ in range(13):
        waits.append(waits_until_due(budget))
        spin(budget, clock, 2 * LIMIT)
    assert waits == [0, 1, 3, 7, 15, 31, 63, 127, 255, 511, 1023, 1023, 1023]
    assert waits_until_due(budget) == 1023
    for _ in range(20):
        assert budget.due(), "after a success, every wait"
        assert spin(budget, clock, LIMIT / 2)
    spin(budget, clock, 2 * LIMIT)
    assert waits_until_due(budget) == 1
    assert (budget.found, budget.missed) == (20, 14)


def test_a_spin_takes_up_to_twice_the_usual_time_of_successful_spins(clock: Clock) -> None:
    budget = SpinBudget(LIMIT)
    assert budget.seconds == LIMIT, "nothing is known yet"
    for _ in range(100):
        spin(budget, clock, LIMIT / 4)
    assert 0.99 * LIMIT / 2 < budget.seconds < 1.01 * LIMIT / 2
    for _ in range(100):
        spin(budget, clock, LIMIT / 100)
    assert budget.seconds == LIMIT / 8, "never shorter"
    for seconds in (LIMIT / 4, LIMIT / 2, LIMIT, LIMIT):
        spin(budget, clock, 2 * LIMIT)
        assert budget.seconds == seconds, "a failed spin may have been too short"
    for _ in range(100):
        spin(budget, clock, 0.999 * LIMIT)
    assert budget.seconds == LIMIT, "never longer"


def test_without_a_limit_there_is_no_spin() -> None:
    assert not SpinBudget(0.0).due()
