"""The format ``protobuf``: one message a body, decoded by a descriptor set without generated code.

``protoc --include_imports --descriptor_set_out=shop.desc shop.proto`` writes the descriptor set.
With schema ids (writer_schemas.py) a body is read only if its writer gave the fields the same
numbers and kinds; the text of a registry is compiled for that (proto_text.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
from google.protobuf import json_format, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from triomq.client.pipeline.core.errors import SchemaError
from triomq.client.pipeline.core.schema_file import check_names, file_bytes
from triomq.client.pipeline.decoders.arrow_bodies import BadBody, BodyDecoder
from triomq.client.pipeline.decoders.framing import unframe
from triomq.client.pipeline.decoders.writer_schemas import SchemaRegistry, WriterSchemas

DEPTH_MAX = 50
"""levels of a message; one that contains itself has no end"""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIMESTAMP = "google.protobuf.Timestamp"
JSON_TEXT = frozenset(f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue"))
"""messages that contain themselves and are JSON; their columns have the JSON as text"""
WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
Field = FieldDescriptor
SCALARS: dict[int, DataType] = {
    Field.CPPTYPE_INT32: IntegerType(),
    Field.CPPTYPE_INT64: LongType(),
    Field.CPPTYPE_UINT32: LongType(),
    Field.CPPTYPE_UINT64: DecimalType(20, 0),
    Field.CPPTYPE_DOUBLE: DoubleType(),
    Field.CPPTYPE_FLOAT: FloatType(),
    Field.CPPTYPE_BOOL: BooleanType(),
    Field.CPPTYPE_ENUM: StringType(),
    Field.CPPTYPE_STRING: StringType(),
}


def open_protobuf(path: str, message: str, writers: WriterSchemas | None = None) -> BodyDecoder:
    """Return the decoder of a descriptor set's message. Raises: SchemaError.

    ``writers``: the schemas of bodies with ids; without it all are of this one.
    """
    data = file_bytes(path)
    try:
        descriptor = find_message(data, message)
    except (DecodeError, TypeError, ValueError) as error:
        cause = f"it is not a complete descriptor set ({error})"
        fix = "write it with `protoc --include_imports --descriptor_set_out=FILE`"
        raise SchemaError(path, cause, fix) from None
    except KeyError:
        fix = f"it has {', '.join(message_names(data)[:20])}"
        raise SchemaError(path, f"there is no message {message!r}", fix) from None
    schema = struct_of(descriptor, path, 0)
    check_names(path, schema.fieldNames())
    return BodyDecoder(schema, ProtobufReader(data, message, writers))


def find_message(data: bytes, message: str) -> Descriptor:
    """Return a message of a descriptor set. Raises: KeyError, DecodeError, TypeError."""
    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(data).file:
        pool.Add(file)
    return pool.FindMessageTypeByName(message)


def message_names(data: bytes) -> list[str]:
    """Return the full names of the top-level messages of a descriptor set."""
    return [
        f"{file.package}.{message.name}".lstrip(".")
        for file in FileDescriptorSet.FromString(data).file
        for message in file.message_type
    ]


# --- types


def struct_of(descriptor: Descriptor, path: str, depth: int) -> StructType:
    """Return the columns of a message. Raises: SchemaError."""
    if depth > DEPTH_MAX:
        cause = f"message {descriptor.full_name} contains itself, which a table cannot"
        raise SchemaError(path, cause, "choose another message")
    return StructType(
        [
            StructField(field.name, column_type(field, path, depth + 1))
            for field in descriptor.fields
        ]
    )


def column_type(field: FieldDescriptor, path: str, depth: int) -> DataType:
    if is_map(field):
        entry = field.message_type.fields_by_name
        key, value = entry["key"], entry["value"]
        return MapType(single_type(key, path, depth), single_type(value, path, depth))
    single = single_type(field, path, depth)
    return ArrayType(single, containsNull=False) if field.is_repeated else single


def single_type(field: FieldDescriptor, path: str, depth: int) -> DataType:
    """Return the type of one value of a field. Raises: SchemaError."""
    if field.cpp_type != Field.CPPTYPE_MESSAGE:
        return BinaryType() if field.type == Field.TYPE_BYTES else SCALARS[field.cpp_type]
    name = field.message_type.full_name
    if name == TIMESTAMP:
        return TimestampType()
    if name in JSON_TEXT:
        return StringType()
    if name in WRAPPERS:
        return single_type(field.message_type.fields_by_name["value"], path, depth)
    return struct_of(field.message_type, path, depth)


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


# --- in the tasks


@attrs.define
class ProtobufReader:
    """Reads bodies that are one message; fields that the descriptor lacks are ignored."""

    descriptors: bytes
    name: str
    writers: WriterSchemas | None
    _new: Callable[[], Message] | None = attrs.field(default=None, init=False)
    _known: dict[tuple[int, tuple[int, ...]], str] = attrs.field(factory=dict, init=False)
    """id and indexes → why such bodies have no columns, or an empty text"""

    def __getstate__(self) -> tuple[bytes, str, WriterSchemas | None]:
        """Return what a task needs; the class of the message is made there."""
        return self.descriptors, self.name, self.writers

    def __setstate__(self, state: tuple[bytes, str, WriterSchemas | None]) -> None:
        self.descriptors, self.name, self.writers = state
        self._new = None
        self._known = {}

    def read(self, body: bytes) -> Mapping[str, object]:
        """Return the fields of a body. Raises: BadBody, RegistryError."""
        if self._new is None:
            self._new = message_factory.GetMessageClass(find_message(self.descriptors, self.name))
        message = self._new()
        content = body if self.writers is None else self.content(body, self.writers)
        try:
            message.ParseFromString(content)
        except DecodeError:
            raise BadBody(f"the body is not a {self.name}") from None
        if not message.IsInitialized():
            absent = ", ".join(message.FindInitializationErrors())
            raise BadBody(f"field {absent} is missing")
        return dict(values_of(message))

    def content(self, body: bytes, writers: WriterSchemas) -> bytes:
        """Return a body without its header. Raises: BadBody, RegistryError."""
        framed = unframe(body, indexes=True)
        key = framed.schema_id, framed.indexes
        if key not in self._known:
            columns = find_message(self.descriptors, self.name)
            data = descriptors_of(writers, framed.schema_id)
            other = data if isinstance(data, str) else unlike(data, framed.indexes, columns)
            self._known[key] = other
        if self._known[key]:
            raise BadBody(f"schema {framed.schema_id}: {self._known[key]}")
        return framed.content


def descriptors_of(writers: WriterSchemas, schema_id: int) -> bytes | str:
    """Return the descriptor set of a writer, or why there is none. Raises: BadBody, RegistryError.

    Files are descriptor sets; a registry has the text.
    """
    texts = writers.schemas(schema_id)
    if not isinstance(writers, SchemaRegistry):
        return texts[""]
    # Of the extra ``registry``, which files do not need.
    from triomq.client.pipeline.decoders.proto_text import compiled

    return compiled(texts)


def unlike(data: bytes, indexes: tuple[int, ...], columns: Descriptor) -> str:
    """Return why bodies of a writer's message are not read as the columns'; empty if they are."""
    try:
        names = FileDescriptorSet.FromString(data).file[-1]
        parts, level = [names.package] if names.package else [], names.message_type
        for index in indexes:
            inner = level[index]
            parts.append(inner.name)
            level = inner.nested_type
        writer = find_message(data, ".".join(parts))
    except IndexError:
        return "the file has no message of the header's indexes"
    except (DecodeError, TypeError, ValueError, KeyError) as error:
        return f"it is not a complete descriptor set ({type(error).__name__})"
    if writer.full_name != columns.full_name:
        return f"the body is a {writer.full_name}, not a {columns.full_name}"
    return other_field(writer, columns, set())


def other_field(writer: Descriptor, columns: Descriptor, seen: set[str]) -> str:
    """Return the first field that has another number or kind at the writer; empty if none has."""
    seen.add(columns.full_name)
    by_number = {field.number: field for field in writer.fields}
    for field in columns.fields:
        theirs = writer.fields_by_name.get(field.name)
        if theirs is not None and theirs.number != field.number:
            return f"field {field.full_name} has number {theirs.number} there"
        theirs = by_number.get(field.number)
        if theirs is None:
            continue
        if theirs.type != field.type or theirs.is_repeated != field.is_repeated:
            return f"number {field.number}, here {field.full_name}, has another type there"
        inner = field.message_type
        if inner is not None and inner.full_name not in seen:
            found = other_field(theirs.message_type, inner, seen)
            if found:
                return found
    return ""


def values_of(message: Message) -> Iterator[tuple[str, object]]:
    """Yield the fields of a message; one that is absent is None. Raises: BadBody."""
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if is_map(field):
            entry = field.message_type.fields_by_name["value"]
            yield field.name, [(key, single_value(entry, each)) for key, each in value.items()]
        elif field.is_repeated:
            yield field.name, [single_value(field, each) for each in value]
        elif field.has_presence and not message.HasField(field.name):
            yield field.name, None
        else:
            yield field.name, single_value(field, value)


def single_value(field: FieldDescriptor, value: Any) -> Any:
    """Return a value as Arrow takes it. Raises: BadBody."""
    if field.cpp_type == Field.CPPTYPE_ENUM:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known is not None else str(value)
    if field.cpp_type != Field.CPPTYPE_MESSAGE:
        return value
    name = field.message_type.full_name
    if name == TIMESTAMP:
        return moment(value.seconds, value.nanos)
    if name in JSON_TEXT:
        return json_format.MessageToJson(value, indent=None)
    if name in WRAPPERS:
        return value.value
    return dict(values_of(value))


def moment(seconds: int, nanos: int) -> datetime:
    """Return a time. Raises: BadBody."""
    try:
        return EPOCH + timedelta(seconds=seconds, microseconds=nanos // 1000)
    except OverflowError:
        raise BadBody("a time is outside the years 1 to 9999") from None
