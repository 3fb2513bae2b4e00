"""How does a selection of dead letters come back to the topics that they came from?"""

from __future__ import annotations

import attrs
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.storagelevel import StorageLevel

from triomq.client.pipeline.checkpoints import rows_checkpoint
from triomq.client.pipeline.dead_letters import PLACE, first_line, known_headers, open_dead_letters
from triomq.client.pipeline.errors import ReadRefused
from triomq.client.pipeline.origin import VALUE
from triomq.client.pipeline.spec import Spec
from triomq.client.pipeline.tables.hadoop_files import HadoopFiles
from triomq.client.pipeline.tables.topic import send, topic_options

REPLAYED_FROM = "mq_replayed_from"
"""property of a message that was sent again: topic/broker/queue/offset"""
REPLAYED = "replayed"
"""folder in the checkpoint: the places of dead letters that were sent again"""


@attrs.frozen(kw_only=True)
class Replayed:
    """What a replay has done."""

    sent: int
    left_out: int
    """rows of the selection that an earlier replay has sent"""


def replay(
    session: SparkSession,
    spec: Spec,
    *,
    where: str | None = None,
    limit: int | None = None,
    again: bool = False,
) -> Replayed:
    """Send dead letters to the topics that they came from.

    ``where``: SQL condition on ``mq_`` columns. ``limit``: the oldest so many. ``again``: also rows
    that an earlier replay has sent. A crash between sending and noting lets the next replay send
    the same rows again.

    Raises: ReadRefused for a selection that is none.
    """
    if limit is not None and limit < 1:
        raise ReadRefused(f"limit is {limit}; give a number of rows from 1")
    dead = open_dead_letters(session, spec, rows_checkpoint(spec.run.checkpoint))
    if dead is None:
        raise ReadRefused("the pipeline has no [dead_letters], so there is nothing to send again")
    files = HadoopFiles(session)
    notes = f"{files.absolute(spec.run.checkpoint)}/{REPLAYED}"
    chosen = dead.read()
    try:
        chosen = chosen.where(where) if where is not None else chosen
        chosen.schema  # noqa: B018 - plans it
    except (AnalysisException, ParseException) as error:
        raise ReadRefused(
            f"the condition {where!r} does not fit dead letters ({first_line(error)}); columns:"
            f" {', '.join(chosen.columns)}"
        ) from None
    done = session.createDataFrame([], ", ".join(f"{name} {kind}" for name, kind in PLACE.items()))
    if files.exists(notes):
        done = session.read.schema(done.schema).parquet(notes).distinct()
    left_out = 0
    if not again:
        left_out = chosen.join(done, list(PLACE), "left_semi").count()
        chosen = chosen.join(done, list(PLACE), "left_anti")
    if limit is not None:
        chosen = chosen.orderBy("mq_time", *PLACE).limit(limit)
    chosen = chosen.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        count = chosen.count()
        if count:
            send(as_originals(chosen), topic_options(spec.source))
            chosen.select(*PLACE).coalesce(1).write.mode("append").parquet(notes)
    finally:
        chosen.unpersist()
    return Replayed(sent=count, left_out=left_out)


def as_originals(frame: DataFrame) -> DataFrame:
    """Return dead letters with the columns of the sink, as they came, and where from."""
    place = sf.concat_ws("/", *PLACE)
    kept = sf.map_filter(known_headers(), lambda name, _: name != REPLAYED_FROM)
    return frame.select(
        sf.col("mq_topic").alias("topic"),
        sf.col(VALUE).alias("value"),
        sf.col("mq_key").alias("key"),
        sf.col("mq_tags").alias("tags"),
        sf.map_concat(kept, sf.create_map(sf.lit(REPLAYED_FROM), place)).alias("headers"),
        sf.col("mq_headers")["__SHARDINGKEY"].alias("shardingKey"),
    )
