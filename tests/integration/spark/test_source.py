"""The Spark source with real Spark and a real cluster: columns, starts and ends, filters, new
queues, brokers that stop and come back.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from pages import one
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.support.processes import running as running_process
from tests.support.spark_peers import Cluster, cluster, need_spark, open_session, wait_for
from triomq.client import ClientSettings, ProducerSettings, Tls
from triomq.client.spark.sources.source import RocketMQDataSource
from triomq.remoting.core.address import parse_address
from triomq.sync import Producer

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spark")


@pytest.fixture(scope="module")
def spark(folder: Path) -> Iterator[Any]:
    need_spark(folder)
    session = open_session(folder / "local")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def running(spark: Any, folder: Path) -> Iterator[Cluster]:
    with cluster(folder / "cluster") as started:
        yield started


def read(spark: Any, running: Cluster, *, schema: str | None = None, **options: str) -> Any:
    reader = spark.read.format("rocketmq").option("nameServer", running.namesrv).options(**options)
    return (reader.schema(schema) if schema else reader).load()


def run_available_now(
    spark: Any, running: Cluster, place: Path, **options: str
) -> list[dict[str, Any]]:
    """Run an AvailableNow query that writes parquet; return its progress events."""
    messages = (
        spark.readStream.format("rocketmq")
        .option("nameServer", running.namesrv)
        .options(**options)
        .load()
    )
    writer = (
        messages.writeStream.format("parquet")
        .option("path", str(place / "output"))
        .option("checkpointLocation", str(place / "checkpoint"))
    )
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return [json.loads(progress.json) for progress in query.recentProgress]


def places(rows: list[Any]) -> list[tuple[str, int, int]]:
    return sorted((row.brokerName, row.queueId, row.offset) for row in rows)


@pytest.mark.loss
@pytest.mark.feature("157b")
def test_a_batch_query_reads_every_message_once_with_all_columns(
    spark: Any, running: Cluster
) -> None:
    running.create_topic("columns")
    before = datetime.datetime.now(datetime.UTC)
    sent = running.send(
        "columns",
        [b"body %d" % number for number in range(500)],
        tag=lambda number: f"tag{number % 3}",
    )
    rows = read(spark, running, subscribe="columns", includeHeaders="true").collect()
    assert places(rows) == sorted(sent)
    by_key = {int(row.key): row for row in rows}
    for number, (broker, queue_id, offset) in enumerate(sent):
        row = by_key[number]
        assert (row.value, row.topic, row.brokerName, row.queueId, row.offset, row.tags) == (
            b"body %d" % number,
            "columns",
            broker,
            queue_id,
            offset,
            f"tag{number % 3}",
        )
        assert row.headers["KEYS"] == str(number)
        assert abs(row.timestamp.astimezone(datetime.UTC) - before) < datetime.timedelta(minutes=5)
    few = read(spark, running, schema="value string, msgId string", subscribe="columns")
    assert few.columns == ["value", "msgId"]
    assert {row.value for row in few.collect()} == {f"body {number}" for number in range(500)}
    assert few.select("msgId").distinct().count() == 500


@pytest.mark.loss
@pytest.mark.feature("172a")
@pytest.mark.parametrize("streaming", [False, True], ids=["batch", "stream"])
def test_tasks_give_spark_arrow_batches(running: Cluster, streaming: bool) -> None:
    running.create_topic("arrow", 1)
    running.send("arrow", [b"%d" % number for number in range(40)])
    source = RocketMQDataSource(
        {"nameServer": running.namesrv, "subscribe": "arrow", "startingOffsets": "earliest"}
    )
    if streaming:
        stream = source.streamReader(source.schema())
        begin = stream.initialOffset()
        tasks = stream.partitions(begin, stream.latestOffset(begin, ReadAllAvailable()))
        batches = [given for task in tasks for given in stream.read(task)]
        stream.stop()
    else:
        batch = source.reader(source.schema())
        batches = [given for task in batch.partitions() for given in batch.read(task)]
    assert {type(given) for given in batches} == {pa.RecordBatch}
    assert {value for given in batches for value in given.column("value").to_pylist()} >= {
        b"%d" % number for number in range(40)
    }


@pytest.mark.loss
@pytest.mark.feature("173a", "173b")
def test_tags_starts_and_ends(spark: Any, running: Cluster) -> None:
    running.create_topic("cuts", 1)
    sent = running.send(
        "cuts",
        [b"%d" % number for number in range(60)],
        tag=lambda number: "even" if number % 2 == 0 else "odd",
    )
    assert {
        int(row.value)
        for row in read(spark, running, subscribe="cuts", tags="even || other").collect()
    } == set(range(0, 60, 2))
    some = {
        "startingOffsets": '{"cuts":{"broker-a":{"0":5}},"*":-2}',
        "endingOffsets": '{"cuts":{"broker-a":{"0":9}},"*":-1}',
    }
    assert places(read(spark, running, subscribe="cuts", **some).collect()) == sorted(
        place for place in sent if place[0] == "broker-b" or 5 <= place[2] < 9
    )
    assert places(read(spark, running, assign='{"cuts":{"broker-b":[0]}}').collect()) == sorted(
        place for place in sent if place[0] == "broker-b"
    )
    assert (
        read(
            spark, running, subscribe="cuts", minPartitions="7", minRecordsPerPartition="1"
        ).rdd.getNumPartitions()
        >= 7
    )
    assert read(spark, running, subscribe="cuts").rdd.getNumPartitions() == 1
    middle = int(time.time() * 1000) + 1
    time.sleep(0.002)
    later = running.send("cuts", [b"late"] * 20)
    assert places(
        read(spark, running, subscribe="cuts", startingTimestamp=str(middle)).collect()
    ) == sorted(later)
    assert places(
        read(spark, running, subscribe="cuts", endingTimestamp=str(middle)).collect()
    ) == sorted(sent)


def test_mistakes_are_reported_while_planning(spark: Any, running: Cluster) -> None:
    for options, message in [
        ({"subscribe": "cuts", "startOffsets": "earliest"}, "did you mean 'startingOffsets'"),
        ({"subscribe": "nowhere"}, "do not know topic nowhere; check the spelling"),
        ({}, "exactly one of the options 'subscribe', 'subscribePattern' and 'assign'"),
    ]:
        with pytest.raises(Exception, match=message):
            read(spark, running, **options).collect()
    with pytest.raises(Exception, match="no column 'ofset'; did you mean 'offset'"):
        read(spark, running, schema="ofset bigint", subscribe="cuts").collect()
    nobody = {"fetchOffset.numRetries": "0", "subscribe": "cuts"}
    with pytest.raises(Exception, match=r"no name server answers \(cannot connect to 127.0.0.1:1"):
        spark.read.format("rocketmq").options(nameServer="127.0.0.1:1", **nobody).load().collect()


def test_an_empty_topic_has_no_rows(spark: Any, running: Cluster) -> None:
    running.create_topic("empty")
    assert read(spark, running, subscribe="empty").count() == 0


@pytest.mark.loss
@pytest.mark.feature("172b")
def test_available_now_continues_from_its_checkpoint_with_new_queues(
    spark: Any, running: Cluster, tmp_path: Path
) -> None:
    """Three runs of one query: new messages, then a topic with more queues on more brokers."""
    topic = tmp_path.name  # a second try, after a fault of Spark, has a topic of its own
    running.create_topic(topic, 1, brokers=["broker-a"])
    options = {
        "subscribe": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "64",
        "groupId": "growing-group",
    }
    sent: list[tuple[str, int, int]] = []
    for run in range(3):
        if run:
            running.create_topic(topic, 2 * run - 1)
        sent += running.send(topic, [b"run %d message %d" % (run, number) for number in range(100)])
        events = run_available_now(spark, running, tmp_path, **options)
        assert len([event for event in events if event["numInputRows"]]) >= 2  # 64 per batch
        assert places(spark.read.parquet(str(tmp_path / "output")).collect()) == sorted(sent)
        assert (
            running.lag("growing-group", topic) == 0
        )  # without another batch, and without a consumer
    assert {queue_id for _, queue_id, _ in sent} == {0, 1, 2}
    assert {broker for broker, _, _ in sent} == {"broker-a", "broker-b"}


@pytest.mark.loss
def test_batches_of_about_so_many_bytes(spark: Any, running: Cluster, tmp_path: Path) -> None:
    """Bodies of 900 bytes are records of about 1,050."""
    running.create_topic("bytes", 1)
    sent = running.send("bytes", [b"x" * 900] * 200)
    options = {"subscribe": "bytes", "startingOffsets": "earliest", "maxBytesPerTrigger": "64k"}
    events = run_available_now(spark, running, tmp_path, **options)
    assert places(spark.read.parquet(str(tmp_path / "output")).collect()) == sorted(sent)
    counts = [event["numInputRows"] for event in events if event["numInputRows"]]
    assert max(counts) < 80, counts
    assert len(counts) < 6, counts


@pytest.mark.loss
def test_two_topics_in_one_stream(spark: Any, running: Cluster, tmp_path: Path) -> None:
    running.create_topic("left", 1)
    running.create_topic("right", 1)
    running.send("left", [b"l"] * 30)
    running.send("right", [b"r"] * 20)
    run_available_now(spark, running, tmp_path, subscribe="left,right", startingOffsets="earliest")
    counts = {
        row.topic: row["count"]
        for row in spark.read.parquet(str(tmp_path / "output")).groupBy("topic").count().collect()
    }
    assert counts == {"left": 30, "right": 20}


@pytest.mark.loss
@pytest.mark.feature("172b", "172d")
def test_a_broker_that_restarts_does_not_block_the_query(
    spark: Any, running: Cluster, tmp_path: Path
) -> None:
    """A running query: a broker is killed, the other broker's messages still arrive; the first
    comes back with its store.
    """
    running.create_topic("steady", 1)
    sent = running.send("steady", [b"1"] * 50)
    options = {"subscribe": "steady", "startingOffsets": "earliest", "metadataRefreshMs": "500"}
    messages = (
        spark.readStream.format("rocketmq")
        .option("nameServer", running.namesrv)
        .options(**options)
        .load()
    )
    seen: list[tuple[str, int, int]] = []
    query = (
        messages.writeStream.foreachBatch(lambda batch, _: seen.extend(places(batch.collect())))
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    try:
        wait_for(lambda: len(seen) == 50 or query.exception(), "the first messages")
        running.kill("broker-b")
        wait_for(lambda: "broker-b" not in running.broker_names(), "the name server to notice")
        sent += running.send("steady", [b"2"] * 30)
        wait_for(
            lambda: len(seen) == 80 or query.exception(), "the messages of the broker that is left"
        )
        folder = running.folder / "broker-b"
        conf = folder / "broker-b.conf"
        port = parse_address(running.addresses["broker-b"])[1]
        with running_process(broker_command(conf), folder / "again.log", port=port):
            wait_for(lambda: "broker-b" in running.broker_names(), "the broker to come back")
            sent += running.send("steady", [b"3"] * 40)
            wait_for(lambda: len(seen) >= 120 or query.exception(), "all messages")
            assert sorted(seen) == sorted(sent)
            assert {broker for broker, _, _ in sent[80:]} == {"broker-a", "broker-b"}
            assert query.exception() is None
    finally:
        query.stop()
    assert_no_driver_left()


@pytest.mark.loss
def test_a_broker_that_lost_its_store_is_a_data_loss(
    spark: Any, running: Cluster, tmp_path: Path
) -> None:
    running.kill("broker-b")
    folder = running.folder / "broker-b"
    conf = folder / "broker-b.conf"
    port = parse_address(running.addresses["broker-b"])[1]
    options = {"assign": '{"fragile":{"broker-b":[0]}}', "startingOffsets": "earliest"}
    with running_process(broker_command(conf), folder / "third.log", port=port):
        wait_for(lambda: "broker-b" in running.broker_names(), "the broker to come back")
        running.create_topic("fragile", 1, brokers=["broker-b"])
        running.send("fragile", [b"old"] * 30)
        run_available_now(spark, running, tmp_path, **options)
    shutil.rmtree(folder / "store")
    with running_process(broker_command(conf), folder / "fourth.log", port=port):
        wait_for(lambda: "broker-b" in running.broker_names(), "the broker to come back")
        running.create_topic("fragile", 1, brokers=["broker-b"])
        running.send("fragile", [b"new"] * 10)
        with pytest.raises(
            Exception,
            match=(
                r"ends at 10, but the query has read up to 30: the topic was deleted.*set"
                r" failOnDataLoss=false"
            ),
        ):
            run_available_now(spark, running, tmp_path, **options)
        run_available_now(spark, running, tmp_path, **options, failOnDataLoss="false")
    rows = spark.read.parquet(str(tmp_path / "output")).collect()
    assert sorted(bytes(row.value) for row in rows) == [b"new"] * 10 + [b"old"] * 30


@pytest.mark.loss
@pytest.mark.feature("151a")
def test_an_encrypted_cluster_is_read_with_tls(spark: Any, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "triomq.local",
        "--port",
        "0",
        "--tls",
        "--json",
        "--dir",
        str(tmp_path),
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            tls = Tls.from_file(ready["tls"])
            settings = ProducerSettings(client=ClientSettings(tls=tls))
            bodies = {b"secret-%d" % number for number in range(50)}
            with Producer(ready["namesrvAddr"], group="g", settings=settings) as producer:
                for body in bodies:
                    producer.send("Encrypted", body, timeout=20)
            reader = (
                spark.read.format("rocketmq")
                .option("nameServer", ready["namesrvAddr"])
                .option("subscribe", "Encrypted")
            )
            rows = reader.option("tlsCaFile", str(tls.ca_file)).load().select("value").collect()
            assert {bytes(row.value) for row in rows} == bodies
            plain = (
                spark.read.format("rocketmq")
                .option("nameServer", ready["namesrvAddr"])
                .option("subscribe", "Encrypted")
            )
            with pytest.raises(Exception, match="does it demand TLS"):
                plain.option("fetchOffset.numRetries", "0").load().count()
        finally:
            process.terminate()
        assert process.wait(30) == 0


def broker_command(conf: Path) -> list[str]:
    return [sys.executable, "-m", "triomq.broker", "-c", str(conf)]


def assert_no_driver_left() -> None:
    """``query.stop()`` also ends the query's process of the driver."""

    def left() -> list[str]:
        commands = []
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # a zombie has ended, too
                commands.append(" ".join(child.cmdline()))
        return [command for command in commands if "python_streaming_source_runner" in command]

    wait_for(lambda: not left(), "the reader's process to end", 20)


