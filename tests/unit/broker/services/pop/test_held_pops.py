"""Pops that wait: who is woken first, what a table keeps, and how many it takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from triomq.broker.services.held_requests import STALE_DEADLINES_MAX
from triomq.broker.services.pop.held_pops import HeldPop, HeldPops

RETRY = "%RETRY%G_T"


def pop(woken: list[str], name: str, *, queue_id: int = -1, group: str = "G") -> HeldPop:
    topics = ("T", RETRY, "%RETRY%G+T")
    return HeldPop(group, topics, queue_id, 10.0, name, lambda: woken.append(name))


def test_the_pop_that_waits_longest_is_woken_one_of_each_group() -> None:
    held, woken = HeldPops(100, 100), list[str]()
    for name in ("first", "second"):
        held.hold(pop(woken, name))
    held.hold(pop(woken, "other queue", queue_id=3, group="H"))
    held.hold(pop(woken, "other group", group="H"))
    held.arrived([("T", 0, 1, 0)])
    assert woken == ["first", "other group"]
    held.arrived([(RETRY, 0, 1, 0)])
    assert woken == ["first", "other group", "second", "other queue"]
    held.arrived([("T", 3, 1, 0)])
    assert held.count == held.waiting("G", "T") == 0


def test_both_limits() -> None:
    held, woken = HeldPops(3, 2), list[str]()
    assert [held.hold(pop(woken, str(number))) for number in range(3)] == [True, True, False]
    assert [held.hold(pop(woken, str(n), group="H")) for n in range(2)] == [True, False]
    held.forget_connection("0")
    assert held.count == 1  # both groups had one of it
    assert held.hold(pop(woken, "more"))
    assert held.expire(10.0) == float("inf")
    assert sorted(woken) == ["1", "more"]


def test_woken_pops_do_not_pile_up() -> None:
    held, woken = HeldPops(100, 100), list[str]()
    for number in range(5 * STALE_DEADLINES_MAX):
        held.hold(pop(woken, str(number)))
        held.wake("G", "T")
    assert len(woken) == 5 * STALE_DEADLINES_MAX
    assert len(held._deadlines) <= STALE_DEADLINES_MAX + 2
    assert held._by_topic == {}
    assert held._by_connection == {}


@pytest.mark.parametrize(
    ("arrival", "comes"), [(("T", 1), True), ((RETRY, 1), True), (("T", 2), False)]
)
def test_a_pop_that_visits_queues_hears_of_what_comes_meanwhile(
    arrival: tuple[str, int], comes: bool
) -> None:
    held, woken = HeldPops(100, 100), list[str]()
    header: Any = SimpleNamespace(consumer_group="G", topic="T", queue_id=1)
    watch = held.watch(header, "connection")
    held.hold(pop(woken, "behind it"))
    held.arrived([(*arrival, 1, 0)])
    assert woken == ([] if comes else ["behind it"])
    assert [held.end_watch(watch), held.end_watch(watch)] == [comes, comes]
    assert held.count == (1 if comes else 0)
