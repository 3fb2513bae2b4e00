"""Decode bodies in Python, a batch of Arrow at a time: what Avro and Protobuf share.

Only the bodies go to the Python worker; it answers with one struct a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import attrs
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StringType, StructField, StructType

from triomq.client.pipeline.core.origin import REASON, VALUE

ANSWER = "mq_answer"


class BadBody(Exception):
    """A body cannot be decoded; the text is the reason, without any part of the body."""


class BodyReader(Protocol):
    """Reads one body. It is pickled once for a query, and called in the tasks."""

    def read(self, body: bytes) -> Mapping[str, object]:
        """Return the fields of a body. Raises: BadBody."""


@attrs.frozen
class BodyDecoder:
    """Takes the bodies that a reader can read."""

    schema: StructType
    reader: BodyReader

    def decode(self, frame: DataFrame) -> DataFrame:
        """Return the frame with the columns of the schema, and ``mq_reason``."""
        fields = [StructField(field.name, field.dataType) for field in self.schema.fields]
        answer = StructType([*fields, StructField(REASON, StringType())])
        decode = arrow_udf(batch_function(self.reader, answer), answer)  # type: ignore[call-overload]
        parts = {name: sf.col(ANSWER).getField(name) for name in answer.fieldNames()}
        return frame.withColumn(ANSWER, decode(sf.col(VALUE))).withColumns(parts).drop(ANSWER)


def batch_function(reader: BodyReader, answer: StructType) -> Callable[[pa.Array], pa.Array]:
    """Return the function that Spark calls with the bodies of a batch."""
    kind = to_arrow_type(answer, timezone="UTC")

    def decode(bodies: pa.Array) -> pa.Array:
        return rows_array([fields_of(reader, body) for body in bodies.to_pylist()], kind)

    return decode


def fields_of(reader: BodyReader, body: bytes | None) -> Mapping[str, object]:
    """Return the fields of a body, or only ``mq_reason``."""
    if body is None:
        return {REASON: "there is no body"}
    try:
        return reader.read(body)
    except BadBody as bad:
        return {REASON: str(bad)}


def rows_array(rows: Sequence[Mapping[str, object]], kind: pa.DataType) -> pa.Array:
    """Return rows as an array of structs; a row with a value that Arrow cannot hold is bad."""
    try:
        return pa.array(rows, kind)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return pa.array([row if holds(row, kind) else OUT_OF_RANGE for row in rows], kind)


OUT_OF_RANGE = {REASON: "a value is outside the range of its column"}


def holds(row: Mapping[str, object], kind: pa.DataType) -> bool:
    """Return whether Arrow can hold a row."""
    try:
        pa.array([row], kind)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return False
    return True
