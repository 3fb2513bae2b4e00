"""What the driver of the chaos runs does with pipelines: it runs them, and their commands, each in
a thread, and holds them at gates.

``at`` of a job says where a batch, a merge or a step is held: ``moved``: its files are written and
not yet where readers see them (Delta, Iceberg: before it is written); ``merged``: the new files are
there and the old ones too; ``written``: the table has the batch, and nothing else knows it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import attrs
import pyspark
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as sf

from tests.spark_chaos.broken_pipelines import BREAK_RULE
from tests.spark_chaos.gates import wait_at_gate
from tests.spark_chaos.plan import MERGE_GATE
from triomq.client.pipeline.backfill import run_backfill
from triomq.client.pipeline.checkpoints import rows_checkpoint
from triomq.client.pipeline.core import origin
from triomq.client.pipeline.core.errors import PipelineError
from triomq.client.pipeline.run import PipelineRun
from triomq.client.pipeline.session import PACKAGES, coordinates_of
from triomq.client.pipeline.spec_file import read_spec
from triomq.client.pipeline.tables.batch_files import BatchFiles
from triomq.client.pipeline.tables.delta import DeltaTable
from triomq.client.pipeline.tables.hadoop_files import HadoopFiles
from triomq.client.pipeline.tables.iceberg import IcebergTable
from triomq.client.pipeline.tables.opening import open_table
from triomq.client.pipeline.tables.parquet import MICROSECONDS, TIMESTAMP_TYPE, ParquetTable
from triomq.client.pipeline.upkeep import keep_up

AGAIN_SECONDS = 0.5
"""between two runs of ``compact``: the pipeline must go on, too"""
OLD_DATE = "2020-01-01"
CONFLICTS = (Py4JJavaError, PySparkException)
"""what Delta and Iceberg raise for a commit that meets another one"""
COLUMNS = ("mq_broker", "mq_queue", "mq_offset", "value")


def settings_of(lake: str) -> dict[str, str]:
    """Return what a session needs for a kind of tables."""
    if lake not in PACKAGES:
        return {}
    return {
        **PACKAGES[lake].settings,
        "spark.jars.packages": coordinates_of(lake, pyspark.__version__),
        "spark.databricks.delta.snapshotPartitions": "2",
    }


@attrs.define(eq=False)
class PipelineJob:
    """A thread with a pipeline or a command; ``state`` has the form of a query's."""

    result: Future[dict[str, Any]]
    ask_to_stop: Callable[[], None] = lambda: None

    @property
    def state(self) -> dict[str, Any]:
        error = self.result.exception() if self.result.done() else None
        return {
            "active": not self.result.done(),
            "message": "",
            "error": None if error is None else f"{type(error).__name__}: {error}",
            "result": self.result.result() if self.result.done() and error is None else {},
        }

    def stop(self) -> None:
        """Let it end, and wait for it."""
        self.ask_to_stop()
        self.result.exception()


@attrs.frozen
class Hold:
    """One gate. ``path``: part of the addresses of what is held."""

    path: str
    folder: str
    at: str
    batch: int


