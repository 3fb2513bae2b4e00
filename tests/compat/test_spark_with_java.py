"""The Spark source and sink with Java's broker, called as Spark calls them, without Spark."""

from __future__ import annotations

import os
from typing import Any

import pyarrow as pa
import pytest
import trio
from processes import java_home

from tests.support.spark_readers import new_reader, next_batch
from triomq import MessageQueue, PullConsumer
from triomq.client.admin.admin import Admin
from triomq.client.spark.errors import DataLoss
from triomq.client.spark.sink.sink_options import parse_sink_options
from triomq.client.spark.sink.writer import TaskWriter

pytestmark = [pytest.mark.compat, pytest.mark.spark, pytest.mark.timeout(240)]


@pytest.fixture
def namesrv(request: pytest.FixtureRequest) -> str:
    if java_home("5.5.0") is None:
        pytest.skip("the Java peers are not installed: run `make peers`")
    address: str = request.getfixturevalue("java_cluster")
    return address


async def create(namesrv: str, topic: str) -> None:
    async with Admin(namesrv) as admin:
        await admin.create_topic(topic, cluster="TestCluster", read_queues=2, write_queues=2)


def write(namesrv: str, topic: str, columns: dict[str, list[Any]]) -> None:
    options = parse_sink_options(
        {"nameServer": namesrv, "topic": topic, "compressOverBytes": "1k"}, streaming=False
    )
    writer = TaskWriter(options, {name: at for at, name in enumerate(columns)}, "query")
    done = writer.write(iter([pa.RecordBatch.from_pydict(columns)]))
    assert done.acknowledged == {topic: len(columns["value"])}
    trio.run(wait_indexed, namesrv, topic, len(columns["value"]))


async def wait_indexed(namesrv: str, topic: str, least: int) -> None:
    """Until Java's broker has so many messages in its queues: it indexes them after its answers."""
    async with Admin(namesrv) as admin:
        with trio.fail_after(60):
            while True:
                queues = [MessageQueue(topic, "broker-java", number) for number in range(2)]
                if sum([await admin.max_offset(queue) for queue in queues]) >= least:
                    return
                await trio.sleep(0.1)


@pytest.mark.loss
def test_what_the_sink_writes_is_read_by_the_source_and_the_sdk(namesrv: str) -> None:
    """Batches of plain and of compressed bodies, and single messages."""
    trio.run(create, namesrv, "SparkSink")
    bodies = [os.urandom(50) if number % 3 else b"%04d" % number * 500 for number in range(300)]
    keys = [f"k{number}" for number in range(300)]
    write(namesrv, "SparkSink", {"value": bodies, "key": keys, "shardingKey": keys})
    reader = new_reader(namesrv, "SparkSink", startingOffsets="earliest")
    try:
        rows, end = next_batch(reader, reader.initialOffset())
        assert rows == sorted(bodies)
        assert next_batch(reader, end)[0] == []
    finally:
        reader.stop()

    async def read() -> list[Any]:
        found: list[Any] = []
        async with PullConsumer(namesrv, group="G", consume_from="first") as consumer:
            await consumer.assign(await consumer.queues("SparkSink"))
            with trio.fail_after(30):
                while len(found) < 300:
                    found += await consumer.poll(max_messages=300)
        return found

    assert {(message.keys[0], message.body) for message in trio.run(read)} == set(
        zip(keys, bodies, strict=True)
    )


@pytest.mark.loss
def test_java_s_broker_takes_tombstones_and_tells_what_it_refuses(namesrv: str) -> None:
    """A tombstone alone, then one row of three that is too large for the broker."""
    topic = f"SparkRefused-{os.urandom(4).hex()}"
    trio.run(create, namesrv, topic)
    write(namesrv, topic, {"value": [None], "key": ["k"]})
    given = {"nameServer": namesrv, "topic": topic, "compressOverBytes": "1g"}
    writer = TaskWriter(parse_sink_options(given, streaming=False), {"value": 0}, "query", (1,))
    columns = {"value": [b"a", b"x" * 5_000_000, b"b"], "place": [7, 8, 9]}
    refused = list(writer.refused(iter([pa.RecordBatch.from_pydict(columns)])))
    ((mark, reason),) = (row for part in refused for row in part)
    assert mark == (8,)
    assert reason.startswith("the broker refuses the message: the message is illegal")
    trio.run(wait_indexed, namesrv, topic, 3)
    reader = new_reader(namesrv, topic, startingOffsets="earliest")
    try:
        assert next_batch(reader, reader.initialOffset())[0] == [b"", b"a", b"b"]
    finally:
        reader.stop()


@pytest.mark.loss
def test_a_topic_that_was_created_again_on_java_s_broker(namesrv: str) -> None:
    trio.run(create, namesrv, "SparkAgain")
    write(namesrv, "SparkAgain", {"value": [b"old"] * 20, "shardingKey": ["k"] * 20})
    reader = new_reader(namesrv, "SparkAgain", startingOffsets="earliest")
    try:
        rows, end = next_batch(reader, reader.initialOffset())
        assert rows == [b"old"] * 20

        async def delete() -> None:
            async with Admin(namesrv) as admin:
                await admin.delete_topic("SparkAgain")

        trio.run(delete)
        trio.run(create, namesrv, "SparkAgain")
        write(namesrv, "SparkAgain", {"value": [b"new"] * 50, "shardingKey": ["k"] * 50})
        with pytest.raises(DataLoss, match=r"SparkAgain on .* was deleted and created again"):
            next_batch(reader, end)
    finally:
        reader.stop()


@pytest.mark.loss
def test_batches_of_about_so_many_bytes_from_java_s_broker(namesrv: str) -> None:
    topic = f"SparkBytes-{os.urandom(4).hex()}"  # a second try has a topic of its own
    trio.run(create, namesrv, topic)
    bodies = [os.urandom(900) for _ in range(400)]
    write(namesrv, topic, {"value": bodies})
    reader = new_reader(namesrv, topic, startingOffsets="earliest", maxBytesPerTrigger="100k")
    try:
        found: list[list[bytes]] = []
        end = reader.initialOffset()
        reader.prepareForTriggerAvailableNow()
        for _ in range(10):
            rows, end = next_batch(reader, end, reader.getDefaultReadLimit())
            found.append(rows)
    finally:
        reader.stop()
    assert sorted(body for rows in found for body in rows) == sorted(bodies)
    counts = [len(rows) for rows in found if rows]
    assert max(counts) < 120, counts
    assert len(counts) < 8, counts
