"""The Spark sink with real brokers and real Spark."""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pages import one

from tests.support.processes import our_broker
from tests.support.spark_peers import Cluster, cluster, need_spark, open_session, wait_for
from triomq.client.spark.errors import NotDelivered
from triomq.client.spark.sink.sink_options import parse_sink_options
from triomq.client.spark.sink.writer import TaskWriter
from triomq.sync import PullConsumer

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def task(namesrv: str, topic: str, columns: list[str], **options: str) -> TaskWriter:
    given = {"nameServer": namesrv, "topic": topic, **options}
    places = {name: position for position, name in enumerate(columns)}
    return TaskWriter(parse_sink_options(given, streaming=False), places, "query")


def record_batches(columns: dict[str, list[Any]], rows: int) -> Iterator[pa.RecordBatch]:
    whole = pa.RecordBatch.from_pydict(columns)
    for start in range(0, whole.num_rows, rows):
        yield whole.slice(start, rows)


def _origin(message: Any) -> Any:
    return message.properties.get("__SPARK", message.message_id)


def read_all(namesrv: str, topic: str, count: int) -> list[Any]:
    """Return the messages of a topic, at least ``count``."""
    found: list[Any] = []
    with PullConsumer(namesrv, group="sink-readers", consume_from="first") as consumer:
        consumer.assign(consumer.queues(topic))
        deadline = time.monotonic() + 30
        # A message may come twice: those are counted whose origin is new.
        while len({_origin(one) for one in found}) < count and time.monotonic() < deadline:
            found += consumer.poll(max_messages=1000)
        found += consumer.poll(max_messages=1000, timeout=0.5)
    return found


@pytest.mark.loss
def test_rows_of_a_key_keep_their_order_and_large_bodies_arrive(tmp_path: Path) -> None:
    with cluster(tmp_path) as running:
        running.create_topic("Keyed", 4)
        numbers = range(3_000)
        columns: dict[str, list[Any]] = {
            "value": [
                f"{number:05}".encode() * (2_000 if number % 500 == 0 else 1) for number in numbers
            ],
            "shardingKey": [f"k{number % 7}" for number in numbers],
        }
        writer = task(running.namesrv, "Keyed", list(columns), sendBatchBytes="4k")
        done = writer.write(record_batches(columns, 250))
        assert done.acknowledged == {"Keyed": 3_000}
        found = read_all(running.namesrv, "Keyed", 3_000)
        assert len(found) == 3_000
        of_key = collections.defaultdict(list)
        places = collections.defaultdict(set)
        for message in sorted(found, key=lambda each: each.queue_offset):
            key = message.properties["__SHARDINGKEY"]
            of_key[key].append(int(message.body[:5]))
            places[key].add(message.queue)
            assert message.body == columns["value"][int(message.body[:5])]
        assert all(numbers_of == sorted(numbers_of) for numbers_of in of_key.values())
        assert all(len(queues) == 1 for queues in places.values())


@pytest.mark.loss
def test_a_broker_that_is_killed_loses_no_row(tmp_path: Path) -> None:
    """Half of the queues go away in the middle, and the others take the rest."""
    with cluster(tmp_path) as running:
        running.create_topic("Killed", 2)
        rows = 20_000
        killed = threading.Event()

        def batches() -> Iterator[pa.RecordBatch]:
            columns = {"value": [b"%06d" % number for number in range(rows)]}
            for number, batch in enumerate(record_batches(columns, 1000)):
                if number == 8:
                    running.kill("broker-b")
                    killed.set()
                yield batch

        done = task(running.namesrv, "Killed", ["value"], sendBatchBytes="8k").write(batches())
        assert killed.is_set()
        assert done.acknowledged == {"Killed": rows}
        port = int(running.addresses["broker-b"].rpartition(":")[2])
        with our_broker(tmp_path / "broker-b", "broker-b", running.namesrv, port):
            wait_for(lambda: "broker-b" in running.broker_names(), "the broker to come back")
            found = read_all(running.namesrv, "Killed", rows)
        origins = collections.defaultdict(set)
        for message in found:
            origins[message.properties["__SPARK"]].add(message.body)
        assert {body for bodies in origins.values() for body in bodies} == {
            b"%06d" % number for number in range(rows)
        }
        assert all(len(bodies) == 1 for bodies in origins.values()), "one row, one origin"
        assert len(origins) == rows


