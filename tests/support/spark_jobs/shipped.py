"""A job that has only what Spark ships with it: ``shipped.py <name servers> <topic> <folder>
<program>``. The program registers the source.

Reads the topic as a batch and as a stream, writes its rows to another topic and reads them there;
prints the counts, and on how many workers the tasks ran.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import DataFrame, Row, SparkSession


def main(name_servers: str, topic: str, folder: str, registering: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    exec(registering, {"spark": spark})
    options = {"nameServer": name_servers, "minRecordsPerPartition": "1"}
    batch = spark.read.format("rocketmq").options(**options, subscribe=topic).load()
    stream = spark.readStream.format("rocketmq").options(
        **options, subscribe=topic, startingOffsets="earliest"
    )
    place = Path(folder)
    query = (
        stream.load()
        .select("value", "offset")
        .writeStream.format("parquet")
        .option("path", str(place / "rows"))
        .option("checkpointLocation", str(place / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    copy = batch.select("value", "key").write.format("rocketmq").option("nameServer", name_servers)
    copy.option("topic", f"{topic}-copy").mode("append").save()
    copied = spark.read.format("rocketmq").options(**options, subscribe=f"{topic}-copy").load()
    counts = {
        "batch": batch.count(),
        "stream": spark.read.parquet(str(place / "rows")).count(),
        "copied": copied.selectExpr("CAST(value AS STRING)").distinct().count(),
        **who_reads(batch),
    }
    spark.stop()
    print(json.dumps(counts), flush=True)


def who_reads(frame: DataFrame) -> dict[str, object]:
    """Read with tasks that tell their executor, and the foreign packages that they have loaded."""

    def look(rows: Iterator[Row]) -> Iterator[tuple[str, list[str]]]:
        for _ in rows:
            pass
        time.sleep(0.5)  # the other worker takes a task, too
        foreign = {"msgspec", "trio", "cryptography", "rich", "zlib_ng", "pandas"}
        yield os.getcwd(), sorted(foreign & set(sys.modules))

    found = frame.rdd.mapPartitions(look).collect()
    loaded = sorted({name for _, names in found for name in names})
    return {"workers": len({where for where, _ in found}), "loaded": loaded}


if __name__ == "__main__":
    main(*sys.argv[1:])
