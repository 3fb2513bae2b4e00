"""Batches and tasks: pure functions, so a replay has the same tasks."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from triomq.client.spark.offsets import Offsets, Queue
from triomq.client.spark.planning import (
    QueueRange,
    TaskSizes,
    largest,
    limit_heads,
    messages_in,
    plan_tasks,
)

QUEUES = st.builds(
    Queue,
    st.sampled_from(["orders", "flights"]),
    st.sampled_from(["broker-a", "broker-b"]),
    st.integers(0, 12),
)
RANGES = st.dictionaries(
    QUEUES, st.tuples(st.integers(0, 50), st.integers(1, 60_000)), max_size=12
).map(
    lambda found: [
        QueueRange(queue, first, first + count) for queue, (first, count) in found.items()
    ]
)
SIZES = st.builds(
    TaskSizes,
    min_partitions=st.none() | st.integers(1, 40),
    max_records=st.none() | st.integers(500, 30_000),
    min_records=st.integers(1, 20_000),
)


def queue(number: int, broker: str = "broker-a") -> Queue:
    return Queue("orders", broker, number)


@given(RANGES, SIZES, st.randoms())
def test_tasks_cover_the_ranges_once_and_do_not_depend_on_their_order(
    ranges: list[QueueRange], sizes: TaskSizes, random: object
) -> None:
    tasks = plan_tasks(ranges, sizes)
    pieces = sorted(piece for task in tasks for piece in task)
    for whole in ranges:
        mine = [piece for piece in pieces if piece.queue == whole.queue]
        assert mine[0].first == whole.first
        assert mine[-1].end == whole.end
        assert all(left.end == right.first for left, right in itertools.pairwise(mine))
    assert sum(piece.message_count for piece in pieces) == sum(
        whole.message_count for whole in ranges
    )
    if sizes.max_records is not None:
        assert all(
            sum(piece.message_count for piece in task) <= sizes.max_records for task in tasks
        )
    shuffled = list(ranges)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert plan_tasks(shuffled, sizes) == tasks


def test_small_ranges_share_a_task() -> None:
    ranges = [
        QueueRange(queue(number, broker), 0, 1000)
        for broker in ("broker-a", "broker-b")
        for number in range(4)
    ]
    assert len(plan_tasks(ranges, TaskSizes())) == 1
    assert [len(task) for task in plan_tasks(ranges, TaskSizes(min_records=4000))] == [4, 4]
    assert {piece.queue.broker for piece in plan_tasks(ranges, TaskSizes(min_records=4000))[0]} == {
        "broker-a"
    }


def test_big_ranges_are_split_evenly_and_share_no_task() -> None:
    tasks = plan_tasks(
        [QueueRange(queue(0), 5, 100_005), QueueRange(queue(1), 0, 20)],
        TaskSizes(max_records=30_000),
    )
    assert [[piece.message_count for piece in task] for task in tasks] == [
        [25_000],
        [25_000],
        [25_000],
        [25_000],
        [20],
    ]


def test_min_partitions_splits_the_big_ones() -> None:
    tasks = plan_tasks(
        [QueueRange(queue(0), 0, 100), QueueRange(queue(1), 0, 1)], TaskSizes(min_partitions=3)
    )
    assert [[piece.message_count for piece in task] for task in tasks] == [[33], [33], [34], [1]]


def test_no_ranges_no_tasks() -> None:
    assert plan_tasks([], TaskSizes(min_partitions=4)) == []


@given(
    st.dictionaries(QUEUES, st.tuples(st.integers(0, 100), st.integers(0, 10_000)), max_size=12),
    st.integers(1, 20_000),
)
def test_a_limit_is_shared_by_backlog(queues: dict[Queue, tuple[int, int]], limit: int) -> None:
    begins: Offsets = {each: begin for each, (begin, _) in queues.items()}
    heads = {each: begin + backlog for each, (begin, backlog) in queues.items()}
    limited = limit_heads(begins, heads, limit)
    taken = {each: limited[each] - begins[each] for each in queues}
    waiting = {each for each in queues if heads[each] > begins[each]}
    assert all(0 <= taken[each] <= heads[each] - begins[each] for each in queues)
    assert all(taken[each] >= 1 for each in waiting)  # no queue starves
    total = sum(heads.values()) - sum(begins.values())
    if total <= limit:
        assert sum(taken.values()) == total
    else:
        assert limit <= sum(taken.values()) <= limit + len(waiting)


def test_shares_are_proportional() -> None:
    begins = {queue(0): 0, queue(1): 0, queue(2): 0}
    assert limit_heads(begins, {queue(0): 900, queue(1): 90, queue(2): 10}, 100) == {
        queue(0): 90,
        queue(1): 9,
        queue(2): 1,
    }
    assert limit_heads(begins, {queue(0): 1000, queue(1): 1000, queue(2): 0}, 3) == {
        queue(0): 2,
        queue(1): 1,
        queue(2): 0,
    }
    assert limit_heads(begins, {queue(0): 5, queue(1): 5}, None) == {queue(0): 5, queue(1): 5}


def test_a_limit_in_bytes_becomes_one_in_messages() -> None:
    backlog = {queue(0): 900, queue(1): 100, queue(2): 5000}
    assert messages_in(10_000, backlog, {queue(0): 100.0, queue(1): 1100.0}) == 50, "mean 200"
    assert messages_in(10_000, backlog, {}) == 9, "1 KiB each without a sample"
    assert messages_in(10, backlog, {queue(0): 100.0}) == 1
    assert largest(backlog, 2) == [queue(2), queue(0)]
    assert largest({queue(1): 7, queue(0): 7}, 1) == [queue(0)]
