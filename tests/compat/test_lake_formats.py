"""Delta and Iceberg tables take a batch once. Neither has a package for the newest Spark.

The tests with a session run where the installed PySpark has one: Delta with pyspark 4.2, Iceberg
with 4.1 (``make lake-test``, a lane of ``make nightly``). The last test starts a driver with its
own PySpark, in CI too. Spark brings the package from Maven Central.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pyspark
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from tests.support.spark_peers import QUIET_JVM, cluster, lake_path, need_spark, open_session
from triomq.client.pipeline.core.spec import TableSpec
from triomq.client.pipeline.session import PACKAGES
from triomq.client.pipeline.tables.opening import open_table
from triomq.client.pipeline.tables.table import LakeTable

pytestmark = [
    pytest.mark.compat,
    pytest.mark.spark,
    pytest.mark.timeout(600),
    # PySpark 4.1 leaves sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
CONFLICTS = (Py4JJavaError, PySparkException)
"""what Delta and Iceberg raise for a commit that meets another one"""
ATTEMPTS_MAX = 10
CLAUSES = {"delta": "204b", "iceberg": "204d"}
VERSION = ".".join(pyspark.__version__.split(".")[:2])


@pytest.fixture(
    scope="module",
    params=[pytest.param(kind, marks=pytest.mark.feature(CLAUSES[kind])) for kind in PACKAGES],
)
def kind(request: pytest.FixtureRequest) -> str:
    known = PACKAGES[request.param].coordinates
    if VERSION not in known:
        pytest.skip(f"there is no {request.param} for Spark {VERSION}, only for {', '.join(known)}")
    return str(request.param)


@pytest.fixture(scope="module")
def spark(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("spark")
    need_spark(folder)
    package = PACKAGES[kind]
    session = open_session(
        folder / "local",
        settings={
            **package.settings,
            "spark.jars.packages": package.coordinates[VERSION],
            "spark.databricks.delta.snapshotPartitions": "2",
        },
    )
    yield session
    session.stop()


def rows(spark: Any, first: int, end: int, *, version: int = 0) -> Any:
    return spark.range(first, end, numPartitions=1).selectExpr(
        "'t' AS mq_topic",
        "'broker-a' AS mq_broker",
        "0 AS mq_queue",
        f"id + {version} * 1000 AS mq_offset",
        f"timestamp_seconds(1700000000 + id + {version}) AS mq_time",
        "map('k', 'v') AS mq_headers",
        "cast(id AS int) AS number",
        f"concat(id, '/', {version}) AS value",
        "date_add(date'2026-01-01', cast(id % 2 AS int)) AS mq_date",
    )


def numbers(table: LakeTable) -> list[int]:
    return sorted(row.number for row in table.read().select("number").collect())


def opened(
    spark: Any, kind: Any, folder: Path, checkpoint: str = "checkpoint", mode: Any = "append"
) -> LakeTable:
    spec = TableSpec(kind=kind, path=str(folder / "lake"), mode=mode)
    return open_table(spark, spec, str(folder / checkpoint))


def tasks_of(spark: Any, group: str) -> int:
    """The tasks of the largest stage of a group of jobs."""
    tracker = spark.sparkContext.statusTracker()
    jobs = map(tracker.getJobInfo, tracker.getJobIdsForGroup(group))
    stages = (tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds)
    return max(stage.numTasks for stage in stages if stage)


@pytest.mark.loss
def test_a_batch_that_is_run_again_is_there_once(spark: Any, kind: str, tmp_path: Path) -> None:
    table = opened(spark, kind, tmp_path)
    for batch in (0, 0, 1):
        table.append(rows(spark, 4 * batch, 4 * batch + 4), batch)
    table = opened(spark, kind, tmp_path)
    table.append(rows(spark, 4, 8), 1)
    assert numbers(table) == list(range(8))
    spark.sparkContext.setJobGroup(kind, "compact")
    assert opened(spark, kind, tmp_path).compact(date(2026, 1, 2)) == 2
    assert tasks_of(spark, kind) < 100, "a stage has not 10,000 tasks for two files"
    table.append(rows(spark, 4, 8), 1)
    assert numbers(table) == list(range(8)), "the batch is known after files were merged"
    other = opened(spark, kind, tmp_path, "another checkpoint")
    other.append(rows(spark, 8, 10), 0)
    assert numbers(other) == list(range(10)), "batches are counted for each checkpoint"
    assert table.expire(date(2026, 1, 2)) == 1
    assert numbers(table) == [1, 3, 5, 7, 9]


@pytest.mark.loss
def test_files_are_merged_beside_the_writer(spark: Any, kind: str, tmp_path: Path) -> None:
    """A commit that meets another one ends with an error; the next start repeats the batch."""
    over = threading.Event()

    def merge() -> int:
        merged = 0
        while not over.is_set():
            with contextlib.suppress(*CONFLICTS):
                merged += opened(spark, kind, tmp_path).compact(date(2026, 1, 3))
        return merged

    def append(batch: int) -> None:
        for _ in range(ATTEMPTS_MAX):
            with contextlib.suppress(*CONFLICTS):
                opened(spark, kind, tmp_path).append(rows(spark, 4 * batch, 4 * batch + 4), batch)
                return
        raise AssertionError(f"batch {batch} met another commit {ATTEMPTS_MAX} times")

    append(0)
    with ThreadPoolExecutor() as threads:
        merges = threads.submit(merge)
        try:
            for batch in range(1, 6):
                append(batch)
        finally:
            over.set()
    assert merges.result() > 0
    table = opened(spark, kind, tmp_path)
    table.append(rows(spark, 20, 24), 5)
    assert numbers(table) == list(range(24))


@pytest.mark.loss
def test_the_newest_row_of_a_key_stays(spark: Any, kind: str, tmp_path: Path) -> None:
    table = opened(spark, kind, tmp_path, mode="changes")
    table.upsert(rows(spark, 0, 4).union(rows(spark, 2, 3, version=1)), ["number"])
    table.upsert(rows(spark, 3, 6, version=1), ["number"])
    for version in (-1, 1):
        table.upsert(rows(spark, 3, 5, version=version), ["number"])
    assert {row.number: row.value for row in table.read().collect()} == {
        0: "0/0", 1: "1/0", 2: "2/1", 3: "3/1", 4: "4/1", 5: "5/1"
    }  # fmt: skip


PIPELINE = """
[pipeline]
name = "orders"
[source]
name_server = "{namesrv}"
topics = ["orders"]
options.maxOffsetsPerTrigger = "40"
[decode]
format = "bytes"
[sink]
kind = "delta"
path = "lake"
partition_by = ["mq_topic"]
[run]
trigger = "available_now"
checkpoint = "checkpoint"
{options}
"""
SMALL = {
    "spark.driver.extraJavaOptions": QUIET_JVM,
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
}
"""for a driver that does little"""
RUN_TWICE = """
import sys
from pathlib import Path
from triomq.client.pipeline.__main__ import main