@pytest.mark.loss
@pytest.mark.feature("200a")
def test_the_page_of_spark(spark: Any, running: Cluster, tmp_path: Path) -> None:
    running.create_topic("orders", brokers=("broker-a",))
    running.send("orders", [b"order %d" % number for number in range(50)])
    source = one("docs/spark.md", "messages = (")
    assert source.count("/data/") == 2
    names: dict[str, Any] = {"spark": spark}
    exec(one("docs/spark.md", "ProgressListener").replace("/tmp", str(tmp_path)), names)
    exec(
        source.replace("ns1:9876;ns2:9876", running.namesrv).replace("/data", str(tmp_path)), names
    )
    query = names["query"]
    try:
        query.processAllAvailable()
        rows = spark.read.parquet(str(tmp_path / "orders")).collect()
    finally:
        query.stop()
    assert {row.value for row in rows} == {f"order {number}" for number in range(50)}
    wait_for(lambda: (tmp_path / "queries.prom").exists(), "the listener")
    text = (tmp_path / "queries.prom").read_text()
    assert 'topic="orders",broker="broker-a",queue="0"} 0' in text
    assert sum(int(line.split()[-1]) for line in text.splitlines() if "rows_total{" in line) == 50
    spark.streams.removeListener(names["listener"])
    exec(one("docs/spark.md", "kafka_like"), names)
    assert names["kafka_like"].columns == [
        "key",
        "value",
        "topic",
        "partition",
        "offset",
        "timestamp",
    ]
    exec(one("docs/spark.md", "prepare_java").replace(".java", str(tmp_path / "java")), {})


@pytest.mark.feature("200a", "200c")
@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md"])
def test_the_query_of_the_readme(page: str, spark: Any, running: Cluster) -> None:
    running.create_topic("flights", brokers=("broker-a",))
    names: dict[str, Any] = {"spark": spark}
    exec(one(page, "spark.readStream").replace("127.0.0.1:9876", running.namesrv), names)
    assert names["flights"].isStreaming
    assert {"value", "topic", "queueId", "offset"} <= set(names["flights"].columns)
