"""The sink's sends with fake brokers: acknowledgements, order, failures."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from triomq.client.spark.errors import NotDelivered, SourceError
from triomq.client.spark.name_servers import TopicAddresses
from triomq.client.spark.sink.delivery import Delivery
from triomq.client.spark.sink.outgoing import QueueWish, SinkBatch
from triomq.client.spark.sink.sink_options import parse_sink_options
from triomq.client.spark.task_pull import ConnectionPool
from triomq.remoting.core.errors import ConnectFailed, ConnectionLost, RequestTimeout
from triomq.remoting.protocol.batch import decode_batch, encode_batch
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import Command, response_to
from triomq.remoting.protocol.headers.send import SendMessageHeader

Fault = Callable[[], int]


class FakeBrokers:
    """Brokers at ``a:1`` and ``b:1``; ``faults`` happen to the next answers of an address."""

    def __init__(self) -> None:
        self.stored: dict[tuple[str, int], list[bytes]] = {}
        self.requests: list[tuple[str, int, int]] = []
        self.faults: dict[str, list[Fault]] = {"a:1": [], "b:1": []}
        self.down: set[str] = set()
        self.illegal: set[bytes] = set()
        """bodies that no broker takes"""
        self.in_flight: dict[tuple[str, int], int] = {}
        self.most_in_flight = 0
        self.most_of_one_queue = 0
        self.open = 0

    def connect(self, address: str, **settings: object) -> FakeConnection:
        if address in self.down:
            raise ConnectFailed(address, "connection refused")
        return FakeConnection(self, address)


class FakeConnection:
    def __init__(self, brokers: FakeBrokers, address: str) -> None:
        self.brokers, self.address = brokers, address
        self.opaque = itertools.count(1)
        self.waiting: dict[int, Command] = {}
        self.closed = False

    def send(self, command: Command) -> int:
        assert not self.closed
        if self.address in self.brokers.down:
            raise ConnectionLost(self.address, "reset")
        command.opaque = next(self.opaque)
        self.waiting[command.opaque] = command
        header = command.header(SendMessageHeader)
        place = self.address, header.queue_id
        brokers = self.brokers
        brokers.in_flight[place] = brokers.in_flight.get(place, 0) + 1
        brokers.most_in_flight = max(brokers.most_in_flight, sum(brokers.in_flight.values()))
        brokers.most_of_one_queue = max(brokers.most_of_one_queue, brokers.in_flight[place])
        return command.opaque

    def receive(self, opaque: int, timeout: float) -> Command:
        command = self.waiting.pop(opaque)
        header = command.header(SendMessageHeader)
        place = self.address, header.queue_id
        self.brokers.in_flight[place] -= 1
        if self.address in self.brokers.down:
            raise ConnectionLost(self.address, "reset")
        faults = self.brokers.faults[self.address]
        code = faults.pop(0)() if faults else int(ResponseCode.SUCCESS)
        self.brokers.requests.append((self.address, header.queue_id, command.code))
        bodies = (
            [body for _, body, _ in decode_batch(bytes(command.body))]
            if command.code == RequestCode.SEND_BATCH_MESSAGE
            else [bytes(command.body)]
        )
        if any(body in self.brokers.illegal for body in bodies):
            code = ResponseCode.MESSAGE_ILLEGAL
        if code in (ResponseCode.SUCCESS, ResponseCode.FLUSH_SLAVE_TIMEOUT):
            self.brokers.stored.setdefault(place, []).extend(bodies)
        return response_to(command, code, None, b"", remark="because")

    def close(self) -> None:
        for command in self.waiting.values():
            place = self.address, command.header(SendMessageHeader).queue_id
            self.brokers.in_flight[place] -= 1
        self.waiting.clear()
        self.closed = True


class Time:
    now = 0.0

    def clock(self) -> float:
        self.now += 0.001
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def brokers() -> FakeBrokers:
    return FakeBrokers()


def delivery(brokers: FakeBrokers, queues: int = 2, **options: str) -> Delivery:
    time = Time()
    route = TopicAddresses(
        "orders", {"broker-a": "a:1", "broker-b": "b:1"}, {"broker-a": queues, "broker-b": queues}
    )
    return Delivery(
        parse_sink_options(
            {"nameServer": "ns:9876", "topic": "orders", **options}, streaming=False
        ),
        {"orders": route}.get,
        ConnectionPool(brokers.connect),  # type: ignore[arg-type]
        time.clock,
        time.sleep,
    )


ANY_QUEUE = QueueWish("orders")


def batch(*bodies: bytes, wish: QueueWish = ANY_QUEUE) -> SinkBatch:
    encoded = [encode_batch([(0, body, b"WAIT\x01true\x02")]) for body in bodies]
    # A message in the four pieces that it has in the sink; only their joined bytes matter here.
    pieces = [piece for element in encoded for piece in (element, b"", b"", b"")]
    return SinkBatch(wish, 0, pieces, [(int(body),) if body.isdigit() else None for body in bodies])


def all_stored(brokers: FakeBrokers) -> list[bytes]:
    return sorted(body for bodies in brokers.stored.values() for body in bodies)


def test_batches_are_spread_and_all_acknowledged(brokers: FakeBrokers) -> None:
    sends = delivery(brokers)
    for number in range(20):
        sends.submit(batch(b"a%02d" % number, b"b%02d" % number))
    sends.submit(batch(b"single"))
    sends.finish()
    assert sends.acknowledged == {"orders": 41}
    assert len(all_stored(brokers)) == 41
    assert len(brokers.stored) == 4
    assert brokers.most_in_flight == 4
    assert {code for _, _, code in brokers.requests} == {
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
    }


def test_messages_of_one_queue_keep_their_order_through_failures(brokers: FakeBrokers) -> None:
    wishes = [QueueWish("orders", "broker-a", number) for number in range(2)]

    def busy() -> int:
        return int(ResponseCode.SYSTEM_BUSY)

    def lost() -> int:
        raise ConnectionLost("a:1", "reset")

    brokers.faults["a:1"] = [
        lambda: 0, busy, lambda: 0, lost, lambda: 0, lambda: 0, busy, busy, lost
    ]  # fmt: skip
    sends = delivery(brokers)
    for number in range(12):
        sends.submit(batch(b"%02d" % number, wish=wishes[number % 2]))
    sends.finish()
    assert brokers.stored["a:1", 0] == [b"%02d" % number for number in range(0, 12, 2)]
    assert brokers.stored["a:1", 1] == [b"%02d" % number for number in range(1, 12, 2)]
    assert brokers.most_of_one_queue == 1


def test_a_broker_that_is_down_is_avoided(brokers: FakeBrokers) -> None:
    brokers.down.add("b:1")
    sends = delivery(brokers)
    for number in range(10):
        sends.submit(batch(b"%d" % number))
    sends.finish()
    assert all_stored(brokers) == [b"%d" % number for number in range(10)]
    assert {address for address, _ in brokers.stored} == {"a:1"}


def test_an_ordered_batch_waits_for_its_broker(brokers: FakeBrokers) -> None:
    brokers.down.add("b:1")
    sends = delivery(brokers)
    wish = QueueWish("orders", "broker-b", 0)
    sends.submit(batch(b"1", wish=wish))
    sends.submit(batch(b"2", wish=wish))
    brokers.down.clear()
    sends.finish()
    assert brokers.stored == {("b:1", 0): [b"1", b"2"]}


def test_a_message_that_is_never_acknowledged_fails_the_task(brokers: FakeBrokers) -> None:
    sends = delivery(brokers, deliveryTimeoutMs="5s")
    sends.submit(batch(b"fine", b"too"))
    sends.finish()
    brokers.down |= {"a:1", "b:1"}
    sends.submit(batch(b"secret", b"body"))
    with pytest.raises(
        NotDelivered,
        match=r"^2 messages for orders/broker-./. were not acknowledged: .*deliveryTimeoutMs: 5 s"
        r".*2 were acknowledged before.*__SPARK",
    ) as failed:
        sends.finish()
    assert "secret" not in str(failed.value)
    sends.close()


def test_a_refusal_that_a_retry_does_not_change_fails_at_once(brokers: FakeBrokers) -> None:
    for faults in brokers.faults.values():
        faults.append(lambda: int(ResponseCode.MESSAGE_ILLEGAL))
    sends = delivery(brokers)
    sends.submit(batch(b"1", b"2"))
    with pytest.raises(NotDelivered, match=r"2 messages for orders/.*MESSAGE_ILLEGAL.*because"):
        sends.finish()
    assert len(brokers.requests) == 1


def test_a_message_that_brokers_refuse_is_told_and_the_others_keep_their_order(
    brokers: FakeBrokers,
) -> None:
    brokers.illegal = {b"3", b"17"}
    refused: list[tuple[Any, str]] = []
    sends = delivery(brokers)
    sends.refuse = lambda mark, reason: refused.append((mark, reason))
    wish = QueueWish("orders", "broker-a", 1)
    for begin in (0, 10):
        sends.submit(batch(*(b"%d" % number for number in range(begin, begin + 10)), wish=wish))
    sends.finish()
    assert brokers.stored["a:1", 1] == [b"%d" % n for n in range(20) if n not in (3, 17)]
    assert refused == [
        ((3,), "the broker refuses the message: because"),
        ((17,), "the broker refuses the message: because"),
    ]
    assert sends.acknowledged == {"orders": 18}
    assert len(brokers.requests) < 20, "halves, not one by one"


def test_a_tombstone_is_sent_as_a_batch(brokers: FakeBrokers) -> None:
    """RocketMQ's broker takes a message without a body only in a batch."""
    sends = delivery(brokers)
    sends.submit(batch(b""))
    sends.finish()
    assert all_stored(brokers) == [b""]
    assert brokers.requests[0][2] == RequestCode.SEND_BATCH_MESSAGE


