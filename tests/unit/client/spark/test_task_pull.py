"""A task's pulls with fake brokers: caps, holes, failures, losses."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.stored_records import stored_record
from triomq.client.spark import name_servers
from triomq.client.spark.errors import DataLoss, SourceError, Unreachable
from triomq.client.spark.name_servers import TopicAddresses
from triomq.client.spark.offsets import Queue
from triomq.client.spark.options import parse_options
from triomq.client.spark.planning import QueueRange
from triomq.client.spark.records import LastMessage
from triomq.client.spark.task_pull import ConnectionPool, TaskPull
from triomq.remoting.core.errors import ConnectFailed, ConnectionLost
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.command import Command, response_to
from triomq.remoting.protocol.headers.pull import PullMessageHeader, PullMessageResponseHeader

Q0, Q1 = Queue("orders", "broker-a", 0), Queue("orders", "broker-b", 0)


class FakeBroker:
    """A fake broker: queues as {queue offset: body}; at most ``cap`` messages per pull; ``faults``
    run before an answer.
    """

    def __init__(self, ends: dict[int, range], cap: int = 1000) -> None:
        self.ends = ends
        self.cap = cap
        self.pulls: list[PullMessageHeader] = []
        self.faults: list[Callable[[], Command | None]] = []
        self.made: list[FakeConnection] = []
        self.filtered: set[int] = set()
        self.stored_ms: dict[int, int] = {}
        """offset → store time, of those that differ"""

    @property
    def connections(self) -> int:
        return len(self.made)

    def connect(self, address: str, **settings: object) -> FakeConnection:
        self.made.append(FakeConnection(self, address))
        return self.made[-1]

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
                    suggested_broker_id=0,
                    next_begin_offset=next_offset,
                    min_offset=held.start,
                    max_offset=held.stop,
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
            stored_record(
                b"%d" % offset,
                topic=header.topic,
                queue_id=header.queue_id,
                offset=offset,
                store_ms=self.stored_ms.get(offset, 1_700_000_000_001),
            )
            for offset in kept
        )
        return reply(
            ResponseCode.SUCCESS if kept else ResponseCode.PULL_RETRY_IMMEDIATELY,
            offsets.stop,
            body,
        )


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

    def give_up(self, opaque: int) -> None:
        self.waiting.pop(opaque, None)

    def close(self) -> None:
        self.closed = True


class Time:
    def __init__(self) -> None:
        self.now = 0.0
        self.pauses = 0
        """sleeps longer than the shortest sleep"""

    def clock(self) -> float:
        self.now += 0.001
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.pauses += seconds > 0.01


@pytest.fixture(autouse=True)
def route(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name servers know both brokers."""

    class KnowsAll:
        def __init__(self, addresses: object, access: object) -> None: ...
        def __enter__(self) -> KnowsAll:
            return self

        def __exit__(self, *error: object) -> None: ...
        def routes(self, topics: list[str]) -> dict[str, TopicAddresses | None]:
            return {
                topic: TopicAddresses(
                    topic, {"broker-a": "a:2", "broker-b": "b:2"}, {"broker-a": 1, "broker-b": 1}
                )
                for topic in topics
            }

    monkeypatch.setattr(name_servers, "RouteReader", KnowsAll)


def task_of(
    broker: FakeBroker,
    *ranges: QueueRange,
    pool: ConnectionPool | None = None,
    time: Time | None = None,
    last: dict[Queue, LastMessage] | None = None,
    skip_after_ms: int | None = None,
    **options: str,
) -> TaskPull:
    time = time or Time()
    return TaskPull(
        ranges,
        parse_options({"nameServer": "n:1", "subscribe": "orders", **options}, streaming=True),
        {"broker-a": "a:1", "broker-b": "b:1"},
        last=last or {},
        skip_after_ms=skip_after_ms,
        pool=pool or ConnectionPool(broker.connect),  # type: ignore[arg-type]
        clock=time.clock,
        sleep=time.sleep,
    )


def read(
    broker: FakeBroker, *ranges: QueueRange, **how: Any
) -> list[tuple[Queue, int, int, int] | None]:
    """Run a task; return its blocks as (queue, first, end, whether it has bytes)."""
    task = task_of(broker, *ranges, **how)
    return [
        block and (block.queue, block.first, block.end, len(block.body)) for block in task.blocks()
    ]


def covered(blocks: list[Any]) -> list[int]:
    return [offset for block in blocks if block for offset in range(block[1], block[2])]


def test_a_range_is_read_to_its_end_and_no_further() -> None:
    broker = FakeBroker({0: range(100)}, cap=7)
    assert covered(read(broker, QueueRange(Q0, 10, 90))) == list(range(10, 90))
    assert all(pull.queue_offset + pull.message_count_max <= 90 for pull in broker.pulls)
    assert {
        (pull.sys_flag, pull.suspend_timeout_ms, pull.subscription) for pull in broker.pulls
    } == {(4 | 1 << 16, 0, "*")}


def test_small_answers_cause_few_wasted_pulls() -> None:
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


