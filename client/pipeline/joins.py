"""What do joins do to a frame? They add the columns of static tables to good rows."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import DataFrame, SparkSession

from triomq.client.pipeline.core.spec import JoinSpec


def apply_joins(frame: DataFrame, joins: Iterable[JoinSpec]) -> DataFrame:
    """Join the tables in order. Each is read as it is now, so that a batch sees its changes."""
    for join in joins:
        frame = frame.join(joined_table(frame.sparkSession, join), on=list(join.on), how=join.how)
    return frame


def joined_table(session: SparkSession, join: JoinSpec) -> DataFrame:
    """Return the static table of a join."""
    return session.read.format(join.format).options(**join.options).load(join.path)
