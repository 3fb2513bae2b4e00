"""The sink's options and columns, its messages, and how it packs them."""

from __future__ import annotations

import datetime
import os
from typing import Any, NamedTuple

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
from triomq.client.spark.sink.outgoing import MESSAGES_MAX, OutgoingRows, QueueWish, SinkBatch
from triomq.client.spark.sink.property_texts import property_texts
from triomq.client.spark.sink.sink_columns import check_sink_schema
from triomq.client.spark.sink.sink_options import parse_sink_options
from triomq.client.spark.sources.source import RocketMQDataSource
from triomq.remoting.protocol.batch import decode_batch
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


class Sent(NamedTuple):
    """A message of a batch."""

    wish: QueueWish
    flag: int
    body: bytes
    encoded: bytes
    sys_flag: int
    mark: object
    batch: SinkBatch


def messages(batch: SinkBatch) -> list[Sent]:
    found = decode_batch(b"".join(batch.pieces))
    return [
        Sent(batch.wish, *element, batch.sys_flag, mark, batch)
        for element, mark in zip(found, batch.marks, strict=True)
    ]


def record_batch(given: list[dict[str, Any]]) -> pa.RecordBatch:
    kinds = {
        "headers": pa.map_(pa.string(), pa.string()),
        "deliverTimestamp": pa.timestamp("us", tz="UTC"),
    }
    names = list(dict.fromkeys(name for row in given for name in row))
    return pa.RecordBatch.from_arrays(
        [pa.array([row.get(name) for row in given], kinds.get(name)) for name in names], names
    )


def sink(columns: list[str], topic: str | None = "orders", **more: Any) -> OutgoingRows:
    settings: dict[str, Any] = {
        "origin": "query/7/3",
        "compress_over_bytes": 4096,
        "batch_bytes": 1 << 20,
        **more,
    }
    return OutgoingRows(
        {name: position for position, name in enumerate(columns)},
        topic,
        ids=UniqueIds(b"\x7f\0\0\1", 1, 1),
        place=lambda wish: wish,
        **settings,
    )


def packed(given: list[dict[str, Any]], **more: Any) -> list[SinkBatch]:
    batch = record_batch(given)
    outgoing = sink(batch.schema.names, **more)
    return [*outgoing.of(batch, 1_764_000_000_000), *outgoing.rest()]


def rows(
    given: list[dict[str, Any]], *, topic: str | None = "orders", compress: int = 4096
) -> list[Sent]:
    """The messages of rows, in the order of the rows."""
    batches = packed(given, topic=topic, compress_over_bytes=compress)
    return sorted(
        (each for batch in batches for each in messages(batch)),
        key=lambda each: int(properties(each)["__SPARK"].rpartition("/")[2]),
    )


def properties(row: Sent) -> dict[str, str]:
    found = decode_properties(row.encoded)
    assert len(found.pop("UNIQ_KEY")) == 32
    return found


def test_a_row_becomes_a_message() -> None:
    first, second = rows(
        [
            {"value": "text ü", "key": "a b", "tags": "t", "headers": [("h", "1"), ("n", None)]},
            {"value": "x"},
        ]
    )
    assert (first.wish, first.body) == (QueueWish("orders"), "text ü".encode())
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
    assert (placed.wish, placed.flag) == (QueueWish("orders", "broker-a", 3), 5)
    assert (len(level.batch.marks), properties(level)["DELAY"]) == (1, "4")
    assert properties(timed)["TIMER_DELIVER_MS"] == str(round(MINUTE.timestamp() * 1000))
    assert "DELAY" not in properties(free)


def test_large_bodies_are_compressed_if_that_helps() -> None:
    noise = os.urandom(600)
    squeezed, kept, short = rows(
        [{"value": b"a" * 600}, {"value": noise}, {"value": b"a"}], compress=500
    )
    assert len(squeezed.body) < 100
    assert plain_body(squeezed.body, squeezed.sys_flag) == b"a" * 600
    assert (kept.body, kept.sys_flag, short.sys_flag) == (noise, 0, 0)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"value": b"secret", "headers": [("h", "x\x01y")]}, "must not contain the characters"),
        ({"value": b"secret", "key": "字" * 11_000}, "properties of 33... bytes, the limit is"),
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
    made = sink(
        ["value", "key"],
        origin="q",
        marks=(2,),
        refuse=lambda mark, reason: refused.append((mark, reason)),
    )
    batches = [*made.of(batch, 1_764_000_000_000), *made.rest()]
    found = [each for batch in batches for each in messages(batch)]
    assert [(row.body, row.mark) for row in found] == [(b"a", (7,)), (b"", (8,)), (b"", (10,))]
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


