"""The columns that the sink takes, and the check of a DataFrame's schema."""

import attrs
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from triomq.client.spark.errors import OptionError

STRING, BINARY = StringType(), BinaryType()
NUMBERS: tuple[DataType, ...] = (IntegerType(), LongType(), ShortType())


@attrs.frozen
class SinkColumn:
    """A column of the sink."""

    name: str
    types: tuple[DataType, ...]
    meaning: str
    aliases: tuple[str, ...] = ()


SINK_COLUMNS: tuple[SinkColumn, ...] = (
    SinkColumn(
        "value",
        (BINARY, STRING),
        "the body; required. Null or empty: a tombstone, which deletes its key in a"
        " compaction topic",
    ),
    SinkColumn("topic", (STRING,), "the topic; required without the option `topic`"),
    SinkColumn("key", (STRING, BINARY), "property KEYS; several: by spaces"),
    SinkColumn("tags", (STRING,), "property TAGS"),
    SinkColumn("headers", (MapType(STRING, STRING),), "further properties"),
    SinkColumn(
        "shardingKey",
        (STRING,),
        "rows of one key go to one queue, in the order of their task",
        aliases=("messageGroup",),
    ),
    SinkColumn("brokerName", (STRING,), "with queueId: exactly this queue"),
    SinkColumn("queueId", NUMBERS, "the number of the queue on brokerName"),
    SinkColumn("delayLevel", NUMBERS, "deliver after the delay of this level (1 to 18)"),
    SinkColumn(
        "deliverTimestamp", (TimestampType(),), "deliver at this time (brokers with timers)"
    ),
    SinkColumn("flag", NUMBERS, "the producer's flag word"),
)
BY_NAME = {name: column for column in SINK_COLUMNS for name in (column.name, *column.aliases)}


def check_sink_schema(schema: StructType, topic: str | None) -> dict[str, int]:
    """Check a DataFrame's schema; return column name → position, aliases resolved.

    ``topic``: the option of this name.

    Raises: OptionError that names the column and the rule.
    """
    places: dict[str, int] = {}
    for position, field in enumerate(schema.fields):
        column = BY_NAME.get(field.name)
        if column is None:
            import difflib  # start-up time: only for this error

            near = difflib.get_close_matches(field.name, BY_NAME, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise OptionError(
                f"the sink has no column {field.name!r}; {hint}it takes {', '.join(BY_NAME)}: drop"
                " or rename the column with select"
            )
        plain = without_nullability(field.dataType)
        if plain not in column.types:
            offered = " or ".join(dict.fromkeys(each.simpleString() for each in column.types))
            raise OptionError(
                f"column {field.name!r} is {field.dataType.simpleString()}; cast it to {offered}"
            )
        if column.name in places:
            raise OptionError(f"two columns mean {column.name!r}; keep one of them")
        places[column.name] = position
    if "value" not in places:
        raise OptionError(
            "the sink needs a column 'value' (binary or string): the body of each message; for"
            ' example .selectExpr("to_json(struct(*)) AS value")'
        )
    if "topic" not in places and topic is None:
        raise OptionError(
            "the sink does not know the topic; add .option(\"topic\", …) or a column 'topic'"
        )
    if "topic" in places and topic is not None:
        raise OptionError("give the option 'topic' or a column 'topic', not both")
    if ("brokerName" in places) != ("queueId" in places):
        raise OptionError("columns 'brokerName' and 'queueId' name a queue together; give both")
    if "shardingKey" in places and "queueId" in places:
        raise OptionError(
            "columns 'shardingKey' and 'queueId' both choose the queue; keep one of them"
        )
    if "delayLevel" in places and "deliverTimestamp" in places:
        raise OptionError(
            "columns 'delayLevel' and 'deliverTimestamp' both delay a message; keep one of them"
        )
    return places


def without_nullability(kind: DataType) -> DataType:
    """Return the type with maps whose values may be null, as the table of columns has them."""
    if isinstance(kind, MapType):
        return MapType(kind.keyType, kind.valueType)
    return kind
