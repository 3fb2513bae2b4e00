"""Where do bad rows go, and how are they read?

A dead letter has its origin, the reason, and the original body, key, tags and headers. In a topic,
origin and reason are properties of the message; in a table, columns.
"""

from __future__ import annotations

from functools import reduce
from operator import add

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from triomq.client.pipeline.core.errors import PipelineError, ReadRefused
from triomq.client.pipeline.core.origin import COLUMNS, DATE, PLACE, REASON, VALUE, utc_date
from triomq.client.pipeline.core.spec import Spec
from triomq.client.pipeline.tables.locks import WriteLock
from triomq.client.pipeline.tables.opening import open_table
from triomq.client.pipeline.tables.table import LakeTable
from triomq.client.pipeline.tables.topic import TopicSink

IN_HEADERS = {**PLACE, "mq_time": "timestamp", "mq_born": "timestamp", REASON: "string"}
"""what a dead letter in a topic carries as properties; times are epoch microseconds"""
HEADERS_LOST = "mq_headers_lost"
"""property of a dead letter without its original ones: the bytes that they had"""
KEY_LOST = "mq_key_lost"
"""property of a dead letter without its original key and tags: the bytes that they had"""
VALUE_LOST = "mq_value_lost"
"""property of a dead letter without its body, which the topic refuses: the bytes that it had"""
HEADERS_BYTES_MAX = 27_000
"""of original properties in a topic: RocketMQ allows 32,767 in all, the reason has up to 4,000,
origin and the properties of sink and broker have up to 1,700"""
REASON_CHARACTERS_MAX = 1_000


class DeadLetters:
    """The place of bad rows."""

    def __init__(self, table: LakeTable) -> None:
        self._table = table
        self._has_written = False
        """whether a batch is in the table: the next one cannot have been run before"""

    def write(self, frame: DataFrame, batch: int, rows: int) -> None:
        """Keep the bad rows of a batch: in a table once, in a topic at least once.

        ``rows``: their number. A batch without any is written only if it is the first of this run:
        it replaces what an earlier run of it has left.
        """
        if not isinstance(self._table, TopicSink):
            if rows or not self._has_written:
                self._table.append(frame.select(*(c.name for c in COLUMNS), DATE, REASON), batch)
            self._has_written = True
            return
        if not rows:
            return
        refused = self._table.send(as_messages(frame))
        try:
            if refused.isEmpty():
                return
            without = frame.join(refused.select(*PLACE), list(PLACE), "left_semi")
            again = self._table.send(as_messages(without, with_body=False))
            try:
                for row in again.limit(1).collect():
                    raise PipelineError(
                        f"the topic of dead letters refuses {row[REASON]}; correct the topic, or"
                        " write dead letters to a path"
                    )
            finally:
                again.unpersist()
        finally:
            refused.unpersist()

    def read(self) -> DataFrame:
        """Return the dead letters that are there now. Raises: ReadRefused."""
        try:
            rows = self._table.read()
        except AnalysisException as error:
            raise ReadRefused(
                f"there are no dead letters yet ({first_line(error)}); run the pipeline first"
            ) from None
        return from_messages(rows) if isinstance(self._table, TopicSink) else rows


def open_dead_letters(
    session: SparkSession, spec: Spec, checkpoint: str, lock: WriteLock | None = None
) -> DeadLetters | None:
    """Return the place of bad rows; None if the pipeline has none."""
    if spec.dead_letters is None:
        return None
    return DeadLetters(open_table(session, spec.dead_letters, checkpoint, lock))


def as_messages(frame: DataFrame, *, with_body: bool = True) -> DataFrame:
    """Return bad rows with the columns of the sink and of ``PLACE``, without the topic.

    What would make a message too large is left out, and a property tells its size. Without body,
    also the original properties are left out.
    """
    properties = [
        text
        for name, kind in IN_HEADERS.items()
        for text in (
            sf.lit(name),
            sf.unix_micros(name).cast("string")
            if kind == "timestamp"
            else sf.substring(sf.col(name).cast("string"), 1, REASON_CHARACTERS_MAX),
        )
    ]
    kept = sf.map_filter(known_headers(), lambda name, _: ~name.isin(*IN_HEADERS))
    size = sf.octet_length(sf.to_json(kept))
    lost = sf.create_map(sf.lit(HEADERS_LOST), size.cast("string"))
    room = HEADERS_BYTES_MAX if with_body else 0
    kept = sf.when(size > room, lost).otherwise(kept)
    key_size = sum_of(sf.octet_length("mq_key"), sf.octet_length("mq_tags"))
    has_room = key_size <= room
    no_key = sf.create_map(sf.lit(KEY_LOST), key_size.cast("string"))
    maps = [kept, sf.create_map(*properties), sf.when(~has_room, no_key).otherwise(empty_map())]
    if not with_body:
        maps.append(sf.create_map(sf.lit(VALUE_LOST), sf.octet_length(VALUE).cast("string")))
    return frame.select(
        (sf.col(VALUE) if with_body else sf.lit(None).cast("binary")).alias("value"),
        sf.when(has_room, sf.col("mq_key")).alias("key"),
        sf.when(has_room, sf.col("mq_tags")).alias("tags"),
        sf.map_concat(*maps).alias("headers"),
        *PLACE,
    )


def sum_of(*sizes: Column) -> Column:
    """Return the sum of sizes; null counts as zero."""
    return reduce(add, (sf.coalesce(size, sf.lit(0)) for size in sizes))


def from_messages(frame: DataFrame) -> DataFrame:
    """Return messages of a topic of dead letters as the rows that they were; others are left out.

    The sink may have sent a row twice: one stays.
    """

    def original(name: str, kind: str) -> Column:
        text = sf.col("mq_headers")[name]
        value = sf.timestamp_micros(text.cast("bigint")) if kind == "timestamp" else text.cast(kind)
        return value.alias(name)

    headers = sf.map_filter("mq_headers", lambda name, _: ~name.isin(*IN_HEADERS))
    return (
        frame.where(sf.map_contains_key("mq_headers", REASON))
        .select(
            *(original(name, kind) for name, kind in IN_HEADERS.items()),
            "mq_key",
            "mq_tags",
            headers.alias("mq_headers"),
            VALUE,
        )
        .withColumn(DATE, utc_date("mq_time"))
        .dropDuplicates(list(PLACE))
    )


def known_headers() -> Column:
    """Return ``mq_headers``, empty instead of null."""
    return sf.coalesce(sf.col("mq_headers"), empty_map())


def empty_map() -> Column:
    return sf.create_map().cast("map<string,string>")


def first_line(error: Exception) -> str:
    """Return what an error of Spark says, without its plan."""
    return str(error).strip().partition("\n")[0]
