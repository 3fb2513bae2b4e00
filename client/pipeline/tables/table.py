"""What is a table of a pipeline? ``LakeTable``, what its kinds share, and how one is opened."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import date
from typing import Protocol

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from triomq.client.pipeline.core.origin import DATE, POSITION
from triomq.client.pipeline.tables.files import Files
from triomq.client.pipeline.tables.hadoop_files import HadoopFiles

WRITER_FILE = "triomq-writer"


class LakeTable(Protocol):
    """A table that takes a batch once, however often it is run."""

    def append(self, frame: DataFrame, batch: int) -> DataFrame | None:
        """Add the rows of a batch; rows of an earlier run of this batch are replaced.

        Returns: the rows that a topic refuses, with ``mq_reason``; None from other tables.
        """

    def upsert(self, frame: DataFrame, key: Sequence[str]) -> None:
        """Keep the row with the newest position of each key."""

    def read(self) -> DataFrame:
        """Return the rows."""

    def compact(self, before: date) -> int:
        """Merge small files of dates before ``before``. Returns: the number of files merged."""

    def expire(self, before: date) -> int:
        """Delete the rows of dates before ``before``. Returns: the number of dates deleted."""


def newest(frame: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return one row for each key: the one with the newest position. Null is a key too."""
    position = sf.struct(*POSITION)
    chosen = frame.groupBy(*key).agg(sf.max_by(sf.struct(*frame.columns), position).alias("row"))
    return chosen.select("row.*")


def writer_id(files: HadoopFiles, checkpoint: str) -> str:
    """Return the id under which a checkpoint's batches are numbered; make it with the checkpoint.

    It is kept in the checkpoint's folder: a query with a new checkpoint counts its batches from 0
    again, and must not replace the batches of the old one.
    """
    path = f"{files.absolute(checkpoint)}/{WRITER_FILE}"
    known = files.read_text(path)
    if known is None:
        files.create_text(path, secrets.token_hex(6))
        known = files.read_text(path)
    return known or ""


def last_committed(files: Files, checkpoint: str) -> int:
    """Return the number of the last batch that Spark has committed; -1 before the first one."""
    names = [file.name for file in files.children(f"{checkpoint}/commits")]
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def delete_dates(rows: DataFrame, table: str, before: date) -> int:
    """Delete the rows of dates before ``before`` by SQL. Returns: the number of dates deleted.

    ``rows``: those of the table. ``table``: its name in SQL.
    """
    old = f"{DATE} < DATE'{before}'"
    days = rows.where(old).select(DATE).distinct().count()
    if days:
        rows.sparkSession.sql(f"DELETE FROM {table} WHERE {old}")
    return days


def merge_newest(frame: DataFrame, table: str, key: Sequence[str]) -> None:
    """Bring the newest row of each key into a table by SQL. Null is a key too."""
    same = " AND ".join(f"old.`{name}` <=> new.`{name}`" for name in key)
    old, new = (
        f"struct({', '.join(f'{side}.{name}' for name in POSITION)})" for side in ("old", "new")
    )
    newest(frame, key).createOrReplaceTempView("triomq_changes")
    frame.sparkSession.sql(
        f"MERGE INTO {table} AS old USING triomq_changes AS new ON {same}"
        f" WHEN MATCHED AND {new} > {old} THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
