"""The Spark source with real brokers and without Spark: its methods are called in Spark's order.

Topics that are created again, brokers that are away, batch consume queues, slaves.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.support.processes import our_broker, our_name_server
from tests.support.spark_peers import Cluster, cluster, wait_for
from tests.support.spark_readers import new_reader, next_batch, rows_of
from triomq.client.admin.admin import Admin
from triomq.client.spark.errors import DataLoss, SourceError
from triomq.client.spark.stream_reader import RocketMQStreamReader
from triomq.sync import Message, Producer

Make = Callable[..., RocketMQStreamReader]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture
def stream() -> Iterator[Callable[..., RocketMQStreamReader]]:
    """Make readers; they are stopped at the end."""
    made = []

    def make(namesrv: str, topic: str, **options: str) -> RocketMQStreamReader:
        made.append(new_reader(namesrv, topic, **options))
        return made[-1]

    yield make
    for reader in made:
        reader.stop()


def numbered(word: str, count: int) -> list[bytes]:
    return [f"{word} {number:03}".encode() for number in range(count)]


def with_admin(namesrv: str, act: Callable[[Admin], Any]) -> None:
    async def run() -> None:
        async with Admin(namesrv) as admin:
            await act(admin)

    trio.run(run)


@pytest.mark.loss
def test_a_topic_that_was_created_again_and_has_grown_beyond_the_query(
    running: Cluster, stream: Make
) -> None:
    running.create_topic("Again", 1, brokers=["broker-a"])
    running.send("Again", numbered("old", 30))
    reader = stream(running.namesrv, "Again", startingOffsets="earliest")
    start = reader.initialOffset()
    rows, end = next_batch(reader, start)
    assert rows == numbered("old", 30)
    with_admin(running.namesrv, lambda admin: admin.delete_topic("Again"))
    running.create_topic("Again", 1, brokers=["broker-a"])
    running.send("Again", numbered("new", 80))
    with pytest.raises(DataLoss, match="Again on broker-a was deleted and created again"):
        next_batch(reader, end)
    with pytest.raises(DataLoss, match=r"created again before offsets \[0, 30\)"):
        rows_of(stream(running.namesrv, "Again"), start, end)  # a batch replayed by a new driver
    lenient = stream(running.namesrv, "Again", failOnDataLoss="false")
    assert rows_of(lenient, start, end) == []
    rows, end = next_batch(lenient, end)
    assert rows == numbered("new", 80)
    assert next_batch(lenient, end)[0] == []


@pytest.mark.loss
def test_messages_of_inner_batches_are_rows(running: Cluster, stream: Make) -> None:
    with_admin(
        running.namesrv,
        lambda admin: admin.create_topic("Batches", queues=1, attributes="+queue.type=BatchCQ"),
    )
    reader = stream(running.namesrv, "Batches", startingOffsets="earliest", pullBatchSize="4")
    start = reader.initialOffset()
    bodies = numbered("message", 40)
    with Producer(running.namesrv, group="P") as producer:
        for first in range(0, 40, 10):
            producer.send_batch(
                [Message(topic="Batches", body=body) for body in bodies[first : first + 10]]
            )
    rows, end = next_batch(reader, start)
    assert rows == bodies
    assert next_batch(reader, end)[0] == []
    middle = '{"Batches":{"*":7}}'
    from_middle = stream(running.namesrv, "Batches", startingOffsets=middle)
    rows, _ = next_batch(from_middle, from_middle.initialOffset())
    assert 40 > len(rows) == len(set(rows)) >= 40 - 2 * 7


def test_pulls_that_are_refused_end_the_query_at_once(tmp_path: Path, stream: Make) -> None:
    """Not only in a task: the driver compares messages before it plans a batch."""
    with contextlib.ExitStack() as stack:
        namesrv = stack.enter_context(our_name_server(tmp_path / "namesrv"))
        settings = {"autoCreateSubscriptionGroup": "false"}
        broker = our_broker(tmp_path / "broker", "broker-a", namesrv, **settings)
        address, process = stack.enter_context(broker)
        running = Cluster(tmp_path, namesrv, {"broker-a": address}, {"broker-a": process})
        running.create_topic("Refused", 1, brokers=["broker-a"])
        running.send("Refused", [b"x"])
        reader = stream(namesrv, "Refused", groupId="nobody")
        with pytest.raises(SourceError, match=r"(?s)refuses pulls from Refused.*group create"):
            reader.initialOffset()


@pytest.mark.loss
def test_a_filter_in_sql_is_the_broker_s(tmp_path: Path, stream: Make) -> None:
    with contextlib.ExitStack() as stack:
        namesrv = stack.enter_context(our_name_server(tmp_path / "namesrv"))
        broker = our_broker(tmp_path / "broker", "broker-a", namesrv, enablePropertyFilter="true")
        address, process = stack.enter_context(broker)
        running = Cluster(tmp_path, namesrv, {"broker-a": address}, {"broker-a": process})
        running.create_topic("Sql", 2, brokers=["broker-a"])
        with Producer(namesrv, group="P") as producer:
            for number in range(50):
                body, properties = b"%02d" % number, {"amount": str(number)}
                producer.send(Message(topic="Sql", body=body, properties=properties))
        options = {"startingOffsets": "earliest", "filterSql": "amount BETWEEN 10 AND 12"}
        reader = stream(namesrv, "Sql", **options)
        rows, end = next_batch(reader, reader.initialOffset())
        assert rows == [b"10", b"11", b"12"]
        assert sum(end["q"]["Sql"]["broker-a"].values()) == 50


@pytest.mark.loss
def test_topics_by_pattern_also_later_ones(running: Cluster, stream: Make) -> None:
    running.create_topic("By-pattern-1", 1)
    running.send("By-pattern-1", numbered("one", 5))
    pattern = {"subscribePattern": "(By-pattern|Default|broker|rmq|%RETRY|TBW).*"}
    reader = stream(running.namesrv, "", startingOffsets="earliest", **pattern)
    rows, end = next_batch(reader, reader.initialOffset())
    assert rows == numbered("one", 5)
    assert list(end["q"]) == ["By-pattern-1"]
    running.create_topic("By-pattern-2", 1)
    running.send("By-pattern-2", numbered("two", 5))
    time.sleep(0.3)  # metadataRefreshMs
    rows, end = next_batch(reader, end)
    assert rows == numbered("two", 5)
    with_admin(running.namesrv, lambda admin: admin.delete_topic("By-pattern-1"))


@pytest.mark.loss
def test_a_query_begins_where_the_group_stopped(running: Cluster, stream: Make) -> None:
    running.create_topic("Group", 2)
    running.send("Group", numbered("one", 20))
    options = {"groupId": "g", "groupOffsetsReset": "earliest"}
    first = stream(running.namesrv, "Group", startingOffsets="group", **options)
    rows, end = next_batch(first, first.initialOffset())
    assert rows == numbered("one", 20), "the group had no offsets"
    assert first.latestOffset(end, ReadAllAvailable()) is end  # stores them
    running.send("Group", numbered("two", 20))
    second = stream(running.namesrv, "Group", startingOffsets="group", **options)
    rows, _ = next_batch(second, second.initialOffset())
    assert rows == numbered("two", 20)


@pytest.mark.loss
def test_a_broker_that_was_away_at_the_start_is_read_from_the_start_on(
    tmp_path: Path, stream: Make
) -> None:
    """With ``latest``. Its port stays the same, its store too."""
    with cluster(tmp_path) as running:
        running.create_topic("Away", 1)
        running.send("Away", numbered("before", 20))
        running.kill("broker-b")
        wait_for(lambda: "broker-b" not in running.broker_names(), "the name server to notice")
        reader = stream(running.namesrv, "Away")
        end = reader.initialOffset()
        sent = numbered("a", 5)
        running.send("Away", sent)
        rows, end = next_batch(reader, end)
        assert rows == sent
        port = int(running.addresses["broker-b"].rpartition(":")[2])
        with our_broker(tmp_path / "broker-b", "broker-b", running.namesrv, port):
            wait_for(lambda: "broker-b" in running.broker_names(), "the broker to come back")
            sent = numbered("both", 10)
            places = running.send("Away", sent)
            assert {broker for broker, _, _ in places} == {"broker-a", "broker-b"}
            time.sleep(0.3)  # metadataRefreshMs
            rows, end = next_batch(reader, end)
            assert rows == sent
            assert next_batch(reader, end)[0] == []


@pytest.mark.loss
def test_reading_goes_on_from_a_slave_and_then_from_the_master(
    tmp_path: Path, stream: Make
) -> None:
    with contextlib.ExitStack() as stack:
        namesrv = stack.enter_context(our_name_server(tmp_path / "namesrv"))
        settings = {"slaveReadEnable": "true", "haSendHeartbeatInterval": 200}
        master_stack = stack.enter_context(contextlib.ExitStack())
        master = our_broker(
            tmp_path / "master", "broker-a", namesrv, brokerRole="SYNC_MASTER", **settings
        )
        address, process = master_stack.enter_context(master)
        slave = our_broker(
            tmp_path / "slave", "broker-a", namesrv, brokerId=1, brokerRole="SLAVE", **settings
        )
        stack.enter_context(slave)
        running = Cluster(tmp_path, namesrv, {"broker-a": address}, {"broker-a": process})
        running.create_topic("Kept", 2, brokers=["broker-a"])
        reader = stream(namesrv, "Kept", startingOffsets="earliest")
        end = reader.initialOffset()
        running.send("Kept", numbered("one", 20))
        rows, end = next_batch(reader, end)
        assert rows == numbered("one", 20)
        running.send("Kept", numbered("two", 30))
        process.kill()
        process.wait()
        wait_for(lambda: not master_is_routed(namesrv), "the name server to notice")
        time.sleep(0.3)  # metadataRefreshMs
        rows, end = next_batch(reader, end)
        assert rows == numbered("two", 30), "the slave has what was acknowledged"
        assert next_batch(reader, end)[0] == []
        master_stack.close()
        port = int(address.rpartition(":")[2])
        again = our_broker(
            tmp_path / "master", "broker-a", namesrv, port, brokerRole="SYNC_MASTER", **settings
        )
        stack.enter_context(again)
        wait_for(lambda: master_is_routed(namesrv), "the master to come back")
        running.send("Kept", numbered("three", 10))
        time.sleep(0.3)
        rows, end = next_batch(reader, end)
        assert rows == numbered("three", 10)


def master_is_routed(namesrv: str) -> bool:
    found = False

    async def look(admin: Admin) -> None:
        nonlocal found
        found = any(broker.id == 0 for broker in await admin.brokers())

    with_admin(namesrv, look)
    return found
