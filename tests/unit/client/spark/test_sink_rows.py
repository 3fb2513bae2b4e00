"""The sink's options and columns, its messages, and how it packs them."""

from __future__ import annotations

import datetime
import os
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from triomq.client.sending.queue_choice import choose_by_key
from triomq.client.spark.errors import OptionError, RowRefused
from triomq.client.spark.sink.outgoing import (
    Element,
    Packer,
    QueueWish,
    Row,
    Rows,
)
from triomq.client.spark.sink.sink_columns import check_sink_schema
from triomq.client.spark.sink.sink_options import parse_sink_options
from triomq.client.spark.sources.source import RocketMQDataSource
from triomq.remoting.protocol.batch import ELEMENT_BYTES
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.compression import plain_body
from triomq.remoting.protocol.ids import UniqueIds
from triomq.remoting.protocol.java_hash import index_by_hash
from triomq.remoting.protocol.message_properties import decode_properties

SERVER = {"nameServer": "ns:9876"}
MINUTE = datetime.datetime(2026, 11, 25, 12, 0, tzinfo=datetime.UTC)


def columns(text: str, topic: str | None = "orders") -> dict[str, int]:
    return check_sink_schema(schema_of(text), topic)


TYPES: dict[str, DataType] = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "map<string;string>": MapType(StringType(), StringType(), valueContainsNull=False),
}


def schema_of(text: str) -> StructType:
    pairs = [pair.split() for pair in text.split(", ")]
    return StructType([StructField(name, TYPES[kind]) for name, kind in pairs])


def rows(
    given: list[dict[str, Any]], *, topic: str | None = "orders", compress: int = 4096
) -> list[Row]:
    kinds = {
        "headers": pa.map_(pa.string(), pa.string()),
        "deliverTimestamp": pa.timestamp("us", tz="UTC"),
    }
    names = list(dict.fromkeys(name for row in given for name in row))
    batch = pa.RecordBatch.from_arrays(
        [pa.array([row.get(name) for row in given], kinds.get(name)) for name in names], names
    )
    places = {name: position for position, name in enumerate(names)}
    made = Rows(places, topic, "query/7/3", compress, UniqueIds(b"\x7f\0\0\1", 1, 1))
    return list(made.of(batch, 1_764_000_000_000))


def properties(row: Row) -> dict[str, str]:
    found = decode_properties(row.element.properties)
    assert len(found.pop("UNIQ_KEY")) == 32
    return found


def test_a_row_becomes_a_message() -> None:
    first, second = rows(
        [
            {"value": "text ü", "key": "a b", "tags": "t", "headers": [("h", "1"), ("n", None)]},
            {"value": "x"},
        ]
    )
    assert (first.wish, first.element.body, first.alone) == (
        QueueWish("orders"),
        "text ü".encode(),
        False,
    )
    assert properties(first) == {
        "h": "1",
        "TAGS": "t",
        "KEYS": "a b",
        "WAIT": "true",
        "__SPARK": "query/7/3/0",
    }
    assert properties(second) == {"WAIT": "true", "__SPARK": "query/7/3/1"}


def test_headers_that_came_from_the_source_do_not_replace_what_rocketmq_sets() -> None:
    (row,) = rows(
        [{"value": b"x", "headers": [("KEYS", "old"), ("__SPARK", "old"), ("mine", "1")]}]
    )
    assert properties(row) == {"mine": "1", "WAIT": "true", "__SPARK": "query/7/3/0"}


