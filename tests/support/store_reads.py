"""Rows of a store directory in two ways: by ``format("rocketmq-store")``, called as Spark calls it,
and by the store of our broker, decoded as pull answers are.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from pyspark.sql.types import StructField, StructType

from triomq.broker.store.core.config import StoreConfig
from triomq.broker.store.core.results import GetStatus
from triomq.broker.store.opening import open_store
from triomq.broker.store.store import MessageStore
from triomq.client.spark.columns import COLUMNS, arrow_schema
from triomq.client.spark.decode import RecordDecoder
from triomq.client.spark.offsets import Queue
from triomq.client.spark.records import Block
from triomq.client.spark.sources.store_source import RocketMQStoreDataSource, StoreBatchReader

BROKER = "broker-a"
ALL_COLUMNS = StructType([StructField(column.name, column.types[0]) for column in COLUMNS])
EVERYTHING = 1 << 62

Row = dict[str, Any]


def store_reader(root: Path, **options: str) -> StoreBatchReader:
    source = RocketMQStoreDataSource({"path": str(root), "brokerName": BROKER, **options})
    return source.reader(ALL_COLUMNS)


def rows_of(reader: StoreBatchReader) -> list[Row]:
    """All rows, by topic, queue and offset."""
    return in_order(
        row
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    )


def rows_of_store(root: Path, **options: str) -> list[Row]:
    return rows_of(store_reader(root, **options))


def in_order(rows: Any) -> list[Row]:
    return sorted(rows, key=lambda row: (row["topic"], row["queueId"], row["offset"]))


async def served_rows(config: StoreConfig, topics: Collection[str]) -> list[Row]:
    """Open the store as a broker does, which may repair it, and return what it serves."""
    async with open_store(config, batch_topics=lambda: topics_with_batches(config)) as store:
        return in_order([row for topic in topics for row in await rows_served(store, topic)])


def topics_with_batches(config: StoreConfig) -> set[str]:
    folder = config.root / "batchconsumequeue"
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


async def rows_served(store: MessageStore, topic: str) -> list[Row]:
    decoder = RecordDecoder(arrow_schema(ALL_COLUMNS))
    rows: list[Row] = []
    for name, queue_id in list(store.queue_table.queues):
        if name != topic:
            continue
        offset = store.min_offset(topic, queue_id)
        while offset < store.max_offset(topic, queue_id):
            limits = {"messages_max": 500, "bytes_max": 1 << 24}
            result = store.get(topic, queue_id, offset, **limits)
            if result is None:
                result = await store.get_cold(topic, queue_id, offset, **limits)
            assert result.next_offset > offset
            if result.status is GetStatus.FOUND:
                queue = Queue(topic, BROKER, queue_id)
                body = b"".join(result.chunks)
                for batch in decoder.decode([Block(queue, offset, EVERYTHING, body)]):
                    rows += batch.to_pylist()
            offset = result.next_offset
    return rows
