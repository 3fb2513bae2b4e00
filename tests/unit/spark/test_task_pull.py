"""A task's pulls against brokers that the test plays: caps, holes, failures, losses."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.stored_records import stored_record
from triomq.client.spark import pull as pull_module
from triomq.client.spark.errors import DataLoss, SourceError, Unreachable
from triomq.client.spark.name_servers import ReadRoute
from triomq.client.spark.offsets import Queue
from triomq.client.spark.options import parse_options
from triomq.client.spark.planning import QueueRange
from triomq.client.spark.pull import ConnectionPool, TaskPull
from triomq.remoting.errors import ConnectFailed, ConnectionLost
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.command import Command, response_to
from triomq.remoting.protocol.headers.pull import PullMessageHeader, PullMessageResponseHeader

Q0, Q1 = Queue("orders", "broker-a", 0), Queue("orders", "broker-b", 0)


class FakeBroker:
    """Holds queues as {queue offset: body}; gives at most `cap` messages per pull; `faults` run before an answer."""

    def __init__(self, ends: dict[int, range], cap: int = 1000) -> None:
        self.ends = ends
        self.cap = cap
        self.pulls: list[PullMessageHeader] = []
        self.faults: list[Callable[[], Command | None]] = []
        self.connections = 0
        self.filtered: set[int] = set()

    def connect(self, address: str, *, timeout: float) -> FakeConnection:
        self.connections += 1
        return FakeConnection(self, address)

    def answer(self, asked: Command) -> Command:
        header = asked.header(PullMessageHeader)
        self.pulls.append(header)
        if self.faults and (fault := self.faults.pop(0)()) is not None:
            return fault
        held = self.ends[header.queue_id]
        first = header.queue_offset

        def reply(code: int, next_offset: int, body: bytes = b"") -> Command:
            return response_to(
                asked,
                code,
                PullMessageResponseHeader(
                    suggested_broker_id=0, next_begin_offset=next_offset, min_offset=held.start, max_offset=held.stop
                ),
                body,
            )

        if first < held.start or first > held.stop:
            return reply(ResponseCode.PULL_OFFSET_MOVED, held.start)
        if first == held.stop:
            return reply(ResponseCode.PULL_NOT_FOUND, first)
        offsets = range(first, min(held.stop, first + min(self.cap, header.message_count_max)))
        kept = [offset for offset in offsets if offset not in self.filtered]
        body = b"".join(
            stored_record(b"%d" % offset, topic=header.topic, queue_id=header.queue_id, offset=offset)
            for offset in kept
        )
        return reply(ResponseCode.SUCCESS if kept else ResponseCode.PULL_RETRY_IMMEDIATELY, offsets.stop, body)


class FakeConnection:
    def __init__(self, broker: FakeBroker, address: str) -> None:
        self.broker = broker
        self.address = address
        self.opaque = itertools.count(1)
        self.waiting: dict[int, Command] = {}
        self.closed = False

    def send(self, command: Command) -> int:
        assert not self.closed
        command.opaque = next(self.opaque)
        self.waiting[command.opaque] = command
        return command.opaque

    def receive(self, opaque: int, timeout: float) -> Command:
        assert not self.closed
        return self.broker.answer(self.waiting.pop(opaque))

    def close(self) -> None:
        self.closed = True


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def clock(self) -> float:
        self.now += 0.001
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(autouse=True)
def route(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name servers know both brokers."""

    class KnowsAll:
        def __init__(self, addresses: object, access: object) -> None: ...
        def __enter__(self) -> KnowsAll:
            return self

        def __exit__(self, *error: object) -> None: ...
        def routes(self, topics: list[str]) -> dict[str, ReadRoute | None]:
            return {
                topic: ReadRoute(topic, {"broker-a": "a:2", "broker-b": "b:2"}, {"broker-a": 1, "broker-b": 1})
                for topic in topics
            }

    monkeypatch.setattr(pull_module, "NameServers", KnowsAll)


def read(
    broker: FakeBroker, *ranges: QueueRange, pool: ConnectionPool | None = None, **options: str
) -> list[tuple[Queue, int, int, int] | None]:
    """Run a task; its blocks as (queue, first, end, bytes > 0 given)."""
    time = Time()
    task = TaskPull(
        ranges,
        parse_options({"nameServer": "n:1", "subscribe": "orders", **options}, streaming=True),
        {"broker-a": "a:1", "broker-b": "b:1"},
        pool=pool or ConnectionPool(broker.connect),  # type: ignore[arg-type]
        clock=time.clock,
        sleep=time.sleep,
    )
    return [block and (block.queue, block.first, block.end, len(block.body)) for block in task.blocks()]


def covered(blocks: list[Any]) -> list[int]:
    return [offset for block in blocks if block for offset in range(block[1], block[2])]


def test_a_range_is_read_to_its_end_and_no_further() -> None:
    broker = FakeBroker({0: range(100)}, cap=7)
    assert covered(read(broker, QueueRange(Q0, 10, 90))) == list(range(10, 90))
    assert all(pull.queue_offset + pull.message_count_max <= 90 for pull in broker.pulls)
    assert {(pull.sys_flag, pull.suspend_timeout_ms, pull.subscription) for pull in broker.pulls} == {(4, 0, "*")}


