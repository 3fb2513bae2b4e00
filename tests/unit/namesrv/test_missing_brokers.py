"""Which brokers a name server remembers as missing, and for how long."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from triomq.namesrv.broker_registration import Departed
from triomq.namesrv.missing_brokers import REMEMBERED_MAX, REMEMBERED_MS, Leave, MissingBrokers

MASTER = Departed("C", "a", 0, "h:1")


@pytest.fixture
def missing() -> MissingBrokers:
    brokers = MissingBrokers()
    brokers.left(MASTER, Leave.SILENT, 1_000)
    return brokers


def test_a_broker_that_left_is_told_with_the_time_since(missing: MissingBrokers) -> None:
    (value,) = missing.values(4_000).values()
    assert json.loads(value)["processes"] == [
        {
            "address": "h:1",
            "brokerId": 0,
            "brokerName": "a",
            "cluster": "C",
            "leave": "silent",
            "seconds": 3,
        }
    ]


def test_it_is_remembered_for_a_day(missing: MissingBrokers) -> None:
    assert missing.processes(1_000 + REMEMBERED_MS)
    assert not missing.values(1_001 + REMEMBERED_MS)


@pytest.mark.parametrize(
    ("cluster", "name", "broker_id", "address", "stays"),
    [
        ("C", "a", 0, "h:1", False),
        ("C", "a", 0, "other:1", False),  # with another address
        ("C", "b", 1, "h:1", False),  # with another name
        ("C", "a", 1, "other:1", True),
        ("D", "a", 0, "h:1", True),
    ],
)
def test_it_returns(
    missing: MissingBrokers, cluster: str, name: str, broker_id: int, address: str, stays: bool
) -> None:
    missing.registered(cluster, name, broker_id, address)
    assert bool(missing.processes(1_000)) is stays


def test_the_last_word_of_a_broker_comes_after_its_connection(missing: MissingBrokers) -> None:
    missing.unregistered("C", "a", "other:1")
    assert missing.processes(1_000)[0].leave == "silent"
    missing.unregistered("C", "a", "h:1")
    assert missing.processes(1_000)[0].leave == "unregistered"


def test_a_name_is_forgotten_with_all_its_processes(missing: MissingBrokers) -> None:
    missing.left(Departed("C", "a", 1, "h:2"), Leave.UNREGISTERED, 1_000)
    missing.left(Departed("C", "b", 0, "h:3"), Leave.UNREGISTERED, 1_000)
    missing.forget("a")
    assert list(missing.values(1_000)) == ["b"]


def test_the_memory_is_bounded(missing: MissingBrokers) -> None:
    for number in range(REMEMBERED_MAX):
        missing.left(Departed("C", f"b{number}", 0, f"h:{number}"), Leave.SILENT, 2_000)
    assert len(missing.values(2_000)) == REMEMBERED_MAX
    assert "a" not in missing.values(2_000)


PLACE = ("C", "a", 0)


@pytest.mark.parametrize(
    ("claims", "proven"),
    [
        # claimant, holder, when the holder was last heard, now (in seconds)
        ([("x", "y", 0, 1)], [False]),  # it moved
        ([("x", "y", 0, 1), ("y", "x", 1, 16)], [False, True]),  # each takes it from the other
        ([("x", "y", 0, 1), ("y", "x", 1, 16), ("x", "y", 16, 31)], [False, True, False]),
        ([("x", "y", 0, 1), ("x", "y", 0, 31)], [False, False]),  # the holder may be dead
        ([("x", "y", 0, 1), ("x", "y", 20, 31)], [False, True]),
        ([("x", "y", 0, 1), ("y", "x", 1, 200)], [False, False]),  # long ago
        ([("x", "y", 0, 1), ("z", "x", 2, 16)], [False, False]),  # it moved again
    ],
)
def test_two_living_brokers_of_one_place(
    claims: list[tuple[str, str, int, int]], proven: list[bool]
) -> None:
    missing = MissingBrokers()
    found = [
        missing.claimed(PLACE, claimant, holder, seen * 1000, now * 1000)
        for claimant, holder, seen, now in claims
    ]
    assert found == proven
    now_ms = claims[-1][3] * 1000
    both = ["x", "y"] if any(proven) else []
    assert [one.address for one in missing.processes(now_ms)] == both
    assert missing.processes(now_ms + 120_001) == []


@pytest.mark.parametrize(
    "end",
    [
        lambda missing: missing.left(Departed("C", "a", 0, "y"), Leave.SILENT, 16_000),
        lambda missing: missing.unregistered("C", "a", "x"),
        lambda missing: missing.forget("a"),
    ],
)
def test_the_contest_ends_when_one_of_them_is_gone(end: Callable[[MissingBrokers], None]) -> None:
    missing = MissingBrokers()
    missing.claimed(PLACE, "x", "y", 0, 1_000)
    assert missing.claimed(PLACE, "y", "x", 1_000, 16_000)
    end(missing)
    assert not missing.is_contested(PLACE)
