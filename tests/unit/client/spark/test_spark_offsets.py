"""The position in the checkpoint: its JSON, and planned ranges that cover every offset exactly
once.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq.client.spark.errors import OffsetError
from triomq.client.spark.offsets import (
    Offsets,
    Position,
    Queue,
    advance,
    batch_starts,
    read_position,
)
from triomq.client.spark.planning import ranges_between

A0, A1, A10, B0 = (
    Queue("orders", "broker-a", 0),
    Queue("orders", "broker-a", 1),
    Queue("orders", "broker-a", 10),
    Queue("orders", "broker-b", 0),
)
QUEUES = st.builds(
    Queue,
    st.sampled_from(["orders", "flights"]),
    st.sampled_from(["broker-a", "broker-b"]),
    st.integers(0, 12),
)
OFFSETS = st.dictionaries(QUEUES, st.integers(0, 1 << 62), max_size=8)


@given(OFFSETS, OFFSETS, st.none() | st.just("0badc0de"))
def test_a_position_survives_spark_s_log(
    ends: Offsets, first: Offsets, filter_hash: str | None
) -> None:
    position = Position(next=ends, first=first, filter_hash=filter_hash)
    assert read_position(json.loads(json.dumps(position.to_json()))) == position


@given(OFFSETS, st.randoms())
def test_equal_positions_give_equal_text(ends: Offsets, random: Any) -> None:
    """Spark compares text: another order of keys would start empty batches forever."""
    shuffled = list(ends.items())
    random.shuffle(shuffled)
    assert json.dumps(Position(next=dict(shuffled)).to_json()) == json.dumps(
        Position(next=ends).to_json()
    )


def test_queue_numbers_are_sorted_as_numbers() -> None:
    assert (
        json.dumps(Position(next={A10: 3, A1: 2, A0: 1}).to_json())
        == '{"v": 2, "q": {"orders": {"broker-a": {"0": 1, "1": 2, "10": 3}}}}'
    )


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"v": 3, "q": {}}, "version 3.*reads versions 1 to 2"),
        ({"orders": {"0": 3}}, "did not write"),
        ([], "did not write"),
        ({"v": 1}, "'q'"),
        ({"v": 1, "q": {"orders": {"broker-a": {"0": "5"}}}}, "'5' is not an offset"),
        ({"v": 1, "q": {"orders": {"broker-a": {"x": 5}}}}, "'q'"),
        ({"v": 1, "q": {}, "from": {"orders": 5}}, "'from'"),
    ],
)
def test_foreign_offsets_are_refused_with_the_reason(document: Any, message: str) -> None:
    with pytest.raises(OffsetError, match=message):
        read_position(document)


def test_the_first_batch_logs_its_begin() -> None:
    initial = Position(next={A0: 100, B0: 7}, first={A0: 100, B0: 7})
    end = advance(initial, {A0: 150, B0: 7}, {})
    assert end.next == {A0: 150, B0: 7}
    assert end.first == {A0: 100, B0: 7}
    later_answer_of_initial_offset = Position(next={A0: 149, B0: 9}, first={A0: 149, B0: 9})
    assert batch_starts(later_answer_of_initial_offset, end) == {A0: 100, B0: 7}


def test_later_batches_log_the_begin_of_new_queues_only() -> None:
    start = Position(next={A0: 150}, first={A0: 100})
    end = advance(start, {A0: 160, B0: 5}, {B0: 2})
    assert end == Position(next={A0: 160, B0: 5}, first={B0: 2})
    assert batch_starts(start, end) == {A0: 150, B0: 2}


def test_offsets_never_run_backwards_and_no_queue_is_dropped() -> None:
    end = advance(Position(next={A0: 150, B0: 9}), {A0: 20}, {})
    assert end.next == {A0: 150, B0: 9}


def test_a_topic_that_was_created_again_begins_again() -> None:
    start = Position(next={A0: 150})
    end = advance(start, {A0: 20}, {A0: 0})
    assert end == Position(next={A0: 20}, first={A0: 0})
    assert batch_starts(start, end) == {A0: 0}


def test_a_queue_without_a_begin_is_an_error() -> None:
    with pytest.raises(OffsetError, match="does not say where orders/broker-b/0 begins"):
        batch_starts(Position(next={A0: 1}), Position(next={A0: 1, B0: 5}))


@given(st.data())
def test_every_offset_is_planned_exactly_once_over_any_history(data: st.DataObject) -> None:
    """Heads grow, queues appear, brokers stop answering, limits apply, Spark asks twice for the
    start and replays batches: no gap, no overlap.
    """
    heads = {
        queue: data.draw(st.integers(0, 20)) for queue in data.draw(st.sets(QUEUES, max_size=3))
    }
    begins = {queue: data.draw(st.integers(0, head)) for queue, head in heads.items()}
    initial = Position(next=dict(begins), first=dict(begins))
    expected = dict(begins)
    seen: dict[Queue, list[int]] = {queue: [] for queue in begins}
    start = initial
    for number in range(data.draw(st.integers(1, 6))):
        for queue in data.draw(st.sets(QUEUES, max_size=3)):
            heads[queue] = heads.get(queue, 0) + data.draw(st.integers(0, 9))
        answering = (
            data.draw(st.sets(st.sampled_from(sorted(heads)), max_size=len(heads)))
            if heads
            else set()
        )
        born = {queue: 0 for queue in answering if queue not in start.next}
        expected |= born
        limited = {
            queue: min(heads[queue], {**start.next, **born}[queue] + data.draw(st.integers(0, 9)))
            for queue in answering
        }
        end = advance(start, limited, born)
        logged = read_position(json.loads(json.dumps(end.to_json())))
        another_start = (
            Position(next=dict(heads), first=dict(heads)) if number == 0 else start
        )  # a restart in batch 0 begins here
        plans = [ranges_between(start, logged), ranges_between(another_start, logged)]
        assert plans[0] == plans[1]
        for queue, first, last in plans[0]:
            seen.setdefault(queue, []).extend(range(first, last))
        start = (
            read_position(json.loads(json.dumps(start.to_json())))
            if end.next == start.next
            else logged
        )
    for queue, offsets in seen.items():
        assert offsets == list(range(expected[queue], start.next[queue]))
