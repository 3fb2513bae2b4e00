"""The driver that the chaos runs kill: it reads commands as lines of JSON, and answers each.

Its arguments are a folder and the kind of the pipelines' tables. A query's job is a JSON object:

folder: of checkpoint and output; format, options: of the source; sink: "parquet", "foreach" (each
batch replaces its own folder, so that a repeated batch changes nothing) or the options of the topic
that is written to; holds: the numbers of batches that stop at a gate until the file ``open-NUMBER``
exists; at: "task" or "written"; passed: record batches that go through the gate of a task before.

The jobs of pipelines are in ``pipeline_jobs.py``.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1])]

import pyarrow as pa  # noqa: E402
from pyspark import TaskContext  # noqa: E402
from pyspark.sql import DataFrame, SparkSession  # noqa: E402
from pyspark.sql.streaming import StreamingQuery  # noqa: E402

from tests.spark_chaos.broken_source import ForgetfulDataSource  # noqa: E402
from tests.spark_chaos.gates import wait_at_gate  # noqa: E402
from tests.spark_chaos.judge import NAME_BYTES  # noqa: E402
from tests.spark_chaos.pipeline_jobs import PipelineJob, PipelineJobs, settings_of  # noqa: E402
from tests.support.spark_peers import open_session  # noqa: E402

OUTPUT = (
    "brokerName AS broker",
    "queueId AS queue",
    "offset",
    f"CAST(substring(value, 1, {NAME_BYTES}) AS STRING) AS name",
    "crc32(value) AS checksum",
)


def gate_of_tasks(
    folder: str, holds: list[int], passed: int
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a step of a query whose first task is held."""

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        batch = int(context.getLocalProperty("streaming.sql.batchId"))
        held = batch in holds and context.partitionId() == 0
        for number, each in enumerate(batches):
            if held and number == passed:
                places = each.select(["brokerName", "queueId", "offset"]).to_pylist()
                rows = [list(place.values()) for place in places]
                wait_at_gate(folder, batch, f"task-{context.attemptNumber()}", rows)
            yield each

    return pass_on


def started(spark: SparkSession, job: dict[str, Any]) -> StreamingQuery:
    folder, sink, holds = job["folder"], job["sink"], job["holds"]
    at = job.get("at", "task")
    rows = spark.readStream.format(job.get("format", "rocketmq")).options(**job["options"]).load()
    if holds and at == "task":
        rows = rows.mapInArrow(gate_of_tasks(folder, holds, job["passed"]), rows.schema)
    if isinstance(sink, dict):
        writer = rows.select("value").writeStream.format("rocketmq").options(**sink)
    elif sink == "parquet":
        writer = rows.selectExpr(*OUTPUT).writeStream.format("parquet")
        writer = writer.option("path", f"{folder}/output")
    else:

        def store(frame: DataFrame, number: int) -> None:
            frame.write.mode("overwrite").parquet(f"{folder}/output/{number}")
            if at == "written" and number in holds:
                wait_at_gate(folder, number, "written", [])

        writer = rows.selectExpr(*OUTPUT).writeStream.foreachBatch(store)
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint")
    return writer.trigger(processingTime="100 milliseconds").start()


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Spark prints is no answer
    folder, lake = sys.argv[1:]
    spark = open_session(Path(folder) / "local", master="local[4,4]", settings=settings_of(lake))
    # Small record batches: a task that is held has messages that it has not pulled yet.
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
    spark.dataSource.register(ForgetfulDataSource)
    queries: dict[str, StreamingQuery] = {}
    pipelines: dict[str, PipelineJob] = {}
    jobs = PipelineJobs(spark)
    for line in sys.stdin:
        command = json.loads(line)
        name = command.get("name")
        answer: dict[str, Any] = {}
        try:
            match command["do"]:
                case "start":
                    queries[name] = started(spark, command["job"])
                case "start pipeline":
                    pipelines[name] = jobs.start(command["job"])
                case "state" if name in pipelines:
                    answer = pipelines[name].state
                case "stop" if name in pipelines:
                    pipelines[name].stop()
                    answer = pipelines.pop(name).state
                case "state":
                    error = queries[name].exception()
                    answer["active"] = queries[name].isActive
                    answer["message"] = queries[name].status["message"]
                    answer["error"] = None if error is None else str(error)
                case "stop":
                    if name in queries:
                        queries.pop(name).stop()
                case "ready":
                    pass
        except Exception as error:
            answer = {"failed": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
