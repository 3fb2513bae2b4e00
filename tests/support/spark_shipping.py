"""Spark as users run it: a standalone cluster and a Connect server as processes of their own,
Python environments that have nothing of ours, and the zip that brings it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import venv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.support.processes import ROOT, free_port, running, wait_listening
from tests.support.spark_peers import QUIET_JVM

EXECUTOR_PACKAGES = ("numpy", "numpy.libs", "pyarrow")
CONNECT_PACKAGES = (
    *EXECUTOR_PACKAGES,
    *("google", "grpc", "grpc_status", "pandas", "dateutil", "pytz", "tzdata", "six.py"),
    *("typing_extensions.py", "zstandard", "yaml"),
)
SPARK_FOLDERS = frozenset({"bin", "core", "data", "examples", "jars", "licenses", "python", "sbin"})
"""what the package ``pyspark-client`` does not have of PySpark"""
QUIET = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": QUIET_JVM,
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": QUIET_JVM,
    "spark.executor.cores": "1",
    "spark.sql.shuffle.partitions": "2",
    "spark.log.level": "WARN",
}


def spark_home() -> Path:
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def bare_python(folder: Path, packages: Sequence[str] = EXECUTOR_PACKAGES) -> Path:
    """Make an environment that has these packages, by links, and nothing else; its interpreter."""
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for name in packages:
        source = spark_home().parent / name
        if source.exists():
            (site / name).symlink_to(source)
    return folder / "bin" / "python"


def thin_client(folder: Path) -> Path:
    """Make an environment as ``pip install pyspark-client`` does: without Spark and its JARs."""
    python = bare_python(folder, CONNECT_PACKAGES)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "pyspark").mkdir()
    for source in spark_home().iterdir():
        if source.name not in SPARK_FOLDERS:
            (site / "pyspark" / source.name).symlink_to(source)
    return python


@contextlib.contextmanager
def standalone(folder: Path, python: Path, workers: int = 2) -> Iterator[str]:
    """Start a standalone master, and workers of one core each; its address."""
    port = free_port()
    environment = plain_environment(python)
    program = str(spark_home() / "bin" / "spark-class")
    web = ("--host", "127.0.0.1", "--webui-port", "0")
    with contextlib.ExitStack() as stack:

        def start(name: str, *words: str, listens: int | None = None) -> None:
            log = folder / f"{name}.log"
            command = [program, *words[:1], *web, *words[1:]]
            stack.enter_context(
                running(command, log, port=listens, env=environment, only=True, cwd=folder)
            )

        start("master", "org.apache.spark.deploy.master.Master", "--port", str(port), listens=port)
        address = f"spark://127.0.0.1:{port}"
        size = ("--cores", "1", "--memory", "1g", "--work-dir", str(folder / "work"))
        for number in range(workers):
            name = f"worker-{number}"
            start(name, "org.apache.spark.deploy.worker.Worker", *size, address)
        yield address  # a job waits for its executors


@contextlib.contextmanager
def connect_server(folder: Path, python: Path, archive: Path) -> Iterator[str]:
    """Start a Connect server on ``local-cluster``, two executors as processes; its address.

    Its executors have the zip, too: Spark 4.3 brings artifacts of a session to the tasks of batch
    queries, and not to those of streams.
    """
    port = free_port()
    command = [
        *(str(spark_home() / "bin" / "spark-submit"), *settings(), "--name", "connect"),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        *("--master", "local-cluster[2,1,1024]"),
        *("--conf", f"spark.connect.grpc.binding.port={port}"),
        *("--files", str(archive)),
        "spark-internal",
    ]
    environment = plain_environment(python, SPARK_CONNECT_MODE="0", SPARK_DAEMON_MEMORY="768m")
    log = folder / "connect.log"
    with running(command, log, env=environment, only=True, cwd=folder) as server:
        wait_listening(port, server, log, seconds=180)  # after its executors
        yield f"sc://127.0.0.1:{port}"


def plain_environment(python: Path, **more: str) -> dict[str, str]:
    """What Spark's programs need, and nothing that leads to this checkout."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": os.environ.get("HOME", "/"),
        "JAVA_HOME": os.environ["JAVA_HOME"],
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_JAVA_OPTS": QUIET_JVM,
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": str(python),
        **more,
    }


def settings() -> list[str]:
    return [word for name, value in QUIET.items() for word in ("--conf", f"{name}={value}")]


def spark_submit(
    folder: Path, python: Path, *words: str | Path
) -> subprocess.CompletedProcess[str]:
    """Run a job to its end."""
    command = [spark_home() / "bin" / "spark-submit", *settings(), *words]
    return run(command, folder, plain_environment(python))


def run(
    command: Sequence[str | Path], folder: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


def printed(done: subprocess.CompletedProcess[str]) -> Any:
    """Return the JSON of a job's last line."""
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
    return json.loads(done.stdout.splitlines()[-1])


def job(name: str) -> Path:
    return ROOT / "tests" / "support" / "spark_jobs" / f"{name}.py"
