"""A streaming query into parquet, run as a process by the restart tests; its one argument is a JSON object.

folder: where checkpoint and output lie; options: of the source; slow: seconds that every record batch takes in a task;
available_now: read what is there and end.  Otherwise it runs until its standard input ends, and then stops the query wherever it is.
"""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from tests.support.spark_peers import open_session


def main(folder: str, options: dict[str, str], slow: float = 0.0, available_now: bool = False) -> None:
    place = Path(folder)
    spark = open_session(place / "local")
    messages = spark.readStream.format("rocketmq").options(**options).load()

    def take_time(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            time.sleep(slow)
            yield batch

    rows = messages.selectExpr("topic", "brokerName", "queueId", "offset", "cast(value as string) as value")
    if slow:
        rows = rows.mapInArrow(take_time, rows.schema)
    writer = (
        rows.writeStream.format("parquet")
        .option("path", str(place / "output"))
        .option("checkpointLocation", str(place / "checkpoint"))
    )
    query = (
        writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime="100 milliseconds")
    ).start()
    if available_now:
        query.awaitTermination()
    else:
        sys.stdin.read()
        query.stop()
    spark.stop()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
