"""Programs of the compose file's Spark profile: a standalone master, its workers, and a producer of
flights. The job is ``mqpipeline run flights.toml``.

``python spark.py master|worker|flights``; NAMESRV_ADDR and SPARK_MASTER are the addresses of the
cluster and of the master.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
import tempfile
from pathlib import Path

import trio

from triomq.client.spark.java_runtime import prepare_java

sys.path.insert(0, "/opt/triomq/share")
TOPIC = "flights"


def daemon(name: str, *arguments: str) -> None:
    """Replace this process by a program of Spark."""
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.submodule_search_locations is not None
    home = Path(next(iter(found.submodule_search_locations)))
    os.environ |= {
        "SPARK_HOME": str(home),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_DAEMON_MEMORY": "512m",
    }
    program = home / "bin" / "spark-class"
    os.execv(program, [str(program), f"org.apache.spark.deploy.{name}", *arguments])


def master() -> None:
    daemon(
        "master.Master", "--host", socket.gethostname(), "--port", "7077", "--webui-port", "8080"
    )


def worker() -> None:
    scratch = tempfile.mkdtemp(prefix="spark-worker-")
    daemon(
        "worker.Worker",
        "--cores",
        "1",
        "--memory",
        "1g",
        "--work-dir",
        scratch,
        os.environ["SPARK_MASTER"],
    )


def flights() -> None:
    """Create the topic and send the flights once: all 336,776, or the first ROWS."""
    # Need the path set above.
    from examples.demo.dataset import flights_file, read_flights
    from examples.demo.produce import Sent, produce
    from triomq.client.admin.admin import Admin

    namesrv, rows = os.environ["NAMESRV_ADDR"], os.environ.get("ROWS")

    async def send() -> None:
        async with Admin(namesrv) as admin:
            await admin.create_topic(TOPIC, queues=4)
        sent = Sent()
        await produce(
            namesrv,
            "flights-producers",
            TOPIC,
            read_flights(flights_file(), int(rows) if rows else None),
            sent,
        )
        print(f"sent {sent.messages} flights", flush=True)

    trio.run(send)


if __name__ == "__main__":
    chosen = {"master": master, "worker": worker, "flights": flights}[sys.argv[1]]
    if chosen is not flights:
        prepare_java(Path(tempfile.mkdtemp(prefix="java-")))
    chosen()