@attrs.define(eq=False)
class PipelineJobs:
    """Starts jobs; made once in a driver, since it changes methods of the product."""

    session: SparkSession
    holds: list[Hold] = attrs.field(factory=list)
    threads: ThreadPoolExecutor = attrs.field(factory=lambda: ThreadPoolExecutor(8))

    def __attrs_post_init__(self) -> None:
        self.session.conf.set(TIMESTAMP_TYPE, MICROSECONDS)
        move, rename, sql = BatchFiles._move, HadoopFiles.rename, SparkSession.sql

        def sql_and_hold(session: SparkSession, text: str) -> Any:
            if text.startswith("VACUUM") or "expire_snapshots" in text:
                self.hold("merged", text, MERGE_GATE)
            return sql(session, text)

        def hold_and_move(files: BatchFiles, old: str, new: str) -> None:
            self.hold("moved", new, int(new.rpartition("/")[2].split("-")[1]))
            move(files, old, new)

        def rename_and_hold(files: HadoopFiles, old: str, new: str) -> None:
            rename(files, old, new)
            if "-merged-" in new:
                self.hold("merged", new, MERGE_GATE)

        # Method by method, as tests/support/pipeline_job.py does it.
        for table in (ParquetTable, DeltaTable, IcebergTable):
            self.hold_appends(table)
        SparkSession.sql = sql_and_hold  # type: ignore[method-assign, assignment]
        BatchFiles._move = hold_and_move  # type: ignore[method-assign]
        HadoopFiles.rename = rename_and_hold  # type: ignore[method-assign]

    def hold_appends(self, kind: Any) -> None:
        init, append = kind.__init__, kind.append

        def opened(table: Any, session: Any, spec: Any, checkpoint: str, *more: Any) -> None:
            init(table, session, spec, checkpoint, *more)
            table.places = checkpoint, spec.path

        def append_and_hold(table: Any, frame: Any, batch: int) -> None:
            checkpoint, path = table.places
            if kind is not ParquetTable:
                self.hold("moved", path, batch)
            append(table, frame, batch)
            self.hold("written", checkpoint, batch)

        kind.__init__, kind.append = opened, append_and_hold

    def hold(self, at: str, path: str, batch: int) -> None:
        for hold in self.holds:
            if (hold.at, hold.batch) == (at, batch) and hold.path in path:
                wait_at_gate(hold.folder, batch, at, [])

    def start(self, job: dict[str, Any]) -> PipelineJob:
        """Start what ``job["do"]`` names, and return it when it runs, or cannot."""
        self.holds += [Hold(path, job["folder"], at, batch) for path, at, batch in job["holds"]]
        origin.utc_date = half_old if job.get("old dates") else UTC_DATE
        if job["broken"]:
            BREAK_RULE[job["broken"]]()
        start = {
            "run": self._run,
            "keep up": self._keep_up,
            "backfill": self._backfill,
            "read": self._read,
        }
        return start[job["do"]](job)

    def _run(self, job: dict[str, Any]) -> PipelineJob:
        pipeline = PipelineRun(self.session, read_spec(Path(job["file"])))
        pipeline.start()

        def wait() -> dict[str, Any]:
            status = pipeline.wait()
            if status.state == "failed":
                raise PipelineError(status.cause)
            return {}

        return PipelineJob(self.threads.submit(wait), pipeline.stop)

    def _keep_up(self, job: dict[str, Any]) -> PipelineJob:
        """``compact`` once, or again and again until it is stopped; days that go on count too."""
        over = threading.Event()
        spec, session = read_spec(Path(job["file"])), self.session.newSession()
        session.conf.set(TIMESTAMP_TYPE, MICROSECONDS)

        def work() -> dict[str, Any]:
            merged = deleted = 0
            while True:
                before = datetime.now(UTC).date() + timedelta(days=2)
                try:
                    for done in keep_up(session, spec, before=before):
                        merged += done.files_merged
                        deleted += done.dates_deleted
                except CONFLICTS:  # two commits of Delta or Iceberg have met
                    if not job["again"] or spec.sink.kind == "parquet":
                        raise
                if not job["again"] or over.wait(AGAIN_SECONDS):
                    return {"merged": merged, "deleted": deleted}

        return PipelineJob(self.threads.submit(work), over.set)

    def _backfill(self, job: dict[str, Any]) -> PipelineJob:
        spec, session = read_spec(Path(job["file"])), self.session.newSession()
        session.conf.set(TIMESTAMP_TYPE, MICROSECONDS)

        def work() -> dict[str, Any]:
            done = run_backfill(session, spec, job["stores"], step_bytes=job["step bytes"])
            return {"steps": len(done.steps), "rows": done.good}

        return PipelineJob(self.threads.submit(work))

    def _read(self, job: dict[str, Any]) -> PipelineJob:
        """Write the rows of the table as Parquet."""
        spec, session = read_spec(Path(job["file"])), self.session.newSession()

        def work() -> dict[str, Any]:
            table = open_table(session, spec.sink, rows_checkpoint(spec.run.checkpoint))
            table.read().select(*COLUMNS).write.parquet(job["to"])
            return {}

        return PipelineJob(self.threads.submit(work))


UTC_DATE = origin.utc_date


def half_old(time: str) -> Column:
    """Return dates as if the messages at even offsets had been stored long ago."""
    old = sf.lit(OLD_DATE).cast("date")
    return sf.when(sf.col("offset") % 2 == 0, old).otherwise(UTC_DATE(time))
