"""What is done with one micro-batch? A frame and a number in, counts out."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from triomq.client.pipeline.core.errors import PipelineError
from triomq.client.pipeline.core.origin import PLACE, REASON, VALUE
from triomq.client.pipeline.core.spec import Spec
from triomq.client.pipeline.dead_letters import DeadLetters
from triomq.client.pipeline.decoders import decode
from triomq.client.pipeline.joins import apply_joins
from triomq.client.pipeline.rules import apply_rules
from triomq.client.pipeline.tables.table import LakeTable

REASONS_MAX = 20
"""reasons of a batch that are counted one by one, the most frequent ones"""
OTHER_REASONS = "other reasons"


@attrs.frozen(kw_only=True)
class BatchCounts:
    """What became of the rows of a batch; rows that ``keep`` has dropped are in neither."""

    good: int
    bad: Mapping[str, int]
    """reason → rows"""


@attrs.frozen(kw_only=True)
class BatchWork:
    """Decode, judge, split and keep the rows of a batch."""

    spec: Spec
    sink: LakeTable
    dead_letters: DeadLetters | None

    def take(self, frame: DataFrame, batch: int) -> BatchCounts:
        """Bring a batch into its tables; they may take it again.

        The sink comes first: a topic may refuse rows, which are dead letters then.

        The source is read once: the decoded rows stay in Spark's cache until both tables have them.
        """
        rows = decoded(frame, self.spec).persist()
        refused: DataFrame | None = None
        try:
            counts = count_rows(rows)
            if self.dead_letters is None and counts.bad:
                raise no_place(counts.bad)
            good = apply_joins(good_rows(rows), self.spec.joins)
            if self.spec.sink.mode == "changes":
                self.sink.upsert(good, self.spec.sink.key)
            else:
                refused = self.sink.append(good, batch)
            bad = rows.where(sf.col(REASON).isNotNull())
            if refused is not None and not refused.isEmpty():
                once = refused.dropDuplicates(list(PLACE))  # a join may double rows
                more = rows.drop(REASON).join(once, list(PLACE)).select(*rows.columns)
                counts = with_refused(counts, count_rows(more))
                bad = bad.unionByName(more)
            if self.dead_letters is not None:
                self.dead_letters.write(bad, batch, sum(counts.bad.values()))
            elif counts.bad:
                raise no_place(counts.bad)
        finally:
            if refused is not None:
                refused.unpersist()
            rows.unpersist()
        return counts


def no_place(bad: Mapping[str, int]) -> PipelineError:
    """Return the error of a batch with bad rows and no dead letters."""
    return PipelineError(
        f"{sum(bad.values())} rows are bad ({next(iter(bad))}), and the pipeline has no place for"
        " them; add [dead_letters] with a path or a topic"
    )


def with_refused(counts: BatchCounts, refused: BatchCounts) -> BatchCounts:
    """Return the counts with good rows that the sink's topic has refused."""
    number = sum(refused.bad.values())
    bad = {reason: counts.bad.get(reason, 0) for reason in {**counts.bad, **refused.bad}}
    for reason, more in refused.bad.items():
        bad[reason] += more
    return BatchCounts(good=counts.good - number, bad=bad)


def decoded(frame: DataFrame, spec: Spec) -> DataFrame:
    """Return the rows with their columns and ``mq_reason``."""
    return apply_rules(decode(frame, spec.decode), spec.rules)


def good_rows(rows: DataFrame) -> DataFrame:
    """Return the good rows, without the columns that only dead letters have."""
    return rows.where(sf.col(REASON).isNull()).drop(REASON, VALUE)


def count_rows(rows: DataFrame) -> BatchCounts:
    """Count good rows, and bad rows by reason."""
    good, bad = sf.count_if(sf.col(REASON).isNull()), sf.count(REASON)
    (found,) = rows.agg(good.alias("good"), bad.alias("bad")).collect()
    reasons: dict[str, int] = {}
    if found.bad:
        by_reason = rows.where(sf.col(REASON).isNotNull()).groupBy(REASON).count()
        first = by_reason.orderBy(sf.desc("count"), REASON).limit(REASONS_MAX).collect()
        reasons = {row[REASON]: row["count"] for row in first}
        if others := found.bad - sum(reasons.values()):
            reasons[OTHER_REASONS] = others
    return BatchCounts(good=found.good, bad=reasons)
