"""The format ``avro``: one record a body, without a file header, decoded by fastavro.

Columns are those of the schema file. With schema ids (writer_schemas.py) a body is read as its
writer wrote it and resolved to the schema file by Avro's rules: by names, with defaults.
Spark's own decoder is a package for the JVM, and fails a query on its first bad body.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping

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
from triomq.client.pipeline.decoders.avro_resolution import (
    AvroSchema,
    has_empty_items,
    is_empty,
    other_unit,
)
from triomq.client.pipeline.decoders.framing import unframe
from triomq.client.pipeline.decoders.writer_schemas import WriterSchemas

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


def open_avro(path: str, writers: WriterSchemas | None = None) -> BodyDecoder:
    """Return the decoder of a schema file. Raises: SchemaError.

    ``writers``: the schemas of bodies with ids; without it all bodies are of the schema file.
    """
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
    return BodyDecoder(kind, AvroReader(text, writers))


def known_logical(avro: AvroSchema) -> AvroSchema:
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

    named: dict[str, dict[str, AvroSchema]] = attrs.field(factory=dict)

    def of(self, avro: AvroSchema, depth: int) -> DataType:
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
                if is_empty(items, self.named):
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

    def fields(self, avro: Mapping[str, AvroSchema], depth: int) -> Iterator[StructField]:
        for field in avro["fields"]:
            kind = field["type"]
            yield StructField(field["name"], self.of(kind, depth + 1), may_be_null(kind))


def may_be_null(avro: AvroSchema) -> bool:
    return isinstance(avro, list) and "null" in avro


def one_of(union: list[AvroSchema]) -> AvroSchema:
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
    """Reads bodies that are exactly one record."""

    avro: str
    """the schema of the columns, as JSON"""
    writers: WriterSchemas | None
    _columns: AvroSchema = attrs.field(default=None, init=False)
    _known: dict[int, AvroSchema] = attrs.field(factory=dict, init=False)
    """parsed schemas of writers, or the reason (a text) why one cannot be used"""

    def __getstate__(self) -> tuple[str, WriterSchemas | None]:
        """Return what a task needs; parsed schemas are made there again."""
        return self.avro, self.writers

    def __setstate__(self, state: tuple[str, WriterSchemas | None]) -> None:
        self.avro, self.writers = state
        self._columns = None
        self._known = {}

    def read(self, body: bytes) -> Mapping[str, AvroSchema]:
        """Return the fields of a body. Raises: BadBody, RegistryError."""
        if self._columns is None:
            self._columns = fastavro.parse_schema(json.loads(self.avro))
        if self.writers is None:
            return read_record(body, self._columns, None)
        framed = unframe(body, indexes=False)
        writer = self._known.get(framed.schema_id)
        if writer is None:
            writer = self.usable(self.writers.schemas(framed.schema_id), framed.schema_id)
            self._known[framed.schema_id] = writer
        if isinstance(writer, str):
            raise BadBody(writer)
        return read_record(framed.content, writer, self._columns)

    def usable(self, texts: Mapping[str, bytes], schema_id: int) -> AvroSchema:
        """Return a parsed schema, or why bodies of it have no columns."""
        named: dict[str, AvroSchema] = {}
        try:
            for text in dict.fromkeys(texts.values()):
                tree = known_logical(json.loads(text))
                writer = fastavro.parse_schema(tree, named_schemas=named)
        except Exception as error:  # of the parser of JSON, and many kinds of fastavro's
            return f"schema {schema_id} is not a schema of Avro ({type(error).__name__})"
        if has_empty_items(writer, named):
            return f"schema {schema_id} has an array whose items have no content"
        other = other_unit(writer, self._columns, named)
        return f"schema {schema_id} has another unit in {other}" if other else writer


def read_record(content: bytes, writer: AvroSchema, columns: AvroSchema) -> Mapping[str, object]:
    """Return the record of a body, resolved to the schema of the columns. Raises: BadBody."""
    source = io.BytesIO(content)
    try:
        record = fastavro.schemaless_reader(source, writer, columns)
    except Exception as error:  # fastavro has an error of its own for each kind of damage
        damage = type(error).__name__
        raise BadBody(f"the body is not a record of the schema ({damage})") from None
    left = len(content) - source.tell()
    if left:
        raise BadBody(f"{left} bytes are left behind the record")
    assert isinstance(record, dict)
    return record
