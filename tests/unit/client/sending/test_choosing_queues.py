"""Pure rules of a producer's choices: selectors, latency fault tolerance, back-pressure."""

from __future__ import annotations

from collections import Counter

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from triomq.client.core.config import ProducerSettings
from triomq.client.core.errors import MessageInvalid, SettingsError
from triomq.client.sending.faults import LatencyFaults, SilentBrokers
from triomq.client.sending.in_flight import InFlight
from triomq.client.sending.queue_choice import (
    RoundRobin,
    select_by_go_hash,
    select_by_hash,
    select_by_machine_room,
    select_by_random,
)
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.message import Message

MESSAGE = Message(topic="T", body=b"x")


def queues(*brokers: str, count: int = 4) -> list[MessageQueue]:
    return [MessageQueue("T", broker, queue_id) for broker in brokers for queue_id in range(count)]


def faults(*, detecting: bool = False) -> LatencyFaults:
    settings = ProducerSettings()
    return LatencyFaults(settings.latency_max, settings.not_available, detecting, lambda: 0)


def test_selectors() -> None:
    eight = queues("a", "b")
    # As Java's SelectMessageQueueByHash: 1234255197 % 8.
    assert select_by_hash("order-42")(eight, MESSAGE) == eight[5]
    assert {select_by_random()(eight, MESSAGE) for _ in range(500)} == set(eight)
    rooms = queues("east@a", "east@b", "west@c")
    assert {select_by_machine_room("west")(rooms, MESSAGE) for _ in range(100)} == set(rooms[8:])
    assert {select_by_machine_room(["east", "x"])(rooms, MESSAGE) for _ in range(300)} == set(
        rooms[:8]
    )
    with pytest.raises(MessageInvalid, match=r"\['north'\].*'east@a'"):
        select_by_machine_room("north")(rooms, MESSAGE)


@pytest.mark.parametrize(
    ("key", "value"), [("", 0x811C9DC5), ("a", 0xE40C292C), ("foobar", 0xBF9CF968)]
)
def test_go_s_hash_is_fnv_1a(key: str, value: int) -> None:
    """The vectors are those of the FNV authors."""
    for count in (1, 4, 7, 16):
        assert select_by_go_hash(key)(queues("a", count=count), MESSAGE).queue_id == value % count


@pytest.mark.parametrize(
    ("latency", "seconds"),
    [
        (0.049, 0), (0.05, 0), (0.1, 0), (0.549, 0), (0.55, 2), (1.79, 2), (1.8, 5), (3.0, 6),
        (5.0, 10), (14.9, 10), (15.0, 30), (100, 30),
    ],
)  # fmt: skip
def test_how_long_a_slow_broker_is_left_out(latency: float, seconds: float) -> None:
    """The table is Java's of 5.x."""
    table = faults()
    table.record(queues("a")[0], latency, 100.0, isolate=False, reachable=True)
    assert table.available("a", 100.0 + seconds)
    assert not seconds or not table.available("a", 100.0 + seconds - 0.001)
    assert table.available("never seen", 0)


def test_a_failed_try_counts_as_ten_seconds_and_a_period_is_never_shortened() -> None:
    table = faults()
    queue = queues("a")[0]
    table.record(queue, 0.001, 100.0, isolate=True, reachable=True)
    assert not table.available("a", 109.9)
    table.record(queue, 0.6, 101.0, isolate=False, reachable=True)
    table.record(queue, 0.001, 102.0, isolate=False, reachable=True)
    assert not table.available("a", 109.9)
    assert table.available("a", 110.0)


def test_available_brokers_first_then_reachable_ones_then_any() -> None:
    table, turn = faults(), RoundRobin(0)
    three = queues("a", "b", "c", count=2)
    table.record(three[0], 2.0, 100.0, isolate=False, reachable=True)
    assert Counter(table.choose(turn, three, None, 101.0).broker_name for _ in range(40)) == {
        "b": 20,
        "c": 20,
    }
    table.record(three[2], 0.0, 100.0, isolate=True, reachable=False)
    assert {table.choose(turn, three, None, 101.0).broker_name for _ in range(10)} == {"c"}
    # The one that just failed is not asked again while another one is reachable, though that one
    # was slow.
    assert {table.choose(turn, three, "c", 101.0).broker_name for _ in range(10)} == {"a"}
    table.record(three[0], 0.0, 100.0, isolate=True, reachable=False)
    table.record(three[4], 0.0, 100.0, isolate=True, reachable=False)
    assert {table.choose(turn, three, None, 101.0).broker_name for _ in range(12)} == {
        "a",
        "b",
        "c",
    }
    assert {table.choose(turn, three, None, 111.0).broker_name for _ in range(12)} == {
        "a",
        "b",
        "c",
    }