file, *noted = sys.argv[1:]
if code := main(["run", file]):
    sys.exit(code)
for each in noted:
    Path(each).unlink()
sys.exit(main(["run", file]))
"""
"""As if the driver had been killed between the table and Spark's note of the last batch."""


@pytest.mark.loss
@pytest.mark.feature("204b")
def test_a_pipeline_brings_a_topic_into_delta_once(tmp_path: Path) -> None:
    """With the PySpark of ``triomq[delta]``, in a driver of its own."""
    need_spark(tmp_path)
    bodies = [b"%d" % number for number in range(80)]
    file = tmp_path / "orders.toml"
    commits = tmp_path / "checkpoint" / "rows" / "commits"
    with cluster(tmp_path) as running:
        running.create_topic("orders", 1)
        running.send("orders", bodies)
        options = "\n".join(f'options."{name}" = "{value}"' for name, value in SMALL.items())
        file.write_text(PIPELINE.format(namesrv=running.namesrv, options=options))
        done = subprocess.run(
            [sys.executable, "-c", RUN_TWICE, file, commits / "1", commits / ".1.crc"],
            env={**os.environ, "PYTHONPATH": lake_path("delta")},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (commits / "1").exists(), "the last batch was run again"
    rows, batches = delta_rows(tmp_path / "lake")
    assert sorted(rows) == sorted(bodies)
    assert batches == [0, 1]


def delta_rows(lake: Path) -> tuple[list[bytes], list[int]]:
    """Return the bodies in the files that the log names, and the batches that it notes."""
    rows: list[bytes] = []
    batches: list[int] = []
    for entry in sorted((lake / "_delta_log").glob("*.json")):
        for action in map(json.loads, entry.read_text().splitlines()):
            assert "remove" not in action
            if "txn" in action:
                batches.append(action["txn"]["version"])
            if "add" in action:
                file = pq.ParquetFile(lake / action["add"]["path"])
                rows += file.read(["value"])["value"].to_pylist()
    return rows, batches
