"""Java's broker and ours open the directory of a compaction topic in turn; our SDK reads it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import processes
import pytest
import trio
from copied_queue import check_layout
from processes import (
    java_command,
    our_broker,
    running,
    wait_registered,
    write_java_conf,
    write_logback,
)

from triomq import Message, Producer, PullConsumer
from triomq.broker.store.compaction.copy_file import CopySizes
from triomq.client.admin.admin import Admin

pytestmark = [pytest.mark.compat, pytest.mark.timeout(180)]

JAVA = "5.5.0"
NAME = "broker-tables"
TOPIC = "Prices"
LOG_BYTES, QUEUE_BYTES = 9200, 46 * 20
KEYS = tuple(f"key {number}" for number in range(5))


@contextmanager
def java_broker_on(folder: Path, namesrv: str, store: Path) -> Iterator[subprocess.Popen[bytes]]:
    port = processes.free_port(span=2)
    write_logback(folder)
    conf = write_java_conf(
        folder,
        NAME,
        namesrv,
        port,
        storePathRootDir=store,
        compactionMappedFileSize=LOG_BYTES,
        compactionCqMappedFileSize=QUEUE_BYTES,
    )
    command = java_command(
        JAVA, "org.apache.rocketmq.broker.BrokerStartup", "-c", str(conf), home=folder
    )
    with running(command, folder / "broker.log", port=port) as process:
        wait_registered(namesrv, NAME)
        yield process


async def send(namesrv: str, numbers: range) -> dict[str, bytes]:
    """Send a value for each number; return the newest ones."""
    values: dict[str, bytes] = {}
    async with Producer(namesrv, group="prices") as producer:
        for number in numbers:
            key = KEYS[number % len(KEYS)]
            values[key] = b"%d." % number + bytes(200)
            await producer.send(Message(topic=TOPIC, body=values[key], keys=key.split()))
    return values


async def table(namesrv: str, expected: dict[str, bytes]) -> list[int]:
    """Wait until the topic shows the values; return the offsets that a reader gets."""
    async with PullConsumer(namesrv, group="readers") as consumer:
        with trio.fail_after(30):
            while True:
                found = await consumer.latest(TOPIC)
                if {key: message.body for key, message in found.items()} == expected:
                    break
                await trio.sleep(0.1)
        (queue,) = await consumer.queues(TOPIC)
        await consumer.seek_to_begin(queue)
        offsets: list[int] = []
        last = max(message.queue_offset for message in found.values())
        with trio.fail_after(30):
            while not offsets or offsets[-1] < last:
                offsets += [message.queue_offset for message in await consumer.poll()]
    return offsets


@contextmanager
def our_broker_on(folder: Path, namesrv: str, store: Path) -> Iterator[subprocess.Popen[bytes]]:
    with our_broker(
        folder,
        NAME,
        namesrv,
        storePathRootDir=store,
        compactionMappedFileSize=LOG_BYTES,
        compactionCqMappedFileSize=QUEUE_BYTES,
        compactionScheduleInternal=300,
        flushIntervalCommitLog=50,
    ) as (_, process):
        wait_registered(namesrv, NAME)
        yield process


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()  # an orderly stop of Java takes 16 s
    process.wait(30)


@pytest.mark.loss
@pytest.mark.feature("178a", "178b")
async def test_java_and_our_broker_take_turns_on_a_compaction_topic(tmp_path: Path) -> None:
    if processes.java_home(JAVA) is None:
        pytest.skip("the Java peers are not installed: run `make peers`")
    store = tmp_path / "store"
    sizes = CopySizes.of(LOG_BYTES, QUEUE_BYTES)
    with processes.our_name_server(tmp_path / "namesrv") as namesrv:
        with java_broker_on(tmp_path / "java-1", namesrv, store) as process:
            async with Admin(namesrv) as admin:
                await admin.create_topic(
                    TOPIC,
                    cluster="TestCluster",
                    read_queues=1,
                    write_queues=1,
                    attributes="+cleanup.policy=COMPACTION",
                )
            values = await send(namesrv, range(123))
            assert await table(namesrv, values) == list(range(123))
            end(process)
        with our_broker_on(tmp_path / "ours-1", namesrv, store) as process:
            kept = await table(namesrv, values)
            with trio.fail_after(30):
                while len(kept) > 60:
                    await trio.sleep(0.3)
                    kept = await table(namesrv, values)
            values |= await send(namesrv, range(123, 150))
            with trio.fail_after(30):
                while await table(namesrv, values) == kept + list(range(123, 150)):
                    await trio.sleep(0.3)  # until a pass has gone over the new ones, too
            end(process)
        with java_broker_on(tmp_path / "java-2", namesrv, store) as process:
            await table(namesrv, values)
            values |= await send(namesrv, range(150, 200))
            kept = await table(namesrv, values)
            assert kept[-50:] == list(range(150, 200))
            end(process)
        with our_broker_on(tmp_path / "ours-2", namesrv, store) as process:
            await table(namesrv, values)
            end(process)
    check_layout(store, TOPIC, 0, sizes)
