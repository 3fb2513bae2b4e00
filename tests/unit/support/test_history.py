"""The history checker finds each kind of broken promise, and nothing in a history without one."""

from __future__ import annotations

import attrs
import pytest
from history import Delivery, History, LogPart, Outcome, Stored, Try, log_differences, violations

QUEUE = ("broker-a", "T", 0)
KEPT = History(
    tries=[
        Try("m1", Outcome.ACKNOWLEDGED, QUEUE, 0, 0),
        Try("m2", Outcome.UNKNOWN),
        Try("m2", Outcome.ACKNOWLEDGED, QUEUE, 2, 200),
        Try("m3", Outcome.REFUSED),
        Try("m4", Outcome.UNKNOWN),
    ],
    stored=[Stored(QUEUE, 0, "m1", 0), Stored(QUEUE, 1, "m2", 100), Stored(QUEUE, 2, "m2", 200)],
    bounds={QUEUE: (0, 3)},
    deliveries=[
        Delivery("g", QUEUE, offset, key)
        for offset, key in ((0, "m1"), (1, "m2"), (0, "m1"), (2, "m2"))
    ],
    groups=frozenset({"g"}),
    ordered=frozenset({"g"}),
)


def test_a_history_without_fault() -> None:
    assert violations(KEPT) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"stored": KEPT.stored[:2], "bounds": {QUEUE: (0, 2)}}, "m2 was acknowledged"),
        ({"stored": [*KEPT.stored[:2], Stored(QUEUE, 2, "m4", 200)]}, "where m4 is"),
        ({"stored": [*KEPT.stored[:2], Stored(QUEUE, 2, "m2", 300)]}, "it is at 300"),
        ({"tries": [*KEPT.tries, Try("m5", Outcome.ACKNOWLEDGED, QUEUE, 2)]}, "to m2 and to m5"),
        ({"stored": [*KEPT.stored, Stored(QUEUE, 3, "m1", 300)], "bounds": {QUEUE: (0, 4)}},
        "m1 is stored 2 times"),
        ({"stored": [*KEPT.stored, Stored(QUEUE, 3, "m3", 300)], "bounds": {QUEUE: (0, 4)}},
        "m3 is stored 1 times after 0"),
        ({"stored": [*KEPT.stored, Stored(QUEUE, 3, "m9", 300)], "bounds": {QUEUE: (0, 4)}},
        "it was never sent"),
        ({"stored": [KEPT.stored[0], KEPT.stored[2]]}, "holds 0 to 1, 2 to 3"),
        ({"bounds": {QUEUE: (0, 4)}}, "names offsets 0 to 4"),
        ({"stored": [*KEPT.stored[:2], Stored(QUEUE, 2, "m2", 100)]}, "is in two queues"),
        ({"deliveries": KEPT.deliveries[:2]}, "g never got"),
        ({"deliveries": [KEPT.deliveries[1], KEPT.deliveries[0], KEPT.deliveries[3]]},
        "when 0 came next"),
        ({"deliveries": [*KEPT.deliveries, Delivery("g", QUEUE, 3, "m4")]}, "where nothing is"),
    ],
)  # fmt: skip
def test_each_broken_promise_is_found(change: dict[str, object], words: str) -> None:
    assert any(words in text for text in violations(attrs.evolve(KEPT, **change)))  # type: ignore[arg-type]


def test_what_was_read_from_a_lost_page_cache_may_vanish() -> None:
    deliveries = [*KEPT.deliveries, Delivery("g", QUEUE, 3, "m4")]
    assert violations(attrs.evolve(KEPT, deliveries=deliveries, durable_reads=False)) == []


def test_a_lost_message_at_its_place_does_not_count_as_seen() -> None:
    """A slave became master; the group has seen at that offset what only the lost master had."""
    deliveries = [*KEPT.deliveries[:3], Delivery("g", QUEUE, 2, "m4")]
    found = violations(attrs.evolve(KEPT, deliveries=deliveries, durable_reads=False))
    assert found == [f"g never got {(QUEUE, 2)} (m2)"]


def test_logs_are_compared_where_both_have_bytes() -> None:
    master, slave = LogPart("master", 0, b"0123456789"), LogPart("slave", 4, b"456789ab")
    assert log_differences([master, slave]) == []
    assert log_differences([master, LogPart("slave", 4, b"45x7")]) == [
        "the logs of master and slave differ at log offset 6"
    ]
    assert log_differences([master, LogPart("slave", 20, b"x")]) == []
