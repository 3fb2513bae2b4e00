"""The Spark query, as a process of its own: flights and delays per carrier and month.

    python -m examples.demo.spark_job NAMESRV GROUP TOPIC FOLDER

It prints a line of JSON after every micro-batch. Its standard input gets one line, the number of
messages to expect, when the producer is done; then it reads what is left, writes FOLDER/spark.json
and ends.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

FLIGHT = "carrier string, month int, dep_delay int"
IDLE_ROUNDS_MAX = 20


def open_session(folder: Path) -> SparkSession:
    """Return a small local session that keeps all its files in ``folder``."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.memory": "1g",
        # a short run: halves the JVM's work
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(folder / "spark-local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.python.unix.domain.socket.enabled": "true",
    }
    builder = SparkSession.builder.master("local[2]").appName("triomq-demo")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def delays(spark: SparkSession, namesrv: str, group: str, topic: str) -> DataFrame:
    """Return the streaming query: exact sums, so that means can be compared exactly."""
    messages = (
        spark.readStream.format("rocketmq")
        .schema("value string")
        .option("nameServer", namesrv)
        .option("subscribe", topic)
        .option("groupId", group)
        .option("startingOffsets", "earliest")
        .load()
    )
    flights = messages.select(F.from_json("value", FLIGHT).alias("flight")).select("flight.*")
    return flights.groupBy("carrier", "month").agg(
        F.count("*").alias("flights"),
        F.count("dep_delay").alias("departed"),
        F.sum("dep_delay").alias("delay_minutes"),
    )


class Result:
    """The newest complete result, and the number of its messages."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.messages = 0

    def keep(self, table: DataFrame, batch: int) -> None:
        """Write the table of one micro-batch and report it."""
        rows = [row.asDict() for row in table.collect()]
        self.messages = sum(row["flights"] for row in rows)
        partial = self.file.with_suffix(".partial")
        partial.write_text(json.dumps(rows))
        partial.replace(self.file)
        report(messages=self.messages, batch=batch)


def report(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def main(namesrv: str, group: str, topic: str, folder: Path) -> None:
    """Run the query until the expected number of messages is counted."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    expected: list[int] = []
    listener = threading.Thread(
        target=lambda: expected.append(int(sys.stdin.readline() or 0)), daemon=True
    )
    listener.start()
    spark = open_session(folder)
    result = Result(folder / "spark.json")
    query = (
        delays(spark, namesrv, group, topic)
        .writeStream.outputMode("complete")
        .foreachBatch(result.keep)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(processingTime="3 seconds")
        .start()
    )
    report(messages=0, ready=True)
    while not expected and query.isActive:
        time.sleep(0.1)
    if query.exception() is not None:
        raise SystemExit(f"the query failed: {query.exception()}")
    for _ in range(IDLE_ROUNDS_MAX):
        query.processAllAvailable()
        if result.messages >= expected[0]:
            break
        time.sleep(0.5)
    query.stop()
    report(messages=result.messages, done=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
