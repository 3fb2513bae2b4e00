"""The columns of the source, their Spark and Arrow types, and the check of a user's schema.

Only columns that the schema names are decoded, as in ``.schema("value binary, offset bigint")``:
Spark does not tell a Python source about a later ``select``.
"""

from collections.abc import Mapping

import attrs
import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from triomq.client.spark.errors import OptionError

STRING = StringType()
BINARY = BinaryType()
INTEGER = IntegerType()
LONG = LongType()
TIMESTAMP = TimestampType()
STRING_MAP = MapType(STRING, STRING)

ARROW_TYPES: tuple[tuple[DataType, pa.DataType], ...] = (
    (STRING, pa.string()),
    (BINARY, pa.binary()),
    (INTEGER, pa.int32()),
    (LONG, pa.int64()),
    (TIMESTAMP, pa.timestamp("us", tz="UTC")),
    (STRING_MAP, pa.map_(pa.string(), pa.string())),
)


@attrs.frozen
class Column:
    """A column of the source; the first type is the default."""

    name: str
    types: tuple[DataType, ...]
    meaning: str
    by_default: bool = attrs.field(default=False, kw_only=True)
    may_be_null: bool = attrs.field(default=False, kw_only=True)


COLUMNS: tuple[Column, ...] = (
    Column(
        "key",
        (STRING, BINARY),
        "property KEYS; several keys are separated by spaces",
        by_default=True,
        may_be_null=True,
    ),
    Column(
        "value",
        (BINARY, STRING),
        "the body, decompressed; as string: UTF-8, damaged bytes replaced",
        by_default=True,
    ),
    Column("topic", (STRING,), "the topic", by_default=True),
    Column("brokerName", (STRING,), "name of the broker that holds the queue", by_default=True),
    Column("queueId", (INTEGER,), "number of the queue on its broker", by_default=True),
    Column("offset", (LONG,), "position in the queue", by_default=True),
    Column("timestamp", (TIMESTAMP,), "when the broker stored the message", by_default=True),
    Column("tags", (STRING,), "property TAGS", by_default=True, may_be_null=True),
    Column(
        "headers", (STRING_MAP,), "all properties; in the default schema with includeHeaders=true"
    ),
    Column("bornTimestamp", (TIMESTAMP,), "when the producer made the message"),
    Column(
        "msgId",
        (STRING,),
        "the producer's unique id (UNIQ_KEY), otherwise the broker's offset message id",
    ),
    Column(
        "messageGroup",
        (STRING,),
        "sharding key of ordered messages (`__SHARDINGKEY`)",
        may_be_null=True,
    ),
    Column("flag", (INTEGER,), "the producer's flag word"),
    Column(
        "sysFlag",
        (INTEGER,),
        "RocketMQ's flag bits (compressed, transaction state, address families)",
    ),
    Column("reconsumeTimes", (INTEGER,), "how often consumers gave the message back"),
    Column("bornHost", (STRING,), "producer's address, ip:port"),
    Column("storeHost", (STRING,), "broker's address, ip:port"),
    Column("storeSize", (INTEGER,), "bytes of the stored record"),
    Column("commitLogOffset", (LONG,), "position in the broker's commit log"),
    Column("properties", (STRING,), "the properties as stored: name 0x01 value 0x02 …"),
)
BY_NAME = {column.name: column for column in COLUMNS}


def schema_for(options: Mapping[str, str]) -> StructType:
    """Return the schema of a query that gives none. ``options``: those of the query, unchecked."""
    given = {key.lower(): value for key, value in options.items()}
    headers = given.get("includeheaders", given.get("includeproperties", "false"))
    return default_schema(include_headers=headers.strip().lower() == "true")


def default_schema(*, include_headers: bool) -> StructType:
    """Return the columns that a query has by default."""
    wanted = [
        column
        for column in COLUMNS
        if column.by_default or (include_headers and column.name == "headers")
    ]
    return StructType([StructField(column.name, column.types[0]) for column in wanted])


def check_schema(schema: StructType) -> None:
    """Check that a schema has known columns with exactly the offered types.

    Raises: OptionError that names the column and the rule.
    """
    if not schema.fields:
        raise OptionError(f"the schema has no columns; choose from {', '.join(BY_NAME)}")
    for field in schema.fields:
        column = BY_NAME.get(field.name)
        if column is None:
            import difflib  # start-up time: only for this error

            near = difflib.get_close_matches(field.name, BY_NAME, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise OptionError(
                f"the source has no column {field.name!r}; {hint}it offers {', '.join(BY_NAME)}"
            )
        if field.dataType not in column.types:
            offered = " or ".join(each.simpleString() for each in column.types)
            raise OptionError(
                f"column {field.name!r} cannot be {field.dataType.simpleString()}; declare it as"
                f" {offered} and cast in the query"
            )
        if column.may_be_null and not field.nullable:
            raise OptionError(
                f"column {field.name!r} is null for some messages; declare it without NOT NULL"
            )
    if len({field.name for field in schema.fields}) != len(schema.fields):
        raise OptionError(
            f"the schema names a column twice: {', '.join(field.name for field in schema.fields)}"
        )


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark demands: order, types, UTC, nullability."""
    return pa.schema(
        [
            pa.field(field.name, arrow_type(field.dataType), nullable=field.nullable)
            for field in schema.fields
        ]
    )


def arrow_type(spark_type: DataType) -> pa.DataType:
    """Return the Arrow type of one of our Spark types."""
    return next(arrow for known, arrow in ARROW_TYPES if known == spark_type)
