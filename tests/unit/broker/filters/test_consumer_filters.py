"""The table of groups' filters: versions, members that come and go, limits, and files that are no
such table.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from triomq.broker.services.filters import (
    CHARACTERS_MAX,
    HEARTBEAT_CHARACTERS_MAX,
    ConsumerFilters,
    open_consumer_filters,
)
from triomq.broker.services.persisted import DamagedTable
from triomq.remoting.protocol.bodies.heartbeat import SubscriptionData


def sql(expression: str, version: int = 1, topic: str = "T") -> SubscriptionData:
    return SubscriptionData(
        topic=topic, sub_string=expression, sub_version=version, expression_type="SQL92"
    )


class Clock:
    now = 1_000_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def opened(tmp_path: Path, clock: Clock) -> Callable[[], ConsumerFilters]:
    return lambda: open_consumer_filters(tmp_path, clock)


def test_groups_without_members_are_forgotten_in_time(
    opened: Callable[[], ConsumerFilters], clock: Clock
) -> None:
    filters, members = opened(), {"G"}
    filters.connected = members.__contains__
    filters.register("G", [sql("a = 1")])
    filters.expire()
    assert filters.find("T", "G").dead_ms == 0  # type: ignore[union-attr]
    members.clear()
    filters.expire()
    assert filters.find("T", "G").dead_ms == clock.now  # type: ignore[union-attr]
    clock.now += filters.keep_dead_ms - 1
    filters.expire()
    assert filters.find("T", "G") is not None
    filters.register("G", [sql("a = 1")])  # the same version: alive again
    assert filters.find("T", "G").dead_ms == 0  # type: ignore[union-attr]
    filters.expire()
    clock.now += filters.keep_dead_ms
    filters.expire()
    assert filters.find("T", "G") is None
    assert filters._characters == 0


def test_what_is_in_force_counts_whatever_its_version_and_a_topic_not_named_is_dead(
    opened: Callable[[], ConsumerFilters], clock: Clock
) -> None:
    filters = opened()
    filters.register("G", [sql("a = 1", 5), sql("b = 1", 5, "U")])
    filters.register("G", [sql("a = 2", 4)])
    found = filters.find("T", "G")
    assert found is not None
    assert (found.expression, found.version) == ("a = 2", 4), "its client's clock went back"
    assert filters.find("U", "G").dead_ms == clock.now  # type: ignore[union-attr]


def test_what_a_newer_version_says_counts_whatever_it_is(
    opened: Callable[[], ConsumerFilters], clock: Clock
) -> None:
    """The same expression again is newer all the same; one that cannot be compiled leaves no older
    one in its place.
    """
    filters = opened()
    filters.register("G", [sql("a = 1", version=1)])
    filters.register("G", [])
    assert filters.find("T", "G").dead_ms == clock.now  # type: ignore[union-attr]
    clock.now += 5
    filters.register("G", [])
    assert filters.find("T", "G").dead_ms == clock.now - 5, "it is dead since it was left out first"  # type: ignore[union-attr]
    filters.register("G", [sql("a = 1", version=2)])
    found = filters.find("T", "G")
    assert found is not None
    assert (found.version, found.dead_ms, found.expression) == (2, 0, "a = 1")
    filters.register("G", [sql("a = = 1", version=3)])
    assert filters.find("T", "G") is None
    assert filters._characters == 0


def test_what_has_no_room_is_refused(opened: Callable[[], ConsumerFilters]) -> None:
    filters = opened()
    long = "a IN ('" + "x" * 10_000 + "')"
    filters.register("G", [sql(long, topic=f"T{number}") for number in range(10)])
    taken = [number for number in range(10) if filters.find(f"T{number}", "G") is not None]
    assert taken == list(range(HEARTBEAT_CHARACTERS_MAX // len(long)))
    for number in range(CHARACTERS_MAX // len(long) + 5):
        filters.register(f"G{number}", [sql(long)])
    assert filters._characters <= CHARACTERS_MAX


def test_what_was_stored_is_there_again(
    opened: Callable[[], ConsumerFilters], tmp_path: Path
) -> None:
    filters = opened()
    filters.register("G", [sql("a = 1", 5)])
    (tmp_path / "consumerFilter.json").write_bytes(filters.encode())
    found = opened().find("T", "G")
    assert found is not None
    assert (found.expression, found.version, bool(found.dead_ms), found.wanted({"a": "1"})) == (
        "a = 1",
        5,
        True,
        True,
    )


@pytest.mark.parametrize(
    "content",
    [
        {"filterDataByTopic": {"T": {"groupFilterData": None}}},
        {"filterDataByTopic": {"T": {"groupFilterData": {"G": {"expression": "a = 1"}}}}},
        {
            "filterDataByTopic": {
                "T": {"groupFilterData": {"G": {"expression": 5, "expressionType": "SQL92"}}}
            }
        },
        {"filterDataByTopic": []},
        [],
    ],
)
def test_a_damaged_file_is_said_to_be_one(
    opened: Callable[[], ConsumerFilters], tmp_path: Path, content: object
) -> None:
    (tmp_path / "consumerFilter.json").write_text(json.dumps(content))
    with pytest.raises(DamagedTable, match=r"consumerFilter\.json"):
        opened()


def test_a_filter_that_cannot_be_compiled_is_left_out(
    opened: Callable[[], ConsumerFilters], tmp_path: Path
) -> None:
    entry = {"expression": "a =", "expressionType": "SQL92"}
    (tmp_path / "consumerFilter.json").write_text(
        json.dumps({"filterDataByTopic": {"T": {"groupFilterData": {"G": entry}}}})
    )
    assert len(opened()) == 0
