"""Bodies with the id of their writer's schema: files, a registry, Avro's rules, Protobuf's numbers.

The registry's answers are those of Apicurio 3.0.9 (Confluent's protocol), captured.
"""

from __future__ import annotations

import io
import json
import pickle
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fastavro
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorSet
from google.protobuf.message_factory import GetMessageClass

from triomq.client.pipeline import decoders
from triomq.client.pipeline.core.errors import RegistryError, SchemaError
from triomq.client.pipeline.core.spec import DecodeSpec
from triomq.client.pipeline.decoders import open_decoder, writer_schemas
from triomq.client.pipeline.decoders.arrow_bodies import BadBody, BodyDecoder
from triomq.client.pipeline.decoders.framing import Framed, unframe
from triomq.client.pipeline.decoders.json_schema import SchemaChecker
from triomq.client.pipeline.decoders.protobuf import find_message
from triomq.client.pipeline.decoders.writer_schemas import SchemaFiles, SchemaRegistry

GOLDEN = Path(__file__).parents[3] / "golden" / "registry" / "apicurio-3.0.9.json"
Reader = Any


def record(*fields: dict[str, Any], name: str = "shop.Order", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, kind: object, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


ID, AMOUNT = field("id", "long"), field("amount", "double")
ORDER = record(ID, AMOUNT)
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}


