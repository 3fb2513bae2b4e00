"""The window of pulls: for any answers of brokers, in any order, messages come out once and in
order.
"""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from triomq.client.spark.offsets import Queue
from triomq.client.spark.planning import QueueRange
from triomq.client.spark.pull_window import FULL_ANSWERS_BEFORE_GROWTH, PullPart, PullWindow

Q0, Q1 = Queue("orders", "broker-a", 0), Queue("orders", "broker-b", 1)


def window(
    *ranges: QueueRange, depth: int = 4, batch_max: int = 10, sparse: bool = False
) -> PullWindow:
    return PullWindow.over(ranges, depth=depth, batch_max=batch_max, sparse=sparse)


def send_all(pulls: PullWindow, blocked: frozenset[str] = frozenset()) -> list[tuple[int, int]]:
    sent = []
    while (part := pulls.next_unsent(blocked)) is not None:
        pulls.sent(part)
        sent.append((part.first, part.end))
    return sent


def test_depth_pulls_of_one_step_each_are_in_flight() -> None:
    pulls = window(QueueRange(Q0, 0, 100), depth=3)
    assert send_all(pulls) == [(0, 10), (10, 20), (20, 30)]
    first = pulls.oldest_in_flight()
    assert first is not None
    pulls.answered(first, 10, b"x")
    assert [(block.first, block.end) for block in pulls.take_ready()] == [(0, 10)]
    assert send_all(pulls) == [(30, 40)]


def test_a_short_answer_opens_a_gap_and_shrinks_the_step() -> None:
    pulls = window(QueueRange(Q0, 0, 100), depth=2)
    send_all(pulls)
    part = pulls.oldest
    pulls.answered(part, 4, b"x")
    assert [(block.first, block.end) for block in pulls.take_ready()] == [(0, 4)]
    assert pulls.step == 4
    assert send_all(pulls) == [
        (4, 8)
    ]  # the gap first, in smaller steps; (10, 20) is still in flight


def test_the_step_grows_again_slowly() -> None:
    pulls = window(QueueRange(Q0, 0, 10_000), depth=1, batch_max=100)
    send_all(pulls)
    pulls.answered(pulls.oldest, 8, b"x")
    list(pulls.take_ready())
    for _ in range(
        FULL_ANSWERS_BEFORE_GROWTH + 1
    ):  # the first of them is the short rest of the first pull
        send_all(pulls)
        pulls.answered(pulls.oldest, pulls.oldest.end, b"x")
        list(pulls.take_ready())
    assert pulls.step == 11


def test_only_full_answers_in_a_row_make_the_step_grow() -> None:
    pulls = window(QueueRange(Q0, 0, 10_000), depth=1, batch_max=100)

    def answer(count: int) -> None:
        send_all(pulls)
        pulls.answered(pulls.oldest, pulls.oldest.first + count, b"x")
        list(pulls.take_ready())

    answer(8)
    answer(92)  # the rest of that pull
    for _ in range(FULL_ANSWERS_BEFORE_GROWTH - 1):
        answer(8)
    answer(7)
    for _ in range(FULL_ANSWERS_BEFORE_GROWTH - 1):
        answer(7)
        assert pulls.step == 7


def test_ranges_on_a_blocked_broker_do_not_delay_other_pulls() -> None:
    pulls = window(QueueRange(Q0, 0, 5), QueueRange(Q1, 0, 5))
    assert send_all(pulls, frozenset({"broker-a"})) == [(0, 5)]
    assert pulls.oldest.queue == Q0
    assert not list(pulls.take_ready())


def test_with_a_filter_ranges_stay_whole() -> None:
    pulls = window(QueueRange(Q0, 0, 1000), sparse=True)
    assert send_all(pulls) == [(0, 1000)]
    pulls.answered(pulls.oldest, 700, b"x")  # ten messages, far apart
    assert [(block.first, block.end) for block in pulls.take_ready()] == [(0, 700)]
    assert send_all(pulls) == [(700, 1000)]


def test_an_answer_beyond_the_end_closes_the_range() -> None:
    pulls = window(QueueRange(Q0, 0, 10), sparse=True)
    send_all(pulls)
    pulls.answered(pulls.oldest, 5000, b"")
    assert list(pulls.take_ready()) == []
    assert pulls.done


def test_a_skipped_queue_frees_its_places_in_the_window() -> None:
    pulls = window(QueueRange(Q0, 0, 100), QueueRange(Q1, 0, 100), depth=3)
    assert send_all(pulls) == [(0, 10), (10, 20), (20, 30)]
    pulls.skip(Q0)
    assert list(pulls.take_ready()) == []
    assert send_all(pulls) == [(0, 10), (10, 20), (20, 30)]
    assert pulls.oldest.queue == Q1


@given(
    st.tuples(st.integers(0, 9), st.integers(0, 60)),
    st.tuples(st.integers(0, 9), st.integers(1, 60)),
    st.booleans(),
    st.integers(1, 5),
    st.integers(1, 12),
    st.integers(0, 1 << 32),
)
def test_any_broker_behaviour_yields_every_offset_once_in_order(
    one: tuple[int, int],
    other: tuple[int, int],
    sparse: bool,
    depth: int,
    batch_max: int,
    seed: int,
) -> None:
    ranges = [
        QueueRange(queue, first, first + count)
        for queue, (first, count) in ((Q0, one), (Q1, other))
    ]
    pulls = window(*ranges, depth=depth, batch_max=batch_max, sparse=sparse)
    chance = random.Random(seed)
    seen: list[tuple[Queue, int]] = []
    flying: list[PullPart] = []
    while not pulls.done:
        while (part := pulls.next_unsent(frozenset())) is not None:
            pulls.sent(part)
            flying.append(part)
        assert 0 < len(flying) <= depth
        part = flying.pop(chance.randrange(len(flying)))
        if chance.random() < 0.2:
            pulls.ask_again(part)  # the connection broke
            continue
        pulls.answered(part, part.first + chance.randint(-3, 8), b"x")
        for block in pulls.take_ready():
            seen += [(block.queue, offset) for offset in range(block.first, block.end)]
    assert seen == [
        (each.queue, offset) for each in ranges for offset in range(each.first, each.end)
    ]
