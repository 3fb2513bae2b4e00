"""How does a folder of Parquet files take a batch once? Spark writes and counts; others commit.

``batch_files.py`` appends and merges; ``version_log.py`` replaces a table of ``mode = "changes"``.
"""

from __future__ import annotations

import re
import uuid
from collections import defaultdict
from collections.abc import Sequence
from datetime import date
from functools import partial
from threading import Thread

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as sf

from triomq.client.pipeline.core.errors import PipelineError
from triomq.client.pipeline.core.origin import DATE
from triomq.client.pipeline.core.spec import TableSpec
from triomq.client.pipeline.tables.batch_files import BatchFiles, FileMerge, staged_files
from triomq.client.pipeline.tables.files import StoredFile, is_hidden
from triomq.client.pipeline.tables.hadoop_files import HadoopFiles
from triomq.client.pipeline.tables.locks import WriteLock
from triomq.client.pipeline.tables.table import last_committed, newest, writer_id
from triomq.client.pipeline.tables.version_log import VersionLog

FILE_BYTES = 128 << 20
"""size of a merged file: a block of HDFS, and about a second of reading"""
SMALL_BYTES = FILE_BYTES // 2
"""smaller files are merged"""
TIMESTAMP_TYPE, MICROSECONDS = "spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS"
"""Spark writes INT96 by default, which other readers take for times without zone."""
OBSERVED_SECONDS = 10.0
"""for Spark to tell how many rows it has written; it does so before the write ends, or never"""
OUR_FILE = re.compile(r"([0-9a-f]{12})-(?:merged-)?([0-9]{12})-.*\.parquet")


class ParquetTable:
    """A folder of Parquet files: a ``LakeTable``."""

    def __init__(
        self,
        session: SparkSession,
        spec: TableSpec,
        checkpoint: str,
        files: HadoopFiles,
        lock: WriteLock,
    ) -> None:
        self._session = session
        self._files = files
        self._path = files.absolute(spec.path or "")
        self._partition_by = spec.partition_by
        self._options = dict(spec.options)
        self._checkpoint = files.absolute(checkpoint)
        self._writer = writer_id(files, checkpoint)
        self._batches = BatchFiles(files, self._path, self._writer, lock)
        self._merge = FileMerge(files, self._path, self._writer, lock)
        self._versions = VersionLog(files, self._path, self._writer, lock)
        if spec.mode == "append" and self._versions.newest() >= 0:
            raise PipelineError(
                f"{self._path} is a table of changes, whose readers would not see what is appended;"
                ' use another path, or mode = "changes"'
            )

    def append(self, frame: DataFrame, batch: int) -> None:
        """Add the rows of a batch. Raises: PipelineError if rows do not arrive; LockLost."""
        self._batches.append(
            batch, len(self._partition_by), partial(self._write, frame, self._partition_by)
        )

    def upsert(self, frame: DataFrame, key: Sequence[str]) -> None:
        """Write the table again with the newest row of each key, as its next version.

        It has no folders: all columns, also those of ``partition_by``, are in the files.

        Raises: PipelineError if rows do not arrive, or another process writes; LockLost.
        """
        last = self._versions.newest()
        if last >= 0 or any(not is_hidden(f.name) for f in self._files.children(self._path)):
            frame = self.read().unionByName(frame, allowMissingColumns=True)
        self._versions.commit(last + 1, partial(self._write, newest(frame, key), ()))

    def read(self) -> DataFrame:
        """Return the rows."""
        return (
            self._session.read.option("mergeSchema", "true")
            .option("basePath", self._path)
            .parquet(self._path)
        )

    def repair(self) -> None:
        """Finish a merge that a crash has interrupted: for the owner of the lock of merges."""
        self._merge.finish()

    def compact(self, before: date) -> int:
        """Merge small files of dates before ``before``, of batches that Spark has committed.

        A reader may find the rows of a folder twice while its files are exchanged. One compaction
        at a time: the caller has the lock of merges.
        """
        self.repair()
        committed = last_committed(self._files, self._checkpoint)
        small: dict[str, list[StoredFile]] = defaultdict(list)
        for day in self._day_folders(before):
            for file in self._files.all_files(day.path):
                name = OUR_FILE.fullmatch(file.name)
                if (
                    name is not None
                    and name[1] == self._writer
                    and int(name[2]) <= committed
                    and file.size_bytes < SMALL_BYTES
                ):
                    small[file.folder].append(file)
        several = {folder: files for folder, files in small.items() if len(files) > 1}
        for folder, files in several.items():
            reader = self._session.read.option("mergeSchema", "true")
            count = max(1, -(-sum(file.size_bytes for file in files) // FILE_BYTES))
            rows = reader.parquet(*(file.path for file in files)).coalesce(count)
            merged = f"{self._writer}-merged-{committed:012}-{uuid.uuid4().hex}"
            self._merge.merge(folder, files, merged, partial(self._write, rows, ()))
        return sum(map(len, several.values()))

    def expire(self, before: date) -> int:
        """Delete the folders of dates before ``before``."""
        folders = self._day_folders(before)
        for folder in folders:
            self._files.delete(folder.path)
        return len({folder.name for folder in folders})

    def _write(self, frame: DataFrame, partition_by: Sequence[str], folder: str) -> None:
        """Write rows to a folder, and compare their number with what is there.

        Raises: PipelineError, as on a path that workers do not share.
        """
        counted = Observation()
        rows = frame.observe(counted, sf.count(sf.lit(1)).alias("rows"))
        settings = frame.sparkSession.conf
        before = settings.get(TIMESTAMP_TYPE)
        settings.set(TIMESTAMP_TYPE, MICROSECONDS)
        try:
            writer = rows.write.mode("overwrite").options(**self._options)
            writer.partitionBy(*partition_by).parquet(folder)
        finally:
            settings.set(TIMESTAMP_TYPE, before or MICROSECONDS)
        wanted = _observed(counted)
        if wanted is None:
            wanted = frame.count()
        found = 0
        if wanted or staged_files(self._files, folder):
            found = self._session.read.schema(frame.schema).parquet(folder).count()
        if wanted != found:
            raise PipelineError(
                f"of {wanted} rows, {found} have arrived in {folder}: workers on other machines"
                " write to their own disks, or another process writes there; use a path that driver"
                " and workers share (hdfs:, s3a:, or a mounted folder)"
            )

    def _day_folders(self, before: date) -> list[StoredFile]:
        """Return the folders of dates before ``before``.

        Raises: PipelineError if folders are not named after dates.
        """
        if DATE not in self._partition_by:
            raise PipelineError(
                f"{self._path} has no folders of dates; add {DATE} to partition_by of the table"
            )
        depth = self._partition_by.index(DATE)
        found = self._files.matching(self._path, f"{'*/' * depth}{DATE}=*")
        return [folder for folder in found if (_day(folder.name) or before) < before]


def _observed(counted: Observation) -> int | None:
    """Return what Spark has counted; None if it does not tell: its own call would wait for ever."""
    found: list[int] = []
    asking = Thread(target=lambda: found.extend(counted.get.values()), daemon=True)
    asking.start()
    asking.join(OBSERVED_SECONDS)
    return found[0] if found else None


def _day(folder: str) -> date | None:
    try:
        return date.fromisoformat(folder.removeprefix(f"{DATE}="))
    except ValueError:
        return None
