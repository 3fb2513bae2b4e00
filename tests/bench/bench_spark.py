"""What one Spark session reads and writes, in turns: run by ``spark_side_by_side.py`` under each
release of PySpark that it compares.

    python tests/bench/bench_spark.py JOB.json

Prints one JSON object a line: ``{"what": ..., "rate": rows a second, "cpu": µs a row}`` for each
round that counts, or ``{"what": ..., "p50_ms": ...}``. The CPU is that of the session (driver, JVM,
Python workers) and of the brokers; on a busy machine it says more than the rate. Every way to read
and to write has two rounds that do not count (the JVM's compiler), and each round has them all, one
after the other.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import psutil
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from triomq.client.spark.sources.source import RocketMQDataSource
from triomq.sync import Producer

WARM_UP = 2
TASKS = 8


@attrs.frozen(kw_only=True)
class Job:
    """What ``spark_side_by_side.py`` asks for."""

    namesrv: str
    pids: list[int]
    """the brokers"""
    rounds: int
    topics: dict[str, tuple[int, int]]
    """topic -> rows in it, bytes of a body; both sides have topics of these names"""
    sink_topics: dict[str, tuple[int, int]]
    kafka: str | None = None
    """the address of Kafka's node; None: read beside the null source instead"""
    jars: str = ""
    latency_seconds: float = 0.0


