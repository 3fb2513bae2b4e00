"""Parquet tables on an object store of S3's protocol: real Spark, real s3a, a server of moto.

A rename copies and deletes there. ``test_table_commits.py`` breaks off each step of a commit on an
object store in memory; here the real storage does those steps. Spark brings s3a from Maven Central,
with the parts of Amazon's SDK that it loads instead of the 600 MB of the whole one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from datetime import date
from typing import Any

import pyspark
import pytest

from tests.support.processes import free_port
from tests.support.spark_peers import need_spark, open_session
from triomq.client.pipeline.core.spec import TableSpec
from triomq.client.pipeline.tables.hadoop_files import HadoopFiles
from triomq.client.pipeline.tables.locks import LockHeld, locked
from triomq.client.pipeline.tables.opening import open_table

pytest.importorskip("moto", reason="pip install 'moto[s3]' flask flask-cors")
pytestmark = [
    pytest.mark.compat,
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not pyspark.__version__.startswith("4.3."), reason="s3a of another Hadoop"),
]

HADOOP, SDK = "3.5.0", "2.35.4"
"""of PySpark 4.3, and what that s3a was built with"""
PACKAGES = (
    f"org.apache.hadoop:hadoop-aws:{HADOOP}",
    *(f"software.amazon.awssdk:{name}:{SDK}" for name in ("s3", "s3-transfer-manager", "sts")),
)
EXCLUDES = ("software.amazon.awssdk:bundle", "org.slf4j:slf4j-api")
START_SECONDS = 60.0


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """A server with the bucket ``lake``."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **quiet) as server:  # type: ignore[call-overload]
        try:
            bucket = urllib.request.Request(f"{url}/lake", method="PUT")
            end = time.monotonic() + START_SECONDS
            while True:
                try:
                    urllib.request.urlopen(bucket).close()
                    break
                except OSError:
                    assert time.monotonic() < end
                    assert server.poll() is None
                    time.sleep(0.2)
            yield url
        finally:
            server.terminate()


@pytest.fixture(scope="module")
def spark(endpoint: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("spark")
    need_spark(folder)
    session = open_session(
        folder / "local",
        settings={
            "spark.jars.packages": ",".join(PACKAGES),
            "spark.jars.excludes": ",".join(EXCLUDES),
            "spark.hadoop.fs.s3a.endpoint": endpoint,
            "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.access.key": "any",
            "spark.hadoop.fs.s3a.secret.key": "any",
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
        "cast(id AS int) AS number",
        f"concat(id, '/', {version}) AS value",
        "date_add(date'2026-01-01', cast(id % 2 AS int)) AS mq_date",
    )


@pytest.mark.loss
def test_tables_take_their_batches_on_s3a(spark: Any) -> None:
    """One lock at a time; a batch that is run again is there once; a merge; versions."""
    files = HadoopFiles(spark)
    checkpoint = "s3a://lake/checkpoint"
    with locked(files, checkpoint, "run") as lock:
        with pytest.raises(LockHeld, match=f"process {os.getpid()} on "):
            locked(files, checkpoint, "run").__enter__()
        table = open_table(spark, TableSpec(path="s3a://lake/orders"), checkpoint, lock)
        for first, end, batch in ((0, 10, 0), (10, 14, 1), (10, 12, 1)):
            table.append(rows(spark, first, end), batch)
        for batch in range(2):
            files.create_text(f"{checkpoint}/commits/{batch}", "v1\n{}")
        assert table.compact(date(2026, 1, 3)) == 4
        assert sorted(row.number for row in table.read().collect()) == list(range(12))
        found = [file.name for file in files.all_files("s3a://lake/orders")]
        assert sum(name.endswith(".parquet") for name in found) == 2

        spec = TableSpec(path="s3a://lake/customers", mode="changes", key=("number",))
        changes = open_table(spark, spec, checkpoint, lock)
        for version in range(2):
            changes.upsert(rows(spark, version, version + 4, version=version), ["number"])
        newest = spark.read.parquet("s3a://lake/customers").collect()
        assert {row.number: row.value for row in newest} == {
            number: f"{number}/{min(number, 1)}" for number in range(5)
        }
    with locked(files, checkpoint, "run"):
        pass