def test_a_missing_answer_is_sent_again(brokers: FakeBrokers) -> None:
    def late() -> int:
        raise RequestTimeout("a:1", "send", 3.0)

    for faults in brokers.faults.values():
        faults.append(late)
    sends = delivery(brokers)
    sends.submit(batch(b"1"))
    sends.finish()
    assert all_stored(brokers) == [b"1"]


def test_messages_that_a_slave_lacks_count_as_stored_and_are_reported(brokers: FakeBrokers) -> None:
    for faults in brokers.faults.values():
        faults.append(lambda: int(ResponseCode.FLUSH_SLAVE_TIMEOUT))
    sends = delivery(brokers)
    sends.submit(batch(b"1", b"2"))
    sends.finish()
    assert (sends.acknowledged, sends.stored_less_safely) == ({"orders": 2}, 2)


def test_an_unknown_topic_is_an_error_that_says_how_to_create_it(brokers: FakeBrokers) -> None:
    sends = delivery(brokers)
    with pytest.raises(SourceError, match=r"topic ghost does not exist.*topic create"):
        sends.submit(batch(b"1", wish=QueueWish("ghost")))
    empty = delivery(brokers, queues=0)
    with pytest.raises(SourceError, match="topic orders takes no messages"):
        empty.submit(batch(b"1"))


def test_connections_are_kept_for_the_next_task(brokers: FakeBrokers) -> None:
    sends = delivery(brokers)
    sends.submit(batch(b"1"))
    sends.finish()
    sends.close()
    idle: dict[Any, Any] = sends.pool._idle
    assert [connection.closed for connection in idle.values()] == [False]
