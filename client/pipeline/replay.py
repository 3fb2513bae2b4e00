"""How does a selection of dead letters come back to the topics that they came from?"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_

import attrs
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.storagelevel import StorageLevel

from triomq.client.pipeline.checkpoints import REPLAY, rows_checkpoint
from triomq.client.pipeline.core.errors import ReadRefused
from triomq.client.pipeline.core.origin import PLACE, REASON, VALUE
from triomq.client.pipeline.core.spec import Spec
from triomq.client.pipeline.dead_letters import (
    KEY_LOST,
    VALUE_LOST,
    first_line,
    known_headers,
    open_dead_letters,
)
from triomq.client.pipeline.tables.hadoop_files import HadoopFiles
from triomq.client.pipeline.tables.locks import locked
from triomq.client.pipeline.tables.topic import send, topic_options

REPLAYED_FROM = "mq_replayed_from"
"""property of a message that was sent again: topic/broker/queue/offset"""
LOST = "its body or key is not in the dead letter (mq_value_lost, mq_key_lost)"
REASONS_MAX = 20
"""reasons that are told"""
REPLAYED = "replayed"
"""folder in the checkpoint: the places of dead letters that were sent again"""


@attrs.frozen(kw_only=True)
class Replayed:
    """What a replay has done."""

    sent: int
    left_out: int
    """rows of the selection that an earlier replay has sent"""
    refused: Mapping[str, int] = attrs.field(factory=dict)
    """reason → rows that cannot be messages any more, or that their topic refuses; they stay dead
    letters"""


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

    Raises: ReadRefused for a selection that is none; LockHeld while another process replays.
    """
    if limit is not None and limit < 1:
        raise ReadRefused(f"limit is {limit}; give a number of rows from 1")
    files = HadoopFiles(session)
    with locked(files, files.absolute(spec.run.checkpoint), REPLAY):
        return _replay(session, spec, files, where=where, limit=limit, again=again)


def _replay(
    session: SparkSession,
    spec: Spec,
    files: HadoopFiles,
    *,
    where: str | None,
    limit: int | None,
    again: bool,
) -> Replayed:
    dead = open_dead_letters(session, spec, rows_checkpoint(spec.run.checkpoint))
    if dead is None:
        raise ReadRefused("the pipeline has no [dead_letters], so there is nothing to send again")
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
        whole = chosen.where(~has_lost())
        count, lost = whole.count(), chosen.where(has_lost()).count()
        refused: dict[str, int] = {LOST: lost} if lost else {}
        if count:
            failed = send(as_originals(whole), topic_options(spec.source))
            try:
                reasons = failed.groupBy(REASON).count().limit(REASONS_MAX).collect()
                refused |= {row[REASON]: row["count"] for row in reasons}
                count -= failed.count()
                sent = whole.select(*PLACE).join(failed, list(PLACE), "left_anti")
                if count:
                    sent.coalesce(1).write.mode("append").parquet(notes)
            finally:
                failed.unpersist()
    finally:
        chosen.unpersist()
    return Replayed(sent=count, left_out=left_out, refused=refused)


def has_lost() -> Column:
    """Return whether a dead letter lacks a part of its message, which its topic refused."""
    lost = (sf.map_contains_key(known_headers(), name) for name in (VALUE_LOST, KEY_LOST))
    return reduce(or_, lost)


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
        *(name for name in PLACE),
    )