def test_a_silent_broker_is_left_out_and_then_tried_by_one_send() -> None:
    silent, turn = SilentBrokers(), RoundRobin(0)
    both = queues("a", "b", count=2)

    def chosen(now: float, count: int = 8) -> Counter[str]:
        return Counter(silent.choose(turn, both, None, now).broker_name for _ in range(count))

    assert chosen(0) == {"a": 4, "b": 4}
    silent.silent("a", 100.0)
    assert chosen(109.9) == {"b": 8}
    assert chosen(110.0) == {"a": 1, "b": 7}, "one finds out"
    assert chosen(112.9) == {"b": 8}
    assert chosen(113.0)["a"] == 1
    silent.answered("a")
    assert chosen(113.0) == {"a": 4, "b": 4}
    silent.silent("a", 200.0)
    silent.silent("b", 200.0)
    assert set(chosen(201.0)) == {"a", "b"}, "when all are silent, all are tried"
    assert silent.choose(turn, both, "a", 202.0).broker_name == "b"


def test_the_detector_asks_each_broker_once_per_interval() -> None:
    table = faults(detecting=True)
    first, second = queues("a", "b", count=1)
    for queue in (first, second):
        table.record(queue, 0.0, 100.0, isolate=True, reachable=False)
    assert [known.queue for known in table.to_check(100.0, 2.0)] == [first, second]
    assert table.to_check(101.9, 2.0) == []
    assert len(table.to_check(102.0, 2.0)) == 2
    table.answered("a")
    assert (table.reachable("a"), table.reachable("b")) == (True, False)
    table.forget("b")
    assert table.reachable("b")
    table.answered("gone")


def test_latency_tables_must_have_the_same_length() -> None:
    assert ProducerSettings(latency_max=[1.0, 2.0], not_available=[0.0, 9.0]).not_available == (
        0.0,
        9.0,
    )
    with pytest.raises(SettingsError, match="must ascend"):
        ProducerSettings(latency_max=(2.0, 1.0), not_available=(1.0, 1.0))
    with pytest.raises(SettingsError, match="as many entries"):
        ProducerSettings(latency_max=(1.0,))


async def test_room_is_given_in_the_order_of_the_requests(autojump_clock: MockClock) -> None:
    room = InFlight(messages_max=10, bytes_max=100)
    order: list[str] = []

    async def take(name: str, size: int) -> None:
        assert await room.acquire(size, trio.current_time() + 100)
        order.append(name)

    assert await room.acquire(90, 0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(take, "large", 80)
        await wait_all_tasks_blocked()
        nursery.start_soon(take, "small", 5)  # would fit, but is not first
        await wait_all_tasks_blocked()
        assert order == []
        room.release(90)
    assert sorted(order) == ["large", "small"]
    assert (room.messages, room.size_bytes) == (2, 85)


async def test_a_send_that_stops_waiting_for_room_does_not_hold_up_the_next(
    autojump_clock: MockClock,
) -> None:
    room = InFlight(messages_max=2, bytes_max=100)
    assert await room.acquire(60, 0)
    with trio.CancelScope() as scope:
        scope.cancel()
        await room.acquire(60, 100)
    assert scope.cancelled_caught
    assert not await room.acquire(60, trio.current_time() + 5)
    assert await room.acquire(40, 0)
    assert not await room.acquire(0, trio.current_time() + 5), "two messages are under way"
    assert (room.messages, room.size_bytes) == (2, 100)
    got: list[bool] = []

    async def ask(size: int, seconds: float) -> None:
        got.append(await room.acquire(size, trio.current_time() + seconds))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, 90, 1)  # gives up after a second, which is the turn of the next
        await wait_all_tasks_blocked()
        nursery.start_soon(ask, 10, 100)
        await wait_all_tasks_blocked()
        room.release(40)
    assert got == [False, True]


async def test_a_message_beyond_the_whole_budget_goes_alone() -> None:
    room = InFlight(messages_max=5, bytes_max=100)
    assert await room.acquire(1000, 0)
    assert not await room.acquire(1, trio.current_time())
    room.release(1000)
    assert await room.acquire(1, 0)
