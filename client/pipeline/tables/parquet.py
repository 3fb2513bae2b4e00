"""How does a folder of Parquet files take a batch once? The files carry the batch's number.

A batch is written to a hidden folder, and its files are then moved to their places, one by one: a
reader may see a part of a batch for a moment, and never a part of a file. The names of the files
begin with the writer's id and the number of the batch, so that a batch that is run again first
deletes what its earlier run has left.
"""

from __future__ import annotations

import json
import re
import uuid
from collections import defaultdict
from collections.abc import Sequence
from datetime import date

from pyspark.sql import DataFrame, SparkSession

from triomq.client.pipeline.errors import PipelineError
from triomq.client.pipeline.origin import DATE
from triomq.client.pipeline.spec import TableSpec
from triomq.client.pipeline.tables.hadoop_files import HadoopFiles, StoredFile
from triomq.client.pipeline.tables.table import last_committed, newest, writer_id

STAGING = "_staging"
"""Spark, Arrow and Hive skip names that begin with an underscore."""
FILE_BYTES = 128 << 20
"""size of a merged file: a block of HDFS, and about a second of reading"""
SMALL_BYTES = FILE_BYTES // 2
"""smaller files are merged"""
OUR_FILE = re.compile(r"([0-9a-f]{12})-(?:merged-)?([0-9]{12})-.*\.parquet")


class ParquetTable:
    """A folder of Parquet files: a ``LakeTable``."""

    def __init__(
        self, session: SparkSession, spec: TableSpec, checkpoint: str, files: HadoopFiles
    ) -> None:
        self._session = session
        self._files = files
        self._path = files.absolute(spec.path or "")
        self._partition_by = spec.partition_by
        self._options = dict(spec.options)
        self._checkpoint = checkpoint
        self._writer = writer_id(files, checkpoint)
        self._staging = f"{self._path}/{STAGING}/{self._writer}"
        self._previous = _beside(self._path, "previous")
        self._appended: int | None = None
        """the last batch that this object has appended: the next one cannot have been run before"""
        self._repair()

    def append(self, frame: DataFrame, batch: int) -> None:
        """Add the rows of a batch.

        Raises: PipelineError if files do not arrive, as on a path that workers do not share.
        """
        self._write(frame, self._staging, self._partition_by)
        if self._appended is None or batch != self._appended + 1:
            for left in self._files_of(batch):
                self._files.delete(left.path)
        self._appended = None
        known: set[str] = set()
        for file in self._staged(self._staging):
            folder = f"{self._path}{file.folder.removeprefix(self._staging)}"
            if folder not in known:
                self._files.make_folder(folder)
                known.add(folder)
            self._files.rename(file.path, f"{folder}/{self._writer}-{batch:012}-{file.name}")
        self._files.delete(self._staging)
        self._appended = batch

    def upsert(self, frame: DataFrame, key: Sequence[str]) -> None:
        """Write the table again with the newest row of each key; then take the old one's place.

        The folders are named after those columns of ``partition_by`` that belong to the key: the
        others may change from row to row.
        """
        if any(not _is_hidden(file.name) for file in self._files.children(self._path)):
            frame = self.read().unionByName(frame, allowMissingColumns=True)
        new = _beside(self._path, "next")
        folders = tuple(name for name in self._partition_by if name in key)
        self._write(newest(frame, key), new, folders)
        self._files.delete(self._previous)
        if self._files.exists(self._path):
            self._files.rename(self._path, self._previous)
        self._files.rename(new, self._path)
        self._files.delete(self._previous)

    def read(self) -> DataFrame:
        """Return the rows."""
        return (
            self._session.read.option("mergeSchema", "true")
            .option("basePath", self._path)
            .parquet(self._path)
        )

    def compact(self, before: date) -> int:
        """Merge small files of dates before ``before``, of batches that Spark has committed.

        A reader may find the rows of a folder twice while its files are exchanged. One compaction
        at a time.
        """
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
            self._merge(folder, files, committed)
        return sum(map(len, several.values()))

    def expire(self, before: date) -> int:
        """Delete the folders of dates before ``before``."""
        folders = self._day_folders(before)
        for folder in folders:
            self._files.delete(folder.path)
        return len({folder.name for folder in folders})

    def _write(self, frame: DataFrame, folder: str, partition_by: Sequence[str]) -> None:
        writer = frame.write.mode("overwrite").options(**self._options)
        writer.partitionBy(*partition_by).parquet(folder)
        self._check_shared(frame, folder)

    def _check_shared(self, frame: DataFrame, folder: str) -> None:
        """Count what has arrived where driver and workers may see different disks."""
        master = self._session.sparkContext.master
        if not folder.startswith("file:") or re.fullmatch(r"local(\[[^]]*\])?", master or ""):
            return
        wanted = frame.count()
        found = self._session.read.schema(frame.schema).parquet(folder).count()
        if wanted != found:
            raise PipelineError(
                f"of {wanted} rows, {found} have arrived in {folder}: workers on other machines"
                " write to their own disks; use a path that driver and workers share (hdfs:, s3a:,"
                " or a mounted folder)"
            )

    def _staged(self, folder: str) -> list[StoredFile]:
        return [file for file in self._files.all_files(folder) if not _is_hidden(file.name)]

    def _files_of(self, batch: int) -> list[StoredFile]:
        depth = len(self._partition_by)
        return self._files.matching(self._path, f"{'*/' * depth}{self._writer}-{batch:012}-*")

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

    def _merge(self, folder: str, old: Sequence[StoredFile], committed: int) -> None:
        """Exchange files for fewer ones. The plan is written before the first one is moved."""
        staging = f"{self._path}/{STAGING}/{self._writer}-merged"
        reader = self._session.read.option("mergeSchema", "true")
        count = max(1, -(-sum(file.size_bytes for file in old) // FILE_BYTES))
        rows = reader.parquet(*(file.path for file in old)).coalesce(count)
        self._write(rows, staging, ())
        name = f"{self._writer}-merged-{committed:012}-{uuid.uuid4().hex}"
        moves = {
            file.path: f"{folder}/{name}-{number}.parquet"
            for number, file in enumerate(self._staged(staging))
        }
        plan = {"moves": moves, "deletes": [file.path for file in old]}
        self._files.write_text(self._plan, json.dumps(plan))
        self._finish_merge()

    @property
    def _plan(self) -> str:
        return f"{self._path}/{STAGING}/{self._writer}-plan.json"

    def _finish_merge(self) -> None:
        """Carry out the plan. Each step may have been done before a crash."""
        plan = json.loads(self._files.read_text(self._plan))
        for staged, place in plan["moves"].items():
            if not self._files.exists(place):
                self._files.rename(staged, place)
        for path in plan["deletes"]:
            self._files.delete(path)
        self._files.delete(self._plan)

    def _repair(self) -> None:
        """Finish what a crash has interrupted: a merge, or an upsert between its two renames."""
        if self._files.exists(self._plan):
            self._finish_merge()
        if self._files.exists(self._previous):
            if self._files.exists(self._path):
                self._files.delete(self._previous)
            else:
                self._files.rename(self._previous, self._path)


def _beside(path: str, what: str) -> str:
    """Return a hidden folder beside a table's."""
    parent, _, name = path.rpartition("/")
    return f"{parent}/_{name}.{what}"


def _is_hidden(name: str) -> bool:
    return name.startswith(("_", "."))


def _day(folder: str) -> date | None:
    try:
        return date.fromisoformat(folder.removeprefix(f"{DATE}="))
    except ValueError:
        return None
