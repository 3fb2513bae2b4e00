"""What may be deleted, and when messages are refused: the decision, without any file."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq.broker.store.core.disk_space import Usage
from triomq.broker.store.core.retention import (
    HOUR_MS,
    Decision,
    OldSegment,
    RetentionRules,
    Seen,
    decide,
    format_hours,
    parse_hours,
    without_future,
)

NOW = 1_700_000_000_000
SIZE = 1000
RULES = RetentionRules()


def disk(percent: float) -> Usage:
    used = int(percent * 1000)
    return Usage(used, 100_000 - used)


def seen(*ages_hours: float, percent: float = 10, **changes: object) -> Seen:
    """Segments of 1 % of the disk each, of these ages in hours, at an hour in which nothing is
    deleted.
    """
    segments = [
        OldSegment(n * SIZE, (n + 1) * SIZE, NOW - int(age * HOUR_MS))
        for n, age in enumerate(ages_hours)
    ]
    settings: dict[str, object] = {
        "segments": segments,
        "now_ms": NOW,
        "hour": 3,
        "log_disk": disk(percent),
        "queue_disk": disk(percent),
        "indexed_to": 1 << 40,
        "needed_from": 1 << 40,
        **changes,
    }
    return Seen(**settings)  # type: ignore[arg-type]


def test_nothing_is_deleted_out_of_hours_while_there_is_room() -> None:
    assert decide(seen(100, 90, 80, percent=75), RULES) == Decision()


@pytest.mark.parametrize(
    "change",
    [
        {"hour": 4},
        {"asked": True},
        {"percent": 76.0},
        {"log_disk": disk(10), "queue_disk": disk(76)},
    ],
    ids=str,
)
def test_expired_segments_are_deleted_oldest_first(change: dict[str, object]) -> None:
    decision = decide(seen(100, 73, 72, 71.9, 100, **change), RULES)  # type: ignore[arg-type]
    assert tuple(decision.delete) == (0, SIZE, 2 * SIZE)  # the first young segment ends it
    assert set(decision.delete.values()) == {"not written to for 72 hours"}
    assert not decision.refuse


def test_a_disk_that_fills_up_with_nothing_to_delete_is_reported() -> None:
    assert decide(seen(1, 1, percent=80), RULES) == Decision(short=True)


def test_above_85_percent_age_does_not_count_and_no_more_is_deleted_than_needed() -> None:
    decision = decide(seen(*[1] * 9, percent=88), RULES)
    assert tuple(decision.delete) == (0, SIZE, 2 * SIZE)  # 88 -> 85
    assert not decision.refuse
    assert set(decision.delete.values()) == {"the disk is more than 85 % full"}
    assert tuple(decide(seen(*[100] * 9, percent=88), RULES).delete) == tuple(
        n * SIZE for n in range(9)
    )  # all expired segments are deleted


def test_the_disk_of_the_queues_forces_one_segment_a_round() -> None:
    assert tuple(decide(seen(1, 1, 1, log_disk=disk(10), queue_disk=disk(88)), RULES).delete) == (
        0,
    )


def test_messages_are_refused_above_90_percent_until_85() -> None:
    assert not decide(seen(percent=90), RULES).refuse
    assert decide(seen(percent=90.1), RULES).refuse
    assert decide(seen(percent=85.1, refusing=True), RULES).refuse
    assert not decide(seen(percent=85, refusing=True), RULES).refuse
    assert decide(seen(log_disk=disk(10), queue_disk=disk(91)), RULES).refuse
    assert not decide(
        seen(log_disk=None, queue_disk=None, refusing=True), RULES
    ).refuse  # a disk of unknown usage does not count as full


def test_force_can_be_switched_off() -> None:
    rules = attrs.evolve(RULES, force_enabled=False)
    decision = decide(seen(100, 1, percent=95), rules)
    assert tuple(decision.delete) == (0,)
    assert decision.refuse


def test_at_most_one_batch_a_round() -> None:
    assert len(decide(seen(*[100] * 30, hour=4), RULES).delete) == 10
    assert len(decide(seen(*[100] * 30, hour=4), attrs.evolve(RULES, batch_max=3)).delete) == 3


def test_needed_segments_stay_unless_forced_and_unindexed_ones_always() -> None:
    assert tuple(decide(seen(100, 100, 100, hour=4, needed_from=2 * SIZE), RULES).delete) == (
        0,
        SIZE,
    )
    assert tuple(decide(seen(100, 100, 100, hour=4, needed_from=0), RULES).delete) == ()
    assert tuple(decide(seen(100, 100, percent=86.5, needed_from=0), RULES).delete) == (0, SIZE)
    assert tuple(decide(seen(100, 100, percent=95, indexed_to=2 * SIZE - 1), RULES).delete) == (0,)


@pytest.mark.parametrize(
    ("times", "counted"),
    [
        ([1, 2, 3], [1, 2, 3]),
        ([1, 90, 80, 4, 5], [1, 4, 4, 4, 5]),
        ([90, 80], [80, 80]),
        ([5, 2, 90], [5, 2, 90]),
        ([], []),
    ],
)
def test_a_segment_of_the_future_is_as_old_as_the_next_one(
    times: list[int], counted: list[int]
) -> None:
    assert without_future(times, 10) == counted


def test_hours() -> None:
    assert parse_hours("04") == (4,)
    assert parse_hours(" 4; 16 ;") == (4, 16)
    assert format_hours((4, 16)) == "04;16"
    for text in ("24", "-1", "4,5", "x"):
        with pytest.raises(ValueError, match="hour"):
            parse_hours(text)


def test_usage() -> None:
    assert Usage(0, 0).ratio == 0.0
    assert Usage(30, 70).ratio == 0.3
    assert Usage(3, 7).without(5) == Usage(0, 10)


situations = st.builds(
    seen,
    *[st.floats(0, 200) for _ in range(6)],
    percent=st.floats(0, 100),
    hour=st.integers(0, 23),
    asked=st.booleans(),
    refusing=st.booleans(),
    indexed_to=st.integers(0, 8 * SIZE),
    needed_from=st.integers(0, 8 * SIZE),
)
some_rules = st.builds(
    RetentionRules,
    reserved_hours=st.integers(0, 150),
    used_percent_max=st.integers(10, 95),
    force_percent=st.integers(30, 85),
    warning_percent=st.integers(35, 90),
    force_enabled=st.booleans(),
    batch_max=st.integers(1, 7),
)


def check_laws(situation: Seen, rules: RetentionRules) -> None:
    decision = decide(situation, rules)
    gone = situation.segments[: len(decision.delete)]
    assert tuple(decision.delete) == tuple(segment.base for segment in gone), (
        "only the oldest are deleted, without a gap"
    )
    assert len(gone) <= rules.batch_max
    assert all(segment.end <= situation.indexed_to for segment in gone)
    log_disk = situation.log_disk
    assert log_disk is not None
    high = log_disk.above(rules.force_percent) or log_disk.above(rules.warning_percent)
    may = (
        situation.asked
        or situation.hour in rules.delete_hours
        or log_disk.above(rules.used_percent_max)
        or high
    )
    assert may or not gone
    for segment in gone:
        expired = segment.modified_ms <= situation.now_ms - rules.reserved_hours * HOUR_MS
        forced = high and rules.force_enabled
        assert forced or (expired and segment.end <= situation.needed_from)
    assert not log_disk.above(rules.warning_percent) or decision.refuse
    assert high or not decision.refuse


@given(situations, some_rules)
def test_laws(situation: Seen, rules: RetentionRules) -> None:
    check_laws(situation, rules)


def test_the_laws_can_be_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    situation = seen(100, 100, 100, hour=4, indexed_to=2 * SIZE)
    check_laws(situation, RULES)
    wrong = attrs.evolve(situation, indexed_to=1 << 40)
    honest = decide
    monkeypatch.setitem(globals(), "decide", lambda _, rules: honest(wrong, rules))
    with pytest.raises(AssertionError):
        check_laws(situation, RULES)
