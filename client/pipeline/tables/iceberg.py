"""How does an Iceberg table take a batch once? Its snapshots name the batch that they added.

Iceberg 1.12 needs Spark 4.1, which cannot read topics as a stream: only tests write such tables so
far. ``session.py`` has the package of each version. A table is a folder: its catalog is the folder
above.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf

from triomq.client.pipeline.core.origin import DATE
from triomq.client.pipeline.core.spec import TableSpec
from triomq.client.pipeline.tables.hadoop_files import HadoopFiles
from triomq.client.pipeline.tables.locks import WriteLock
from triomq.client.pipeline.tables.table import delete_dates, merge_newest, writer_id

WRITER = "triomq.writer"
BATCH = "triomq.batch"
KEPT_DAYS = 7
"""snapshots of so many days stay, as Delta's"""


class IcebergTable:
    """An Iceberg table in a folder: a ``LakeTable``."""

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
        self._partition_by = spec.partition_by
        self._options = dict(spec.options)
        self._mode = spec.mode
        self._writer = writer_id(files, checkpoint)
        folder, _, self._table = files.absolute(spec.path or "").rpartition("/")
        self._catalog = f"triomq_{hashlib.sha256(folder.encode()).hexdigest()[:12]}"
        place = f"spark.sql.catalog.{self._catalog}"
        session.conf.set(place, "org.apache.iceberg.spark.SparkCatalog")
        session.conf.set(f"{place}.type", "hadoop")
        session.conf.set(f"{place}.warehouse", folder)

    @property
    def _name(self) -> str:
        """The table's name in SQL."""
        return f"{self._catalog}.`{self._table.replace('`', '``')}`"

    def append(self, frame: DataFrame, batch: int) -> None:
        """Add the rows of a batch, unless a snapshot names this batch of this writer."""
        self._create(frame)
        self._lock.check()
        if batch <= self._last_batch():
            return
        writer = frame.writeTo(self._name).option("mergeSchema", "true").options(**self._options)
        writer = writer.option(f"snapshot-property.{WRITER}", self._writer)
        writer.option(f"snapshot-property.{BATCH}", str(batch)).append()

    def upsert(self, frame: DataFrame, key: Sequence[str]) -> None:
        """Keep the row with the newest position of each key."""
        self._create(frame)
        self._lock.check()
        merge_newest(frame, self._name, key)

    def read(self) -> DataFrame:
        """Return the rows."""
        return self._session.table(self._name)

    def compact(self, before: date) -> int:
        """Merge small files of dates before ``before``; forget old snapshots.

        The snapshot of the writer's last batch stays: the batch may be run again.
        """
        where = f", where => '{DATE} < \"{before}\"'" if DATE in self._partition_by else ""
        options = "options => map('min-input-files', '2')"
        done = self._call(f"rewrite_data_files(table => '{self._table}', {options}{where})")
        times = [row.committed_at for row in self._batches().select("committed_at").collect()]
        oldest = datetime.now(UTC) - timedelta(days=KEPT_DAYS)
        if times:
            oldest = min(oldest, max(times).astimezone(UTC))
        self._call(
            f"expire_snapshots(table => '{self._table}', retain_last => 1,"
            f" older_than => TIMESTAMP '{oldest:%Y-%m-%d %H:%M:%S} UTC')"
        )
        return int(done.rewritten_data_files_count)

    def expire(self, before: date) -> int:
        """Delete the rows of dates before ``before``; old snapshots keep them for 7 days."""
        return delete_dates(self.read(), self._name, before)

    def _create(self, frame: DataFrame) -> None:
        if not self._session.catalog.tableExists(self._name):
            writer = frame.limit(0).writeTo(self._name)
            if self._mode == "append":  # Spark's MERGE resolves no column of such a table
                writer = writer.tableProperty("write.spark.accept-any-schema", "true")
            if self._partition_by:
                first, *others = (sf.col(name) for name in self._partition_by)
                writer = writer.partitionedBy(first, *others)
            writer.create()

    def _batches(self) -> DataFrame:
        """Return the snapshots that name a batch of this writer."""
        return self._session.table(f"{self._name}.snapshots").where(
            sf.col("summary")[WRITER] == self._writer
        )

    def _last_batch(self) -> int:
        number = sf.col("summary")[BATCH].cast("bigint")
        (row,) = self._batches().agg(sf.max(number).alias("last")).collect()
        return -1 if row.last is None else int(row.last)

    def _call(self, procedure: str) -> Row:
        return self._session.sql(f"CALL {self._catalog}.system.{procedure}").collect()[0]
