"""The ``mq_`` columns: where a row comes from. The same for a live topic and for a store.

Columns of the source get the prefix ``mq_``, so that fields of messages may have any other name.
"""

from __future__ import annotations

import attrs
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from triomq.client.pipeline.core.spec import SourceSpec
from triomq.client.spark.options import OPTIONS

PREFIX = "mq_"
VALUE = "mq_value"
"""the body; lake tables do not have it, dead letters do"""
REASON = "mq_reason"
"""why a row is bad; null for good rows"""
PLACE = {"mq_topic": "string", "mq_broker": "string", "mq_queue": "int", "mq_offset": "bigint"}
"""the columns that name one message, with their types"""
POSITION = ("mq_time", "mq_broker", "mq_queue", "mq_offset")
"""the columns by which one row of a key is newer than another"""


@attrs.frozen
class OriginColumn:
    """A column of the source, and its name in a pipeline."""

    name: str
    source: str
    type: str
    """in Spark's DDL"""
    meaning: str


COLUMNS: tuple[OriginColumn, ...] = (
    OriginColumn("mq_topic", "topic", "string", "the topic"),
    OriginColumn("mq_broker", "brokerName", "string", "the broker that holds the queue"),
    OriginColumn("mq_queue", "queueId", "int", "number of the queue on its broker"),
    OriginColumn("mq_offset", "offset", "bigint", "position in the queue"),
    OriginColumn("mq_time", "timestamp", "timestamp", "when the broker stored the message"),
    OriginColumn("mq_born", "bornTimestamp", "timestamp", "when the producer made the message"),
    OriginColumn("mq_key", "key", "string", "property KEYS; several keys are separated by spaces"),
    OriginColumn("mq_tags", "tags", "string", "property TAGS"),
    OriginColumn("mq_headers", "headers", "map<string,string>", "all properties"),
    OriginColumn(VALUE, "value", "binary", "the body, decompressed; not in the sink's table"),
)
"""the columns that a source gives"""
DATE = "mq_date"
DERIVED: dict[str, tuple[str, str]] = {
    DATE: ("date", "the date of `mq_time` in UTC"),
    REASON: ("string", "why the row is bad; null for good rows; only in dead letters"),
}
"""the columns that the pipeline makes: name → type and meaning"""
DEAD_LETTER_COLUMNS = (*(column.name for column in COLUMNS), *DERIVED)
"""the columns of a table of dead letters"""
SOURCE_SCHEMA = ", ".join(f"{column.source} {column.type}" for column in COLUMNS)
"""the schema that a pipeline asks of ``format("rocketmq")`` and ``format("rocketmq-store")``"""


def with_origin(frame: DataFrame) -> DataFrame:
    """Return a frame of a source with ``mq_`` names, and ``mq_date``."""
    return frame.select(
        *(sf.col(column.source).alias(column.name) for column in COLUMNS),
        utc_date("timestamp").alias(DATE),
    )


def utc_date(time: str) -> Column:
    """Return the date of a column of times in UTC, whatever the session's time zone."""
    day = sf.floor(sf.unix_micros(time) / sf.lit(86_400_000_000)).cast("int")
    return sf.date_from_unix_date(day)


def live_rows(session: SparkSession, source: SourceSpec) -> DataFrame:
    """Return the stream of the topics, with origin columns."""
    return with_origin(
        session.readStream.format("rocketmq")
        .schema(SOURCE_SCHEMA)
        .options(**source.limit_options(), **source.reader_options(), **source.start_options())
        .load()
    )


def stored_rows(session: SparkSession, source: SourceSpec, **options: str) -> DataFrame:
    """Return the messages of the topics that are there now, with origin columns.

    ``options``: further options of the batch reader, such as ``startingOffsets``.
    """
    return with_origin(
        session.read.format("rocketmq")
        .schema(SOURCE_SCHEMA)
        .options(**batch_options(source), **options)
        .load()
    )


def batch_options(source: SourceSpec) -> dict[str, str]:
    """Return the options of a batch reader: those of the stream that have a meaning for it."""
    streams_only = {
        name.lower()
        for option in OPTIONS.values()
        if not option.batch
        for name in (option.name, *option.aliases)
    }
    given = source.reader_options()
    return {name: text for name, text in given.items() if name.lower() not in streams_only}
