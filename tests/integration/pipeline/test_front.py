"""The front half of a pipeline with real Spark and real brokers: decoders, rules, joins, the check
with a session, infer, and the commands.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import attrs
import fastavro
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorSet
from google.protobuf.message_factory import GetMessageClass
from pages import blocks, one
from pyspark.sql import Column
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

import triomq.pipeline
from tests.support.spark_peers import Cluster, cluster, need_spark, open_session
from triomq.client.pipeline.__main__ import main
from triomq.client.pipeline.command_line import COMMANDS
from triomq.client.pipeline.core.origin import DERIVED, live_rows, stored_rows
from triomq.client.pipeline.core.schema_file import schema_text
from triomq.client.pipeline.core.spec import (
    DecodeSpec,
    JoinSpec,
    Rule,
    RunSpec,
    SourceSpec,
    Spec,
    TableSpec,
    WindowSpec,
)
from triomq.client.pipeline.decoders import decode, open_decoder
from triomq.client.pipeline.decoders.framing import NO_HEADER
from triomq.client.pipeline.decoders.json import BEYOND, CORRUPT, PARSED, JsonDecoder
from triomq.client.pipeline.decoders.protobuf import find_message
from triomq.client.pipeline.joins import apply_joins
from triomq.client.pipeline.rules import apply_rules
from triomq.client.pipeline.session_check import check_in_session
from triomq.client.pipeline.spec_file import read_spec
from triomq.client.pipeline.windows import totals_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("spark")
    need_spark(folder)
    session = open_session(folder / "local")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


def decoded(spark: Any, decoder: Any, bodies: list[bytes | None]) -> list[Any]:
    """The rows of bodies, in their order; each body has exactly one row."""
    frame = spark.createDataFrame(list(enumerate(bodies)), "i int, mq_value binary")
    rows = decoder.decode(frame).orderBy("i").collect()
    assert [row.i for row in rows] == list(range(len(bodies)))
    assert [row.mq_value for row in rows] == bodies
    assert set(rows[0].asDict()) == {"i", "mq_value", "mq_reason", *decoder.schema.fieldNames()}
    return rows


# --- JSON


def utc(seconds: float) -> datetime:
    """Return a time as ``collect`` gives it: in the zone of this machine."""
    return datetime.fromtimestamp(seconds)


SCHEMA = (
    "id bigint NOT NULL, amount decimal(10,2), name string, at timestamp, day date, flag boolean,"
    " x double, n int, address struct<city: string NOT NULL, zip: int>,"
    " items array<struct<sku: string NOT NULL, q: int>>, tags map<string, bigint>,"
    " times array<timestamp>, rates map<string, float>"
)
GOOD_JSON: list[tuple[bytes, dict[str, Any]]] = [
    (b'{"id":1}', {"id": 1}),
    (b' {"id":1} \r\n\t', {"id": 1}),
    (b'{"id":1,"new":{"a":[1,{"b":2}]}}', {"id": 1}),
    (
        b'{"id":1,"address":null,"items":[],"tags":{"a":null}}',
        {"id": 1, "items": [], "tags": {"a": None}},
    ),
    (b'{"id":1,"name":5}', {"id": 1, "name": "5"}),
    (
        b'{"id":1,"times":["2026-01-31T23:00","2026-01-31 23:00:00.5+01:00",1767225600]}',
        {"id": 1, "times": [*map(utc, (1769900400, 1769896800.5, 1767225600))]},
    ),
    (b'{"id":1,"name":"a\\u0000b"}', {"id": 1, "name": "a\0b"}),
    (
        (
            b'{"id":1,"amount":12.34,"at":"2026-01-31T23:00:00Z","day":"2026-01-31","flag":true,'
            b'"x":1.5,"n":3,"address":{"city":"B"},"items":[{"sku":"a","q":1}],"tags":{"a":1}}'
        ),
        {"id": 1, "day": date(2026, 1, 31), "flag": True, "x": 1.5, "n": 3, "tags": {"a": 1}},
    ),
]
NOT_JSON = "the body is not one valid JSON object"
NO_OBJECT = "the body is not a JSON object"
BAD_JSON: list[tuple[bytes | None, str]] = [
    (None, "the body is empty"),
    (b"", "the body is empty"),
    (b"  ", NO_OBJECT),
    (b"null", NO_OBJECT),
    (b"5", NO_OBJECT),
    (b'"x"', NO_OBJECT),
    (b"[]", NO_OBJECT),
    (b'[{"id":1},{"id":2}]', NO_OBJECT),
    (b'\xef\xbb\xbf{"id":1}', NO_OBJECT),
    (b'{"id":1', NOT_JSON),
    (b'{"id":1} xyz', NOT_JSON),
    (b'{"id":1}{"id":2}', NOT_JSON),
    (b'{"id":1},{"id":2}', NOT_JSON),
    (b'{"id":1}}', NOT_JSON),
    (b'{"id":1},"w":{}', NOT_JSON),
    (b'{"id":1}\0', NOT_JSON),
    (b'{"id":1,}', NOT_JSON),
    (b'{"id":01}', NOT_JSON),
    (b'{"id":1,"x":NaN}', NOT_JSON),
    (b'{"id":1,"o":' + b"[" * 3000 + b"]" * 3000 + b"}", NOT_JSON),
    (b'{"id":1}]', ""),  # any reason
    (b'{"id":1}],"w":[2', ""),
    (b"{'id':1}", ""),
    (b'{"id":1,"name":"a\0b"}', ""),
    (b'{"id":1,"name":"\xff"}', "the body is not UTF-8"),
    (b"{}", "field id is missing or null"),
    (b'{"ID":1}', "field id is missing or null"),
    (b'{"id":null}', "field id is missing or null"),
    (b'{"id":1,"address":{}}', "field address.city is missing or null"),
    (b'{"id":1,"items":[{"q":1}]}', "field items[].sku is missing or null"),
    (b'{"id":"x"}', "wrong type in field id"),
    (b'{"id":1.5}', "wrong type in field id"),
    (b'{"id":9223372036854775808}', "wrong type in field id"),
    (b'{"id":1,"n":99999999999,"flag":"true"}', "wrong type in field flag, n"),
    (b'{"id":1,"amount":123456789012.5}', "wrong type in field amount"),
    (b'{"id":1,"at":"yesterday"}', "wrong type in field at"),
    (b'{"id":1,"at":"12:30"}', "wrong type in field at"),
    (b'{"id":1,"at":"2026"}', "wrong type in field at"),
    (b'{"id":1,"at":"1767225600"}', "wrong type in field at"),
    (b'{"id":1,"at":1767225600.5}', "wrong type in field at"),
    (b'{"id":1,"at":1767225600000}', f"{BEYOND}at"),
    (b'{"id":1,"times":[null,1767225600000],"x":1e400}', f"{BEYOND}x, times[]"),
    (b'{"id":1,"rates":{"a":1.5,"b":-1e400}}', f"{BEYOND}rates{{}}"),
    (b'{"id":1,"x":"Infinity"}', "wrong type in field x"),
    (b'{"id":1,"day":"2026-01-31T00:00:00Z"}', "wrong type in field day"),
    (b'{"id":1,"day":"20484"}', "wrong type in field day"),
    (b'{"id":1,"day":"2026-13-01"}', "wrong type in field day"),
    (b'{"id":1,"address":5}', "wrong type in field address"),
    (b'{"id":1,"items":{"sku":"a"}}', "wrong type in field items"),
    (b'{"id":1,"tags":{"a":"q"}}', "wrong type in field tags"),
    (b'{"id":1,"address":{"city":"x","zip":"y"}}', "a value does not fit the schema"),
]


def json_errors(rows: list[Any], cases: list[tuple[Any, Any]]) -> list[str]:
    """What is wrong with the rows of bodies of ``GOOD_JSON`` and ``BAD_JSON``."""
    wrong = []
    for row, (body, wanted) in zip(rows, cases, strict=True):
        fields = {name: row[name] for name in StructType.fromDDL(SCHEMA).fieldNames()}
        if isinstance(wanted, dict):
            good = row.mq_reason is None and all(fields[k] == v for k, v in wanted.items())
        else:
            parts = set(wanted.removeprefix("wrong type in field ").split(", "))
            found = set((row.mq_reason or "").removeprefix("wrong type in field ").split(", "))
            good = bool(row.mq_reason) and (not wanted or parts == found)
            good = good and all(value is None for value in fields.values())
        if not good:
            wrong.append(f"{body!r:.80}: {row.mq_reason} {fields}")
    return wrong


@pytest.mark.loss
@pytest.mark.feature("202a", "202b")
def test_every_body_is_a_good_row_or_a_bad_one_with_its_reason(spark: Any, tmp_path: Path) -> None:
    decoder = JsonDecoder(StructType.fromDDL(SCHEMA))
    cases: list[tuple[Any, Any]] = [*GOOD_JSON, *BAD_JSON]
    rows = decoded(spark, decoder, [body for body, _ in cases])
    assert json_errors(rows, cases) == []
    assert rows[len(GOOD_JSON) - 1].at.astimezone(UTC) == datetime(2026, 1, 31, 23, tzinfo=UTC)

    framed = JsonDecoder(StructType.fromDDL("id long"), framed=True)
    bodies = [b'\0\0\0\0\1{"id": 7}', b'{"id": 7}', b"\0\0\0\0", b"\0\0\0\0\1", b"\0\0\0\0\1[]"]
    assert [(row.id, row.mq_reason) for row in decoded(spark, framed, bodies)] == [
        (7, None),
        (None, "the body has no header of a schema registry"),
        (None, "the body has no header of a schema registry"),
        (None, "the body is not a JSON object"),
        (None, "the body is not a JSON object"),
    ]

    types = tmp_path / "order.schema.json"
    types.write_text(schema_text(framed.schema))
    checked = tmp_path / "1.json"
    checked.write_text('{"properties": {"id": {"minimum": 7}}}')
    spec = DecodeSpec(
        format="json", schema=str(types), framing="confluent", schemas={"1": str(checked)}
    )
    bodies += [b'\0\0\0\0\1{"id": 6}', b'\0\0\0\0\2{"id": 7}', None]
    found = decoded(spark, open_decoder(spec), bodies)
    assert [(row.id, row.mq_reason) for row in found][:2] == [(7, None), (None, NO_HEADER)]
    assert [(row.id, row.mq_reason) for row in found][5:] == [
        (None, "the body breaks schema 1 at #/properties/id/minimum"),
        (None, "schema 2 is not one of decode.schemas"),
        (None, "the body is empty"),
    ]

    class Lenient(JsonDecoder):
        """Believes Spark's function alone."""

        def reason(self) -> Column:
            return sf.col(PARSED)[CORRUPT]

    # Python has no time for a year of five digits.
    cases = [(body, wanted) for body, wanted in cases if b"1767225600000" not in (body or b"")]
    rows = decoded(spark, Lenient(decoder.schema), [body for body, _ in cases])
    assert len(json_errors(rows, cases)) > 10


