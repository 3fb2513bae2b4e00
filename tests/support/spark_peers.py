"""Spark for tests: a session shared by a test process, and a cluster of real processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from tests.compat.install_peers import LAKE_SPARKS, PEERS
from tests.support.processes import our_broker, our_name_server
from triomq.client.admin.admin import Admin
from triomq.client.spark.java_runtime import JavaNotFound, prepare_java
from triomq.sync import Message, Producer

QUIET_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""short runs: halves the JVM's work"""


def lake_path(kind: str) -> str:
    """Return the folder of the PySpark that a kind of table has a package for."""
    folder = PEERS / f"pyspark-{LAKE_SPARKS[kind]}"
    if not (folder / ".complete").exists():
        pytest.skip(f"{folder} is missing: run `make peers`, for Iceberg `make lake-test`")
    return str(folder)


def need_spark(folder: Path) -> None:
    """Skip the test where Spark cannot run."""
    pytest.importorskip("pyspark")
    try:
        prepare_java(folder / "java")
    except JavaNotFound as error:
        pytest.skip(str(error))


def open_session(
    folder: Path, *, master: str = "local[2]", settings: Mapping[str, str] | None = None
) -> Any:
    """A small session without UI; the same one when it exists already.

    What PySpark changes in the process is taken back, for other tests run in it as well: its
    handler of SIGINT raises wherever it is, also within Trio, and an error of a query sets the
    format of pytest's own log handler to JSON.
    """
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    if "addHandler" in vars(PySparkLogger):
        del PySparkLogger.addHandler

    os.environ["PYSPARK_PYTHON"] = sys.executable
    ours = {
        "spark.ui.enabled": "false",
        "spark.log.level": "OFF",
        "spark.driver.memory": "768m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": QUIET_JVM,
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.session.timeZone": "America/New_York",
        "spark.sql.shuffle.partitions": "2",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.authenticate.socketTimeout": "2m",  # busy machines need more than 15 s
    }
    builder = SparkSession.builder.master(master).appName("triomq-tests")
    for name, value in {**ours, **(settings or {})}.items():
        builder = builder.config(name, value)
    on_interrupt = signal.getsignal(signal.SIGINT)
    session = builder.getOrCreate()
    signal.signal(signal.SIGINT, on_interrupt)
    return session


@attrs.define(eq=False)
class Cluster:
    """A name server and two brokers as processes."""

    folder: Path
    namesrv: str
    addresses: dict[str, str]
    processes: dict[str, subprocess.Popen[bytes]]

    def create_topic(
        self, topic: str, queues: int = 2, *, brokers: Sequence[str] = ("broker-a", "broker-b")
    ) -> None:
        async def create() -> None:
            async with Admin(self.namesrv) as admin:
                for broker in brokers:
                    answers = await admin.update_topic(
                        topic,
                        address=self.addresses[broker],
                        read_queues=queues,
                        write_queues=queues,
                    )
                    assert not answers.failures, answers.reasons()

        trio.run(create)

    def send(
        self,
        topic: str,
        bodies: Sequence[bytes],
        tag: Callable[[int], str | None] = lambda number: None,
    ) -> list[tuple[str, int, int]]:
        """Send messages with their number as key; return their places: (broker, queue, offset)."""
        with Producer(self.namesrv, group="test-producers") as producer:
            messages = (
                Message(topic=topic, body=body, keys=[str(number)], tag=tag(number))
                for number, body in enumerate(bodies)
            )
            receipts = list(producer.send_many(messages))
        return [
            (receipt.queue.broker_name, receipt.queue.queue_id, receipt.queue_offset)
            for receipt in receipts
        ]

    def kill(self, broker: str) -> None:
        """SIGKILL for a broker, if it runs."""
        process = self.processes[broker]
        if process.poll() is None:
            process.kill()
            process.wait()

    def broker_names(self) -> set[str]:
        """The brokers that the name server knows now."""

        async def ask() -> set[str]:
            async with Admin(self.namesrv) as admin:
                return {broker.name for broker in await admin.brokers()}

        return trio.run(ask)

    def lag(self, group: str, topic: str) -> int | None:
        """Messages of the topic that the group has not read; None while no broker knows the
        group.
        """

        async def ask() -> int | None:
            async with Admin(self.namesrv) as admin:
                stats = await admin.consume_stats(group, topic)
                offsets = [
                    offset
                    for broker in stats.values.values()
                    for offset in broker.offset_table.values()
                ]
                return (
                    sum(offset.broker_offset - max(0, offset.consumer_offset) for offset in offsets)
                    if offsets
                    else None
                )

        return trio.run(ask)


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    with contextlib.ExitStack() as stack:
        namesrv = stack.enter_context(our_name_server(folder / "namesrv"))
        brokers = {
            name: stack.enter_context(our_broker(folder / name, name, namesrv))
            for name in ("broker-a", "broker-b")
        }
        addresses = {name: address for name, (address, _) in brokers.items()}
        started = Cluster(
            folder, namesrv, addresses, {name: process for name, (_, process) in brokers.items()}
        )
        wait_for(lambda: started.broker_names() == set(addresses), "the brokers to register")
        yield started


def wait_for(condition: Callable[[], Any], what: str, seconds: float = 120.0) -> Any:
    """Wait until *condition* is true and return its value."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"waited {seconds:g} s for {what}")
