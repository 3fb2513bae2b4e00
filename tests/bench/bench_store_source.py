"""How fast are the same rows read from a store directory and from its broker, in one run?

    python tests/bench/bench_store_source.py [--messages 400000] [--bytes 1000] [--rounds 3]

One broker process, eight queues; a Spark session with two cores reads all rows into the sink
``noop``. The broker is stopped for the reads of its store. Rounds take turns, so that both see the
same machine; the medians are compared. The last line is the store read by one process, without
Spark.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from processes import free_port, our_broker, our_name_server

from tests.support.spark_peers import need_spark
from triomq.client.spark.sources.store_source import RocketMQStoreDataSource
from triomq.sync import Message, Producer

TOPIC = "Bench"
BROKER = "broker-a"
SETTINGS = {"mappedFileSizeCommitLog": 1 << 28, "defaultTopicQueueNums": 8}


def session(folder: Path) -> Any:
    from pyspark.sql import SparkSession  # after need_spark, which finds Java

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    for name, value in {
        "spark.log.level": "ERROR",
        "spark.driver.memory": "1g",
        "spark.local.dir": str(folder),
        "spark.python.unix.domain.socket.enabled": "true",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(RocketMQStoreDataSource)
    return spark


def fill(namesrv: str, messages: int, size: int) -> None:
    body = bytes(range(256)) * (size // 256 + 1)
    with Producer(namesrv, group="bench") as producer:
        for _ in producer.send_many(
            Message(topic=TOPIC, body=body[:size], keys=[str(number)], tag="t")
            for number in range(messages)
        ):
            pass


def seconds(read: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    read()
    return time.perf_counter() - begin


def to_nowhere(reader: Any, *path: str) -> None:
    reader.load(*path).write.format("noop").mode("overwrite").save()


def one_process(store: Path) -> int:
    source = RocketMQStoreDataSource({"path": str(store), "subscribe": TOPIC, "brokerName": BROKER})
    reader = source.reader(source.schema())
    return sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=400_000)
    parser.add_argument("--bytes", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        need_spark(folder)
        spark = session(folder)
        port = free_port()
        store = folder / BROKER / "store"
        times: dict[str, list[float]] = {"broker": [], "store": [], "one process": []}
        with our_name_server(folder) as namesrv:
            for round_number in range(options.rounds + 1):
                with our_broker(folder / BROKER, BROKER, namesrv, port, **SETTINGS) as (_, process):
                    if not round_number:
                        fill(namesrv, options.messages, options.bytes)
                    live = spark.read.format("rocketmq").options(
                        nameServer=namesrv, subscribe=TOPIC
                    )
                    broker = seconds(partial(to_nowhere, live))
                    process.terminate()
                    process.wait(60)
                stored = spark.read.format("rocketmq-store").options(
                    subscribe=TOPIC, brokerName=BROKER
                )
                from_store = seconds(partial(to_nowhere, stored, str(store)))
                alone = seconds(partial(one_process, store))
                if round_number:  # the first one warms up
                    times["broker"].append(broker)
                    times["store"].append(from_store)
                    times["one process"].append(alone)
        assert one_process(store) == options.messages
        for what, found in times.items():
            median = statistics.median(found)
            print(f"{what:12} {options.messages / median:12,.0f} rows/s  {sorted(found)}")
        ratio = statistics.median(times["broker"]) / statistics.median(times["store"])
        print(f"store / broker: {ratio:.2f}")
        spark.stop()


if __name__ == "__main__":
    main()