# --- the other formats


@pytest.mark.loss
@pytest.mark.feature("202a", "202b")
def test_text_is_not_mangled(spark: Any) -> None:
    frame = spark.createDataFrame([(b"\xc3\xa4",), (b"\xff",), (b"",)], "mq_value binary")
    text = decode(frame, DecodeSpec(format="string")).collect()
    assert [(row.value, row.mq_reason) for row in text] == [
        ("ä", None),
        (None, "the body is not UTF-8"),
        ("", None),
    ]
    plain = decode(frame, DecodeSpec(format="bytes")).collect()
    assert [(bytes(row.value), row.mq_reason) for row in plain] == [
        (b"\xc3\xa4", None),
        (b"\xff", None),
        (b"", None),
    ]


@pytest.mark.loss
@pytest.mark.feature("202a", "202b")
def test_avro_bodies_become_columns(spark: Any, tmp_path: Path) -> None:
    schema = {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "tags", "type": {"type": "map", "values": "string"}},
            {"name": "lines", "type": ["null", {"type": "array", "items": "double"}]},
        ],
    }
    path = tmp_path / "order.avsc"
    path.write_text(json.dumps(schema))
    moment = datetime(2026, 1, 31, 12, 0, 0, 123456, UTC)
    record = {"id": 7, "at": moment, "tags": {"a": "b"}, "lines": [1.5]}
    target = io.BytesIO()
    fastavro.schemaless_writer(target, fastavro.parse_schema(schema), record)
    body = target.getvalue()
    bodies = [body, body[:-1], body + b"x", b"", None, b"\xff" * 20]
    frame = spark.createDataFrame(list(enumerate(bodies)), "i int, mq_value binary")
    spec = DecodeSpec(format="avro", schema=str(path))
    rows = decode(frame, spec).orderBy("i").collect()
    good = rows[0]
    assert (good.mq_reason, good.id, good.tags, good.lines) == (None, 7, {"a": "b"}, [1.5])
    assert good.at.astimezone(UTC) == moment
    assert [row.i for row in rows] == list(range(len(bodies)))
    assert all(row.mq_reason and row.id is None for row in rows[1:])
    framed = spark.createDataFrame([(b"\0\0\0\0\1" + body,), (body,)], "mq_value binary")
    ids = attrs.evolve(spec, framing="confluent", schemas={"1": str(path)})
    found = decode(framed, ids).collect()
    assert [(row.id, row.mq_reason) for row in found] == [
        (7, None),
        (None, "the body has no header of a schema registry"),
    ]


