"""Stored messages to Arrow: golden records of Java brokers, records made by Hypothesis, and damaged
records.
"""

from __future__ import annotations

import gzip
import json
import logging
import struct
import tarfile
import zlib
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from tests.support.stored_records import V4_HOST, V6_HOST, properties_text, stored_record
from triomq.client.spark.columns import COLUMNS, arrow_schema, default_schema
from triomq.client.spark.decode import BATCH_BYTES_MAX, RecordDecoder
from triomq.client.spark.errors import SourceError
from triomq.client.spark.offsets import Queue
from triomq.client.spark.records import Block
from triomq.remoting.protocol.batch import encode_batch
from triomq.remoting.protocol.inner_batch import INNER_FLAGS
from triomq.remoting.protocol.message_properties import decode_properties, property_value
from triomq.remoting.protocol.sys_flags import COMPRESSED

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "store"
ALL_COLUMNS = StructType([StructField(column.name, column.types[0]) for column in COLUMNS])
ORDERS = Queue("orders", "broker-a", 0)


def decode(
    blocks: list[Block], schema: StructType = ALL_COLUMNS, tags: frozenset[str] | None = None
) -> list[dict[str, Any]]:
    return [
        row
        for batch in RecordDecoder(arrow_schema(schema), tags).decode(blocks)
        for row in batch.to_pylist()
    ]


def block(*records: bytes, first: int = 0, end: int = 1 << 40, queue: Queue = ORDERS) -> Block:
    return Block(queue, first, end, b"".join(records))


def golden_messages(version: str) -> list[dict[str, Any]]:
    lines = gzip.decompress(
        (GOLDEN / f"java-{version}.messages.jsonl.gz").read_bytes()
    ).splitlines()
    return [message for message in map(json.loads, lines) if "topic" in message]


def golden_log(version: str) -> bytes:
    """The commit log of a Java broker; its first file begins at offset 0."""
    with tarfile.open(GOLDEN / f"java-{version}.tar.gz") as archive:
        names = sorted(name for name in archive.getnames() if f"java-{version}/commitlog/0" in name)
        return b"".join(archive.extractfile(name).read() for name in names)  # type: ignore[union-attr]


@pytest.mark.parametrize("version", ["4.9.4", "5.5.0"])
def test_golden_messages_decode_as_java_reads_them(version: str) -> None:
    log = golden_log(version)
    queues: dict[Queue, list[dict[str, Any]]] = defaultdict(list)
    for message in golden_messages(version):
        queues[Queue(message["topic"], "broker-a", message["queueId"])].append(message)
    assert len(queues) > 5
    for queue, messages in queues.items():
        body = b"".join(
            log[message["offset"] : message["offset"] + message["size"]] for message in messages
        )
        rows = decode([Block(queue, 0, 1 << 40, body)])
        assert len(rows) == len(messages)
        for row, message in zip(rows, messages, strict=True):
            stored = bytes.fromhex(message["body"])
            properties = message["properties"]
            assert row["value"] == (zlib.decompress(stored) if message["sysFlag"] & 1 else stored)
            assert row["key"] == properties.get("KEYS")
            assert row["tags"] == properties.get("TAGS")
            assert dict(row["headers"]) == properties
            assert (row["topic"], row["brokerName"], row["queueId"], row["offset"]) == (
                queue.topic,
                "broker-a",
                queue.queue_id,
                message["queueOffset"],
            )
            assert row["timestamp"].timestamp() * 1000 == pytest.approx(
                message["storeTimestamp"], abs=0.01
            )
            assert row["bornTimestamp"].timestamp() * 1000 == pytest.approx(
                message["bornTimestamp"], abs=0.01
            )
            assert row["msgId"] == properties.get("UNIQ_KEY", message["offsetMsgId"])
            assert row["messageGroup"] == properties.get("__SHARDINGKEY")
            assert (row["flag"], row["sysFlag"], row["reconsumeTimes"]) == (
                message["flag"],
                message["sysFlag"],
                message["reconsumeTimes"],
            )
            assert (f"/{row['bornHost']}", f"/{row['storeHost']}") == (
                message["bornHost"],
                message["storeHost"],
            )
            assert (row["storeSize"], row["commitLogOffset"]) == (
                message["size"],
                message["offset"],
            )


