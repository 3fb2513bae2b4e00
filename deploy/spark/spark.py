"""The programs of the compose file's Spark profile: a standalone master, its workers, the demo's streaming job, and a producer of flights.

`python spark.py master|worker|job|flights`; NAMESRV_ADDR and SPARK_MASTER say where the others are.  A job of your own looks the same: the
image has Spark, the source `rocketmq` and a Java runtime.
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
TOPIC, GROUP = "flights", "flights-spark"
STATE = Path(os.environ.get("STATE", "/var/lib/triomq/spark"))


def daemon(name: str, *arguments: str) -> None:
    """Become one of Spark's own programs."""
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.submodule_search_locations is not None
    home = Path(next(iter(found.submodule_search_locations)))
    os.environ |= {"SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable, "SPARK_DAEMON_MEMORY": "512m"}
    program = home / "bin" / "spark-class"
    os.execv(program, [str(program), f"org.apache.spark.deploy.{name}", *arguments])


def master() -> None:
    daemon("master.Master", "--host", socket.gethostname(), "--port", "7077", "--webui-port", "8080")


def worker() -> None:
    scratch = tempfile.mkdtemp(prefix="spark-worker-")
    daemon("worker.Worker", "--cores", "1", "--memory", "1g", "--work-dir", scratch, os.environ["SPARK_MASTER"])


def job() -> None:
    """Run until stopped; the newest result is in STATE/spark.json, and every micro-batch prints a line."""
    from pyspark.sql import SparkSession

    from examples.demo.spark_job import Result, delays  # found by the path that is set above

    STATE.mkdir(parents=True, exist_ok=True)
    settings = {
        "spark.driver.host": socket.gethostname(),
        "spark.driver.memory": "768m",
        "spark.executor.memory": "768m",
        "spark.local.dir": tempfile.mkdtemp(prefix="spark-"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "WARN",
    }
    builder = SparkSession.builder.master(os.environ["SPARK_MASTER"]).appName("triomq-flights")
    for name, value in settings.items():
        builder = builder.config(name, value)
    result = Result(STATE / "spark.json")
    query = (
        delays(builder.getOrCreate(), os.environ["NAMESRV_ADDR"], GROUP, TOPIC)
        .writeStream.outputMode("complete")
        .foreachBatch(result.keep)
        .option("checkpointLocation", str(STATE / "checkpoint"))
        .trigger(processingTime="3 seconds")
        .start()
    )
    query.awaitTermination()


def flights() -> None:
    """Create the topic and send the flights once: all 336,776, or the first ROWS."""
    from examples.demo.dataset import flights_file, read_flights  # found by the path that is set above
    from examples.demo.produce import Sent, produce
    from triomq.client.admin.admin import Admin

    namesrv, rows = os.environ["NAMESRV_ADDR"], os.environ.get("ROWS")

    async def send() -> None:
        async with Admin(namesrv) as admin:
            await admin.create_topic(TOPIC, queues=4)
        sent = Sent()
        await produce(namesrv, "flights-producers", TOPIC, read_flights(flights_file(), int(rows) if rows else None), sent)
        print(f"sent {sent.messages} flights", flush=True)

    trio.run(send)


if __name__ == "__main__":
    chosen = {"master": master, "worker": worker, "job": job, "flights": flights}[sys.argv[1]]
    if chosen is not flights:
        prepare_java(Path(tempfile.mkdtemp(prefix="java-")))
    chosen()
