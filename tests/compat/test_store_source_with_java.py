"""The store of a Java broker, read by ``format("rocketmq-store")`` without Spark: a copy of it made
while the broker runs, and itself after the broker was killed.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trio
from processes import java_broker, java_home, java_name_server

from tests.support.spark_peers import wait_for
from tests.support.store_reads import ALL_COLUMNS, in_order, rows_of_store
from triomq.client.admin.admin import Admin
from triomq.client.spark.errors import StoreInUse
from triomq.client.spark.sink.sink_options import parse_sink_options
from triomq.client.spark.sink.writer import TaskWriter
from triomq.client.spark.sources.source import RocketMQDataSource

pytestmark = [pytest.mark.compat, pytest.mark.spark, pytest.mark.timeout(240)]


def served_rows(namesrv: str, topic: str) -> list[dict[str, Any]]:
    reader = RocketMQDataSource({"nameServer": namesrv, "subscribe": topic}).reader(ALL_COLUMNS)
    return in_order(
        row
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    )


def all_rows(namesrv: str, count: int) -> list[dict[str, Any]] | None:
    rows = served_rows(namesrv, "Stored")
    return rows if len(rows) == count else None


def send(namesrv: str, topic: str, count: int) -> None:
    async def create() -> None:
        async with Admin(namesrv) as admin:
            await admin.create_topic(topic, cluster="TestCluster", read_queues=3, write_queues=3)

    trio.run(create)
    numbers = range(count)
    columns: dict[str, list[Any]] = {
        "value": [os.urandom(50) if n % 3 else b"%04d" % n * 500 for n in numbers],
        "key": [f"k{n}" for n in numbers],
        "tags": [("A", "B", None)[n % 3] for n in numbers],
        "headers": [[("n", str(n))] if n % 2 else [] for n in numbers],
        "shardingKey": [f"k{n}" for n in numbers],
    }
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(column, pa.map_(pa.string(), pa.string()) if name == "headers" else None)
            for name, column in columns.items()
        ],
        names=list(columns),
    )
    options = parse_sink_options(
        {"nameServer": namesrv, "topic": topic, "compressOverBytes": "1k"}, streaming=False
    )
    writer = TaskWriter(options, {name: at for at, name in enumerate(columns)}, "query")
    assert writer.write(iter([batch])).acknowledged == {topic: count}


@pytest.mark.loss
@pytest.mark.feature("206a")
def test_the_store_of_a_java_broker(tmp_path: Path) -> None:
    if java_home("5.5.0") is None:
        pytest.skip("the Java peers are not installed: run `make peers`")
    store = tmp_path / "broker" / "store"
    small = {"mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 20_000}
    with java_name_server("5.5.0", tmp_path / "namesrv") as namesrv:
        with java_broker("5.5.0", tmp_path / "broker", "broker-a", namesrv, **small):
            send(namesrv, "Stored", 3_000)
            # Java acknowledges messages before they are in their queues.
            served = wait_for(lambda: all_rows(namesrv, 3_000), "all messages to be readable")
            with pytest.raises(StoreInUse, match="a broker runs on"):
                rows_of_store(store, subscribe="Stored")
            left_out = shutil.ignore_patterns("timer*", "index")
            copy = Path(shutil.copytree(store, tmp_path / "copy", ignore=left_out))
            with pytest.raises(StoreInUse, match="snapshot=true"):
                rows_of_store(copy, subscribe="Stored")
            assert rows_of_store(copy, subscribe="Stored", snapshot="true") == served
    small_batches = {"recordBatchBytes": "64k", "partitionBytes": "64k"}
    assert rows_of_store(store, subscribe="Stored", snapshot="true", **small_batches) == served