def test_failures_are_retried_and_nothing_is_read_twice() -> None:
    broker = FakeBroker({0: range(100)}, cap=9)
    broker.faults = [lambda: None, lost_connection, busy, refused_connection, lambda: None, busy]  # type: ignore[list-item]
    assert covered(read(broker, QueueRange(Q0, 0, 100))) == list(range(100))
    assert broker.connections >= 4


def test_the_first_failure_after_an_answer_is_retried_at_once() -> None:
    broker, time = FakeBroker({0: range(100)}, cap=50), Time()
    broker.faults = [busy] * 4 + [lambda: None] + [busy]  # type: ignore[list-item]
    assert covered(read(broker, QueueRange(Q0, 0, 100), pullDepth="1", time=time)) == list(
        range(100)
    )
    assert time.pauses == 3  # the first failure is retried at once


def test_a_broker_s_address_is_looked_up_again_after_a_failure() -> None:
    broker = FakeBroker({0: range(10)})
    broker.faults = [lost_connection]  # type: ignore[list-item]
    assert covered(read(broker, QueueRange(Q0, 0, 10))) == list(range(10))
    assert [(made.address, made.closed) for made in broker.made] == [("a:1", True), ("a:2", False)]


def test_a_broker_that_stays_away_fails_the_task_with_the_reason() -> None:
    broker = FakeBroker({0: range(100)})
    broker.faults = [refused_connection] * 10_000  # type: ignore[list-item]
    with pytest.raises(
        Unreachable,
        match=(
            r"\[0, 100\) of orders/broker-a/0 did not arrive within pollTimeoutMs \(30"
            r" s\).*refused.*executors"
        ),
    ):
        read(broker, QueueRange(Q0, 0, 100), pollTimeoutMs="30s")


@pytest.mark.parametrize(
    "code", [ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_NOT_FOUND]
)
@pytest.mark.parametrize("next_offset", [2, 5])
def test_an_answer_without_progress_is_pulled_again_with_pauses(
    code: ResponseCode, next_offset: int
) -> None:
    """Its next offset is at or before the requested offset: its messages are dropped, and the task
    fails at its time limit.
    """

    def step_back() -> Command:
        header = PullMessageResponseHeader(
            suggested_broker_id=0, next_begin_offset=next_offset, min_offset=0, max_offset=100
        )
        body = (
            stored_record(b"again", topic="orders", queue_id=0, offset=5)
            if code == ResponseCode.SUCCESS
            else b""
        )
        return response_to(Command(code=0), code, header, body)

    broker = FakeBroker({0: range(100)})
    broker.faults = [step_back] * 3
    assert covered(read(broker, QueueRange(Q0, 5, 100))) == list(range(5, 100))
    broker.faults = [step_back] * 10_000
    with pytest.raises(
        Unreachable, match=r"\[5, 100\) of orders/broker-a/0 did not arrive within pollTimeoutMs"
    ):
        read(broker, QueueRange(Q0, 5, 100), pollTimeoutMs="5s")
    assert len(broker.faults) > 9_900


def test_while_waiting_there_are_signs_of_life() -> None:
    broker = FakeBroker({0: range(100)})
    broker.faults = [busy] * 40  # type: ignore[list-item]
    blocks = read(broker, QueueRange(Q0, 0, 100))
    assert blocks.count(None) >= 2
    assert covered(blocks) == list(range(100))


def test_messages_that_are_gone() -> None:
    broker = FakeBroker({0: range(30, 100)})
    with pytest.raises(
        DataLoss,
        match=(
            r"offsets \[0, 30\) of orders/broker-a/0 are gone \(earliest is 30\); set"
            r" failOnDataLoss=false"
        ),
    ):
        read(broker, QueueRange(Q0, 0, 100))
    assert covered(read(broker, QueueRange(Q0, 0, 100), failOnDataLoss="false")) == list(
        range(30, 100)
    )
    assert covered(read(broker, QueueRange(Q0, 0, 20), failOnDataLoss="false")) == []
    with pytest.raises(
        DataLoss, match=r"offsets \[0, 20\) of orders/broker-a/0 are gone \(earliest is 30\)"
    ):
        read(broker, QueueRange(Q0, 0, 20))


def test_a_queue_that_ends_too_early() -> None:
    broker = FakeBroker({0: range(10)})
    with pytest.raises(
        DataLoss,
        match=(
            r"\[50, 100\).*ends at 10: the topic was deleted and created again, or a broker failed"
            r" over"
        ),
    ):
        read(broker, QueueRange(Q0, 50, 100), pollTimeoutMs="5s")
    assert covered(
        read(
            broker,
            QueueRange(Q0, 50, 100),
            QueueRange(Q1, 2, 5),
            pollTimeoutMs="5s",
            failOnDataLoss="false",
        )
    ) == [2, 3, 4]
    with pytest.raises(DataLoss, match=r"\[10, 100\)"):
        read(broker, QueueRange(Q0, 5, 100), pollTimeoutMs="5s")


NEWEST = {Q0: LastMessage(99, 1_700_000_000_001)}
"""of batches that end at 100"""


