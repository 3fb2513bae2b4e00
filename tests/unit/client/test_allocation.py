"""Allocation: the vectors of the official strategies, and the law that every queue has exactly one owner."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq.client.consumer.allocation import Allocation, allocate_average, allocate_circle
from triomq.client.consumer.rebalance import Change, compare
from triomq.remoting.protocol.bodies.route import MessageQueue


def queues(count: int, brokers: str = "a") -> list[MessageQueue]:
    return [MessageQueue("TopicTest", f"broker-{broker}", queue_id) for broker in brokers for queue_id in range(count)]


def members(count: int) -> list[str]:
    return [f"10.0.0.{number}@c" for number in range(1, count + 1)]


def shares(allocate: Allocation, queue_list: list[MessageQueue], member_count: int) -> list[list[str]]:
    everyone = members(member_count)
    return [
        [f"{queue.broker_name[-1]}{queue.queue_id}" for queue in allocate(member, queue_list, everyone)]
        for member in everyone
    ]


def ids(text: str) -> list[list[str]]:
    return [[f"a{number}" for number in part.split()] for part in text.split("|")]


@pytest.mark.parametrize(
    ("queue_count", "member_count", "average", "circle"),
    [
        (4, 1, "0 1 2 3", "0 1 2 3"),
        (4, 2, "0 1|2 3", "0 2|1 3"),
        (4, 3, "0 1|2|3", "0 3|1|2"),
        (4, 4, "0|1|2|3", "0|1|2|3"),
        (3, 5, "0|1|2||", "0|1|2||"),
        (8, 3, "0 1 2|3 4 5|6 7", "0 3 6|1 4 7|2 5"),
        (10, 4, "0 1 2|3 4 5|6 7|8 9", "0 4 8|1 5 9|2 6|3 7"),
        (16, 5, "0 1 2 3|4 5 6|7 8 9|10 11 12|13 14 15", "0 5 10 15|1 6 11|2 7 12|3 8 13|4 9 14"),
    ],
)
def test_one_broker(queue_count: int, member_count: int, average: str, circle: str) -> None:
    assert shares(allocate_average, queues(queue_count), member_count) == ids(average)
    assert shares(allocate_circle, queues(queue_count), member_count) == ids(circle)


def test_two_brokers() -> None:
    both = queues(4, "ab")
    assert shares(allocate_average, both, 3) == [["a0", "a1", "a2"], ["a3", "b0", "b1"], ["b2", "b3"]]
    assert shares(allocate_circle, both, 3) == [["a0", "a3", "b2"], ["a1", "b0", "b3"], ["a2", "b1"]]


@pytest.mark.parametrize("allocate", [allocate_average, allocate_circle])
def test_a_stranger_gets_nothing(allocate: Allocation) -> None:
    assert allocate("10.0.0.9@c", queues(4), members(2)) == []


@pytest.mark.parametrize("allocate", [allocate_average, allocate_circle])
@given(queue_count=st.integers(0, 40), member_count=st.integers(1, 12))
def test_every_queue_has_one_owner_and_shares_are_even(
    allocate: Allocation, queue_count: int, member_count: int
) -> None:
    dealt = shares(allocate, queues(queue_count), member_count)
    assert sorted(queue for share in dealt for queue in share) == sorted(f"a{number}" for number in range(queue_count))
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1


def test_a_round_compares_what_is_owned_with_the_share() -> None:
    four = queues(4)
    assert compare(four[:2], four[1:3]) == Change(gained=(four[2],), lost=(four[0],))
    assert compare(four, four) == Change((), ())