def test_without_any_broker_the_task_fails_with_the_count(tmp_path: Path) -> None:
    with cluster(tmp_path) as running:
        running.create_topic("Down", 1)
        running.send("Down", [b"x"])
        running.kill("broker-a")
        running.kill("broker-b")
        writer = task(running.namesrv, "Down", ["value"], deliveryTimeoutMs="1s")
        with pytest.raises((NotDelivered, Exception), match="Down"):
            writer.write(record_batches({"value": [b"1", b"2"]}, 10))


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("spark")
    need_spark(folder)
    session = open_session(folder / "local")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def running(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


def rows_of(spark: Any, running: Cluster, topic: str) -> Any:
    reader = spark.read.format("rocketmq").option("nameServer", running.namesrv)
    return reader.option("subscribe", topic).option("includeHeaders", "true").load()


@pytest.mark.loss
@pytest.mark.feature("174a", "174c")
@pytest.mark.slow
def test_batch_and_sql_writes(spark: Any, running: Cluster) -> None:
    running.create_topic("Written", 2)
    rows = spark.range(2_000).selectExpr(
        "concat('body ', id) AS value",
        "CAST(id AS string) AS key",
        "concat('t', id % 3) AS tags",
        "map('origin', 'range') AS headers",
    )
    writer = rows.write.format("rocketmq").option("nameServer", running.namesrv)
    writer.option("topic", "Written").mode("append").save()
    found = rows_of(spark, running, "Written").collect()
    assert {bytes(row.value).decode() for row in found} == {f"body {n}" for n in range(2_000)}
    assert len(found) == 2_000
    assert {(row.tags, row.headers["origin"]) for row in found if row.key == "7"} == {
        ("t1", "range")
    }
    spark.sql(
        "CREATE TEMPORARY VIEW written (value STRING, key STRING) USING rocketmq"
        f" OPTIONS (nameServer '{running.namesrv}', topic 'Written')"
    )
    spark.sql("INSERT INTO written VALUES ('by insert', 'sql')")
    (row,) = spark.sql("SELECT * FROM written WHERE key = 'sql'").collect()
    assert row.value == "by insert"
    with pytest.raises(Exception, match=r"no column 'colour'.*drop or rename"):
        rows.withColumn("colour", rows.key).write.format("rocketmq").option(
            "nameServer", running.namesrv
        ).option("topic", "Written").mode("append").save()
    with pytest.raises(Exception, match=r"cannot be overwritten.*append"):
        writer.option("topic", "Written").mode("overwrite").save()


@pytest.mark.loss
@pytest.mark.slow
def test_the_page(spark: Any, running: Cluster, tmp_path: Path) -> None:
    running.create_topic("order-changes", 2)
    names: dict[str, Any] = {"spark": spark}
    exec(one("docs/spark.md", "changes.write").replace("ns1:9876;ns2:9876", running.namesrv), names)
    repeated = task(running.namesrv, "order-changes", ["value"])
    for _ in range(2):  # the same rows of the same task
        repeated.write(record_batches({"value": [b"1", b"2", b"3"]}, 2))
    recipe = one("docs/spark.md", "dropDuplicatesWithinWatermark")
    exec(recipe.replace("ns1:9876;ns2:9876", running.namesrv), names)
    assert rows_of(spark, running, "order-changes").count() == 4 + 2 * 3
    query = (
        names["once"]
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "once"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert spark.read.parquet(str(tmp_path / "once")).count() == 4 + 3
