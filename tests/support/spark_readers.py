"""The Spark source without Spark: its methods are called in Spark's order."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from triomq.client.spark.sources.source import RocketMQDataSource
from triomq.client.spark.stream_reader import RocketMQStreamReader


def new_reader(namesrv: str, topic: str, **options: str) -> RocketMQStreamReader:
    source = RocketMQDataSource(
        {
            "nameServer": namesrv,
            **({"subscribe": topic} if topic else {}),
            "metadataRefreshMs": "200",
            "pollIntervalMs": "1",
            "pollTimeoutMs": "10000",
            **options,
        }
    )
    return source.streamReader(source.schema())


def next_batch(
    reader: RocketMQStreamReader, start: dict[str, Any], limit: ReadLimit | None = None
) -> tuple[list[bytes], dict[str, Any]]:
    """Run one micro-batch as Spark does; return its bodies, sorted, and its end."""
    start = json.loads(json.dumps(start))
    end = reader.latestOffset(start, limit or ReadAllAvailable())
    if end is start:
        return [], end
    end = json.loads(json.dumps(end))
    return rows_of(reader, start, end), end


def rows_of(
    reader: RocketMQStreamReader, start: dict[str, Any], end: dict[str, Any]
) -> list[bytes]:
    return sorted(
        value
        for partition in reader.partitions(start, end)
        if partition.value is not None
        for batch in reader.read(partition)
        for value in batch.column("value").to_pylist()
    )
