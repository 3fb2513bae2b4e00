"""What is a table of a pipeline? ``LakeTable``, what its kinds share, and how one is opened."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import date
from typing import Protocol

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from triomq.client.pipeline.core.origin import POSITION
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


def dates_of(frame: DataFrame, before: date) -> list[date]:
    """Return the dates before ``before`` that a frame has rows of."""
    rows = frame.where(sf.col("mq_date") < sf.lit(before)).select("mq_date").distinct().collect()
    return [row.mq_date for row in rows]


def merge_statement(table: str, changes: str, key: Sequence[str]) -> str:
    """Return the SQL that brings the newest row of each key into a table. Null is a key too."""
    same = " AND ".join(f"old.`{name}` <=> new.`{name}`" for name in key)
    old, new = (
        f"struct({', '.join(f'{side}.{name}' for name in POSITION)})" for side in ("old", "new")
    )
    return (
        f"MERGE INTO {table} AS old USING {changes} AS new ON {same}"
        f" WHEN MATCHED AND {new} > {old} THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
