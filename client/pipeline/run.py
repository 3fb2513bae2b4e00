"""Which queries run, when do they stop, and what does the status say?

One query keeps the rows; each window has a query of its own, from the same topics. The main thread
waits for them and writes ``status.json`` after each batch.
"""

from __future__ import annotations

import logging
import re
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

import attrs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from triomq.client.pipeline.backfill import after_backfill
from triomq.client.pipeline.batch import BatchCounts, BatchWork, decoded, good_rows
from triomq.client.pipeline.checkpoints import RUN, rows_checkpoint, window_checkpoint
from triomq.client.pipeline.core.origin import live_rows
from triomq.client.pipeline.core.spec import SourceSpec, Spec
from triomq.client.pipeline.dead_letters import open_dead_letters
from triomq.client.pipeline.joins import apply_joins
from triomq.client.pipeline.spec_check import loops
from triomq.client.pipeline.status import (
    STATUS_FILE,
    PipelineStatus,
    QueryStatus,
    State,
    local_path,
    write_status,
)
from triomq.client.pipeline.tables.hadoop_files import HadoopFiles
from triomq.client.pipeline.tables.locks import WriteLock, locked
from triomq.client.pipeline.tables.opening import open_table
from triomq.client.pipeline.upkeep import finish_merges
from triomq.client.pipeline.windows import totals_of, totals_table
from triomq.client.spark.progress_listener import lag_of, position_of

logger = logging.getLogger(__name__)

ROWS = "rows"
POLL_SECONDS = 0.2
"""between two checks of the queries; a batch takes longer"""
AVAILABLE_NOW = "available_now"
GROUP_OPTIONS = ("groupid", "kafka.group.id")
COMMIT = "commitGroupOffsets"
OUR_ERROR = re.compile(r"triomq\.[\w.]+: (.+)")
ROOT_ERROR = re.compile(
    r"^(?:\s*Caused by: |: )?((?:[\w$]+\.)*\w*(?:Error|Exception): (?!Traceback).+)", re.MULTILINE
)
"""an error in a trace of Java or Python; the last one has caused the others"""
RUN_AGAIN = "remove the cause and start the pipeline again: it repeats this batch, nothing is lost"


class StopRequested(Exception):
    """A batch has not begun, since the pipeline stops; the next run has it."""


@attrs.define(eq=False)
class RunningQuery:
    """One query of a pipeline and what it has done in this run."""

    query: StreamingQuery
    counts: dict[int, BatchCounts]
    """of batches whose progress Spark has not reported yet"""
    status: QueryStatus = attrs.field(factory=QueryStatus)
    _seen: str = ""
    """time of the last report"""

    def take_progress(self) -> bool:
        """Add what Spark has reported since the last call. Returns: whether there was news."""
        last = self.query.lastProgress
        if last is None or last.timestamp <= self._seen:
            return False
        for progress in self.query.recentProgress:
            if progress.timestamp > self._seen:
                self.status = added(self.status, progress, self.counts.pop(progress.batchId, None))
                self._seen = progress.timestamp
        return True


def added(status: QueryStatus, progress: Any, counts: BatchCounts | None) -> QueryStatus:
    """Return the status with one report of Spark more."""
    bad = dict(status.bad)
    good = kept_out = 0
    rows = progress.numInputRows
    if counts is not None:
        good, kept_out = counts.good, rows - counts.good - sum(counts.bad.values())
        for reason, number in counts.bad.items():
            bad[reason] = bad.get(reason, 0) + number
    lags = []
    for source in progress.sources:
        done, heads = position_of(source.endOffset), position_of(source.latestOffset)
        if done is not None and heads is not None:
            lags.append(sum(lag_of(done, heads).values()))
    return attrs.evolve(
        status,
        batch=progress.batchId if rows or counts is not None else status.batch,
        rows=status.rows + rows,
        good=status.good + good,
        bad=bad,
        kept_out=status.kept_out + kept_out,
        late=status.late
        + sum(operator.numRowsDroppedByWatermark for operator in progress.stateOperators),
        lag=sum(lags) if lags else status.lag,
        batch_rows=rows,
        batch_seconds=progress.batchDuration / 1000,
        time=progress.timestamp,
    )