@pytest.mark.parametrize("end", [60, 100, 300])
def test_messages_of_a_topic_that_was_created_again_meanwhile_are_not_read(end: int) -> None:
    """Whether its new life is smaller or larger than the batch."""

    def created_again() -> None:
        broker.ends[0] = range(end)
        broker.stored_ms = dict.fromkeys(range(300), 1_700_000_005_000)

    again = r"deleted and created again before offsets \[20, 100\) of orders/broker-a/0 were read"
    for strict in (True, False):
        broker = FakeBroker({0: range(100)}, cap=10)
        broker.faults = [lambda: None, lambda: None, created_again]  # type: ignore[list-item,return-value]
        how: dict[str, Any] = {"last": NEWEST, "pullDepth": "1", "pullBatchSize": "10"}
        if strict:
            with pytest.raises(DataLoss, match=again):
                read(broker, QueueRange(Q0, 0, 100), **how)
        else:
            rest = QueueRange(Q1, 2, 5)
            how["failOnDataLoss"] = "false"
            blocks = read(broker, QueueRange(Q0, 0, 100), rest, **how)
            assert covered(blocks) == [*range(20), 2, 3, 4]


def test_a_clock_that_was_set_back_is_no_new_life() -> None:
    """Older messages of the batch have later times than its last one."""
    broker = FakeBroker({0: range(100)}, cap=10)
    broker.stored_ms = dict.fromkeys(range(50), 1_700_000_005_000)
    blocks = read(broker, QueueRange(Q0, 0, 100), last=NEWEST, pullDepth="2")
    assert covered(blocks) == list(range(100))
    assert sum(pull.queue_offset == 99 for pull in broker.pulls) == 1


def test_a_broker_that_is_gone_for_good_is_skipped_if_losses_are_allowed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = FakeBroker({0: range(100)}, cap=10)
    broker.faults = [lambda: None, *[refused_connection] * 10_000]  # type: ignore[list-item]
    time = Time()
    blocks = read(
        broker,
        QueueRange(Q0, 0, 100),
        QueueRange(Q0._replace(queue_id=1), 0, 50),
        time=time,
        skip_after_ms=60_000,
        pullDepth="1",
        pollTimeoutMs="5s",
        failOnDataLoss="false",
    )
    assert covered(blocks) == list(range(10))
    assert 60 < time.now < 75
    assert caplog.text.count("broker broker-a gave no message for 60 s") == 1


def test_messages_that_arrive_late_are_waited_for() -> None:
    """A restarted broker may still read its log."""
    broker = FakeBroker({0: range(10)})
    broker.faults = [lambda: None] * 6 + [lambda: broker.ends.update({0: range(100)})]  # type: ignore[list-item,return-value]
    assert covered(read(broker, QueueRange(Q0, 5, 100))) == list(range(5, 100))


def test_a_queue_that_was_short_and_is_whole_again_is_not_lost_when_its_broker_goes_away() -> None:
    broker = FakeBroker({0: range(10)}, cap=10)
    broker.faults = [
        *[lambda: None] * 3,  # two pulls find the queue too short
        lambda: broker.ends.update({0: range(100)}),  # type: ignore[list-item,return-value]
        lambda: None,
        *[refused_connection] * 10_000,  # type: ignore[list-item]
    ]
    with pytest.raises(Unreachable, match="cannot connect to a:1: refused"):
        read(broker, QueueRange(Q0, 0, 100), pullDepth="1", pollTimeoutMs="30s")


def test_permanent_refusals_fail_at_once() -> None:
    broker = FakeBroker({0: range(10)})
    broker.faults = [
        lambda: Command(code=ResponseCode.NO_PERMISSION, flag=1, remark="the topic is closed")
    ]
    with pytest.raises(
        SourceError,
        match="refuses pulls from orders/broker-a/0: the topic is closed; check the topic's",
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


def test_a_connection_with_answers_in_flight_is_not_kept() -> None:
    """Spark has enough rows and ends the task early: the next task must not read this task's
    answers.
    """
    broker = FakeBroker({0: range(100)}, cap=10)
    pool = ConnectionPool(broker.connect)  # type: ignore[arg-type]
    blocks = task_of(broker, QueueRange(Q0, 0, 100), pool=pool, pullBatchSize="10").blocks()
    next(blocks)
    blocks.close()  # type: ignore[attr-defined]
    assert [made.closed for made in broker.made] == [True]
    assert covered(read(broker, QueueRange(Q0, 0, 10), pool=pool)) == list(range(10))
    assert broker.connections == 2


def test_one_idle_connection_per_address_is_kept() -> None:
    broker = FakeBroker({0: range(10)})
    pool = ConnectionPool(broker.connect)  # type: ignore[arg-type]
    access = parse_options({"nameServer": "n:1", "subscribe": "orders"}, streaming=True).access
    one, other = pool.take("a:1", access), pool.take("a:1", access)
    for connection in (one, other, other):
        pool.give_back("a:1", access, connection)
    assert [made.closed for made in broker.made] == [True, False]
    assert pool.take("a:1", access) is other