def test_queues_delays_and_flags() -> None:
    keyed, placed, level, timed, free = rows(
        [
            {"value": b"1", "shardingKey": "k"},
            {"value": b"2", "brokerName": "broker-a", "queueId": 3, "flag": 5},
            {"value": b"3", "delayLevel": 4},
            {"value": b"4", "deliverTimestamp": MINUTE},
            {"value": b"5", "delayLevel": 0},
        ]
    )
    assert keyed.wish == QueueWish("orders", None, -1, "k")
    assert properties(keyed)["__SHARDINGKEY"] == "k"
    assert (placed.wish, placed.element.flag) == (QueueWish("orders", "broker-a", 3), 5)
    assert (level.alone, properties(level)["DELAY"]) == (True, "4")
    assert properties(timed)["TIMER_DELIVER_MS"] == str(round(MINUTE.timestamp() * 1000))
    assert (free.alone, "DELAY" in properties(free)) == (False, False)


def test_large_bodies_are_compressed_if_that_helps() -> None:
    noise = os.urandom(600)
    squeezed, kept, short = rows(
        [{"value": b"a" * 600}, {"value": noise}, {"value": b"a"}], compress=500
    )
    assert len(squeezed.element.body) < 100
    assert plain_body(squeezed.element.body, squeezed.element.sys_flag) == b"a" * 600
    assert (kept.element.body, kept.element.sys_flag, short.element.sys_flag) == (noise, 0, 0)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"value": b"secret", "headers": [("h", "x\x01y")]}, "must not contain the characters"),
        (
            {"value": b"secret", "key": "字" * 11_000},
            "properties of 33... bytes, the limit is",
        ),
        ({"value": b"secret" * (1 << 22)}, "body of 25165824 bytes; no broker takes a request of"),
        ({"value": b"secret", "brokerName": "b"}, "has one of brokerName and queueId"),
    ],
)
def test_a_row_that_cannot_be_a_message_is_named_without_its_body(
    row: dict[str, Any], message: str
) -> None:
    with pytest.raises(RowRefused, match=message) as refused:
        rows(
            [
                {"value": b"good", "queueId": None, "headers": [], "key": "k", "brokerName": None},
                row,
            ]
        )
    assert "secret" not in str(refused.value)


def test_refused_rows_can_be_told_instead() -> None:
    """The others are messages, numbered as if all were; a row without a body is a tombstone."""
    batch = pa.RecordBatch.from_pydict(
        {
            "value": ["a", None, "c", ""],
            "key": ["k", "k", "k" * 40_000, "k"],
            "place": [7, 8, 9, 10],
        }
    )
    refused: list[tuple[Any, str]] = []
    made = Rows(
        {"value": 0, "key": 1},
        "orders",
        "q",
        4096,
        UniqueIds(b"\x7f\0\0\1", 1, 1),
        (2,),
        lambda mark, reason: refused.append((mark, reason)),
    )
    found = list(made.of(batch, 1_764_000_000_000))
    assert [(row.element.body, row.element.mark) for row in found] == [
        (b"a", (7,)),
        (b"", (8,)),
        (b"", (10,)),
    ]
    assert [properties(row)["__SPARK"] for row in found] == ["q/0", "q/1", "q/3"]
    ((mark, reason),) = refused
    assert mark == (9,)
    assert reason.startswith("row 2 of this task has properties of 40")


def test_a_row_without_a_topic() -> None:
    with pytest.raises(RowRefused, match="row 0 of this task has no topic"):
        rows([{"value": b"x", "topic": None}, {"value": b"x", "topic": "t"}], topic=None)


def test_a_sharding_key_chooses_the_sdk_s_queue() -> None:
    queues = [MessageQueue("orders", "broker-a", number) for number in range(7)]
    for number in range(50):
        key = f"key-{number}"
        assert queues[index_by_hash(key, 7)] == choose_by_key(queues, key)


def message(size: int = 10, *, alone: bool = False, sys_flag: int = 0) -> Row:
    return Row(QueueWish("t"), Element(0, b"x" * (size - ELEMENT_BYTES), b"", sys_flag), alone)


