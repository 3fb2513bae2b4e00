"""Pipelines with one rule broken, which the runs of each kind must find out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

from tests.spark_chaos.plan import MERGE_GATE
from triomq.client.pipeline.backfill import Backfill
from triomq.client.pipeline.tables import delta, iceberg, parquet
from triomq.client.spark.offset_options import ANY


def merge_every_batch() -> None:
    """``compact`` takes files of batches that Spark has not committed. Delta and Iceberg do not
    know the last batch of a driver that was killed: its writer has another name.
    """

    def writer(files: Any, checkpoint: str) -> str:
        return f"{checkpoint}/{os.getpid()}"

    vars(parquet)["last_committed"] = lambda files, checkpoint: MERGE_GATE
    for module in (delta, iceberg):
        vars(module)["writer_id"] = writer


def delete_every_date() -> None:
    """``compact`` deletes dates that are to stay."""
    for kind in (parquet.ParquetTable, delta.DeltaTable, iceberg.IcebergTable):
        kind.expire = expired_too_much(kind.expire)  # type: ignore[method-assign]


def expired_too_much(expire: Any) -> Any:
    def all_dates(table: Any, before: date) -> int:
        return int(expire(table, datetime.now(UTC).date() + timedelta(days=2)))

    return all_dates


def begin_late() -> None:
    """The live query begins one message behind the end of a backfill."""
    start = Backfill.start
    Backfill.start = lambda known: later(start(known))  # type: ignore[method-assign]


def later(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return starting offsets with one more for each queue that is named."""
    return {
        name: later(each) if isinstance(each, dict) else each if name == ANY else each + 1
        for name, each in tree.items()
    }


BREAK_RULE = {
    "compaction beside a pipeline": merge_every_batch,
    "retention beside a pipeline": delete_every_date,
    "backfill beside a pipeline": begin_late,
}
"""kind -> breaks a rule"""
