"""What do rules do to a frame? A condition that is false or null is not true."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from triomq.client.pipeline.core.origin import REASON
from triomq.client.pipeline.core.spec import Rule


def apply_rules(frame: DataFrame, rules: Iterable[Rule]) -> DataFrame:
    """Apply rules in order to rows with ``mq_reason``; rows with a reason are not touched again.

    A column that a rule sets is null in rows that were bad before.
    """
    for rule in rules:
        frame = apply_rule(frame, rule)
    return frame


def apply_rule(frame: DataFrame, rule: Rule) -> DataFrame:
    """Apply one rule."""
    good = sf.col(REASON).isNull()
    if rule.check is not None:
        failed = good & ~is_true(rule.check)
        return frame.withColumn(
            REASON, sf.when(failed, sf.lit(rule.reason)).otherwise(sf.col(REASON))
        )
    if rule.keep is not None:
        return frame.where(~good | is_true(rule.keep))
    return frame.withColumns(
        {name: sf.when(good, sf.expr(text)) for name, text in (rule.set or {}).items()}
    )


def is_true(condition: str) -> Column:
    """Return whether a condition is true, and not null."""
    return sf.coalesce(sf.expr(condition), sf.lit(False))
