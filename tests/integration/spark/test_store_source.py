"""Store directories of real brokers, read by real Spark: rows as from the broker, and a backfill
that hands over to the live query while a producer goes on.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from pages import one

from tests.support.processes import free_port, our_broker, our_name_server
from tests.support.spark_peers import Cluster, need_spark, open_session, wait_for
from tests.support.store_reads import ALL_COLUMNS, in_order
from triomq.client.core.broker_errors import TrioMQError
from triomq.client.pipeline import backfill
from triomq.client.pipeline.backfill import Backfill, run_backfill
from triomq.client.pipeline.batch import BatchCounts, BatchWork
from triomq.client.pipeline.core.errors import PipelineError
from triomq.client.pipeline.core.spec import DecodeSpec, RunSpec, SourceSpec, Spec, TableSpec
from triomq.client.pipeline.run import PipelineRun
from triomq.client.spark.sources.store_source import RocketMQStoreDataSource
from triomq.sync import Message, Producer

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

SMALL_FILES = {"mappedFileSizeCommitLog": 1 << 18, "mappedFileSizeConsumeQueue": 20_000}
"""many segments, and copies that are not full of zeros"""
NAMES = ("broker-a", "broker-b")


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("spark")
    need_spark(folder)
    session = open_session(folder / "local")
    session.dataSource.register(RocketMQStoreDataSource)
    yield session
    session.stop()


@attrs.define(eq=False)
class StoppableCluster(Cluster):
    """Two brokers that can be stopped cleanly and started again at their addresses."""

    stack: contextlib.ExitStack

    def stop(self, name: str) -> None:
        process = self.processes[name]
        process.terminate()
        assert process.wait(60) == 0

    def start(self, name: str) -> None:
        port = int(self.addresses[name].rpartition(":")[2])
        folder = self.folder / name
        _, self.processes[name] = self.stack.enter_context(
            our_broker(folder, name, self.namesrv, port, **SMALL_FILES)
        )
        wait_for(lambda: name in self.broker_names(), f"{name} to register")

    def store(self, name: str) -> Path:
        return self.folder / name / "store"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[StoppableCluster]:
    with contextlib.ExitStack() as stack:
        namesrv = stack.enter_context(our_name_server(tmp_path / "namesrv"))
        addresses = {name: f"127.0.0.1:{free_port()}" for name in NAMES}
        cluster = StoppableCluster(tmp_path, namesrv, addresses, {}, stack)
        for name in NAMES:
            cluster.start(name)
        yield cluster


def from_brokers(spark: Any, cluster: Cluster, topic: str) -> Any:
    reader = spark.read.format("rocketmq").schema(ALL_COLUMNS)
    return reader.options(nameServer=cluster.namesrv, subscribe=topic).load()


def from_store(spark: Any, path: Path, topic: str, broker: str = "broker-a", **options: str) -> Any:
    reader = spark.read.format("rocketmq-store").schema(ALL_COLUMNS)
    return reader.options(brokerName=broker, subscribe=topic, **options).load(str(path))


def rows_of(frame: Any) -> list[dict[str, Any]]:
    return in_order(row.asDict() for row in frame.collect())


@pytest.mark.loss
@pytest.mark.feature("206a")
def test_a_store_has_the_rows_of_its_broker(
    spark: Any, running: StoppableCluster, tmp_path: Path
) -> None:
    """Every column, by several tasks; a running broker's store is refused, a snapshot of it is
    read.
    """
    running.create_topic("Orders", 3)
    bodies = [b"%d" % number * (number % 300) + b"." for number in range(3_000)]
    running.send("Orders", bodies, tag=lambda number: f"T{number % 3}")
    served = rows_of(from_brokers(spark, running, "Orders").where("brokerName = 'broker-a'"))
    assert len(served) > 1_000
    with pytest.raises(Exception, match="a broker runs on"):
        from_store(spark, running.store("broker-a"), "Orders").collect()
    snapshot = Path(shutil.copytree(running.store("broker-a"), tmp_path / "snapshot"))
    part = rows_of(from_store(spark, snapshot, "Orders", snapshot="true"))
    assert part == [row for row in served if row in part]
    running.stop("broker-a")
    small = {"partitionBytes": "256k", "minRecordsPerPartition": "100"}
    stored = from_store(spark, running.store("broker-a"), "Orders", **small)
    assert stored.rdd.getNumPartitions() > 3
    assert rows_of(stored) == served
    tagged = from_store(spark, running.store("broker-a"), "Orders", tags="T1")
    assert rows_of(tagged) == [row for row in served if row["tags"] == "T1"]
    pruned = spark.read.format("rocketmq-store").schema("offset bigint")
    offsets = pruned.options(brokerName="broker-a", subscribe="Orders")
    assert offsets.load(str(running.store("broker-a"))).count() == len(served)
    code = one("docs/spark.md", "rocketmq-store").replace(
        "/data/broker-a", str(tmp_path / "broker-a")
    )
    names = {"spark": spark}
    exec(code.replace("orders,payments", "Orders"), names)
    assert names["stored"].count() == len(served)


class SteadyProducer:
    """Sends numbered messages until it is stopped; a send that fails is left out."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster, self._topic = cluster, topic
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.sent = 0

    def _run(self) -> None:
        with Producer(self._cluster.namesrv, group="steady") as producer:
            while not self._stopped.is_set():
                message = Message(topic=self._topic, body=json.dumps({"n": self.sent}).encode())
                with contextlib.suppress(TrioMQError):
                    producer.send(message)
                self.sent += 1
                time.sleep(0.002)

    def __enter__(self) -> SteadyProducer:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        self._thread.join()

    def wait_for_more(self, count: int) -> None:
        wanted = self.sent + count
        wait_for(lambda: self.sent >= wanted, f"{count} more messages")


