"""How does a body become columns? One module for each format; none drops a row or guesses."""

from __future__ import annotations

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
    if spec.format == "json":
        return JsonDecoder(read_schema(spec.schema), framed=spec.framing == "confluent")
    try:
        # Packages of the extra ``pipeline``, needed for these formats only.
        from triomq.client.pipeline.decoders import avro, protobuf
    except ImportError as error:
        cause = f"{spec.format} needs the package {error.name}"
        raise SchemaError("[decode]", cause, "pip install 'triomq[pipeline]'") from None
    writers = schemas_of_writers(spec)
    if spec.format == "avro":
        return avro.open_avro(spec.schema, writers)
    if spec.message is None:
        raise SchemaError("[decode]", "protobuf needs a message", "add message, its full name")
    return protobuf.open_protobuf(spec.schema, spec.message, writers)


def schemas_of_writers(spec: DecodeSpec) -> WriterSchemas | None:
    """Return the schemas of bodies with ids; None for bodies without. Raises: SchemaError."""
    if spec.framing == "plain":
        return None
    if spec.registry is None:
        return read_schema_files(spec.schemas)
    login = resolved({"registry_login": spec.registry_login or ""})["registry_login"]
    return SchemaRegistry(spec.registry, login)


def decode(frame: DataFrame, spec: DecodeSpec) -> DataFrame:
    """Return the frame with the columns of the schema, and ``mq_reason``. Raises: SchemaError."""
    return open_decoder(spec).decode(frame)