@pytest.mark.loss
@pytest.mark.feature("202a", "202b")
def test_protobuf_bodies_become_columns(spark: Any, tmp_path: Path) -> None:
    field = FieldDescriptorProto
    files = FileDescriptorSet()
    file = files.file.add(name="shop.proto", package="shop", syntax="proto2")
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=field.TYPE_INT64, label=field.LABEL_REQUIRED)
    order.field.add(name="names", number=2, type=field.TYPE_STRING, label=field.LABEL_REPEATED)
    path = tmp_path / "shop.desc"
    path.write_bytes(files.SerializeToString())
    kind = GetMessageClass(find_message(path.read_bytes(), "shop.Order"))
    body = kind(id=7, names=["x", "y"]).SerializeToString()
    frame = spark.createDataFrame([(body,), (b"",), (b"\xff",)], "mq_value binary")
    spec = DecodeSpec(format="protobuf", schema=str(path), message="shop.Order")
    rows = decode(frame, spec).collect()
    assert [(row.id, row.names, row.mq_reason) for row in rows] == [
        (7, ["x", "y"], None),
        (None, None, "field id is missing"),
        (None, None, "the body is not a shop.Order"),
    ]


# --- rules and joins


def test_rules_are_applied_in_order_to_good_rows(spark: Any) -> None:
    frame = spark.createDataFrame(
        [(1, 5, None), (2, -5, None), (3, None, None), (4, 50, None), (5, 5, "bad before")],
        "id int, amount int, mq_reason string",
    )
    rules = [
        Rule(name="amount", check="amount > 0"),
        Rule(set={"total": "amount * 2", "amount": "cast(amount AS string)"}),
        Rule(check="total < 50"),
        Rule(keep="id <> 1"),
    ]
    rows = apply_rules(frame, rules).orderBy("id").collect()
    assert [(row.id, row.amount, row.total, row.mq_reason) for row in rows] == [
        (2, None, None, "amount"),
        (3, None, None, "amount"),
        (4, "50", 100, "not true: total < 50"),
        (5, None, None, "bad before"),
    ]


