"""The format ``avro``: one record a body, without a file header, decoded by fastavro.

Spark's own decoder is a package for the JVM, and fails a query on its first bad body.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import fastavro
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from triomq.client.pipeline.core.errors import SchemaError
from triomq.client.pipeline.core.schema_file import check_names, file_bytes
from triomq.client.pipeline.decoders.arrow_bodies import BadBody, BodyDecoder
from triomq.client.pipeline.decoders.framing import unframed

DEPTH_MAX = 50
"""levels of a schema; a schema that contains itself has no end"""
PRIMITIVES: dict[str, DataType] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "string": StringType(),
    "fixed": BinaryType(),
    "enum": StringType(),
}
LOGICAL: dict[tuple[str, str], DataType] = {
    ("int", "date"): DateType(),
    ("long", "timestamp-millis"): TimestampType(),
    ("long", "timestamp-micros"): TimestampType(),
    ("long", "local-timestamp-millis"): TimestampNTZType(),
    ("long", "local-timestamp-micros"): TimestampNTZType(),
}
WIDER = (({"int", "long"}, "long"), ({"float", "double"}, "double"))


def open_avro(path: str, framing: str) -> BodyDecoder:
    """Return the decoder of a schema file. Raises: SchemaError."""
    content = file_bytes(path)
    try:
        text = json.dumps(known_logical(json.loads(content)))
        avro = fastavro.parse_schema(json.loads(text))
        if not isinstance(avro, dict) or avro.get("type") != "record":
            raise Unsupported("the schema is not a record", "a record's fields become columns")
        kind = AvroTypes().of(avro, 0)
    except fastavro.schema.UnknownType as error:
        cause = f"type {error.name!r} is not defined"
        raise SchemaError(path, cause, "put all types into one file") from None
    except (ValueError, fastavro.schema.SchemaParseException) as error:
        raise SchemaError(path, f"it is not a schema of Avro ({error})", "correct it") from None
    except Unsupported as error:
        raise SchemaError(path, error.cause, error.fix) from None
    except RecursionError:
        raise SchemaError(path, "a type contains itself", "flatten the schema") from None
    assert isinstance(kind, StructType)
    check_names(path, kind.fieldNames())
    return BodyDecoder(kind, AvroReader(text, framing))


def known_logical(avro: Any) -> Any:
    """Return a schema without the logical types that no column has: their plain values stay."""
    if isinstance(avro, list):
        return [known_logical(each) for each in avro]
    if not isinstance(avro, dict):
        return avro
    kept = avro.get("logicalType") == "decimal" or (
        isinstance(avro.get("type"), str) and (avro["type"], avro.get("logicalType")) in LOGICAL
    )
    return {
        name: known_logical(value) for name, value in avro.items() if name != "logicalType" or kept
    }


class Unsupported(Exception):
    """A type of Avro has no column."""

    def __init__(self, cause: str, fix: str) -> None:
        super().__init__(cause, fix)
        self.cause = cause
        self.fix = fix


@attrs.define
class AvroTypes:
    """Turns types of Avro into Spark's."""

    named: dict[str, dict[str, Any]] = attrs.field(factory=dict)

    def of(self, avro: Any, depth: int) -> DataType:
        """Return Spark's type. Raises: Unsupported."""
        if depth > DEPTH_MAX:
            raise Unsupported("a type contains itself, which a table cannot", "flatten it")
        if isinstance(avro, list):
            return self.of(one_of(avro), depth)
        if isinstance(avro, str):
            return self.of(self.named[avro], depth + 1) if avro in self.named else primitive(avro)
        kind = avro["type"]
        if "name" in avro:
            self.named[avro["name"]] = avro
        if not isinstance(kind, str):
            return self.of(kind, depth + 1)
        match kind:
            case "record" | "error":
                return StructType(list(self.fields(avro, depth)))
            case "array":
                items = avro["items"]
                if self.is_empty(items):
                    raise Unsupported(
                        "an array's items have no content: a short body could lock billions",
                        "remove the field",
                    )
                return ArrayType(self.of(items, depth + 1), may_be_null(items))
            case "map":
                values = avro["values"]
                return MapType(StringType(), self.of(values, depth + 1), may_be_null(values))
            case _ if avro.get("logicalType") == "decimal":
                precision, scale = avro["precision"], avro.get("scale", 0)
                if precision > 38:
                    raise Unsupported(f"a decimal has {precision} digits", "Spark has at most 38")
                return DecimalType(precision, scale)
        logical = LOGICAL.get((kind, avro.get("logicalType", "")))
        return logical if logical is not None else self.of(kind, depth + 1)

    def fields(self, avro: Mapping[str, Any], depth: int) -> Iterator[StructField]:
        for field in avro["fields"]:
            kind = field["type"]
            yield StructField(field["name"], self.of(kind, depth + 1), may_be_null(kind))

    def is_empty(self, avro: Any) -> bool:
        """Return whether values of a type may have no bytes at all."""
        if isinstance(avro, str):
            return avro == "null" or (avro in self.named and self.is_empty(self.named[avro]))
        if isinstance(avro, dict):
            return (
                avro["type"] == "null"
                or (avro["type"] == "fixed" and avro["size"] == 0)
                or (
                    avro["type"] == "record"
                    and all(self.is_empty(f["type"]) for f in avro["fields"])
                )
            )
        return False


def may_be_null(avro: Any) -> bool:
    return isinstance(avro, list) and "null" in avro


def one_of(union: list[Any]) -> Any:
    """Return the type of a union besides null. Raises: Unsupported."""
    types = [each for each in union if each != "null"]
    if len(types) == 1:
        return types[0]
    names = {each if isinstance(each, str) else each.get("name", each["type"]) for each in types}
    for narrow, wide in WIDER:
        if names and names <= narrow:
            return wide
    shown = ", ".join(sorted(names)) or "null alone"
    raise Unsupported(f"a union of {shown} is no column", "use null and one type")


def primitive(name: str) -> DataType:
    """Return the type of a primitive. Raises: Unsupported."""
    if name not in PRIMITIVES:
        raise Unsupported(f"type {name} is no column", "remove the field")
    return PRIMITIVES[name]


# --- in the tasks


@attrs.define
class AvroReader:
    """Reads bodies that are exactly one record of the schema."""

    avro: str
    """the schema, as JSON"""
    framing: str
    _parsed: Any = attrs.field(default=None, init=False)

    def __getstate__(self) -> tuple[str, str]:
        """Return what a task needs; the parsed schema is made there again."""
        return self.avro, self.framing

    def __setstate__(self, state: tuple[str, str]) -> None:
        self.avro, self.framing = state
        self._parsed = None

    def read(self, body: bytes) -> Mapping[str, Any]:
        """Return the fields of a body. Raises: BadBody."""
        if self._parsed is None:
            self._parsed = fastavro.parse_schema(json.loads(self.avro))
        source = io.BytesIO(unframed(body, self.framing, indexes=False))
        try:
            record = fastavro.schemaless_reader(source, self._parsed, None)
        except Exception as error:  # fastavro has an error of its own for each kind of damage
            damage = type(error).__name__
            raise BadBody(f"the body is not a record of the schema ({damage})") from None
        left = len(source.getbuffer()) - source.tell()
        if left:
            raise BadBody(f"{left} bytes are left behind the record")
        assert isinstance(record, dict)
        return record
