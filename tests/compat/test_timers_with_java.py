"""Messages with a time of delivery: the official client and Java's broker, and the files of both
kinds of brokers under the other.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import processes
import pytest
import trio
from processes import (
    java_command,
    our_broker,
    running,
    wait_registered,
    write_java_conf,
    write_logback,
)

from triomq import Producer, ProducerSettings, PullConsumer, ReceivedMessage, TimersUnavailable
from triomq.client.admin.admin import Admin

pytestmark = [pytest.mark.compat, pytest.mark.timeout(180)]

JAVA = "5.5.0"
NAME = "broker-timed"
LATE_MAX_MS = 500
"""Of our broker, on a machine that runs other tests."""


def need_java(version: str) -> None:
    if processes.java_home(version) is None:
        pytest.skip("the Java peers are not installed: run `make peers`")


@contextmanager
def our_broker_on(folder: Path, namesrv: str, store: Path) -> Iterator[subprocess.Popen[bytes]]:
    with our_broker(folder, NAME, namesrv, storePathRootDir=store, recallMessageEnable=True) as (
        _,
        process,
    ):
        wait_registered(namesrv, NAME)
        yield process


@contextmanager
def java_broker_on(folder: Path, namesrv: str, store: Path) -> Iterator[subprocess.Popen[bytes]]:
    port = processes.free_port(span=2)
    write_logback(folder)
    conf = write_java_conf(
        folder, NAME, namesrv, port, storePathRootDir=store, timerFlushIntervalMs=1000
    )
    command = java_command(
        JAVA, "org.apache.rocketmq.broker.BrokerStartup", "-c", str(conf), home=folder
    )
    with running(command, folder / "broker.log", port=port) as process:
        wait_registered(namesrv, NAME)
        yield process


async def create(namesrv: str, topic: str) -> None:
    async with Admin(namesrv) as admin:
        await admin.create_topic(topic, cluster="TestCluster", read_queues=1, write_queues=1)


async def read(namesrv: str, topic: str, count: int, seconds: float) -> list[ReceivedMessage]:
    """Return ``count`` messages, and what else comes within 300 ms."""
    found: list[ReceivedMessage] = []
    async with PullConsumer(
        namesrv, group=f"reader-{time.time_ns()}", consume_from="first"
    ) as consumer:
        await consumer.assign(await consumer.queues(topic))
        with trio.fail_after(seconds):
            while len(found) < count:
                found += await consumer.poll()
        with trio.move_on_after(0.3):
            while True:
                found += await consumer.poll()
    return found


def lateness_ms(message: ReceivedMessage) -> int:
    return message.store_timestamp - int(message.properties["TIMER_DELIVER_MS"])


@pytest.mark.loss
@pytest.mark.compatible("time of delivery", "recall", peer="java-client-5.5.0")
@pytest.mark.feature("115", "177c")
async def test_the_official_client_sends_timed_messages_to_our_broker(tmp_path: Path) -> None:
    need_java(JAVA)
    with (
        processes.our_name_server(tmp_path / "namesrv") as namesrv,
        our_broker_on(tmp_path / "ours", namesrv, tmp_path / "store"),
    ):
        await create(namesrv, "Timed")
        delays = ("1700", "900!", "700", "1", "2400!")
        command = java_command(JAVA, "TimerPeer", namesrv, "Timed", *delays)
        done = await trio.run_process(command, capture_stdout=True)
        lines = [line.split("\t") for line in done.stdout.decode().splitlines()]
        assert [line[1] for line in lines if line[0] == "SENT"] == list(delays)
        assert len([line for line in lines if line[0] == "RECALLED"]) == 2
        found = await read(namesrv, "Timed", 3, 10)
        assert [message.body for message in found] == [b"1", b"700", b"1700"]
        assert all(0 <= lateness_ms(message) < LATE_MAX_MS for message in found[1:])
        await trio.sleep(1)
        assert len(await read(namesrv, "Timed", 3, 10)) == 3


@pytest.mark.loss
@pytest.mark.compatible("time of delivery", "recall", peer="java-server-5.5.0")
@pytest.mark.feature("115", "177c")
async def test_our_sdk_sends_timed_messages_to_java_s_broker(tmp_path: Path) -> None:
    need_java(JAVA)
    with (
        processes.our_name_server(tmp_path / "namesrv") as namesrv,
        processes.java_broker(
            JAVA, tmp_path / "java", "broker-java", namesrv, recallMessageEnable=True
        ),
    ):
        await create(namesrv, "Timed")
        async with Producer(namesrv, group="g") as producer:
            began = time.time()
            back = await producer.send("Timed", b"back", delay=2.5)
            await producer.send("Timed", b"timed", delay=2.5)
            await producer.recall(back)
            found = await read(namesrv, "Timed", 1, 10)
        assert [message.body for message in found] == [b"timed"]
        assert found[0].stored_at.timestamp() - began >= 2.5


async def test_a_broker_of_4_9_delivers_at_once_and_the_sdk_says_so(tmp_path: Path) -> None:
    need_java("4.9.4")
    with (
        processes.our_name_server(tmp_path / "namesrv") as namesrv,
        processes.java_broker("4.9.4", tmp_path / "java", "broker-java", namesrv),
    ):
        await create(namesrv, "Timed")
        async with Producer(namesrv, group="g", settings=ProducerSettings(retries=0)) as producer:
            with pytest.raises(TimersUnavailable, match="has delivered the message at once"):
                await producer.send("Timed", b"x", delay=2.5)


@pytest.mark.loss
@pytest.mark.compatible(
    "directory with timers from theirs", "directory with timers from ours", peer="java-server-5.5.0"
)
@pytest.mark.feature("115")
async def test_timers_go_from_us_to_java_and_back(tmp_path: Path) -> None:
    need_java(JAVA)
    store = tmp_path / "store"
    with processes.our_name_server(tmp_path / "namesrv") as namesrv:
        with our_broker_on(tmp_path / "ours-1", namesrv, store) as process:
            await create(namesrv, "Timed")
            async with Producer(namesrv, group="g") as producer:
                began = time.time()
                await producer.send("Timed", b"ours-before", delay=0.3)
                await producer.send("Timed", b"ours", delay=8)
                back = await producer.send("Timed", b"ours-back", delay=8.1)
                await producer.recall(back)
                await read(namesrv, "Timed", 1, 10)
                await trio.sleep(1.5)  # Java delivers a second again of which we delivered a part
            process.terminate()
            process.wait(30)
        with java_broker_on(tmp_path / "java", namesrv, store) as process:
            async with Producer(namesrv, group="g") as producer:
                sent = time.time()
                await producer.send("Timed", b"java", delay=12)
                found = await read(namesrv, "Timed", 2, 40)
                assert [message.body for message in found] == [b"ours-before", b"ours"]
                assert found[1].stored_at.timestamp() - began >= 8
            delivered_ms = int(found[1].stored_at.timestamp() * 1000)
            check = store / "config" / "timercheck"
            with trio.fail_after(30):
                while int.from_bytes(check.read_bytes()[:8], "big") <= delivered_ms:
                    await trio.sleep(0.1)  # Java saves its progress every second
            process.kill()
            process.wait(30)
        with our_broker_on(tmp_path / "ours-2", namesrv, store):
            found = await read(namesrv, "Timed", 3, 40)
            assert [message.body for message in found] == [b"ours-before", b"ours", b"java"]
            assert found[-1].stored_at.timestamp() - sent >= 12
