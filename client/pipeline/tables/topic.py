"""How does a topic take a batch? Through the sink ``rocketmq``, at least once.

A batch that is run again sends its messages again, with the same property ``__SPARK``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.storagelevel import StorageLevel

from triomq.client.pipeline.core.errors import PipelineError
from triomq.client.pipeline.core.origin import PLACE, PREFIX, REASON, stored_rows
from triomq.client.pipeline.core.spec import SourceSpec, TableSpec, access_options, resolved
from triomq.client.spark.sink.refusals import REASON as REFUSED
from triomq.client.spark.sink.refusals import send_rows

BODY = "value"
"""the column of formats `bytes` and `string`; other formats become JSON"""


class TopicSink:
    """A topic that good rows are sent to: a ``LakeTable`` without upsert, compact and expire."""

    def __init__(self, session: SparkSession, spec: TableSpec) -> None:
        self._session = session
        self._topic = spec.topic or ""
        if spec.name_server is None:
            raise PipelineError(
                f"topic {self._topic} has no name server; set name_server of the table"
            )
        self._options = {"nameServer": spec.name_server, **resolved(spec.options)}

    def append(self, frame: DataFrame, batch: int) -> DataFrame | None:
        """Send each row: its column ``value``, otherwise a JSON object of the decoded columns.

        Returns: the rows that cannot be messages, or that a broker refuses, as ``send`` does; None
            if the rows have no place in a topic, as totals: then such a row is an error.
        """
        fields = [name for name in frame.columns if not name.startswith(PREFIX)]
        body = sf.col(BODY) if fields == [BODY] else sf.to_json(sf.struct(*fields))
        origin = [
            sf.col(f"{PREFIX}{name}").alias(alias)
            for name, alias in (("key", "key"), ("tags", "tags"), ("headers", "headers"))
            if f"{PREFIX}{name}" in frame.columns
        ]
        place = [name for name in PLACE if name in frame.columns]
        messages = frame.select(body.alias("value"), *origin, *place)
        if place:
            return self.send(messages)
        write = messages.withColumn("topic", sf.lit(self._topic)).write.format("rocketmq")
        write.options(**self._options).mode("append").save()
        return None

    def send(self, messages: DataFrame) -> DataFrame:
        """Send a frame that has the columns of the sink and of ``PLACE``, to this topic.

        Returns: see the function ``send``.
        """
        return send(messages.withColumn("topic", sf.lit(self._topic)), self._options)

    def upsert(self, frame: DataFrame, key: Sequence[str]) -> None:
        """Refuse: a topic keeps all messages."""
        raise PipelineError(
            f"topic {self._topic} cannot keep the newest row of a key; use mode append, or a table"
            " of kind parquet, delta or iceberg"
        )

    def read(self) -> DataFrame:
        """Return the messages that are there now, with origin columns."""
        source = SourceSpec(
            name_server=self._options["nameServer"],
            topics=(self._topic,),
            options=access_options(self._options),
        )
        return stored_rows(self._session, source)

    def compact(self, before: date) -> int:
        """Return 0: brokers keep their own files."""
        return 0

    def expire(self, before: date) -> int:
        """Return 0: brokers delete old messages after their own ``fileReservedTime``."""
        return 0


def topic_options(source: SourceSpec) -> dict[str, str]:
    """Return the options of the sink for topics of the source's name servers."""
    return {"nameServer": source.name_server, **access_options(resolved(source.options))}


def send(messages: DataFrame, options: Mapping[str, str]) -> DataFrame:
    """Send a frame that has the columns of the sink and of ``PLACE``.

    Returns: the rows that are refused for what they are, with ``PLACE`` and ``mq_reason``. They are
        in Spark's cache: the caller calls ``unpersist``.
    """
    refused = send_rows(messages, options, tuple(PLACE))
    refused = refused.withColumnRenamed(REFUSED, REASON).persist(StorageLevel.MEMORY_AND_DISK)
    refused.count()  # sends
    return refused
