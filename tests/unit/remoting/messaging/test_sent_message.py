"""Messages of 5.x producers in the form of the remoting protocol."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from triomq.remoting.grpc.apache_rocketmq import definition_pb2 as pb
from triomq.remoting.messaging.sent_message import (
    SentMessage,
    queue_of_group,
    require_type,
    sent_message,
)
from triomq.remoting.messaging.status_codes import Refused

NOW_MS = 1_764_201_600_123
MessageType = pb.MessageType


def sent(change: Callable[[pb.SystemProperties], object] = lambda system: None) -> SentMessage:
    message = pb.Message(
        topic=pb.Resource(resource_namespace="tenant", name="orders"),
        body=b"a body",
        user_properties={"region": "eu"},
        system_properties=pb.SystemProperties(message_id="0102"),
    )
    change(message.system_properties)
    return sent_message(message, "192.0.2.7", NOW_MS)


PLAIN = {
    "region": "eu",
    "UNIQ_KEY": "0102",
    "PGROUP": "tenant%orders",
    "__BORNHOST": "192.0.2.7",
    "BORN_TIMESTAMP": str(NOW_MS),
}


def test_a_message_with_nothing_but_an_id() -> None:
    made = sent()
    assert made == SentMessage("tenant%orders", b"a body", PLAIN, 0, NOW_MS, pb.MessageType.NORMAL)
    assert "6 bytes" in repr(made)


def _time(name: str, time_ms: int) -> Callable[[pb.SystemProperties], object]:
    return lambda system: getattr(system, name).FromMilliseconds(time_ms)


def _far(system: pb.SystemProperties) -> None:
    system.delivery_timestamp.seconds = -(2**62)
    system.born_timestamp.seconds = 2**62


@pytest.mark.parametrize(
    ("change", "added"),
    [
        (lambda system: setattr(system, "tag", "a"), {"TAGS": "a"}),
        (lambda system: system.keys.extend(["a", "b"]), {"KEYS": "a b"}),
        (lambda system: setattr(system, "message_group", "g"), {"__SHARDINGKEY": "g"}),
        (_time("delivery_timestamp", NOW_MS + 5), {"TIMER_DELIVER_MS": str(NOW_MS + 5)}),
        (_time("delivery_timestamp", 0), {"TIMER_DELIVER_MS": "0"}),
        (_time("delivery_timestamp", -1), {"TIMER_DELIVER_MS": "0"}),
        (_far, {"TIMER_DELIVER_MS": "0", "BORN_TIMESTAMP": str(2**62 * 1000)}),
        (_time("born_timestamp", 123_456), {"BORN_TIMESTAMP": "123456"}),
        (lambda system: setattr(system, "born_host", "h"), {"__BORNHOST": "h"}),
        (lambda system: setattr(system, "trace_context", "t"), {"TRACE_CONTEXT": "t"}),
        (lambda system: setattr(system, "delivery_attempt", 3), {"RECONSUME_TIME": "3"}),
        (lambda system: setattr(system, "delivery_attempt", -3), {}),
        # only a transaction has something to recover
        (_time("orphaned_transaction_recovery_duration", 9000), {}),
        # the server chooses the queue
        (lambda system: setattr(system, "queue_id", 7), {}),
    ],
)
def test_properties(change: Callable[[pb.SystemProperties], object], added: dict[str, str]) -> None:
    assert sent(change).properties == PLAIN | added


def test_a_transaction() -> None:
    def change(system: pb.SystemProperties) -> None:
        system.message_type = MessageType.TRANSACTION
        system.orphaned_transaction_recovery_duration.FromMilliseconds(9999)

    made = sent(change)
    added = {"TRAN_MSG": "true", "CHECK_IMMUNITY_TIME_IN_SECONDS": "9"}
    assert made.properties == PLAIN | added
    assert (made.kind, made.sys_flag) == (MessageType.TRANSACTION, 0x4)


@pytest.mark.parametrize(
    ("encoding", "sys_flag"), [("ENCODING_UNSPECIFIED", 0), ("IDENTITY", 0), ("GZIP", 0x1)]
)
def test_compressed_bodies(encoding: str, sys_flag: int) -> None:
    value = pb.Encoding.Value(encoding)
    assert sent(lambda system: setattr(system, "body_encoding", value)).sys_flag == sys_flag


@pytest.mark.parametrize("named", MessageType.values())
@pytest.mark.parametrize("group", ["", "g"])
@pytest.mark.parametrize("timed", [False, True])
def test_the_properties_make_the_type(named: int, group: str, timed: bool) -> None:
    """Only TRANSACTION is believed; a time counts more than a group."""

    def change(system: pb.SystemProperties) -> None:
        system.message_type = named
        system.message_group = group
        if timed:
            system.delivery_timestamp.FromMilliseconds(NOW_MS)

    expected = MessageType.FIFO if group else MessageType.NORMAL
    if timed:
        expected = MessageType.DELAY
    if named == MessageType.TRANSACTION:
        expected = MessageType.TRANSACTION
    assert sent(change).kind == expected


def test_a_sharding_key_among_the_user_properties_counts() -> None:
    message = pb.Message(
        topic=pb.Resource(name="orders"), user_properties={"__SHARDINGKEY": "g"}, body=b"b"
    )
    assert sent_message(message, "h", NOW_MS).kind == MessageType.FIFO


def test_types_of_topics() -> None:
    mixed = (MessageType.NORMAL, MessageType.FIFO)
    require_type(MessageType.FIFO, mixed, "orders")
    with pytest.raises(Refused) as refused:
        require_type(MessageType.DELAY, mixed, "orders")
    assert refused.value.code == 40014
    assert "topic orders takes NORMAL, FIFO messages" in refused.value.message
    assert "this one is DELAY" in refused.value.message
    for topic in ("%RETRY%g", "%DLQ%g"):
        require_type(MessageType.DELAY, mixed, topic)


# Written by Guava 32.0.1: Hashing.consistentHash(group.hashCode(), count).
COUNTS = (1, 2, 3, 4, 8, 16, 100, 1000, 65535)
PLACES = {
    "": (0, 0, 0, 0, 0, 0, 0, 0, 0),
    "a": (0, 0, 0, 0, 0, 0, 29, 346, 49599),
    "orders-17": (0, 1, 2, 2, 2, 2, 34, 452, 43504),
    "group": (0, 0, 0, 0, 0, 8, 80, 391, 58202),
    "Zz": (0, 1, 1, 1, 7, 12, 52, 135, 43314),
    "é中": (0, 0, 0, 0, 0, 0, 63, 63, 47218),
    "polygenelubricants": (0, 1, 2, 2, 2, 2, 58, 185, 39408),  # its hash is -2³¹
    "😀": (0, 1, 1, 1, 4, 4, 31, 748, 38160),
    "0123456789" * 6 + "0": (0, 0, 0, 3, 3, 9, 39, 929, 11706),
}


@pytest.mark.parametrize("group", PLACES)
def test_a_group_has_the_queue_that_java_gives_it(group: str) -> None:
    assert tuple(queue_of_group(group, count) for count in COUNTS) == PLACES[group]


def test_20000_groups_have_the_queues_that_java_gives_them() -> None:
    total = 0
    for number in range(20_000):
        total = total * 31 + queue_of_group(f"k{number}", 1 + number % 97)
    assert total % 2**64 == 3423374991228386147  # the sum of the same loop in Java


def test_a_new_queue_takes_groups_from_the_others_only() -> None:
    moved = 0
    for number in range(1000):
        before, after = (queue_of_group(f"g{number}", count) for count in (9, 10))
        assert after in (before, 9)
        moved += after != before
    assert 50 < moved < 150
