"""Allocation: vectors of the official strategies, and that every queue has exactly one owner."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq.client.receiving.allocation import (
    Allocation,
    _queue_hash,
    _ring_hash,
    allocate_average,
    allocate_circle,
    allocate_config,
    allocate_consistent_hash,
    allocate_machine_room,
    allocate_machine_room_nearby,
)
from triomq.remoting.protocol.bodies.route import MessageQueue


def queues(count: int, brokers: str = "a") -> list[MessageQueue]:
    return [
        MessageQueue("TopicTest", f"broker-{broker}", queue_id)
        for broker in brokers
        for queue_id in range(count)
    ]


def members(count: int) -> list[str]:
    return [f"10.0.0.{number}@c" for number in range(1, count + 1)]


def shares(
    allocate: Allocation, queue_list: list[MessageQueue], member_count: int
) -> list[list[str]]:
    everyone = members(member_count)
    return [
        [
            f"{queue.broker_name[-1]}{queue.queue_id}"
            for queue in allocate(member, queue_list, everyone)
        ]
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
    assert shares(allocate_average, both, 3) == [
        ["a0", "a1", "a2"],
        ["a3", "b0", "b1"],
        ["b2", "b3"],
    ]
    assert shares(allocate_circle, both, 3) == [
        ["a0", "a3", "b2"],
        ["a1", "b0", "b3"],
        ["a2", "b1"],
    ]


@pytest.mark.parametrize(
    ("queue_count", "member_count", "dealt"),
    [(8, 3, "0 1 4 5 7|2|3 6"), (16, 4, "0 1 4 5 7 8 9 12 14|2 11|3 6 10 13 15|")],
)
def test_consistent_hash(queue_count: int, member_count: int, dealt: str) -> None:
    assert shares(allocate_consistent_hash, queues(queue_count), member_count) == ids(dealt)


def test_consistent_hash_gives_the_places_of_java_s_ring() -> None:
    assert _ring_hash("10.0.0.1@c-0") == 9772682
    assert _queue_hash(MessageQueue("TopicTest", "broker-a", 0)) == 1987926524
    both = shares(allocate_consistent_hash, queues(4, "ab"), 3)
    assert both == [["a0", "a1", "b3"], ["a2", "b0", "b1"], ["a3", "b2"]]


def test_a_member_that_leaves_a_ring_moves_only_its_own_queues() -> None:
    everyone, many = members(5), queues(64)
    before = {member: set(allocate_consistent_hash(member, many, everyone)) for member in everyone}
    after = {
        member: set(allocate_consistent_hash(member, many, everyone[:-1]))
        for member in everyone[:-1]
    }
    assert all(before[member] <= after[member] for member in after)


def test_allocation_by_configuration() -> None:
    mine = [MessageQueue("TopicTest", "broker-a", 3), MessageQueue("Other", "broker-b", 0)]
    rule = allocate_config(mine)
    assert rule("anybody", queues(2), []) == [mine[0]]
    assert rule("anybody", [MessageQueue("Other", "broker-x", 1)], []) == [mine[1]]


def room_queues(*rooms: tuple[str, int]) -> list[MessageQueue]:
    return [
        MessageQueue("TopicTest", broker, queue_id)
        for broker, count in rooms
        for queue_id in range(count)
    ]


def test_machine_room() -> None:
    all_queues = room_queues(
        ("IDC1@broker-a", 4), ("IDC2@broker-b", 4), ("IDC3@broker-c", 2), ("plain", 2)
    )
    rule = allocate_machine_room({"IDC1", "IDC2"})
    dealt = [
        [
            f"{queue.broker_name[-1]}{queue.queue_id}"
            for queue in rule(member, all_queues, ["c1", "c2", "c3"])
        ]
        for member in ("c1", "c2", "c3", "stranger")
    ]
    assert dealt == [["a0", "a1", "b2"], ["a2", "a3", "b3"], ["b0", "b1"], []]


def room_of_queue(queue: MessageQueue) -> str:
    return queue.broker_name.split("-")[0]


def test_one_machine_room_may_be_a_text() -> None:
    rule = allocate_machine_room("IDC1")
    queues = [
        MessageQueue("T", "IDC1@a", 0),
        MessageQueue("T", "DC@b", 0),
        MessageQueue("T", "plain", 0),
    ]
    assert rule("c", queues, ["c"]) == queues[:1]


def room_of_member(client_id: str) -> str:
    return client_id.split("-")[0]


def test_machine_room_nearby() -> None:
    all_queues = room_queues(("IDC1-a", 4), ("IDC2-b", 4), ("IDC3-c", 3))
    everyone = ["IDC1-c1", "IDC1-c2", "IDC2-c3"]
    rule = allocate_machine_room_nearby(room_of_queue, room_of_member)
    dealt = [
        [f"{queue.broker_name[-1]}{queue.queue_id}" for queue in rule(member, all_queues, everyone)]
        for member in (*everyone, "IDC1-stranger")
    ]
    assert dealt == [["a0", "a1", "c0"], ["a2", "a3", "c1"], ["b0", "b1", "b2", "b3", "c2"], []]
    with pytest.raises(ValueError, match="machine room of "):
        allocate_machine_room_nearby(lambda queue: " ", room_of_member)(
            everyone[0], all_queues, everyone
        )


@pytest.mark.parametrize("allocate", [allocate_average, allocate_circle, allocate_consistent_hash])
def test_a_client_that_is_not_a_member_gets_nothing(allocate: Allocation) -> None:
    assert allocate("10.0.0.9@c", queues(4), members(2)) == []


@pytest.mark.parametrize("allocate", [allocate_average, allocate_circle])
@given(queue_count=st.integers(0, 40), member_count=st.integers(1, 12))
def test_every_queue_has_one_owner_and_shares_are_even(
    allocate: Allocation, queue_count: int, member_count: int
) -> None:
    dealt = shares(allocate, queues(queue_count), member_count)
    assert sorted(queue for share in dealt for queue in share) == sorted(
        f"a{number}" for number in range(queue_count)
    )
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1


@given(queue_count=st.integers(0, 40), member_count=st.integers(1, 12))
def test_every_queue_has_one_owner_under_every_rule(queue_count: int, member_count: int) -> None:
    rooms = allocate_machine_room_nearby(
        lambda queue: f"room{queue.queue_id % 3}", lambda member: f"room{len(member) % 2}"
    )
    for rule in (allocate_consistent_hash, rooms):
        dealt = shares(rule, queues(queue_count), member_count)
        everything = sorted(queue for share in dealt for queue in share)
        assert everything == sorted(f"a{number}" for number in range(queue_count))
