"""Which table does a spec mean?"""

from __future__ import annotations

from pyspark.sql import SparkSession

from triomq.client.pipeline.spec import TableSpec
from triomq.client.pipeline.tables.delta import DeltaTable
from triomq.client.pipeline.tables.hadoop_files import HadoopFiles
from triomq.client.pipeline.tables.iceberg import IcebergTable
from triomq.client.pipeline.tables.parquet import ParquetTable
from triomq.client.pipeline.tables.table import LakeTable
from triomq.client.pipeline.tables.topic import TopicSink


def open_table(session: SparkSession, spec: TableSpec, checkpoint: str) -> LakeTable:
    """Open a table; finish what a crash of its last writer has interrupted.

    ``checkpoint``: the folder of the query that writes to the table.

    Raises: SessionError, PipelineError.
    """
    if spec.topic is not None:
        return TopicSink(session, spec)
    files = HadoopFiles(session)
    if spec.kind == "delta":
        return DeltaTable(session, spec, checkpoint, files)
    if spec.kind == "iceberg":
        return IcebergTable(session, spec, checkpoint, files)
    return ParquetTable(session, spec, checkpoint, files)
