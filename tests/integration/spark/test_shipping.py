"""The package as Spark ships it: one zip, and Pythons that have nothing else of ours."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pages import one

from tests.support.spark_peers import Cluster, cluster, need_spark
from tests.support.spark_shipping import (
    bare_python,
    connect_server,
    job,
    plain_environment,
    printed,
    run,
    settings,
    spark_home,
    spark_submit,
    standalone,
    thin_client,
)
from triomq.client.spark.zip_file import write_zip

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

MESSAGES = 400


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("shipping")
    need_spark(folder)
    with cluster(folder) as started:
        for topic in ("Shipped", "Shipped-alone", "Shipped-copy", "Connected", "Connected-copy"):
            started.create_topic(topic, 2)
        for topic in ("Shipped", "Connected"):
            started.send(topic, [b"%d" % number for number in range(MESSAGES)])
        yield started


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_zip(tmp_path_factory.mktemp("zip") / "triomq-spark.zip")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with pyarrow and numpy only."""
    return bare_python(tmp_path_factory.mktemp("bare") / "python")


def spark_path() -> str:
    return ":".join(str(each) for each in (spark_home() / "python" / "lib").glob("*.zip"))


def test_the_zip_is_the_same_for_the_same_packages(archive: Path, tmp_path: Path) -> None:
    again = write_zip(tmp_path / "again.zip")
    assert again.read_bytes() == archive.read_bytes()
    names = zipfile.ZipFile(archive).namelist()
    assert len(names) == len(set(names))
    tops = {name.partition("/")[0].partition("-")[0] for name in names}
    assert tops == {"triomq", "pyspark_triomq", "attr", "attrs"}
    assert not [name for name in names if "__pycache__" in name or "/broker/" in name]


@pytest.mark.loss
def test_a_task_needs_nothing_but_the_zip_pyarrow_and_numpy(
    running: Cluster, archive: Path, python: Path, tmp_path: Path
) -> None:
    environment = plain_environment(python, PYTHONPATH=f"{archive}:{spark_path()}")
    words = [python, "-W", "error", job("without_spark"), running.namesrv, "Shipped"]
    found = printed(run(words, tmp_path, environment))
    assert found == {"read": MESSAGES, "written": MESSAGES, "loaded": []}


@pytest.mark.loss
@pytest.mark.feature(175, "207a")
@pytest.mark.slow
def test_spark_submit_on_a_standalone_cluster_of_two_workers(
    running: Cluster, archive: Path, python: Path, tmp_path: Path
) -> None:
    with standalone(tmp_path, python) as master:
        words = ("--master", master, "--py-files", archive, job("shipped"), running.namesrv)
        registering = one("docs/spark.md", "spark.dataSource.register")
        done = spark_submit(tmp_path, python, *words, "Shipped", tmp_path, registering)
    assert printed(done) == {
        "batch": MESSAGES,
        "stream": MESSAGES,
        "copied": MESSAGES,
        "workers": 2,
        "loaded": [],
    }


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("grpc", reason="pip install 'pyspark[connect]'")
    return thin_client(tmp_path_factory.mktemp("thin") / "python")


@pytest.mark.loss
@pytest.mark.feature("207b")
@pytest.mark.slow
def test_the_thin_client_of_spark_connect_sends_the_zip(
    running: Cluster, archive: Path, python: Path, client: Path, tmp_path: Path
) -> None:
    """To a server on ``local-cluster[2,1,1024]`` whose Python has pyarrow and numpy only."""
    environment = plain_environment(client, PYTHONPATH=str(archive))
    with connect_server(tmp_path, python, archive) as server:
        words = [client, job("connected"), server, archive, running.namesrv, "Connected", tmp_path]
        found = printed(run(words, tmp_path, environment))
    assert found == {"thin": True, "batch": MESSAGES, "stream": MESSAGES, "copied": MESSAGES}


PIPELINE = """
from pyspark import pipelines


@pipelines.table
def orders():
    messages = spark.readStream.format("rocketmq").option("nameServer", "{namesrv}")
    return messages.option("subscribe", "Shipped").option("startingOffsets", "earliest").load()
"""


@pytest.mark.loss
@pytest.mark.feature("207c")
@pytest.mark.slow
def test_a_flow_of_spark_declarative_pipelines(
    running: Cluster, archive: Path, client: Path, tmp_path: Path
) -> None:
    """With the zip on the PYTHONPATH, where Spark finds the source by itself."""
    (tmp_path / "flows").mkdir()
    flow = PIPELINE.replace("{namesrv}", running.namesrv)
    (tmp_path / "flows" / "orders.py").write_text(flow)
    (tmp_path / "spark-pipeline.yml").write_text(
        f"name: orders\nstorage: file://{tmp_path}/storage\n"
        "libraries:\n  - glob:\n      include: flows/**\n"
    )
    environment = plain_environment(client, PYTHONPATH=str(archive))
    program = spark_home() / "bin" / "spark-pipelines"
    words = [program, *settings(), "--remote", "local[2]", "run"]
    done = run(words, tmp_path, environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert pq.read_table(tmp_path / "spark-warehouse" / "orders").num_rows == MESSAGES