def session(jars: str) -> SparkSession:
    """Two cores, as many as the tasks that run at once; the rest as Spark has it."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.warehouse.dir": tempfile.mkdtemp(prefix="spark-"),
        **({"spark.jars": jars} if jars else {}),
    }
    builder = SparkSession.builder.master("local[2]").appName("bench")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


class NullSource(DataSource):
    """Repeats a ready record batch: what Spark allows a source in Python."""

    @classmethod
    def name(cls) -> str:
        return "null_rows"

    def reader(self, schema: Any) -> DataSourceReader:
        return NullReader(self.options["file"], int(self.options["rows"]))


class NullReader(DataSourceReader):
    """``rows`` rows in ``TASKS`` tasks."""

    def __init__(self, file: str, rows: int) -> None:
        self.file, self.rows = file, rows

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(TASKS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        batch = pa.ipc.open_stream(self.file).read_next_batch()
        left = self.rows // TASKS
        while left > 0:
            yield batch.slice(0, left)
            left -= batch.num_rows


def ours(spark: SparkSession, job: Job, topic: str, schema: str | None = None) -> DataFrame:
    reader = spark.read.format("rocketmq").options(nameServer=job.namesrv, subscribe=topic)
    return (reader.schema(schema) if schema else reader).load()


def null(spark: SparkSession, job: Job, topic: str) -> DataFrame:
    """As many rows in batches of the same size, with the columns of the first of ours."""
    source = RocketMQDataSource({"nameServer": job.namesrv, "subscribe": topic})
    reader = source.reader(source.schema())
    batch = next(reader.read(reader.partitions()[0]))
    file = Path(tempfile.mkdtemp(prefix="null-")) / "batch.arrow"
    with pa.OSFile(str(file), "wb") as out, pa.ipc.new_stream(out, batch.schema) as writer:
        writer.write_batch(batch)
    return (
        spark.read.format("null_rows")
        .schema(source.schema())
        .options(file=str(file), rows=str(job.topics[topic][0]))
        .load()
    )


def kafka(spark: SparkSession, job: Job, topic: str) -> DataFrame:
    options = {"kafka.bootstrap.servers": str(job.kafka), "subscribe": topic}
    return spark.read.format("kafka").options(**options).load()


def rows_to_send(spark: SparkSession, rows: int, size: int) -> DataFrame:
    """Two tasks of rows with a key and a body of ``size`` bytes."""
    body = f"cast(rpad(id, {size}, 'x') as binary) as value"
    return spark.range(0, rows, 1, 2).selectExpr("concat('key-', id) as key", body)


def drain(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def send_to_kafka(frame: DataFrame, job: Job, topic: str) -> None:
    options = {"kafka.bootstrap.servers": str(job.kafka), "topic": topic}
    frame.write.format("kafka").options(**options).save()


def send_to_ours(frame: DataFrame, job: Job, topic: str) -> None:
    options = {"nameServer": job.namesrv, "topic": topic}
    frame.write.format("rocketmq").options(**options).mode("append").save()


def reads(spark: SparkSession, job: Job) -> Iterator[tuple[str, int, Callable[[], Any]]]:
    """Yield what to measure, its rows, and the action."""
    for topic, (rows, size) in job.topics.items():
        frames = {
            "ours, all columns": ours(spark, job, topic),
            "ours, value": ours(spark, job, topic, "value binary"),
        }
        if job.kafka is None:
            frames["null source"] = null(spark, job, topic)
        else:
            frames["Kafka, all columns"] = kafka(spark, job, topic)
            frames["Kafka, value"] = kafka(spark, job, topic).select("value")
        for name, frame in frames.items():
            yield f"{size} B, {name}", rows, lambda frame=frame: drain(frame)
        if job.kafka is None:
            for name, frame in {
                "ours, count()": frames["ours, all columns"],
                "ours, count() of offsets": ours(spark, job, topic, "offset bigint"),
            }.items():
                yield f"{size} B, {name}", rows, lambda frame=frame: frame.count()


def writes(spark: SparkSession, job: Job) -> Iterator[tuple[str, int, Callable[[], Any]]]:
    for topic, (rows, size) in job.sink_topics.items():
        frame = rows_to_send(spark, rows, size)
        yield (
            f"{size} B, our sink",
            rows,
            lambda frame=frame, topic=topic: send_to_ours(frame, job, topic),
        )
        yield (
            f"{size} B, Kafka's sink",
            rows,
            lambda frame=frame, topic=topic: send_to_kafka(frame, job, topic),
        )


def report(what: str, **figures: float) -> None:
    print(json.dumps({"what": what, **figures}), flush=True)


def cpu_seconds(pids: list[int]) -> float:
    """What this process, all below it, and the brokers have used."""
    here = psutil.Process()
    family = [here, *here.children(recursive=True), *map(psutil.Process, pids)]
    total = 0.0
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])  # with those of children that have ended
    return total


def in_turns(job: Job, measures: list[tuple[str, int, Callable[[], Any]]]) -> None:
    for number in range(WARM_UP + job.rounds):
        for what, rows, action in measures:
            begun, cpu = time.perf_counter(), cpu_seconds(job.pids)
            action()
            if number >= WARM_UP:
                seconds = time.perf_counter() - begun
                report(what, rate=rows / seconds, cpu=(cpu_seconds(job.pids) - cpu) / rows * 1e6)


def latency(spark: SparkSession, job: Job) -> None:
    """The time from ``send()`` until ``foreachBatch`` has collected the row."""
    topic, waited = "SparkLatency", []
    stream = (
        spark.readStream.format("rocketmq")
        .options(nameServer=job.namesrv, subscribe=topic, startingOffsets="earliest")
        .schema("value string")
        .load()
    )

    def note(frame: DataFrame, _number: int) -> None:
        rows = frame.collect()
        now = time.time()
        waited.extend((now - float(row.value)) * 1000 for row in rows)

    def send() -> None:
        with Producer(job.namesrv, group="bench-latency") as producer:
            end = time.monotonic() + job.latency_seconds
            while time.monotonic() < end:
                producer.send(topic, str(time.time()).encode())
                time.sleep(0.01)

    folder = tempfile.mkdtemp(prefix="latency-")
    query = stream.writeStream.foreachBatch(note).option("checkpointLocation", folder).start()
    sender = threading.Thread(target=send)
    sender.start()
    sender.join()
    query.processAllAvailable()
    query.stop()
    settled = sorted(waited[len(waited) // 3 :])  # the first batches start Python workers
    report(
        "from send to foreachBatch",
        p50_ms=statistics.median(settled),
        p99_ms=settled[len(settled) * 99 // 100],
    )


def main() -> None:
    job = Job(**json.loads(Path(sys.argv[1]).read_text()))
    spark = session(job.jars)
    spark.dataSource.register(RocketMQDataSource)
    spark.dataSource.register(NullSource)
    if job.kafka is not None:
        for topic, (rows, size) in job.topics.items():
            send_to_kafka(rows_to_send(spark, rows, size), job, topic)
        in_turns(job, list(writes(spark, job)))
    in_turns(job, list(reads(spark, job)))
    if job.latency_seconds:
        latency(spark, job)
    spark.stop()


if __name__ == "__main__":
    main()
