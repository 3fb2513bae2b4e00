"""How does a Delta table take a batch once? Its log knows the last batch of each writer.

Delta 4.4 needs Spark 4.2; ``session.py`` has the package of each version.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from pyspark.sql import DataFrame, SparkSession

from triomq.client.pipeline.core.origin import DATE
from triomq.client.pipeline.core.spec import TableSpec
from triomq.client.pipeline.tables.hadoop_files import HadoopFiles
from triomq.client.pipeline.tables.locks import WriteLock
from triomq.client.pipeline.tables.table import delete_dates, merge_newest, writer_id


class DeltaTable:
    """A Delta table in a folder: a ``LakeTable``."""

    def __init__(
        self,
        session: SparkSession,
        spec: TableSpec,
        checkpoint: str,
        files: HadoopFiles,
        lock: WriteLock,
    ) -> None:
        self._session = session
        self._lock = lock
        self._files = files
        self._path = files.absolute(spec.path or "")
        self._partition_by = spec.partition_by
        self._options = dict(spec.options)
        self._writer = writer_id(files, checkpoint)

    @property
    def _name(self) -> str:
        """The table's name in SQL."""
        return f"delta.`{self._path.replace('`', '``')}`"

    def append(self, frame: DataFrame, batch: int) -> None:
        """Add the rows of a batch, unless the log has this batch of this writer."""
        self._lock.check()
        self._write(frame, txnAppId=self._writer, txnVersion=str(batch))

    def upsert(self, frame: DataFrame, key: Sequence[str]) -> None:
        """Keep the row with the newest position of each key."""
        if not self._files.exists(f"{self._path}/_delta_log"):
            self._write(frame.limit(0))  # the table and its columns
        self._lock.check()
        merge_newest(frame, self._name, key)

    def read(self) -> DataFrame:
        """Return the rows."""
        return self._session.read.format("delta").load(self._path)

    def compact(self, before: date) -> int:
        """Merge small files of dates before ``before``; forget files that no version needs."""
        where = f" WHERE {DATE} < DATE'{before}'" if DATE in self._partition_by else ""
        row = self._session.sql(f"OPTIMIZE {self._name}{where}").collect()[0]
        self._session.sql(f"VACUUM {self._name}")
        return int(row.metrics.numFilesRemoved)

    def expire(self, before: date) -> int:
        """Delete the rows of dates before ``before``; old versions keep them for Delta's 7 days."""
        return delete_dates(self.read(), self._name, before)

    def _write(self, frame: DataFrame, **options: str) -> None:
        (
            frame.write.format("delta")
            .mode("append")
            .partitionBy(*self._partition_by)
            .options(mergeSchema="true", **{**self._options, **options})
            .save(self._path)
        )