def test_batches_are_filled_and_keep_the_order_of_a_queue() -> None:
    packer = Packer(100)
    ordered = QueueWish("t", "broker-a", 0)
    closed = []
    for number, row in enumerate(
        [message(40), message(40), message(40), message(40, sys_flag=1), message(300), message(40)]
    ):
        for batch in packer.add(ordered, row):
            closed.append([element.size_bytes for element in batch.elements])
            assert number
    closed += [[element.size_bytes for element in batch.elements] for batch in packer.rest()]
    assert closed == [[40, 40], [40], [40], [300], [40]]


def test_messages_for_any_queue_are_sorted_by_compression() -> None:
    packer = Packer(1000)
    for number in range(20):
        assert not list(packer.add(QueueWish("t"), message(40, sys_flag=number % 2)))
    assert [len(batch.elements) for batch in packer.rest()] == [10, 10]


def test_delayed_messages_go_alone_and_open_batches_have_a_limit() -> None:
    packer = Packer(1000)
    wish = QueueWish("t", "broker-a", 0)
    assert not list(packer.add(wish, message(40)))
    assert [len(batch.elements) for batch in packer.add(wish, message(40, alone=True))] == [1, 1]
    packer.bytes_max = 500
    sent = [
        batch
        for queue in range(10)
        for batch in packer.add(QueueWish("t", "broker-a", queue), message(90 + queue))
    ]
    assert len(sent) == 5
    assert len(list(packer.rest())) == 5


@pytest.mark.parametrize(
    ("text", "topic", "message"),
    [
        ("value string, colour string", "t", "no column 'colour'; it takes value, topic, key"),
        ("value string, tag string", "t", "did you mean 'tags'"),
        ("key string", "t", "needs a column 'value'.*to_json"),
        ("value int", "t", "column 'value' is int; cast it to binary or string"),
        ("value string", None, "does not know the topic"),
        ("value string, topic string", "t", "not both"),
        ("value string, queueId int", "t", "give both"),
        ("value string, shardingKey string, messageGroup string", "t", "two columns mean"),
        (
            "value string, shardingKey string, queueId int, brokerName string",
            "t",
            "both choose the queue",
        ),
        (
            "value string, delayLevel int, deliverTimestamp timestamp",
            "t",
            "both delay a message",
        ),
    ],
)
def test_schema_mistakes_are_errors_with_the_fix(
    text: str, topic: str | None, message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        columns(text, topic)


def test_good_schemas() -> None:
    assert columns("key binary, value string, queueId bigint, brokerName string") == {
        "key": 0,
        "value": 1,
        "queueId": 2,
        "brokerName": 3,
    }
    assert columns("messageGroup string, value binary, headers map<string;string>") == {
        "shardingKey": 0,
        "value": 1,
        "headers": 2,
    }


def test_options_of_the_sink() -> None:
    found = parse_sink_options({**SERVER, "topic": "t", "sendTimeoutMs": "5s"}, streaming=False)
    assert (found.topic, found.batch_bytes, found.depth, found.send_seconds) == ("t", 1 << 20, 4, 5)
    for given, message in [
        ({}, "'nameServer' is missing.*TEMPORARY VIEW"),
        ({**SERVER, "topic": "a,b"}, "names several topics"),
        ({**SERVER, "subscribe": "a"}, "give the sink's topic as `topic`"),
        ({**SERVER, "sendDept": "1"}, "did you mean 'sendDepth'"),
        ({**SERVER, "sendDepth": "0"}, "at least 1"),
    ]:
        with pytest.raises(OptionError, match=message):
            parse_sink_options(given, streaming=False)
    parse_sink_options({**SERVER, "queryName": "q", "checkpointLocation": "/x"}, streaming=True)


def test_a_topic_cannot_be_overwritten() -> None:
    source = RocketMQDataSource({**SERVER, "topic": "t"})
    schema = schema_of("value string")
    with pytest.raises(OptionError, match="append"):
        source.writer(schema, overwrite=True)
    with pytest.raises(OptionError, match="append"):
        source.streamWriter(schema, overwrite=True)
    assert source.writer(schema, overwrite=False)
    assert source.streamWriter(schema, overwrite=False)
