"""Schemas of messages: files, inference, Avro and Protobuf. Without a Spark session."""

from __future__ import annotations

import io
import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorSet
from google.protobuf.json_format import ParseDict
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.struct_pb2 import DESCRIPTOR as STRUCT_FILE
from google.protobuf.timestamp_pb2 import DESCRIPTOR as TIMESTAMP_FILE
from google.protobuf.wrappers_pb2 import DESCRIPTOR as WRAPPERS_FILE
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from triomq.client.pipeline.core.errors import ReadRefused, SchemaError
from triomq.client.pipeline.core.schema_file import read_schema, write_schema
from triomq.client.pipeline.decoders.arrow_bodies import BadBody, batch_function
from triomq.client.pipeline.decoders.avro import open_avro
from triomq.client.pipeline.decoders.json import missing
from triomq.client.pipeline.decoders.protobuf import find_message, open_protobuf
from triomq.client.pipeline.infer import infer_bodies, newest_ranges
from triomq.client.spark.offsets import Queue

# --- files


def test_a_schema_comes_back_from_its_file(tmp_path: Path) -> None:
    path = str(tmp_path / "a.json")
    inner = StructType([StructField("é", StringType())])
    schema = StructType([StructField("id", LongType(), nullable=False), StructField("x", inner)])
    write_schema(path, schema, force=False)
    assert read_schema(path) == schema
    assert len(Path(path).read_text().splitlines()) == 2 + len(schema.fields)
    with pytest.raises(SchemaError, match="the file exists"):
        write_schema(path, schema, force=False)
    write_schema(path, schema, force=True)


def test_what_a_person_leaves_out_is_filled_in(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"type": "struct", "fields": [{"name": "id", "type": "long"}]}')
    assert read_schema(str(path)) == StructType([StructField("id", LongType())])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ("[]", "it is not a schema"),
        ('{"type": "struct", "fields": []}', "it has 0 fields"),
        ('{"type": "struct", "fields": [{"name": 1, "type": "long"}]}', "it is not a schema"),
        (
            '{"type": "struct", "fields": [{"name": "a", "type": "lnog"}]}',
            "Spark cannot read a type",
        ),
        (
            '{"type": "struct", "fields": [{"name": "mq_a", "type": "long"}]}',
            "belong to the pipeline",
        ),
        ('{"type": "struct", "fields": [{"name": "a.b", "type": "long"}]}', "dot"),
        (
            (
                '{"type": "struct", "fields": [{"name": "a", "type": "long"},'
                ' {"name": "A", "type": "long"}]}'
            ),
            "occurs twice",
        ),
    ],
)
def test_what_is_no_schema_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(SchemaError, match=said):
        read_schema(str(path))


# --- inference


def inferred(*bodies: object) -> dict[str, str]:
    texts = [body if isinstance(body, bytes) else json.dumps(body).encode() for body in bodies]
    return {field.name: field.type for field in infer_bodies(texts).fields}


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([1, 2], "bigint"),
        ([1, 1.5], "double"),
        ([1, None], "bigint"),
        ([1, True], "string"),
        ([True, False], "boolean"),
        ([1 << 63], "string"),
        (["a", 1], "string"),
        ([None], "string"),
        (["2026-01-31"], "date"),
        (["2026-01-31", "x"], "string"),
        (["2026-13-31"], "string"),
        (["2026-01-31T10:00:00Z", "2026-01-31T10:00:00.123+02:00"], "timestamp"),
        (["2026-01-31T10:00:00"], "string"),
        ([{"a": 1}, {"b": "x"}], "struct<a:bigint,b:string>"),
        ([{}], "string"),
        ([[1, None], [2.5]], "array<double>"),
        ([[{"a": 1}], []], "array<struct<a:bigint>>"),
        ([[], []], "array<string>"),
        ([{"a": 1}, [1]], "string"),
    ],
)
def test_types_are_widened_as_far_as_the_sample_needs(values: list[Any], wanted: str) -> None:
    assert inferred(*({"x": value} for value in values)) == {"x": wanted}
    assert inferred(*({"x": value} for value in reversed(values))).keys() == {"x"}


