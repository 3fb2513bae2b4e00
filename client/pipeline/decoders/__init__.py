"""How does a body become columns? One module for each format; none drops a row or guesses."""

from __future__ import annotations

from functools import partial
from typing import Protocol

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from triomq.client.pipeline.core.errors import SchemaError
from triomq.client.pipeline.core.schema_file import read_schema
from triomq.client.pipeline.core.spec import DecodeSpec, resolved
from triomq.client.pipeline.decoders.json import JsonDecoder
from triomq.client.pipeline.decoders.text import BytesDecoder, StringDecoder
from triomq.client.pipeline.decoders.writer_schemas import (
    SchemaRegistry,
    WriterSchemas,
    read_schema_files,
)


class Decoder(Protocol):
    """From bodies to columns. Good rows and bad rows together are all rows."""

    @property
    def schema(self) -> StructType:
        """The columns that ``decode`` adds."""

    def decode(self, frame: DataFrame) -> DataFrame:
        """Return the frame with the columns of the schema, and ``mq_reason``.

        ``mq_reason`` is null for a good row. In a bad row it says why, without any part of the
        body, and the other new columns are null.
        """


def open_decoder(spec: DecodeSpec) -> Decoder:
    """Return the decoder of a section ``[decode]``. Raises: SchemaError."""
    if spec.format == "bytes":
        return BytesDecoder()
    if spec.format == "string":
        return StringDecoder()
    if spec.schema is None:
        raise SchemaError("[decode]", f"{spec.format} needs a schema", "add schema, its file")
    writers = schemas_of_writers(spec)
    try:
        if spec.format == "json":
            return open_json(spec.schema, spec.framing == "confluent", writers)
        # Packages of the extra ``pipeline``, needed for these formats only.
        from triomq.client.pipeline.decoders import avro, protobuf

        if spec.format == "protobuf" and spec.registry is not None:
            from triomq.client.pipeline.decoders import proto_text  # noqa: F401
    except ImportError as error:
        cause = f"{spec.format} needs the package {error.name}"
        fix = "pip install 'triomq[pipeline,registry]'"
        raise SchemaError("[decode]", cause, fix) from None
    if spec.format == "avro":
        return avro.open_avro(spec.schema, writers)
    if spec.message is None:
        raise SchemaError("[decode]", "protobuf needs a message", "add message, its full name")
    return protobuf.open_protobuf(spec.schema, spec.message, writers)


def open_json(path: str, framed: bool, writers: WriterSchemas | None) -> JsonDecoder:
    """Return the decoder of a schema file. Raises: SchemaError, ImportError."""
    schema = read_schema(path)
    if writers is None:
        return JsonDecoder(schema, framed)
    # Of the extra ``registry``, which JSON without schemas of its writers does not need.
    from triomq.client.pipeline.decoders.json_schema import broken_schema

    return JsonDecoder(schema, framed, partial(broken_schema, writers))


def schemas_of_writers(spec: DecodeSpec) -> WriterSchemas | None:
    """Return the schemas of bodies with ids; None for bodies without. Raises: SchemaError."""
    if spec.framing == "plain":
        return None
    if spec.registry is None:
        return read_schema_files(spec.schemas) if spec.schemas or spec.format != "json" else None
    login = resolved({"registry_login": spec.registry_login or ""})["registry_login"]
    return SchemaRegistry(spec.registry, spec.format.upper(), login)


def decode(frame: DataFrame, spec: DecodeSpec) -> DataFrame:
    """Return the frame with the columns of the schema, and ``mq_reason``. Raises: SchemaError."""
    return open_decoder(spec).decode(frame)
