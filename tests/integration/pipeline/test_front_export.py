"""An exported project is run by Spark's own program: ``spark-pipelines run``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.spark_peers import QUIET_JVM, cluster, need_spark
from triomq.client.pipeline.core.errors import SpecError
from triomq.client.pipeline.export_sdp import export_project, module_text
from triomq.client.pipeline.spec_file import read_spec

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

FILE = """
[pipeline]
name = "orders"
[source]
name_server = "{namesrv}"
topics = ["orders"]
[decode]
format = "json"
schema = "orders.schema.json"
[[rules]]
name = "amount"
check = "amount > 0"
[dead_letters]
path = "dead"
[sink]
{sink}
[run]
checkpoint = "checkpoint"
options = {{ "spark.sql.shuffle.partitions" = 2, "spark.log.level" = "OFF" }}
"""
WINDOW = """
[[windows]]
name = "hourly"
length = "1 hour"
watermark = "1 minute"
totals = { n = "count(*)" }
path = "hourly"
"""
SCHEMA = """{"type": "struct", "fields": [
  {"name": "id", "type": "long", "nullable": false},
  {"name": "amount", "type": "double"}
]}
"""


def written(folder: Path, namesrv: str, sink: str = 'path = "lake"') -> str:
    path = folder / "orders.toml"
    path.write_text(FILE.format(namesrv=namesrv, sink=sink))
    (folder / "orders.schema.json").write_text(SCHEMA)
    return str(path)


@pytest.mark.loss
@pytest.mark.slow
@pytest.mark.feature("208b")
def test_a_project_for_declarative_pipelines_fills_its_tables(tmp_path: Path) -> None:
    need_spark(tmp_path)
    pytest.importorskip("grpc", reason="pip install 'pyspark[connect]'")
    with cluster(tmp_path / "cluster") as running:
        running.create_topic("orders", 2)
        bodies = [json.dumps({"id": number, "amount": number}).encode() for number in range(50)]
        running.send("orders", [*bodies, b"no JSON"])
        project = tmp_path / "project"
        export_project(read_spec(written(tmp_path, running.namesrv)), str(project), force=False)
        python = Path(sys.executable)
        environment = {
            **os.environ,
            "PATH": f"{python.parent}:{os.environ['PATH']}",
            "PYSPARK_PYTHON": str(python),
            "PYSPARK_DRIVER_PYTHON": str(python),
            "JAVA_TOOL_OPTIONS": QUIET_JVM,
            "SPARK_TESTING": "1",  # a free port for its Connect server instead of 15002
        }
        done = subprocess.run(
            [python.parent / "spark-pipelines", "run"],
            cwd=project,
            env=environment,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    tables = project / "spark-warehouse"
    good = pq.read_table(tables / "orders").to_pylist()
    assert sorted(row["id"] for row in good) == list(range(1, 50))
    assert {row["mq_topic"] for row in good} == {"orders"}
    dead = pq.read_table(tables / "orders_dead_letters").to_pylist()
    assert {(row["mq_value"], row["mq_reason"]) for row in dead} == {
        (bodies[0], "amount"),
        (b"no JSON", "the body is not a JSON object"),
    }


def test_what_declarative_pipelines_lack_is_refused(tmp_path: Path) -> None:
    for sink, said in (
        ('topic = "copies"', "sink.topic: the export has tables only"),
        ('path = "lake"\nmode = "changes"\nkey = ["id"]', "sink.mode: tables of SDP are appended"),
    ):
        spec = read_spec(written(tmp_path, "127.0.0.1:1", sink))
        with pytest.raises(SpecError, match=said):
            export_project(spec, str(tmp_path / "refused"), force=False)
    assert not (tmp_path / "refused").exists()
    spec = read_spec(written(tmp_path, "127.0.0.1:1"))
    files = export_project(spec, str(tmp_path / "project"), force=False)
    assert [Path(path).is_file() for path in files] == [True, True]
    with pytest.raises(SpecError, match="use --force"):
        export_project(spec, str(tmp_path / "project"), force=False)
    path = Path(spec.path)
    path.write_text(path.read_text() + WINDOW)
    module = module_text(read_spec(path), "../orders.toml")
    compile(module, "tables.py", "exec")
    assert "def orders_hourly() -> DataFrame:" in module