@pytest.mark.feature("205c")
def test_joins_see_the_table_as_it_is_now(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "customers.csv"
    join = JoinSpec(path=str(path), format="csv", on=("customer",), options={"header": "true"})
    frame = spark.createDataFrame([("a",), ("b",)], "customer string")
    path.write_text("customer,city\na,Bonn\n")
    kept = {row.customer: row.city for row in apply_joins(frame, [join]).collect()}
    assert kept == {"a": "Bonn", "b": None}
    path.write_text("customer,city\nb,Ulm\n")
    inner = apply_joins(frame, [attrs.evolve(join, how="inner")]).collect()
    assert [(row.customer, row.city) for row in inner] == [("b", "Ulm")]


# --- the check with a session


def spec_in(folder: Path, **more: Any) -> Spec:
    schema = folder / "orders.schema.json"
    schema.write_text(StructType.fromDDL("id bigint, amount double, customer string").json())
    parts: dict[str, Any] = {
        "name": "orders",
        "source": SourceSpec(name_server="127.0.0.1:1", topics=("orders",)),
        "decode": DecodeSpec(format="json", schema=str(schema)),
        "dead_letters": TableSpec(path=str(folder / "dead")),
        "sink": TableSpec(path=str(folder / "lake")),
        "run": RunSpec(checkpoint=str(folder / "checkpoint")),
    }
    return Spec(**{**parts, **more})


def window(**more: Any) -> WindowSpec:
    given: dict[str, Any] = {
        "name": "w",
        "length": "1 hour",
        "watermark": "1 hour",
        "totals": {"n": "count(*)"},
        "table": TableSpec(path="w"),
    }
    return WindowSpec(**{**given, **more})


def test_a_window_may_use_columns_of_a_join(spark: Any, tmp_path: Path) -> None:
    """The check accepts it, and the totals have the joined column."""
    (cities := tmp_path / "cities.json").write_text('{"customer":"a","city":"x","share":0.5}\n')
    join = JoinSpec(path=str(cities), format="json", on=("customer",))
    by_city = window(group_by=("city",), totals={"part": "sum(amount * share)"})
    assert check_in_session(spark, spec_in(tmp_path, joins=(join,), windows=(by_city,))) == []
    at = "timestamp'2026-01-01 00:30:00' AS mq_time"
    rows = spark.range(4).selectExpr(at, "'a' AS customer", "cast(id AS double) AS amount")
    (total,) = totals_of(apply_joins(rows, [join]), by_city).collect()
    assert (total.city, total.part) == ("x", 3.0)


def test_mistakes_in_sql_and_columns_are_found_on_an_empty_frame(
    spark: Any, tmp_path: Path
) -> None:
    customers = tmp_path / "customers.json"
    customers.write_text('{"customer":"a","city":"x"}\n{"customer":"a","city":"y"}\n')
    lake = str(tmp_path / "lake")

    def found(**more: Any) -> list[tuple[str, str]]:
        mistakes = check_in_session(spark, spec_in(tmp_path, **more))
        assert all("\n" not in str(each) for each in mistakes)
        return [(each.key, each.cause) for each in mistakes]

    def join(**more: Any) -> JoinSpec:
        given: dict[str, Any] = {"path": str(customers), "format": "json", "on": ("customer",)}
        return JoinSpec(**{**given, **more})

    good = {
        "rules": (Rule(check="amount > 0 AND mq_tags IS NULL"), Rule(set={"total": "amount * 2"})),
        "sink": TableSpec(path=lake, partition_by=("customer",), mode="changes", key=("id",)),
        "windows": (window(group_by=("customer",), totals={"t": "sum(total)"}),),
    }
    assert found(**good) == []
    for more, key, said in (
        ({"rules": (Rule(check="amuont > 0"),)}, "rules[1].check", "`amuont` cannot be resolved"),
        ({"rules": (Rule(check="amount >"),)}, "rules[1].check", "Syntax error"),
        ({"rules": (Rule(keep="amount + 1"),)}, "rules[1].keep", "the condition is a double"),
        ({"rules": (Rule(set={"x": "sum(amount)"}),)}, "rules[1].set", ""),
        ({"rules": (Rule(set={"x": "rand()"}),)}, "rules[1].set", "another result each time"),
        ({"rules": (Rule(check="rand() > 0.5"),)}, "rules[1].check", "another result each time"),
        ({"joins": (join(path=str(tmp_path / "none")),)}, "joins[1].path", "does not exist"),
        ({"joins": (join(on=("id",)),)}, "joins[1].on", "no column 'id'"),
        ({"joins": (join(),)}, "joins[1].on", "more than one row of a key"),
        ({"sink": TableSpec(path=lake, partition_by=("day",))}, "sink.partition_by", "'day'"),
        (
            {"sink": TableSpec(path=lake, partition_by=(), mode="changes", key=("x",))},
            "sink.key",
            "no column 'x'",
        ),
        ({"windows": (window(group_by=("x",)),)}, "windows[1].totals", "cannot be resolved"),
        ({"windows": (window(totals={"n": "amount"}),)}, "windows[1].totals", ""),
        ({"sink": TableSpec(path=lake, kind="delta")}, "sink", "delta"),
        (
            {"decode": DecodeSpec(format="avro", schema=str(customers))},
            "decode.schema",
            "not a schema of Avro",
        ),
    ):
        ((where, cause),) = found(**more)
        assert (where, said in cause) == (key, True), (more, where, cause)
    several = found(rules=(Rule(check="a > 0"), Rule(set={"b": "1"}), Rule(check="b > c")))
    assert [key for key, _ in several] == ["rules[1].check", "rules[3].check"]


# --- brokers


@pytest.mark.loss
def test_a_live_topic_and_what_is_stored_have_the_same_origin(spark: Any, running: Cluster) -> None:
    running.create_topic("Origin", 1)
    places = running.send("Origin", [b"%d" % number for number in range(20)], lambda n: "red")
    options = {"maxOffsetsPerTrigger": "7", "groupId": "lake"}
    source = SourceSpec(name_server=running.namesrv, topics=("Origin",), options=options)
    query = live_rows(spark, source).writeStream.format("memory").queryName("origin")
    query.trigger(availableNow=True).start().awaitTermination()
    live = {row.mq_value: row.asDict() for row in spark.table("origin").collect()}
    stored = {row.mq_value: row.asDict() for row in stored_rows(spark, source).collect()}
    assert live == stored
    assert len(live) == 20
    for number, (broker, queue, offset) in enumerate(places):
        row = live[b"%d" % number]
        assert (row["mq_broker"], row["mq_queue"], row["mq_offset"]) == (broker, queue, offset)
        assert (row["mq_topic"], row["mq_key"], row["mq_tags"]) == ("Origin", str(number), "red")
        assert row["mq_headers"]["KEYS"] == str(number)
        # The session's zone is not UTC.
        assert row["mq_date"] == row["mq_time"].astimezone(UTC).date()
        assert abs((row["mq_time"] - row["mq_born"]).total_seconds()) < 60
        assert set(DERIVED) - {"mq_reason"} <= set(row)


@pytest.mark.loss
@pytest.mark.feature("201a", "201b")
def test_the_commands_bring_a_topic_into_a_lake(
    spark: Any, running: Cluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    running.create_topic("sales", 2)
    orders = [
        {"id": number, "customer": f"c{number % 3}", "amount": number if number % 2 else number / 4}
        for number in range(100)
    ]
    running.send("sales", [*(json.dumps(order).encode() for order in orders), b"no JSON"])
    file = str(tmp_path / "orders.toml")

    def call(*words: str, code: int = 0) -> Any:
        assert main([words[0], file, *words[1:], "--json"]) == code, capfd.readouterr()
        return json.loads(capfd.readouterr().out.splitlines()[-1])

    call("init", "--topic", "sales", "--name-server", running.namesrv)
    assert [each["key"] for each in call("check", code=1)["mistakes"]] == ["decode.schema"]
    found = call("infer", "--messages", "1000")
    assert (found["messages"], found["bad"]) == (101, 1)
    assert {field["name"]: field["type"] for field in found["fields"]} == {
        "id": "bigint",
        "customer": "string",
        "amount": "double",
    }
    text = Path(file).read_text()
    Path(file).write_text(
        text.replace(
            "[dead_letters]", '[[rules]]\nname = "amount"\ncheck = "amount > 0"\n\n[dead_letters]'
        )
    )
    assert call("check")["mistakes"] == []
    assert call("run", "--trigger", "available_now")["failed"] is False
    status = call("status")["queries"]["rows"]
    assert (status["rows"], status["good"], sum(status["bad"].values())) == (101, 99, 2)
    spec = read_spec(file)
    assert spec.dead_letters is not None
    lake = spark.read.parquet(spec.sink.path)
    assert {(row.id, row.customer, row.amount) for row in lake.collect()} == {
        (each["id"], each["customer"], float(each["amount"])) for each in orders[1:]
    }
    dead = spark.read.parquet(spec.dead_letters.path).collect()
    assert {(row.mq_value, row.mq_reason) for row in dead} == {
        (json.dumps(orders[0]).encode(), "amount"),
        (b"no JSON", "the body is not a JSON object"),
    }
    assert call("replay", "--where", "mq_reason = 'amount'") == {
        "sent": 1,
        "left_out": 0,
        "refused": {},
    }
    assert main(["infer", file]) == 2
    assert "exists; compare it first" in capfd.readouterr().err
    assert main(["run", file, "--trigger", "soon"]) == 2
    assert "--trigger" in capfd.readouterr().err
    Path(file).write_text(text.replace("topics =", "topcis ="))
    assert main(["check", file]) == 2
    assert "source.topcis: there is no such key; did you mean 'topics'?" in capfd.readouterr().err


PAGE = "docs/pipeline.md"


@pytest.mark.loss
@pytest.mark.feature("201a")
def test_the_guide_of_ten_minutes(
    spark: Any,
    running: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Every command and block of the page, but for the broker and the backfill, in its order."""
    monkeypatch.chdir(tmp_path)
    running.create_topic("orders", 2)
    done: list[str] = []

    def commands(name: str) -> str:
        """Run the page's line of a command; return what it prints."""
        (words,) = [
            words
            for block in blocks("sh")
            if block.page == PAGE
            for words in block.commands
            if words[:2] == ["mqpipeline", name]
        ]
        done.append(name)
        more = ["--name-server", running.namesrv] if name == "init" else []
        capfd.readouterr()
        assert main([*words[1:], *more]) == 0, capfd.readouterr()
        return capfd.readouterr().out

    def python(words: str) -> None:
        source = one(PAGE, words).replace("127.0.0.1:9876", running.namesrv)
        source = source.replace("lake/orders", str(tmp_path / "lake/orders"))  # the JVM stays
        exec(source, {"spark": spark})

    python("send_many")
    commands("init")
    assert "1000 messages, 1 of them not one JSON object" in commands("infer")
    assert "orders.toml is good" in commands("check")
    capfd.readouterr()
    assert main(["check", "orders.toml", "--online", "--file-only"]) == 0, capfd.readouterr()
    written = Path("orders.toml").read_text()
    alias = running.namesrv.replace("127.0.0.1", "localhost")
    same_topic = f'topic = "orders"\nname_server = "{alias}"'
    for wrong, right, message in (
        ('path = "dead-letters/orders"', 'topic = "nowhere"', "topic nowhere does not exist"),
        ('topics = ["orders"]', 'topics = ["ordres"]', "servers do not know topic ordres"),
        ('path = "dead-letters/orders"', same_topic, "the pipeline reads this topic"),
    ):
        assert wrong in written
        Path("orders.toml").write_text(written.replace(wrong, right))
        assert main(["check", "orders.toml", "--online"]) == 1
        assert message in capfd.readouterr().out
    Path("orders.toml").write_text(written)
    commands("run")
    assert "1000 good, 1 bad" in commands("status")
    python("pandas")
    out = capfd.readouterr().out
    assert all(text in out for text in ("c4", "the body is not a JSON object"))
    python("getOrCreate")
    assert "sum(amount)" in capfd.readouterr().out
    python("live_rows")
    file = tmp_path / "orders.toml"
    file.write_text(f"{file.read_text()}\n{one(PAGE, '[[windows]]', 'toml')}")
    (tmp_path / "customers.csv").write_text("customer,city\nc0,Bonn\n")
    assert "orders.toml is good" in commands("check")
    assert "0 dead letters" in commands("replay")
    assert "lake/orders" in commands("compact")
    assert "spark-pipelines run" in commands("export-sdp")
    assert {*done, "backfill"} == set(COMMANDS)
    help(triomq.pipeline)
    shown = capfd.readouterr().out
    assert all(name in shown for name in ("mqpipeline init", "read_spec", "Spec", "apply_rules"))
