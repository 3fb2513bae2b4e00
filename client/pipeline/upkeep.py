"""How do the tables of a pipeline stay fast? Small files are merged, old dates deleted."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta

import attrs
from pyspark.sql import SparkSession

from triomq.client.pipeline.checkpoints import UPKEEP, rows_checkpoint, window_checkpoint
from triomq.client.pipeline.core.spec import Spec, TableSpec
from triomq.client.pipeline.tables.hadoop_files import HadoopFiles
from triomq.client.pipeline.tables.locks import LockHeld, locked
from triomq.client.pipeline.tables.opening import open_table
from triomq.client.pipeline.tables.parquet import ParquetTable
from triomq.client.pipeline.windows import totals_table


@attrs.frozen(kw_only=True)
class TableUpkeep:
    """What was done to one table."""

    place: str
    files_merged: int
    dates_deleted: int


def keep_up(session: SparkSession, spec: Spec, *, before: date | None = None) -> list[TableUpkeep]:
    """Merge the small files of dates before ``before``; delete dates that are older than
    ``keep_days``.

    ``before``: today in UTC if it is not given. The pipeline may run meanwhile.

    Raises: PipelineError; LockHeld if another process does the same.
    """
    today = datetime.now(UTC).date()
    done = []
    files = HadoopFiles(session)
    with locked(files, files.absolute(spec.run.checkpoint), UPKEEP) as lock:
        for table, checkpoint in tables_of(spec):
            opened = open_table(session, table, checkpoint, lock)
            expired = 0
            if table.keep_days is not None:
                expired = opened.expire(today - timedelta(days=table.keep_days))
            merged = opened.compact(before or today) if table.mode == "append" else 0
            place = table.path or table.topic or ""
            done.append(TableUpkeep(place=place, files_merged=merged, dates_deleted=expired))
    return done


def finish_merges(session: SparkSession, spec: Spec) -> None:
    """Finish what a ``compact`` that was killed has begun; nothing while one may be running."""
    files = HadoopFiles(session)
    try:
        with locked(files, files.absolute(spec.run.checkpoint), UPKEEP, polls=0) as lock:
            for table, checkpoint in tables_of(spec):
                opened = open_table(session, table, checkpoint, lock)
                if isinstance(opened, ParquetTable):
                    opened.repair()
    except LockHeld:
        return


def tables_of(spec: Spec) -> Iterator[tuple[TableSpec, str]]:
    """Yield each table of a pipeline, with the checkpoint of the query that writes to it."""
    rows = rows_checkpoint(spec.run.checkpoint)
    yield spec.sink, rows
    if spec.dead_letters is not None:
        yield spec.dead_letters, rows
    for window in spec.windows:
        yield totals_table(window), window_checkpoint(spec.run.checkpoint, window.name)