def test_the_golden_data_holds_what_the_test_claims_to_cover() -> None:
    messages = golden_messages("5.5.0") + golden_messages("4.9.4")
    assert any(message["sysFlag"] & 1 for message in messages)
    assert any("KEYS" not in message["properties"] for message in messages)
    assert b"DefaultCluster\x02WAIT\x01true\x00" in golden_log(
        "4.9.4"
    )  # a duplicate name, and no separator at the end


PROPERTY_TEXT = st.text(
    st.characters(blacklist_characters="\x01\x02", blacklist_categories=("Cs",)),
    min_size=1,
    max_size=20,
)


@st.composite
def made_messages(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "body": draw(st.binary(max_size=40)),
        "properties": draw(
            st.dictionaries(
                st.one_of(PROPERTY_TEXT, st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY"])),
                PROPERTY_TEXT,
                max_size=5,
            )
        ),
        "ended": draw(st.booleans()),
        "compressed": draw(st.booleans()),
        "born": draw(st.sampled_from([V4_HOST, V6_HOST])),
        "stored": draw(st.sampled_from([V4_HOST, V6_HOST])),
        "v2": draw(st.booleans()),
        "flag": draw(st.integers(-(1 << 31), (1 << 31) - 1)),
        "topic": draw(st.text("abcXYZ-_é", min_size=1, max_size=60)),
    }


@settings(deadline=None)
@given(st.lists(made_messages(), max_size=8), st.integers(1, 8))
def test_any_message_decodes_to_what_was_encoded(
    messages: list[dict[str, Any]], per_block: int
) -> None:
    records = [
        stored_record(
            zlib.compress(message["body"]) if message["compressed"] else message["body"],
            topic=message["topic"],
            offset=offset,
            flag=message["flag"],
            sys_flag=int(message["compressed"]),
            properties=properties_text(message["properties"], ended=message["ended"]),
            born=message["born"],
            stored=message["stored"],
            v2=message["v2"],
        )
        for offset, message in enumerate(messages)
    ]
    blocks = [
        block(*records[start : start + per_block]) for start in range(0, len(records), per_block)
    ]
    rows = decode(blocks) if blocks else []
    assert [row["offset"] for row in rows] == list(range(len(messages)))
    for row, message in zip(rows, messages, strict=True):
        assert row["value"] == message["body"]
        assert dict(row["headers"]) == message["properties"]
        assert row["key"] == message["properties"].get("KEYS")
        assert row["flag"] == message["flag"]
        assert row["bornHost"] == (
            "127.0.0.1:50000" if message["born"] is V4_HOST else "[::1]:50001"
        )
        assert row["storeHost"] == (
            "127.0.0.1:50000" if message["stored"] is V4_HOST else "[::1]:50001"
        )


@settings(deadline=None)
@given(st.lists(st.binary(max_size=30), min_size=1, max_size=6))
def test_properties_follow_java_s_parser_for_any_bytes(texts: list[bytes]) -> None:
    """Java: pieces end at 0x02; the first 0x01 divides; empty names and values are skipped; the
    later of two equal names wins.
    """
    rows = decode(
        [
            block(
                *(
                    stored_record(b"", offset=offset, properties=text)
                    for offset, text in enumerate(texts)
                )
            )
        ]
    )
    for row, text in zip(rows, texts, strict=True):
        wanted: dict[str, str] = {}
        for piece in text.decode("utf-8", "replace").split("\x02"):
            name, found, value = piece.partition("\x01")
            if found and name and value:
                wanted[name] = value
        assert dict(row["headers"]) == wanted


MANY_NAMES = b"".join(b"n%d\x01v\x02" % number for number in range(80))


@pytest.mark.parametrize(
    ("text", "tags", "others"),
    [
        (b"TAGS\x01one\x02TAGS\x01two\x02", "two", {}),
        (b"TAGS\x01one\x02a\x01b\x02TAGS\x01two", "two", {"a": "b"}),
        (b"TAGS\x01one\x02TAGS\x01\x02", "one", {}),
        (b"TAGS\x01one\x02TAGS\x01two\x02TAGS\x01one\x02", "one", {}),
        (b"a\x011\x02TAGS\x01t\x02a\x012\x02", "t", {"a": "2"}),
        (
            MANY_NAMES + b"TAGS\x01one\x02TAGS\x01two\x02n70\x01w\x02",
            "two",
            {**{f"n{number}": "v" for number in range(80)}, "n70": "w"},
        ),
        (
            MANY_NAMES + b"TAGS\x01t\x02n70\x01w\x02",
            "t",
            {**{f"n{number}": "v" for number in range(80)}, "n70": "w"},
        ),
    ],
)
def test_the_last_property_of_a_name_wins_as_in_java(
    text: bytes, tags: str, others: dict[str, str]
) -> None:
    """In every column, also beside messages without duplicate names, and for the filter."""
    records = [
        stored_record(b"", offset=offset, properties=raw)
        for offset, raw in enumerate([b"TAGS\x01x\x02", text, b"TAGS\x01y\x02"])
    ]
    rows = decode([block(*records)])
    assert [row["tags"] for row in rows] == ["x", tags, "y"]
    assert [len(row["headers"]) for row in rows] == [1, 1 + len(others), 1]
    assert dict(rows[1]["headers"]) == {"TAGS": tags, **others} == decode_properties(text)
    assert property_value(text, b"TAGS") == tags.encode()
    assert [row["offset"] for row in decode([block(*records)], tags=frozenset({tags}))] == [1]


def test_columns_have_exactly_spark_s_types() -> None:
    for schema in (
        ALL_COLUMNS,
        default_schema(include_headers=True),
        default_schema(include_headers=False),
    ):
        wanted = to_arrow_schema(schema, timezone="UTC")
        assert arrow_schema(schema).equals(wanted)
        (batch,) = RecordDecoder(wanted).decode(
            [block(stored_record(b"x", properties={"KEYS": "k"}))]
        )
        assert batch.schema.equals(wanted)
        assert RecordDecoder(wanted).empty().schema.equals(wanted)


def test_value_as_text_and_key_as_bytes() -> None:
    schema = StructType([StructField("value", StringType()), StructField("key", BinaryType())])
    rows = decode(
        [
            block(
                stored_record("grün".encode(), properties={"KEYS": "kö"}),
                stored_record(b"\xff!", offset=1),
            )
        ],
        schema,
    )
    assert rows == [{"value": "grün", "key": "kö".encode()}, {"value": "\ufffd!", "key": None}]


def test_only_wanted_offsets_are_kept_and_earlier_ones_are_an_error() -> None:
    records = [stored_record(b"%d" % offset, offset=offset) for offset in range(5, 10)]
    assert [row["offset"] for row in decode([block(*records, first=5, end=8)])] == [5, 6, 7]
    with pytest.raises(SourceError, match=r"orders/broker-a/0.*offset 5, which lies before"):
        decode([block(*records, first=6)])


def test_rows_of_several_blocks_keep_their_queue() -> None:
    other = Queue("orders", "broker-b", 3)
    rows = decode(
        [
            block(stored_record(b"a", offset=4)),
            block(stored_record(b"b", offset=9), stored_record(b"c", offset=10), queue=other),
        ]
    )
    assert [(row["brokerName"], row["queueId"], row["value"]) for row in rows] == [
        ("broker-a", 0, b"a"),
        ("broker-b", 3, b"b"),
        ("broker-b", 3, b"c"),
    ]


def test_tags_are_compared_as_text() -> None:
    """``Aa`` and ``BB`` have the same hash in Java, so a broker that filters by hash sends both."""
    records = [
        stored_record(tag.encode(), offset=offset, properties={"TAGS": tag})
        for offset, tag in enumerate(["Aa", "BB", "Aa"])
    ]
    assert [
        row["value"]
        for row in decode(
            [block(*records, stored_record(b"none", offset=3))], tags=frozenset({"Aa"})
        )
    ] == [b"Aa", b"Aa"]


@pytest.mark.parametrize(
    ("bits", "pack"),
    [
        (0x001, zlib.compress),
        (0x301, zlib.compress),
        (0x101, lambda body: compress(body, "lz4")),
        (0x201, lambda body: compress(body, "zstd")),
    ],
)
def test_every_compression_of_rocketmq_is_decompressed(bits: int, pack: Any) -> None:
    body = b"flight " * 1000
    assert (
        decode(
            [block(stored_record(pack(body), sys_flag=bits), stored_record(b"plain", offset=1))]
        )[0]["value"]
        == body
    )


def compress(body: bytes, codec: str) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(body)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    ("body", "bits"),
    [(b"not zlib", 0x1), (zlib.compress(bytes(5000))[:-6], 0x1), (b"?", 0x101), (b"?", 0x601)],
)
def test_a_body_that_cannot_be_decompressed_is_passed_on_with_a_warning(
    body: bytes, bits: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        rows = decode([block(stored_record(body, sys_flag=bits), stored_record(b"next", offset=1))])
    assert [row["value"] for row in rows] == [body, b"next"]
    assert "orders/broker-a/0 offset 0" in caplog.text


def test_batches_stay_small_when_messages_grow() -> None:
    packed = zlib.compress(bytes(20 << 20))
    batches = RecordDecoder(arrow_schema(default_schema(include_headers=False))).decode(
        [block(*(stored_record(packed, offset=offset, sys_flag=1) for offset in range(4)))]
    )
    assert len(batches) > 1
    assert [row["offset"] for batch in batches for row in batch.select(["offset"]).to_pylist()] == [
        0,
        1,
        2,
        3,
    ]
    assert max(batch.nbytes for batch in batches) <= BATCH_BYTES_MAX + (21 << 20)


@pytest.mark.parametrize("at", [0, 4, 84, 92])
def test_damaged_answers_are_reported_not_decoded(at: int) -> None:
    record = bytearray(stored_record(b"body", properties={"A": "b"}) * 2)
    record[at : at + 4] = struct.pack(">i", 0x7FFFFFF0)
    if at == 92:  # position of the topic's length
        record = bytearray(stored_record(b"body"))
        record[92] = 200
    with pytest.raises(SourceError, match="answer for orders/broker-a/0 is damaged"):
        decode([block(bytes(record))])


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_any_bytes_are_decoded_or_raise_a_source_error(data: st.DataObject) -> None:
    """Flip bytes of good records: the decoder returns rows or raises SourceError, nothing else."""
    raw = bytearray(
        b"".join(
            stored_record(b"body", offset=offset, properties={"KEYS": "k", "TAGS": "t"})
            for offset in range(3)
        )
    )
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        rows = decode([Block(ORDERS, -(1 << 63), (1 << 63) - 1, bytes(raw))])
    except SourceError as error:
        assert str(error)  # noqa: PT017 - one of two allowed ends
    else:
        assert len(rows) <= 3


def test_messages_of_inner_batches_are_rows_from_the_wanted_offset_on() -> None:
    body = encode_batch([(0, b"a", b""), (7, b"b", properties_text({"TAGS": "t"})), (0, b"c", b"")])
    batch = stored_record(body, offset=10, sys_flag=INNER_FLAGS, properties={"INNER_NUM": "3"})
    single = stored_record(b"d", offset=13)
    compressed = stored_record(zlib.compress(b"e"), offset=14, sys_flag=COMPRESSED)
    rows = decode(
        [block(stored_record(b"0", offset=3)), block(batch, single, compressed, first=11, end=15)]
    )
    assert [(row["offset"], row["value"], row["tags"], row["flag"]) for row in rows] == [
        (3, b"0", None, 0),
        (11, b"b", "t", 7),
        (12, b"c", None, 0),
        (13, b"d", None, 0),
        (14, b"e", None, 0),
    ]
    assert [row["offset"] for row in decode([block(batch, first=10, end=12)])] == [10, 11]


def test_a_damaged_inner_batch_is_an_error_that_names_the_queue() -> None:
    with pytest.raises(SourceError, match="orders/broker-a/0 is damaged"):
        decode([block(stored_record(b"no batch", sys_flag=INNER_FLAGS))])