def test_the_report_says_what_the_sample_had() -> None:
    bodies = [b'{"a": 1}', b'{"a": "x", "b": null}', b"[1]", b"{", b"\xff", b'{"a": NaN}']
    found = infer_bodies(bodies)
    assert (found.messages, found.bad) == (6, 4)
    assert [(f.name, f.type, f.null_share, f.kinds) for f in found.fields] == [
        ("a", "string", 0.0, ("text", "whole number")),
        ("b", "string", 1.0, ()),
    ]


@pytest.mark.parametrize(
    ("bodies", "said"),
    [
        ([], "no messages"),
        ([b"x", b"[]"], "none of 2 bodies is a JSON object"),
        ([b'{"a":' * 60 + b"1" + b"}" * 60], "levels deep"),
        ([json.dumps({str(n): 1 for n in range(3000)}).encode()], "more than 2000 fields"),
    ],
)
def test_a_sample_without_a_schema_is_refused(bodies: list[bytes], said: str) -> None:
    with pytest.raises(ReadRefused, match=said):
        infer_bodies(bodies)


@given(st.dictionaries(st.integers(0, 20), st.integers(0, 50), max_size=8), st.integers(1, 200))
def test_a_sample_has_the_wanted_size_and_the_newest_messages(
    waiting: dict[int, int], messages: int
) -> None:
    begins = {Queue("t", "a", number): 7 for number in waiting}
    ends = {Queue("t", "a", number): 7 + count for number, count in waiting.items()}
    ranges = newest_ranges(begins, ends, messages)
    assert sum(each.message_count for each in ranges) == min(messages, sum(waiting.values()))
    assert all(each.end == ends[each.queue] and each.first >= 7 for each in ranges)


# --- required fields of JSON


def test_required_fields_are_looked_for_at_every_level() -> None:
    def of(name: str) -> StructType:
        return StructType([StructField(name, IntegerType(), nullable=False)])

    schema = StructType([StructField("a", LongType(), nullable=False)])
    schema = schema.add("s", of("x")).add("l", ArrayType(of("y"), containsNull=False))
    schema = schema.add("m", MapType(StringType(), of("z")))
    found = {path: condition for condition, path in missing(schema, "v")}
    assert found == {
        "a": "v IS NOT NULL AND v.`a` IS NULL",
        "s.x": "v.`s` IS NOT NULL AND v.`s`.`x` IS NULL",
        "l[]": "exists(v.`l`, e0 -> e0 IS NULL)",
        "l[].y": "exists(v.`l`, e0 -> e0 IS NOT NULL AND e0.`y` IS NULL)",
        "m{}.z": "exists(map_values(v.`m`), e0 -> e0 IS NOT NULL AND e0.`z` IS NULL)",
    }


# --- Avro

RECORD: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {
            "name": "amount",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}]},
        {"name": "colour", "type": {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}},
        {"name": "other", "type": ["null", "Colour"]},
        {"name": "ref", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "clock", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "tags", "type": {"type": "map", "values": "long"}},
        {
            "name": "lines",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Line",
                    "fields": [{"name": "sku", "type": "string"}],
                },
            },
        },
        {"name": "size", "type": ["null", "int", "long"]},
    ],
}
ORDER: dict[str, Any] = {
    "id": 7,
    "amount": Decimal("12.34"),
    "at": datetime(2026, 1, 31, tzinfo=UTC),
    "day": date(2026, 1, 31),
    "colour": "RED",
    "other": None,
    "ref": "00000000-0000-0000-0000-000000000001",
    "clock": 5,
    "tags": {"a": 1},
    "lines": [{"sku": "x"}],
    "size": 3,
}


def avro_schema(folder: Path, schema: object) -> str:
    path = folder / "a.avsc"
    path.write_text(json.dumps(schema))
    return str(path)


def avro_body(record: dict[str, Any], text: str) -> bytes:
    target = io.BytesIO()
    fastavro.schemaless_writer(target, fastavro.parse_schema(json.loads(text)), record)
    return target.getvalue()