class PipelineRun:
    """The queries of one pipeline in this process, from ``start`` until ``wait`` returns."""

    def __init__(self, session: SparkSession, spec: Spec) -> None:
        self._session = session
        self._spec = spec
        self._files = HadoopFiles(session)
        self._checkpoint = self._files.absolute(spec.run.checkpoint)
        self._started = now()
        self._queries: dict[str, RunningQuery] = {}
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._held = ExitStack()
        self._lock = WriteLock()

    def start(self) -> None:
        """Open the tables and start the queries.

        Raises: PipelineError; LockHeld if another process runs the pipeline; SpecError if it would
            read what it writes.
        """
        for mistake in loops(self._spec):
            raise mistake
        self._files.make_folder(self._checkpoint)
        self._lock = self._held.enter_context(locked(self._files, self._checkpoint, RUN))
        self._write_status("running")
        try:
            finish_merges(self._session, self._spec)
            self._spec = after_backfill(self._files, self._spec)
            self._start_rows()
            for window in self._spec.windows:
                self._start_window(window.name)
        except BaseException as error:
            self.stop()
            self._end_queries()
            self._write_status("failed", cause_of(error))
            self._held.close()
            raise

    def stop(self) -> None:
        """Let ``wait`` end after the batches in progress. Any thread or signal handler may call."""
        self._stopping.set()

    def wait(self) -> PipelineStatus:
        """Wait until all queries have ended; if one fails, the others are stopped.

        Returns: the last status, ``stopped`` or ``failed``.
        """
        with self._held:
            return self._wait()

    def _wait(self) -> PipelineStatus:
        while self._are_active():
            self._end_idle_queries()
            if self._take_progress():
                self._write_status("running")
            time.sleep(POLL_SECONDS)
        self._take_progress()
        error = self._failure
        for running in self._queries.values():
            error = error or ended_badly(running.query)
        if error is None:
            return self._write_status("stopped")
        return self._write_status("failed", cause_of(error))

    def _start_rows(self) -> None:
        checkpoint = rows_checkpoint(self._checkpoint)
        work = BatchWork(
            spec=self._spec,
            sink=open_table(self._session, self._spec.sink, checkpoint, self._lock),
            dead_letters=open_dead_letters(self._session, self._spec, checkpoint, self._lock),
        )
        rows = live_rows(self._session, self._spec.source)
        self._start(ROWS, rows, checkpoint, work.take)

    def _start_window(self, name: str) -> None:
        (window,) = (each for each in self._spec.windows if each.name == name)
        checkpoint = window_checkpoint(self._checkpoint, name)
        table = open_table(self._session, totals_table(window), checkpoint, self._lock)
        rows = decoded(live_rows(self._session, without_commits(self._spec.source)), self._spec)
        totals = totals_of(apply_joins(good_rows(rows), self._spec.joins), window)

        def take(frame: DataFrame, batch: int) -> None:
            table.append(frame, batch)

        self._start(name, totals, checkpoint, take)

    def _start(
        self,
        name: str,
        frame: DataFrame,
        checkpoint: str,
        take: Callable[[DataFrame, int], BatchCounts | None],
    ) -> None:
        counts: dict[int, BatchCounts] = {}

        def take_batch(rows: DataFrame, batch: int) -> None:
            if self._stopping.is_set():
                raise StopRequested
            try:
                found = take(rows, batch)
            except BaseException as error:
                self._failure = self._failure or error
                raise
            if found is not None:
                counts[batch] = found

        text = self._spec.run.trigger
        trigger: dict[str, Any] = {"processingTime": text}
        if text == AVAILABLE_NOW:
            trigger = {"availableNow": True}
        writer = frame.writeStream.queryName(f"{self._spec.name}.{name}").trigger(**trigger)
        writer = writer.option("checkpointLocation", checkpoint).foreachBatch(take_batch)
        self._queries[name] = RunningQuery(writer.start(), counts)

    def _are_active(self) -> bool:
        return any(running.query.isActive for running in self._queries.values())

    def _end_idle_queries(self) -> None:
        """Stop queries between two batches, if all are to stop or one has failed."""
        if any(not r.query.isActive and ended_badly(r.query) for r in self._queries.values()):
            self._stopping.set()
        if self._stopping.is_set():
            for running in self._queries.values():
                if running.query.isActive and not running.query.status["isTriggerActive"]:
                    running.query.stop()

    def _end_queries(self) -> None:
        while self._are_active():
            self._end_idle_queries()
            time.sleep(POLL_SECONDS)

    def _take_progress(self) -> bool:
        news = [running.take_progress() for running in self._queries.values()]
        return any(news)

    def _write_status(self, state: State, cause: str = "") -> PipelineStatus:
        status = PipelineStatus(
            name=self._spec.name,
            state=state,
            cause=cause,
            started=self._started,
            time=now(),
            queries={name: running.status for name, running in self._queries.items()},
        )
        folder = local_path(self._checkpoint)
        try:
            if folder is not None:
                write_status(folder, status)
            else:
                self._files.replace_text(f"{self._checkpoint}/{STATUS_FILE}", status.to_json())
        except Exception as error:  # rows matter more than their count
            logger.warning("the status of the pipeline cannot be written: %s", error)
        return status


def run_until_stopped(session: SparkSession, spec: Spec) -> int:
    """Run a pipeline until its topics are read, a signal comes, or a query fails.

    Ctrl-C and SIGTERM let the batches in progress end; a second one ends the process at once, and
    the next run repeats the batches.

    Returns: the exit code, 0 or 1.
    Raises: PipelineError if it cannot start.
    """
    running = PipelineRun(session, spec)

    def on_signal(number: int, _: object) -> None:
        running.stop()
        signal.signal(number, signal.SIG_DFL)

    before = {
        number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        running.start()
        status = running.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if status.state == "failed":
        logger.error("the pipeline has failed: %s", status.cause)
    return 1 if status.state == "failed" else 0


def ended_badly(query: StreamingQuery) -> BaseException | None:
    """Return why a query has ended; None if it runs, or was stopped."""
    error = query.exception()
    return None if error is None or StopRequested.__name__ in str(error) else error


def cause_of(error: BaseException) -> str:
    """Return an error in one line, with what to do: errors of this project say it themselves."""
    text = str(error).strip()
    first = text.partition("\n")[0] or type(error).__name__
    if type(error).__module__.startswith("triomq."):
        return f"{first}; then start the pipeline again"
    ours = OUR_ERROR.findall(text)
    if ours:
        return f"{ours[-1].strip()}; then start the pipeline again"
    root = ROOT_ERROR.findall(text)
    return f"{root[-1].strip() if root else first}; {RUN_AGAIN}"


def without_commits(source: SourceSpec) -> SourceSpec:
    """Return a source that reports no progress to the brokers: the query of rows does."""
    if not any(name.lower() in GROUP_OPTIONS for name in source.options):
        return source
    kept = {name: text for name, text in source.options.items() if name.lower() != COMMIT.lower()}
    return attrs.evolve(source, options={**kept, COMMIT: "false"})


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