def numbers(batches: list[SinkBatch]) -> list[list[int]]:
    """The row numbers of the messages of batches."""
    return [
        [int(properties(each)["__SPARK"].rpartition("/")[2]) for each in messages(batch)]
        for batch in batches
    ]


QUEUE = {"brokerName": "broker-a", "queueId": 0}


def test_batches_are_filled_and_keep_the_order_of_a_queue() -> None:
    noise, large = os.urandom(300), os.urandom(3000)
    bodies = [noise, noise, noise, b"a" * 2500, large, noise]
    batches = packed(
        [{"value": body, **QUEUE} for body in bodies], batch_bytes=1000, compress_over_bytes=2000
    )
    assert numbers(batches) == [[0, 1], [2], [3], [4], [5]]
    assert [batch.size_bytes for batch in batches] == [
        len(b"".join(batch.pieces)) for batch in batches
    ]
    many = packed([{"value": b""}] * (MESSAGES_MAX + 1))
    assert [len(batch.marks) for batch in many] == [MESSAGES_MAX, 1]


def test_messages_for_any_queue_are_sorted_by_compression() -> None:
    batches = packed([{"value": b"a" * (number % 2 * 4096)} for number in range(20)])
    assert numbers(batches) == [list(range(0, 20, 2)), list(range(1, 20, 2))]


def test_delayed_messages_go_alone_and_open_batches_have_a_limit() -> None:
    plain, delayed = {"value": b"x", "delayLevel": 0, **QUEUE}, {"value": b"x", "delayLevel": 1}
    batches = packed([plain, plain, {**delayed, **QUEUE}, delayed, plain])
    assert numbers(batches) == [[0, 1], [2], [3], [4]]
    given = [{"value": os.urandom(800 + queue), **QUEUE, "queueId": queue} for queue in range(10)]
    batch = record_batch(given)
    outgoing = sink(batch.schema.names, bytes_max=5000)
    for _ in range(2):  # what is sent counts no more
        sent = list(outgoing.of(batch, 1_764_000_000_000))
        assert len(sent) == 5
        assert len(list(outgoing.rest())) == 5
    given = [{**row, "queueId": number % 2} for number, row in enumerate(given[:5])]
    assert not list(outgoing.of(record_batch(given), 1)), "each message counts once"


def test_ids_are_those_that_a_producer_would_make() -> None:
    batch = record_batch([{"value": b"x"}] * 300)
    outgoing = sink(["value"])
    times = (1_764_000_000_000, 1_764_000_000_000, 1_764_000_000_001)
    sent = [each for now in times for each in outgoing.of(batch, now)]
    found = [row for each in [*sent, *outgoing.rest()] for row in messages(each)]
    ids = UniqueIds(b"\x7f\0\0\1", 1, 1)
    wanted = [ids.next(now) for now in times for _ in range(300)]
    assert [decode_properties(row.encoded)["UNIQ_KEY"] for row in found] == wanted


def test_halves_have_the_messages_in_their_order() -> None:
    (batch,) = packed([{"value": b"%d" % number} for number in range(5)])
    assert numbers(batch.halves()) == [[0, 1], [2, 3, 4]]


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
        ("value string, delayLevel int, deliverTimestamp timestamp", "t", "both delay a message"),
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


def test_the_texts_of_properties_are_those_of_each_row() -> None:
    """A row with a separator in a property has none; a slice of a batch has its own rows."""
    headers = [
        [("a", "1")],
        None,
        [],
        [("b", None), ("c", ""), ("", "x"), ("d", "2"), ("UNIQ_KEY", "not sent")],
        [("e", "x\x02")],
        [("f\x01", "x")],
        [("g", "3"), ("h", "你")],
    ]
    keys = [b"k", None, b"", b"\xff", b"z", b"y", b"k\x01"]
    found = ["a\x011\x02KEYS\x01k\x02", "", "", "d\x012\x02KEYS\x01\ufffd\x02", None, None, None]
    small = [pa.array(headers, pa.map_(pa.string(), pa.string())), pa.array(keys, pa.binary())]
    large = [pa.map_(pa.large_string(), pa.large_string()), pa.large_binary()]
    for arrays in (small, [array.cast(kind) for array, kind in zip(small, large)]):
        batch = pa.RecordBatch.from_arrays(arrays, ["headers", "key"])
        places = {"headers": 0, "key": 1}
        assert list(property_texts(batch, places)) == found
        assert list(property_texts(batch.slice(3, 3), places)) == found[3:6]
    batch = pa.RecordBatch.from_arrays([*small, small[1]], ["headers", "key", "value"])
    with pytest.raises(RowRefused, match=r"row 4 of this task .* the characters 0x01 and 0x02"):
        list(sink(batch.schema.names).of(batch, 1))