def test_small_answers_do_not_make_many_wasted_pulls() -> None:
    broker = FakeBroker({0: range(3200)}, cap=32)
    read(broker, QueueRange(Q0, 0, 3200))
    assert len(broker.pulls) < 130


def test_several_ranges_come_in_their_order() -> None:
    broker = FakeBroker({0: range(50)}, cap=20)
    blocks = read(broker, QueueRange(Q1, 0, 50), QueueRange(Q0, 5, 6))
    assert [block[0] for block in blocks if block] == [Q1, Q1, Q1, Q0]


def test_filtered_messages_are_holes_not_losses() -> None:
    broker = FakeBroker({0: range(60)}, cap=10)
    broker.filtered = set(range(20, 60))
    assert covered(read(broker, QueueRange(Q0, 0, 60), tags="A")) == list(range(20))
    assert {pull.subscription for pull in broker.pulls} == {"A"}


def lost_connection() -> None:
    raise ConnectionLost("a:1", "reset")


def refused_connection() -> None:
    raise ConnectFailed("a:1", "refused")


def busy() -> Command:
    return Command(code=ResponseCode.SYSTEM_BUSY, flag=1, remark="too much")


def test_failures_are_waited_out_and_nothing_is_read_twice() -> None:
    broker = FakeBroker({0: range(100)}, cap=9)
    broker.faults = [lambda: None, lost_connection, busy, refused_connection, lambda: None, busy]  # type: ignore[list-item]
    assert covered(read(broker, QueueRange(Q0, 0, 100))) == list(range(100))
    assert broker.connections >= 4


def test_a_broker_that_stays_away_fails_the_task_with_the_reason() -> None:
    broker = FakeBroker({0: range(100)})
    broker.faults = [refused_connection] * 10_000  # type: ignore[list-item]
    with pytest.raises(
        Unreachable,
        match=r"\[0, 100\) of orders/broker-a/0 did not arrive within pollTimeoutMs \(30 s\).*refused.*executors",
    ):
        read(broker, QueueRange(Q0, 0, 100), pollTimeoutMs="30s")


def test_while_waiting_there_are_signs_of_life() -> None:
    broker = FakeBroker({0: range(100)})
    broker.faults = [busy] * 40  # type: ignore[list-item]
    blocks = read(broker, QueueRange(Q0, 0, 100))
    assert blocks.count(None) >= 2
    assert covered(blocks) == list(range(100))


def test_messages_that_are_gone() -> None:
    broker = FakeBroker({0: range(30, 100)})
    with pytest.raises(
        DataLoss, match=r"offsets \[0, 30\) of orders/broker-a/0 are gone \(earliest is 30\); set failOnDataLoss=false"
    ):
        read(broker, QueueRange(Q0, 0, 100))
    assert covered(read(broker, QueueRange(Q0, 0, 100), failOnDataLoss="false")) == list(range(30, 100))
    assert covered(read(broker, QueueRange(Q0, 0, 20), failOnDataLoss="false")) == []


def test_a_queue_that_ends_too_early() -> None:
    broker = FakeBroker({0: range(10)})
    with pytest.raises(
        DataLoss, match=r"\[50, 100\).*ends at 10: the topic was deleted and created again, or a broker failed over"
    ):
        read(broker, QueueRange(Q0, 50, 100), pollTimeoutMs="5s")
    assert covered(
        read(broker, QueueRange(Q0, 50, 100), QueueRange(Q1, 2, 5), pollTimeoutMs="5s", failOnDataLoss="false")
    ) == [2, 3, 4]
    with pytest.raises(DataLoss, match=r"\[10, 100\)"):
        read(broker, QueueRange(Q0, 5, 100), pollTimeoutMs="5s")


def test_messages_that_arrive_late_are_waited_for() -> None:
    """A broker that was restarted may still be reading its log."""
    broker = FakeBroker({0: range(10)})
    broker.faults = [lambda: None] * 6 + [lambda: broker.ends.update({0: range(100)})]  # type: ignore[list-item,return-value]
    assert covered(read(broker, QueueRange(Q0, 5, 100))) == list(range(5, 100))


def test_hopeless_refusals_fail_at_once() -> None:
    broker = FakeBroker({0: range(10)})
    broker.faults = [lambda: Command(code=ResponseCode.NO_PERMISSION, flag=1, remark="the topic is closed")]
    with pytest.raises(
        SourceError, match="refuses pulls from orders/broker-a/0: the topic is closed; check the topic's"
    ):
        read(broker, QueueRange(Q0, 0, 10))
    assert len(broker.pulls) == 1


def test_connections_are_kept_for_the_next_task_and_replaced_when_dead() -> None:
    broker = FakeBroker({0: range(10)})
    pool = ConnectionPool(broker.connect)  # type: ignore[arg-type]
    read(broker, QueueRange(Q0, 0, 10), pool=pool)
    read(broker, QueueRange(Q0, 0, 10), pool=pool)
    assert broker.connections == 1
    broker.faults = [lost_connection]  # type: ignore[list-item]
    assert covered(read(broker, QueueRange(Q0, 0, 10), pool=pool)) == list(range(10))
    assert broker.connections == 2