def test_avro_has_spark_s_types_and_values(tmp_path: Path) -> None:
    decoder = open_avro(avro_schema(tmp_path, RECORD))
    assert decoder.schema.simpleString() == (
        "struct<id:bigint,amount:decimal(9,2),at:timestamp,day:date,colour:string,other:string,"
        "ref:string,clock:int,tags:map<string,bigint>,lines:array<struct<sku:string>>,size:bigint>"
    )
    assert not decoder.schema["id"].nullable
    assert decoder.schema["day"].nullable
    reader = pickle.loads(pickle.dumps(decoder.reader))
    body = avro_body(ORDER, reader.avro)
    assert reader.read(body) == ORDER
    for cut in range(len(body)):
        with pytest.raises(BadBody):
            reader.read(body[:cut])
    with pytest.raises(BadBody, match="1 bytes are left"):
        reader.read(body + b"x")


def test_a_value_that_arrow_cannot_hold_makes_one_row_bad(tmp_path: Path) -> None:
    schema = StructType().add("n", "integer").add("mq_reason", "string")

    class Reader:
        def read(self, body: bytes) -> dict[str, Any]:
            return {"n": int(body)}

    rows = batch_function(Reader(), schema)(pa.array([b"1", b"99999999999", None])).to_pylist()
    assert rows == [
        {"n": 1, "mq_reason": None},
        {"n": None, "mq_reason": "a value is outside the range of its column"},
        {"n": None, "mq_reason": "there is no body"},
    ]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("long", "not a record"),
        ({"type": "record"}, "not a schema of Avro"),
        ({"type": "record", "name": "A", "fields": [{"name": "b", "type": "B"}]}, "not defined"),
        (
            {"type": "record", "name": "A", "fields": [{"name": "b", "type": ["string", "int"]}]},
            "a union of int, string is no column",
        ),
        (
            {"type": "record", "name": "A", "fields": [{"name": "b", "type": ["null", "A"]}]},
            "contains itself",
        ),
        (
            {
                "type": "record",
                "name": "A",
                "fields": [{"name": "b", "type": {"type": "array", "items": "null"}}],
            },
            "have no content",
        ),
        ({"type": "record", "name": "A", "fields": [{"name": "b", "type": "null"}]}, "type null"),
        (
            {
                "type": "record",
                "name": "A",
                "fields": [
                    {
                        "name": "b",
                        "type": {"type": "bytes", "logicalType": "decimal", "precision": 40},
                    }
                ],
            },
            "40 digits",
        ),
        ({"type": "record", "name": "A", "fields": [{"name": "mq_x", "type": "int"}]}, "mq_"),
    ],
)
def test_avro_without_columns_is_refused(tmp_path: Path, schema: object, said: str) -> None:
    with pytest.raises(SchemaError, match=said):
        open_avro(avro_schema(tmp_path, schema))


# --- Protobuf

F = FieldDescriptorProto