def decimal(scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": scale}


def plain_bytes(schema: Any, value: dict[str, Any]) -> bytes:
    target = io.BytesIO()
    fastavro.schemaless_writer(target, fastavro.parse_schema(schema), value)
    return target.getvalue()


def framed(schema_id: int, content: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + content


def avro_reader(folder: Path, columns: Any, writers: dict[int, Any] | str, **more: Any) -> Reader:
    """The reader as a task has it. ``writers``: schemas by id, or the URL of a registry."""
    (folder / "columns.avsc").write_text(json.dumps(columns))
    places: dict[str, Any] = {"registry": writers}
    if not isinstance(writers, str):
        for number, schema in writers.items():
            (folder / f"{number}.avsc").write_text(json.dumps(schema))
        places = {"schemas": {str(number): str(folder / f"{number}.avsc") for number in writers}}
    return reader_of(
        DecodeSpec(
            format="avro",
            schema=str(folder / "columns.avsc"),
            framing="confluent",
            **places,
            **more,
        )
    )


def reader_of(spec: DecodeSpec) -> Reader:
    decoder = open_decoder(spec)
    assert isinstance(decoder, BodyDecoder)
    return pickle.loads(pickle.dumps(decoder.reader))


# --- the header


def test_the_header_has_the_id_and_for_protobuf_the_message() -> None:
    header = b"\0\0\1\0\7"
    assert unframe(header + b"body", indexes=False) == Framed(65543, (), b"body")
    assert unframe(header + b"\0body", indexes=True) == Framed(65543, (0,), b"body")
    assert unframe(header + b"\4\2\0body", indexes=True) == Framed(65543, (1, 0), b"body")
    for bad in (b"", b"\0\0\0\0", b"\1\0\0\0\7x"):
        with pytest.raises(BadBody, match="no header"):
            unframe(bad, indexes=False)
    for rest in (b"", b"\1", b"\xff" * 12, b"\4\2", b"\xfe\xff\xff\xff\x0f"):
        with pytest.raises(BadBody, match="damaged"):
            unframe(header + rest, indexes=True)


# --- Avro's rules


def test_fields_that_changed_places_keep_their_values(tmp_path: Path) -> None:
    swapped = record(AMOUNT, ID, field("note", "string"))
    reader = avro_reader(tmp_path, ORDER, {1: ORDER, 2: swapped})
    value = {"id": 7, "amount": 1.5}
    assert reader.read(framed(1, plain_bytes(ORDER, value))) == value
    assert reader.read(framed(2, plain_bytes(swapped, {**value, "note": "x"}))) == value
    with pytest.raises(BadBody, match=r"schema 3 is not one of decode\.schemas"):
        reader.read(framed(3, plain_bytes(ORDER, value)))
    with pytest.raises(BadBody, match="1 bytes are left"):
        reader.read(framed(1, plain_bytes(ORDER, value) + b"x"))


@pytest.mark.parametrize(
    ("written", "column", "value", "read"),
    [
        (field("id", "int"), ID, 7, 7),
        (field("id", "int"), field("id", "double"), 7, 7.0),
        (field("old", "long"), field("id", "long", aliases=["old"]), 7, 7),
        (field("x", "long"), field("id", ["null", "long"], default=None), 7, None),
        (field("id", ["null", "long"]), field("id", ["null", "long"]), None, None),
        (field("id", "bytes"), field("id", "string"), b"a", "a"),
    ],
)
def test_a_schema_that_evolved_is_resolved(
    tmp_path: Path, written: Any, column: Any, value: Any, read: Any
) -> None:
    reader = avro_reader(tmp_path, record(column), {1: record(written)})
    body = framed(1, plain_bytes(record(written), {written["name"]: value}))
    assert reader.read(body) == {"id": read}


@pytest.mark.parametrize(
    ("written", "column", "value", "said"),
    [
        (field("id", "string"), ID, "7", "SchemaResolutionError"),
        (field("x", "long"), ID, 7, "SchemaResolutionError"),
        (field("id", ["null", "long"]), ID, None, "SchemaResolutionError"),
        (field("at", "long"), field("at", MILLIS), 7, "another unit in at"),
        (field("at", MILLIS), field("at", "long"), 7, "another unit in at"),
        (field("at", ["null", "long"]), field("at", ["null", MICROS]), 7, "another unit in at"),
        (field("b", "long"), field("at", MILLIS, aliases=["b"]), 7, "another unit in at"),
        (field("at", decimal(2)), field("at", decimal(3)), b"", "another unit in at"),
        (
            field("l", {"type": "array", "items": record(field("at", "long"), name="L")}),
            field("l", {"type": "array", "items": record(field("at", MILLIS), name="L")}),
            [],
            r"another unit in l\[\]\.at",
        ),
        (
            field("m", {"type": "map", "values": "long"}),
            field("m", {"type": "map", "values": MILLIS}),
            {},
            r"another unit in m\{\}",
        ),
        (
            field("x", {"type": "array", "items": "null"}),
            field("id", ["null", "long"], default=None),
            [],
            "items have no content",
        ),
        (field("id", "nothing"), ID, 7, "not a schema of Avro"),
    ],
)
def test_what_does_not_fit_is_a_bad_row(
    tmp_path: Path, written: Any, column: Any, value: Any, said: str
) -> None:
    reader = avro_reader(tmp_path, record(column), {1: record(written)})
    plain = json.loads(json.dumps(written).replace("timestamp", "x").replace("decimal", "x"))
    content = (
        b""
        if "nothing" in said or "Avro" in said
        else plain_bytes(record(plain), {written["name"]: value})
    )
    with pytest.raises(BadBody, match=said):
        reader.read(framed(1, content))


def test_a_time_in_other_units_is_the_same_time(tmp_path: Path) -> None:
    reader = avro_reader(tmp_path, record(field("at", MICROS)), {1: record(field("at", MILLIS))})
    found = reader.read(framed(1, plain_bytes(record(field("at", "long")), {"at": 1500})))
    assert found["at"].timestamp() == 1.5


def test_a_schema_that_contains_itself_ends(tmp_path: Path) -> None:
    tree = record(ID, AMOUNT, field("inner", ["null", "shop.Order"]))
    reader = avro_reader(tmp_path, ORDER, {1: tree})
    inner = {"id": 1, "amount": 0.5, "inner": None}
    body = framed(1, plain_bytes(tree, {"id": 7, "amount": 1.5, "inner": inner}))
    assert reader.read(body) == {"id": 7, "amount": 1.5}


# --- the registry


class Registry(ThreadingHTTPServer):
    """Gives the golden answers. ``failing``: answers of status ``status`` before a good one."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.answers = json.loads(GOLDEN.read_text())
        self.asked: list[str] = []
        self.logins: list[str | None] = []
        self.failing = 0
        self.status = 503

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/apis/ccompat/v7"


class Answer(BaseHTTPRequestHandler):
    server: Registry

    def do_GET(self) -> None:
        path = self.path.removeprefix("/apis/ccompat/v7")
        self.server.asked.append(path)
        self.server.logins.append(self.headers.get("Authorization"))
        answer = self.server.answers[path]
        if self.server.failing:
            self.server.failing -= 1
            answer = {"status": self.server.status, "body": {}}
        body = json.dumps(answer["body"]).encode()
        self.send_response(answer["status"])
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    monkeypatch.setattr(writer_schemas, "PAUSES_SECONDS", (0.0, 0.0))
    with Registry() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


VALUE = {"id": 7, "amount": 1.5}
SWAPPED = record(AMOUNT, ID, field("note", ["null", "string"]))
BODY_2 = framed(2, plain_bytes(SWAPPED, {**VALUE, "note": None}))


def test_the_registry_s_schemas_are_read_once(tmp_path: Path, registry: Registry) -> None:
    reader = avro_reader(tmp_path, ORDER, registry.url)
    for _ in range(3):
        assert reader.read(framed(1, plain_bytes(ORDER, VALUE))) == VALUE
        assert reader.read(BODY_2) == VALUE
    assert registry.asked == ["/schemas/ids/1", "/schemas/ids/2"]
    line = record(field("sku", "string"), name="shop.Line")
    with_line = record(ID, AMOUNT, field("line", line))
    body = framed(4, plain_bytes(with_line, {**VALUE, "line": {"sku": "x"}}))
    assert reader.read(body) == VALUE
    assert registry.asked[2:] == ["/schemas/ids/4", "/subjects/line-value/versions/1"]
    assert registry.logins == [None] * 4


def test_what_the_registry_lacks_is_a_bad_row(tmp_path: Path, registry: Registry) -> None:
    reader = avro_reader(tmp_path, ORDER, registry.url)
    with pytest.raises(BadBody, match="the registry has no schema 99"):
        reader.read(framed(99, b""))
    with pytest.raises(BadBody, match="schema 5 of the registry is PROTOBUF"):
        reader.read(framed(5, b""))


def test_a_registry_that_fails_makes_no_row_bad(tmp_path: Path, registry: Registry) -> None:
    reader = avro_reader(tmp_path, ORDER, registry.url)
    registry.failing = 2
    assert reader.read(BODY_2) == VALUE
    registry.failing = 3
    with pytest.raises(RegistryError, match="answered 503 Service Unavailable"):
        reader.read(framed(1, b""))
    registry.failing, registry.status = 1, 401
    with pytest.raises(RegistryError, match=r"answered 401 .* decode\.registry_login"):
        reader.read(framed(1, b""))
    assert registry.failing == 0, "a refusal is not asked for again"
    nowhere = avro_reader(tmp_path, ORDER, "http://127.0.0.1:1")
    with pytest.raises(RegistryError, match=r"127\.0\.0\.1:1 cannot be used: .*refused"):
        nowhere.read(BODY_2)


def test_a_login_comes_from_the_environment_and_is_not_shown(
    tmp_path: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGIN", "ann:secret")
    reader = avro_reader(tmp_path, ORDER, registry.url, registry_login="env:LOGIN")
    assert reader.read(BODY_2) == VALUE
    assert registry.logins == ["Basic YW5uOnNlY3JldA=="]
    assert "secret" not in repr(reader)


def test_a_registry_s_text_of_protobuf_is_compiled(tmp_path: Path, registry: Registry) -> None:
    """Also what it imports from another subject, and the message that the header names."""
    columns = descriptor_file(tmp_path, "columns", id=(1, LONG), amount=(2, DOUBLE))
    spec = DecodeSpec(
        format="protobuf",
        schema=columns,
        message="shop.Order",
        framing="confluent",
        registry=registry.url,
    )
    reader = reader_of(spec)
    kind = GetMessageClass(find_message(Path(columns).read_bytes(), "shop.Order"))
    content = kind(**VALUE).SerializeToString()
    for _ in range(2):
        assert reader.read(framed(5, b"\0" + content)) == VALUE
        assert reader.read(framed(7, b"\2\2" + content)) == VALUE
    line = "/subjects/line-proto/versions/1"
    assert registry.asked == ["/schemas/ids/5", "/schemas/ids/7", line]
    for body, said in (
        (framed(7, b"\4\0\0"), r"schema 7: the body is a shop\.Other\.Inner, not a shop\.Order"),
        (framed(7, b"\2\6"), "schema 7: the file has no message of the header's indexes"),
        (framed(1, b"\0"), "schema 1 of the registry is AVRO, not PROTOBUF"),
    ):
        with pytest.raises(BadBody, match=said):
            reader.read(body)
    answer = registry.answers["/schemas/ids/7"]["body"]
    answer["schema"] = "syntax = 'proto3'; message M { X x = 1; }"
    with pytest.raises(BadBody, match=r'protoc cannot compile it .*"X" is not defined'):
        reader_of(spec).read(framed(7, b"\0"))
    answer["references"][0]["name"] = "../line.proto"
    with pytest.raises(BadBody, match="imports a file outside of the registry"):
        reader_of(spec).read(framed(7, b"\0"))


@pytest.mark.parametrize(("form", "package"), [("protobuf", "grpc_tools"), ("json", "jsonschema")])
def test_a_package_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: Any, package: str
) -> None:
    for module in ("proto_text", "json_schema"):
        monkeypatch.delitem(sys.modules, f"triomq.client.pipeline.decoders.{module}", False)
        monkeypatch.delattr(decoders, module, False)
    monkeypatch.setitem(sys.modules, package, None)
    schema = tmp_path / "schema"
    schema.write_text('{"type": "struct", "fields": [{"name": "id", "type": "long"}]}')
    spec = DecodeSpec(
        format=form, schema=str(schema), message="M", framing="confluent", registry="http://r"
    )
    with pytest.raises(SchemaError, match=rf"{form} needs the package {package}; pip .*registry"):
        open_decoder(spec)


def json_body(schema_id: int, value: object) -> bytes:
    return framed(schema_id, json.dumps(value).encode())


def test_json_is_checked_with_the_schema_of_its_id(tmp_path: Path, registry: Registry) -> None:
    checker = SchemaChecker(SchemaRegistry(registry.url, "JSON"))
    assert checker.reason(json_body(9, {"id": 7, "line": {"sku": "x"}})) is None
    assert checker.reason(json_body(8, {"sku": "x"})) is None
    for value, place in (
        ({"id": 0}, "#/properties/id/minimum"),
        ({"line": {"sku": "x"}}, "#/required"),
        ({"id": 7, "line": {"sku": 1}}, "#/properties/line/properties/sku/type"),
    ):
        assert checker.reason(json_body(9, value)) == f"the body breaks schema 9 at {place}"
    line = "/subjects/line-json/versions/1"
    assert registry.asked == ["/schemas/ids/9", line, "/schemas/ids/8"]
    assert checker.reason(json_body(99, {})) == "the registry has no schema 99"
    assert checker.reason(json_body(1, {})) == "schema 1 of the registry is AVRO, not JSON"
    assert checker.reason(None) == "the body has no header of a schema registry"
    assert checker.reason(framed(8, b"{")) == (
        "the body cannot be checked with its schema (JSONDecodeError)"
    )
    registry.failing = 3
    with pytest.raises(RegistryError, match="answered 503"):
        checker.reason(json_body(5, {}))


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (b"{", "schema 1 is not a JSON Schema (JSONDecodeError)"),
        (b"7", "schema 1 is not a JSON Schema (TypeError)"),
        (b'{"type": "nothing"}', "schema 1 is not a JSON Schema (SchemaError)"),
        (
            b'{"$ref": "http://127.0.0.1:1/x"}',
            "the body cannot be checked with its schema (_WrappedReferencingError)",
        ),
        (b'{"$ref": "#"}', "the body cannot be checked with its schema (RecursionError)"),
        (b"false", "the body breaks schema 1 at #"),
        (b"true", None),
        (b'{"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object"}', None),
    ],
)
def test_a_json_schema_that_cannot_be_used(schema: bytes, reason: str | None) -> None:
    assert SchemaChecker(SchemaFiles({1: schema})).reason(json_body(1, {})) == reason


# --- Protobuf's numbers


def descriptor_file(folder: Path, name: str, **numbers: tuple[int, int]) -> str:
    """A file with ``shop.Order``, its only message but one. ``numbers``: name → number, type."""
    files = FileDescriptorSet()
    file = files.file.add(name="shop.proto", package="shop", syntax="proto3")
    file.message_type.add(name="Other").nested_type.add(name="Inner")
    order = file.message_type.add(name="Order")
    for key, (number, kind) in numbers.items():
        order.field.add(name=key, number=number, type=kind, label=1)
    (folder / name).write_bytes(files.SerializeToString())
    return str(folder / name)


LONG, TEXT = FieldDescriptorProto.TYPE_INT64, FieldDescriptorProto.TYPE_STRING
DOUBLE = FieldDescriptorProto.TYPE_DOUBLE


def test_protobuf_is_read_when_numbers_and_kinds_agree(tmp_path: Path) -> None:
    columns = descriptor_file(tmp_path, "columns", id=(1, LONG), note=(2, TEXT))
    writers = {
        "1": columns,
        "2": descriptor_file(tmp_path, "2", id=(1, LONG), more=(3, LONG)),
        "3": descriptor_file(tmp_path, "3", id=(2, LONG), note=(1, TEXT)),
        "4": descriptor_file(tmp_path, "4", customer=(1, TEXT)),
        "5": str(tmp_path / "none"),
    }
    (tmp_path / "none").write_bytes(b"\xff")
    reader = reader_of(
        DecodeSpec(
            format="protobuf",
            schema=columns,
            message="shop.Order",
            framing="confluent",
            schemas=writers,
        )
    )
    kind = GetMessageClass(find_message(Path(writers["2"]).read_bytes(), "shop.Order"))
    content = b"\2\2" + kind(id=7, more=3).SerializeToString()
    assert reader.read(framed(1, content)) == {"id": 7, "note": ""}
    assert reader.read(framed(2, content)) == {"id": 7, "note": ""}
    for number, said in (
        (3, r"schema 3: field shop\.Order\.id has number 2 there"),
        (4, r"schema 4: number 1, here shop\.Order\.id, has another type there"),
        (5, "schema 5: it is not a complete descriptor set"),
        (6, "schema 6 is not one of"),
    ):
        with pytest.raises(BadBody, match=said):
            reader.read(framed(number, content))
    with pytest.raises(BadBody, match=r"the body is a shop\.Other\.Inner, not a shop\.Order"):
        reader.read(framed(1, b"\4\0\0"))
    with pytest.raises(BadBody, match="no message of the header's indexes"):
        reader.read(framed(1, b"\2\6"))
