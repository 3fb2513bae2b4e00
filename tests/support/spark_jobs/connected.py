"""A client of Spark Connect: ``connected.py <address> <zip> <name servers> <topic> <folder>``.

It has Spark's thin client and the zip, which it sends to the server; prints the rows that the
server's executors have read as a batch and as a stream, and how many it has written.
"""

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.util import is_remote_only

from triomq.spark import RocketMQDataSource


def main(address: str, archive: str, name_servers: str, topic: str, folder: str) -> None:
    spark = SparkSession.builder.remote(address).getOrCreate()
    spark.addArtifacts(archive, pyfile=True)
    spark.dataSource.register(RocketMQDataSource)
    options = {"nameServer": name_servers, "minRecordsPerPartition": "1"}
    batch = spark.read.format("rocketmq").options(**options, subscribe=topic).load()
    counts = {"thin": is_remote_only(), "batch": batch.count()}
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
    counts["stream"] = spark.read.parquet(str(place / "rows")).count()
    copy = batch.select("value").write.format("rocketmq").option("nameServer", name_servers)
    copy.option("topic", f"{topic}-copy").mode("append").save()
    copied = spark.read.format("rocketmq").options(**options, subscribe=f"{topic}-copy").load()
    counts["copied"] = copied.selectExpr("CAST(value AS STRING)").distinct().count()
    spark.stop()
    print(json.dumps(counts), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