def descriptors() -> FileDescriptorSet:
    """What ``protoc --include_imports`` writes for a small file."""
    files = FileDescriptorSet()
    for known in (TIMESTAMP_FILE, STRUCT_FILE, WRAPPERS_FILE):
        known.CopyToProto(files.file.add())
    file = files.file.add(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.extend([TIMESTAMP_FILE.name, STRUCT_FILE.name, WRAPPERS_FILE.name])
    colour = file.enum_type.add(name="Colour")
    colour.value.add(name="RED", number=0)
    colour.value.add(name="BLUE", number=1)
    order = file.message_type.add(name="Order")
    entry = order.nested_type.add(name="TagsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=F.TYPE_STRING, label=F.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=F.TYPE_INT64, label=F.LABEL_OPTIONAL)
    order.oneof_decl.add(name="_note")
    google = ".google.protobuf."
    for number, (name, kind, label, type_name) in enumerate(
        (
            ("id", F.TYPE_INT64, F.LABEL_OPTIONAL, ""),
            ("big", F.TYPE_UINT64, F.LABEL_OPTIONAL, ""),
            ("colour", F.TYPE_ENUM, F.LABEL_OPTIONAL, ".shop.Colour"),
            ("at", F.TYPE_MESSAGE, F.LABEL_OPTIONAL, f"{google}Timestamp"),
            ("any", F.TYPE_MESSAGE, F.LABEL_OPTIONAL, f"{google}Struct"),
            ("wrapped", F.TYPE_MESSAGE, F.LABEL_OPTIONAL, f"{google}StringValue"),
            ("names", F.TYPE_STRING, F.LABEL_REPEATED, ""),
            ("tags", F.TYPE_MESSAGE, F.LABEL_REPEATED, ".shop.Order.TagsEntry"),
            ("raw", F.TYPE_BYTES, F.LABEL_OPTIONAL, ""),
            ("note", F.TYPE_STRING, F.LABEL_OPTIONAL, ""),
        ),
        1,
    ):
        field = order.field.add(name=name, number=number, type=kind, label=label)
        if type_name:
            field.type_name = type_name
        if name == "note":
            field.proto3_optional = True
            field.oneof_index = 0
    tree = file.message_type.add(name="Tree")
    tree.field.add(
        name="inner", number=1, type=F.TYPE_MESSAGE, label=F.LABEL_OPTIONAL, type_name=".shop.Tree"
    )
    return files


def protobuf_file(folder: Path) -> str:
    path = folder / "shop.desc"
    path.write_bytes(descriptors().SerializeToString())
    return str(path)


VALUES = {
    "id": "7",
    "big": str((1 << 64) - 1),
    "colour": "BLUE",
    "at": "2026-01-31T00:00:00.123456Z",
    "any": {"a": 1},
    "wrapped": "w",
    "names": ["x", "y"],
    "tags": {"a": "1"},
    "raw": "AAE=",
}


def protobuf_body(values: dict[str, Any]) -> bytes:
    kind = GetMessageClass(find_message(descriptors().SerializeToString(), "shop.Order"))
    return bytes(ParseDict(values, kind()).SerializeToString())


def test_protobuf_has_spark_s_types_and_values(tmp_path: Path) -> None:
    decoder = open_protobuf(protobuf_file(tmp_path), "shop.Order")
    assert decoder.schema.simpleString() == (
        "struct<id:bigint,big:decimal(20,0),colour:string,at:timestamp,any:string,wrapped:string,"
        "names:array<string>,tags:map<string,bigint>,raw:binary,note:string>"
    )
    reader = pickle.loads(pickle.dumps(decoder.reader))
    found = reader.read(protobuf_body(VALUES))
    assert found == {
        "id": 7,
        "big": (1 << 64) - 1,
        "colour": "BLUE",
        "at": datetime(2026, 1, 31, 0, 0, 0, 123456, UTC),
        "any": '{"a": 1.0}',
        "wrapped": "w",
        "names": ["x", "y"],
        "tags": [("a", 1)],
        "raw": b"\0\1",
        "note": None,
    }
    empty = reader.read(b"")
    assert (empty["id"], empty["at"], empty["note"], empty["names"]) == (0, None, None, [])
    for bad in (b"\xff\xff\xff", b"\x3a\x02\xff\xfe", protobuf_body(VALUES)[:-1]):
        with pytest.raises(BadBody, match=r"not a shop\.Order"):
            reader.read(bad)


@pytest.mark.parametrize(
    ("message", "said"), [("shop.Ordre", r"it has .*shop\.Order"), ("shop.Tree", "contains itself")]
)
def test_a_message_that_cannot_be_a_table_is_refused(
    tmp_path: Path, message: str, said: str
) -> None:
    with pytest.raises(SchemaError, match=said):
        open_protobuf(protobuf_file(tmp_path), message)


def test_what_is_no_descriptor_set_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.desc"
    path.write_bytes(b"message Order {}")
    with pytest.raises(SchemaError, match="not a complete descriptor set"):
        open_protobuf(str(path), "Order")
    alone = FileDescriptorSet()
    alone.file.append(descriptors().file[-1])
    path.write_bytes(alone.SerializeToString())  # without --include_imports
    with pytest.raises(SchemaError, match="not a complete descriptor set"):
        open_protobuf(str(path), "shop.Order")
