"""Which table does a spec mean?"""

from __future__ import annotations

from pyspark.sql import SparkSession

from triomq.client.pipeline.core.spec import TableSpec
from triomq.client.pipeline.tables.delta import DeltaTable
from triomq.client.pipeline.tables.hadoop_files import HadoopFiles
from triomq.client.pipeline.tables.iceberg import IcebergTable
from triomq.client.pipeline.tables.locks import WriteLock
from triomq.client.pipeline.tables.parquet import ParquetTable
from triomq.client.pipeline.tables.table import LakeTable
from triomq.client.pipeline.tables.topic import TopicSink


def open_table(
    session: SparkSession, spec: TableSpec, checkpoint: str, lock: WriteLock | None = None
) -> LakeTable:
    """Open a table; nothing is written before its first method.

    ``checkpoint``: the folder of the query that writes to the table. ``lock``: the right to write
    to it; without one, the caller sees to it that no other process does.

    Raises: SessionError, PipelineError.
    """
    if spec.topic is not None:
        return TopicSink(session, spec)
    files = HadoopFiles(session)
    lock = lock or WriteLock()
    if spec.kind == "delta":
        return DeltaTable(session, spec, checkpoint, files, lock)
    if spec.kind == "iceberg":
        return IcebergTable(session, spec, checkpoint, files, lock)
    return ParquetTable(session, spec, checkpoint, files, lock)