def pipeline(cluster: Cluster, folder: Path) -> Spec:
    return Spec(
        name="orders",
        source=SourceSpec(name_server=cluster.namesrv, topics=("Orders",)),
        decode=DecodeSpec(format="string"),
        sink=TableSpec(path=str(folder / "lake")),
        dead_letters=TableSpec(path=str(folder / "dead")),
        run=RunSpec(trigger="available_now", checkpoint=str(folder / "checkpoint")),
    )


def run_to_the_end(spark: Any, spec: Spec) -> None:
    pipeline = PipelineRun(spark, spec)
    pipeline.start()
    status = pipeline.wait()
    assert status.state == "stopped", status.cause


def places(rows: Any, names: tuple[str, ...]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row) for row in rows.select(*names).collect())


class CrashError(Exception):
    """The process ends here."""


class CrashingWork(BatchWork):
    """Ends when the second step is in the tables, and not in the record."""

    def take(self, frame: Any, batch: int) -> BatchCounts:
        counts = super().take(frame, batch)
        if batch == 1:
            raise CrashError
        return counts


@pytest.mark.loss
@pytest.mark.feature("206b")
def test_a_backfill_hands_over_to_the_live_query(
    spark: Any, running: StoppableCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One broker is stopped, copied and started while a producer sends to both: in the end the lake
    has each message that the brokers hold, once. The backfill is interrupted and run again.
    """
    running.create_topic("Orders", 2)
    spec = pipeline(running, tmp_path)
    with SteadyProducer(running, "Orders") as producer:
        producer.wait_for_more(300)
        running.stop("broker-a")
        copy = Path(shutil.copytree(running.store("broker-a"), tmp_path / "copy"))
        running.start("broker-a")
        stores = {"broker-a": str(copy)}
        with monkeypatch.context() as patch:
            patch.setattr(backfill, "BatchWork", CrashingWork)
            with pytest.raises(CrashError):
                run_backfill(spark, spec, stores, step_bytes=10_000)
        with pytest.raises(PipelineError, match=r"has ended after 1 of \d+ steps"):
            PipelineRun(spark, spec).start()
        done = run_backfill(spark, spec, stores)
        assert len(done.steps) > 2
        assert (done.is_complete, done.good, done.bad) == (True, handed_over(done), 0)
        assert run_backfill(spark, spec, stores) == done
        producer.wait_for_more(300)
        lake = spark.read.parquet(str(tmp_path / "lake"))
        assert lake.count() == from_store(spark, copy, "Orders").count() == done.good
        run_to_the_end(spark, spec)
        producer.wait_for_more(100)
        running.send("Orders", [b"later"] * 20)  # the other producer may still avoid broker-a
    run_to_the_end(spark, spec)
    with pytest.raises(PipelineError, match="has begun already"):
        run_backfill(spark, spec, stores)
    held = places(from_brokers(spark, running, "Orders"), ("brokerName", "queueId", "offset"))
    kept = places(
        spark.read.parquet(str(tmp_path / "lake")), ("mq_broker", "mq_queue", "mq_offset")
    )
    assert kept == held
    assert set(held.values()) == {1}
    assert {broker for broker, _, _ in held} == set(NAMES)
    assert sum(broker == "broker-a" for broker, _, _ in held) > done.good


def handed_over(done: Backfill) -> int:
    """The messages of the store."""
    begins: dict[Any, int] = {}
    ends: dict[Any, int] = {}
    for step in done.steps:
        begins = {**step.begins, **begins}
        ends |= step.ends
    return sum(end - begins[queue] for queue, end in ends.items())
