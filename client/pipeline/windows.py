"""What are totals by window of time? One row for each window that no row can change any more."""

from __future__ import annotations

import attrs
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from triomq.client.pipeline.core.origin import DATE, utc_date
from triomq.client.pipeline.core.spec import TableSpec, WindowSpec

START, END = "window_start", "window_end"
TIMES = {"store": "mq_time", "born": "mq_born"}


def totals_of(rows: DataFrame, window: WindowSpec) -> DataFrame:
    """Return the totals of good rows, for the output mode ``append``.

    A window appears once, when the watermark has passed its end. A row that comes later is not in
    the totals; the table of rows has it.
    """
    time = TIMES[window.time]
    span = sf.window(time, window.length, window.slide).alias("window")
    totals = [sf.expr(text).alias(name) for name, text in window.totals.items()]
    return (
        rows.withWatermark(time, window.watermark)
        .groupBy(span, *window.group_by)
        .agg(*totals)
        .select(
            sf.col("window.start").alias(START),
            sf.col("window.end").alias(END),
            *window.group_by,
            *window.totals,
        )
        .withColumn(DATE, utc_date(START))
    )


def totals_table(window: WindowSpec) -> TableSpec:
    """Return the table of totals; its folders are named after dates if the file names no column.

    The date is that of a window's begin.
    """
    named = tuple(n for n in window.table.partition_by if n in (DATE, *window.group_by))
    return attrs.evolve(window.table, partition_by=named or (DATE,))
