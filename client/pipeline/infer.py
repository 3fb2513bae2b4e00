"""Which schema fits a sample? JSON bodies are read as Python values, and types are widened.

No Spark session is needed: the newest messages of each queue are read as a task would.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

import attrs
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from triomq.client.pipeline.core.errors import ReadRefused
from triomq.client.pipeline.core.origin import batch_options
from triomq.client.pipeline.core.spec import SourceSpec
from triomq.client.spark.columns import arrow_schema
from triomq.client.spark.driver_client import DriverClient
from triomq.client.spark.offsets import Queue
from triomq.client.spark.options import parse_options
from triomq.client.spark.partitions import partitions_of, read_task
from triomq.client.spark.planning import QueueRange
from triomq.client.spark.query_begin import ending_offsets, initial_offsets

MESSAGES_MAX = 1_000_000
FIELDS_MAX = 2_000
"""fields of a schema, inner ones included"""
DEPTH_MAX = 50
LONG_LEAST, LONG_MOST = -(1 << 63), (1 << 63) - 1
DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
MOMENT = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?(Z|[+-]\d{2}:\d{2})")
KIND_TYPES: dict[frozenset[str], DataType] = {
    frozenset({"whole number"}): LongType(),
    frozenset({"number"}): DoubleType(),
    frozenset({"number", "whole number"}): DoubleType(),
    frozenset({"truth"}): BooleanType(),
    frozenset({"date"}): DateType(),
    frozenset({"time"}): TimestampType(),
}
"""kinds of the values of a field → its column; every other mixture is text"""


@attrs.define
class SeenValue:
    """What a sample has at one place."""

    kinds: dict[str, int] = attrs.field(factory=dict)
    """kind → values; ``object`` and ``list`` are kinds"""
    nulls: int = 0
    objects: int = 0
    fields: dict[str, SeenValue] = attrs.field(factory=dict)
    items: SeenValue | None = None

    def add(self, value: object, depth: int = 0) -> None:
        """Take a value of a body. Raises: ReadRefused for too many levels."""
        if depth > DEPTH_MAX:
            raise ReadRefused(
                f"a body is nested more than {DEPTH_MAX} levels deep; write the schema by hand, or"
                " decode as string"
            )
        if value is None:
            self.nulls += 1
            return
        kind = kind_of(value)
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        if isinstance(value, dict):
            for name, inner in value.items():
                self.fields.setdefault(name, SeenValue()).add(inner, depth + 1)
        elif isinstance(value, list):
            self.items = self.items or SeenValue()
            for inner in value:
                self.items.add(inner, depth + 1)

    @property
    def count(self) -> int:
        """The number of values that are not null."""
        return sum(self.kinds.values())


def kind_of(value: Any) -> str:
    """Return the kind of a value, in words for a person."""
    match value:
        case bool():
            return "truth"
        case int():
            return "whole number" if LONG_LEAST <= value <= LONG_MOST else "large number"
        case float():
            return "number"
        case dict():
            return "object"
        case list():
            return "list"
    for pattern, name in ((MOMENT, "time"), (DATE, "date")):
        if pattern.fullmatch(value) and is_time(value):
            return name
    return "text"


def is_time(text: str) -> bool:
    """Return whether a date exists: it may have a month 13."""
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


@attrs.frozen(kw_only=True)
class InferredField:
    """A top-level field as the report shows it."""

    name: str
    type: str
    null_share: float
    """of the good bodies: null or absent"""
    kinds: tuple[str, ...]
    """more than one if values were mixed"""


@attrs.frozen(kw_only=True)
class InferredSchema:
    """A schema, and what the sample had."""

    schema: StructType
    messages: int
    bad: int
    """bodies that are not one JSON object"""
    fields: tuple[InferredField, ...]


def infer(source: SourceSpec, messages: int) -> InferredSchema:
    """Return the schema of the newest messages of a source.

    Raises: ReadRefused; SourceError if the topics cannot be read.
    """
    if not 1 <= messages <= MESSAGES_MAX:
        raise ReadRefused(f"a sample has 1 to {MESSAGES_MAX} messages; choose --messages anew")
    return infer_bodies(sample(source, messages))


def infer_bodies(bodies: Iterable[bytes]) -> InferredSchema:
    """Return the schema of JSON bodies. Raises: ReadRefused if none is a JSON object."""
    seen, total, bad = SeenValue(), 0, 0
    for body in bodies:
        total += 1
        try:
            value = json.loads(body.decode(), parse_constant=refused_constant)
        except (ValueError, RecursionError):
            bad += 1
            continue
        if isinstance(value, dict):
            seen.add(value)
        else:
            bad += 1
    good = total - bad
    if not total:
        raise ReadRefused("the topics have no messages; send some, or write the schema by hand")
    if not seen.fields:
        raise ReadRefused(
            f"none of {total} bodies is a JSON object with fields; set [decode] format to what they"
            " are"
        )
    schema = struct_of(seen)
    if sum(1 for _ in all_fields(schema)) > FIELDS_MAX:
        raise ReadRefused(
            f"the objects have more than {FIELDS_MAX} fields: names that differ in each message are"
            " data; decode as string, or write the schema by hand with a map"
        )
    report = tuple(
        InferredField(
            name=field.name,
            type=field.dataType.simpleString(),
            null_share=1 - seen.fields[field.name].count / good,
            kinds=tuple(sorted(seen.fields[field.name].kinds)),
        )
        for field in schema.fields
    )
    return InferredSchema(schema=schema, messages=total, bad=bad, fields=report)


def refused_constant(name: str) -> object:
    """Refuse NaN and infinities, which JSON does not have. Raises: ValueError."""
    raise ValueError(f"{name} is not JSON")


def struct_of(seen: SeenValue) -> StructType:
    """Return the columns of objects, in the order in which the sample had them."""
    return StructType([StructField(name, type_of(inner)) for name, inner in seen.fields.items()])


def type_of(seen: SeenValue) -> DataType:
    """Return the narrowest type that takes all values; mixtures are text."""
    kinds = frozenset(seen.kinds)
    if kinds == {"object"} and seen.fields:
        return struct_of(seen)
    if kinds == {"list"} and seen.items is not None:
        return ArrayType(type_of(seen.items))
    return KIND_TYPES.get(kinds, StringType())


def all_fields(kind: DataType) -> Iterator[StructField]:
    """Yield the fields of a type, inner ones included."""
    match kind:
        case StructType():
            for field in kind.fields:
                yield field
                yield from all_fields(field.dataType)
        case ArrayType():
            yield from all_fields(kind.elementType)


def sample(source: SourceSpec, messages: int) -> Iterator[bytes]:
    """Yield the bodies of the newest messages, of each queue about as many.

    Raises: SourceError.
    """
    options = parse_options(batch_options(source), streaming=False)
    cluster = DriverClient(options)
    try:
        begins = initial_offsets(options, cluster)
        ends = ending_offsets(options, cluster)
        ranges = newest_ranges(begins, ends, messages)
        tasks = partitions_of(ranges, options, cluster.addresses, cluster.slaves)
    finally:
        cluster.close()
    schema = arrow_schema(StructType().add("value", "binary"))
    for task in tasks:
        for batch in read_task(task, options, schema):
            yield from batch.column(0).to_pylist()


def newest_ranges(
    begins: Mapping[Queue, int], ends: Mapping[Queue, int], messages: int
) -> list[QueueRange]:
    """Return the ends of queues with ``messages`` messages in all; short queues leave more for
    others.
    """
    waiting = {queue: ends[queue] - first for queue, first in begins.items() if queue in ends}
    left, ranges = messages, []
    by_length = sorted((count, queue) for queue, count in waiting.items() if count > 0)
    for number, (count, queue) in enumerate(by_length):
        share = min(count, max(1, left // (len(by_length) - number)), left)
        if share:
            ranges.append(QueueRange(queue, ends[queue] - share, ends[queue]))
        left -= share
    return ranges
