"""One store directory with batch consume queues and light queues, in turns under Java's broker and
under ours; the official client and our SDK send and consume.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import access_run
import processes
import pytest
import trio
from brokers import BrokerPeer
from processes import (
    java_command,
    java_peer,
    our_broker,
    running,
    wait_registered,
    write_java_conf,
    write_logback,
)

from triomq import Message, Producer, PullConsumer
from triomq.broker.services.offsets import decode_offsets
from triomq.client.admin.admin import Admin
from triomq.remoting.client.connector import Connector, ConnectorConfig
from triomq.remoting.protocol.batch import decode_batch
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.headers.offset import (
    GetMaxOffsetHeader,
    OffsetResponseHeader,
    QueryConsumerOffsetHeader,
)

pytestmark = [pytest.mark.compat, pytest.mark.timeout(300)]

VERSION = "5.5.0"  # 4.9.4 does not know the former
TOPIC, PLAIN = "Batches", "Plain"
NAME = "broker-batches"
LIGHT = {"enableLmq": "true", "enableMultiDispatch": "true", "flushConsumerOffsetInterval": 200}
T = TypeVar("T")


@contextmanager
def broker_on(
    java: bool, folder: Path, namesrv: str, store: Path, version: str = VERSION
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A broker of either kind on the directory; (address, process)."""
    if not java:
        with our_broker(folder, NAME, namesrv, storePathRootDir=store, **LIGHT) as (
            address,
            process,
        ):
            wait_registered(namesrv, NAME)
            yield address, process
        return
    port = processes.free_port(span=2)
    home = folder / f"java-{port}"
    write_logback(home)
    conf = write_java_conf(home, NAME, namesrv, port, storePathRootDir=store, **LIGHT)
    with running(
        java_command(
            version, "org.apache.rocketmq.broker.BrokerStartup", "-c", str(conf), home=home
        ),
        home / "broker.log",
        port=port,
    ) as process:
        wait_registered(namesrv, NAME)
        yield f"127.0.0.1:{port}", process


def end(process: subprocess.Popen[bytes], *, killed: bool = True) -> None:
    if killed:
        process.kill()
    else:
        process.terminate()
    process.wait(60)


def ask(address: str, question: Callable[[BrokerPeer], Awaitable[T]]) -> T:
    """One question over a connection of our own."""

    async def run() -> T:
        async with Connector(ConnectorConfig(hooks=access_run.HOOKS)) as connector:
            return await question(BrokerPeer(connector, address))

    return trio.run(run)


async def make_topics(peer: BrokerPeer) -> None:
    for topic, attributes in ((TOPIC, "+queue.type=BatchCQ"), (PLAIN, "")):
        answer = await peer.create_topic(topic, 1, attributes=attributes or None)
        assert answer.code == 0, answer.remark


async def batches(peer: BrokerPeer) -> list[tuple[int, int, int]]:
    """(asked offset, first offset of the record that came, how many messages it has) for every
    offset of the topic.
    """
    answer = await peer.call(Code.GET_MAX_OFFSET, GetMaxOffsetHeader(TOPIC, 0))
    found = []
    for offset in range(answer.header(OffsetResponseHeader).offset):
        pulled = await peer.pull(TOPIC, 0, offset, count=1)
        record = pulled.messages[0]
        count = len(decode_batch(record.body)) if record.sys_flag & 0x80 else 1
        assert (record.properties["INNER_BASE"], record.properties["INNER_NUM"]) == (
            str(record.queue_offset),
            str(count),
        )
        assert pulled.header.next_begin_offset == record.queue_offset + count
        found.append((offset, record.queue_offset, count))
    return found


def expected_batches(*sizes: int) -> list[tuple[int, int, int]]:
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    return [
        (start + inside, start, size)
        for start, size in zip(starts, sizes)
        for inside in range(size)
    ]


def send_to_light(*bodies: bytes) -> Callable[[BrokerPeer], Awaitable[None]]:
    async def send(peer: BrokerPeer) -> None:
        for number, body in enumerate(bodies):
            queues = "%LMQ%a,%LMQ%b" if number % 2 == 0 else "%LMQ%b"
            await peer.send(
                PLAIN, body, properties={"INNER_MULTI_DISPATCH": queues, "UNIQ_KEY": body.decode()}
            )

    return send


async def light(peer: BrokerPeer) -> tuple[list[bytes], list[bytes]]:
    """Return the messages of both light queues, pulled one by one, since a pull ends at the end of
    a file or of the written part.
    """
    found: list[list[bytes]] = []
    for queue in ("%LMQ%a", "%LMQ%b"):
        bodies: list[bytes] = []
        while (pulled := await peer.pull(queue, 0, len(bodies), hold_ms=0)).code == 0:
            bodies += pulled.bodies
        found.append(bodies)
    return found[0], found[1]


def committed(group: str, topic: str) -> Callable[[BrokerPeer], Awaitable[int]]:
    async def query(peer: BrokerPeer) -> int:
        answer = await peer.call(
            Code.QUERY_CONSUMER_OFFSET, QueryConsumerOffsetHeader(group, topic, 0)
        )
        assert answer.code == 0, answer.remark
        return answer.header(OffsetResponseHeader).offset

    return query


def saved_offsets(store: Path) -> dict[str, dict[str, dict[int, int]]]:
    path = store / "config" / "lmqConsumerOffset.json"
    return decode_offsets(path.read_bytes())[0] if path.exists() else {}


def wait_saved(store: Path, group: str, offset: int) -> None:
    deadline = time.monotonic() + 20
    while saved_offsets(store).get(group) != {"%LMQ%b": {0: offset}}:
        assert time.monotonic() < deadline, saved_offsets(store)
        time.sleep(0.05)


def send_batch(namesrv: str, count: int, tag: str) -> None:
    lines = java_peer(VERSION, "send", namesrv, TOPIC, str(count), tag, "batch", seconds=120)
    (sent,) = [line for line in lines if line[0] == "SENT"]
    assert sent[1] == "SEND_OK"
    assert "," not in sent[2]  # the client was told that its batch is one record
    assert "," not in sent[3]


def sdk_send_batch(namesrv: str, count: int, tag: str, first_offset: int) -> None:
    """A batch of our SDK: the record's place for all, an offset for each, found by the id of the
    batch's place.
    """

    async def send() -> None:
        async with Producer(namesrv, group="sdk") as producer:
            receipts = await producer.send_batch(
                [Message(topic=TOPIC, body=b"body-%d" % number, tag=tag) for number in range(count)]
            )
        assert [receipt.queue_offset for receipt in receipts] == list(
            range(first_offset, first_offset + count)
        )
        assert len({receipt.message_id for receipt in receipts}) == count
        (place,) = {receipt.offset_message_id for receipt in receipts}
        async with Admin(namesrv) as admin:
            port, log_offset = int(place[8:16], 16), int(place[16:], 16)
            record = await admin.message_at(f"127.0.0.1:{port}", log_offset, TOPIC)
        assert record is not None
        assert [body for _, body, _ in decode_batch(record.body)] == [
            b"body-%d" % number for number in range(count)
        ]

    trio.run(send)


def sdk_consumed(namesrv: str, group: str, count: int) -> list[tuple[int, str, str]]:
    """What ``consumed`` gives, of our SDK."""
    found: list[tuple[int, str, str]] = []

    async def consume() -> None:
        async with PullConsumer(
            namesrv, group=group, subscriptions=TOPIC, consume_from="first"
        ) as consumer:
            with trio.fail_after(60):
                while len(found) < count:
                    found.extend(
                        [
                            (message.queue_offset, message.tag or "null", message.body.decode())
                            for message in await consumer.poll(max_messages=100)
                        ]
                    )

    trio.run(consume)
    return sorted(found)


def consumed(namesrv: str, group: str, count: int) -> list[tuple[int, str, str]]:
    """(queue offset, tag, body), as the official client takes the records apart."""
    lines = java_peer(VERSION, "consume", namesrv, TOPIC, group, "*", str(count), "60", seconds=120)
    return sorted((int(line[5]), line[2], line[7]) for line in lines if line[0] == "GOT")


def expected(*batches_sent: tuple[str, int]) -> list[tuple[int, str, str]]:
    return expected_from(0, *batches_sent)


def expected_from(first: int, *batches_sent: tuple[str, int]) -> list[tuple[int, str, str]]:
    every = [(tag, f"body-{number}") for tag, count in batches_sent for number in range(count)]
    return [(offset, tag, body) for offset, (tag, body) in enumerate(every, first)]


@pytest.mark.loss
@pytest.mark.compatible("batch queues", "light queues", peer="java-server-5.5.0")
@pytest.mark.feature("187a", "187b")
def test_a_directory_goes_from_java_to_us_and_back(tmp_path: Path) -> None:
    """Each broker is killed, so the next one recovers; only the last one stops in order."""
    if processes.java_home(VERSION) is None:
        pytest.skip(f"the Java peers {VERSION} are not installed: run `make peers`")
    store = tmp_path / "store"
    with processes.our_name_server(tmp_path / "namesrv") as namesrv:
        with broker_on(True, tmp_path, namesrv, store) as (address, process):
            ask(address, make_topics)
            send_batch(namesrv, 5, "Java1")
            send_batch(namesrv, 7, "Java2")
            ask(address, send_to_light(b"0", b"1"))
            assert ask(address, batches) == expected_batches(5, 7)
            assert sdk_consumed(namesrv, "sdk1", 12) == expected(("Java1", 5), ("Java2", 7))
            assert ask(address, light) == ([b"0"], [b"0", b"1"])
            end(process)
        with broker_on(False, tmp_path / "ours", namesrv, store) as (address, process):
            assert ask(address, batches) == expected_batches(5, 7)
            assert consumed(namesrv, "ours", 12) == expected(("Java1", 5), ("Java2", 7))
            assert ask(address, light) == ([b"0"], [b"0", b"1"])
            send_batch(namesrv, 4, "Ours1")
            ask(
                address, lambda peer: peer.send(TOPIC, b"single", properties={"UNIQ_KEY": "single"})
            )
            send_batch(namesrv, 3, "Ours2")
            sdk_send_batch(namesrv, 3, "Sdk1", 20)
            ask(address, send_to_light(b"2", b"3"))
            assert ask(address, batches) == expected_batches(5, 7, 4, 1, 3, 3)
            every = consumed(namesrv, "ours2", 23)
            assert every[17:] == expected_from(17, ("Ours2", 3), ("Sdk1", 3))
            assert sdk_consumed(namesrv, "sdk2", 23) == every
            ask(address, lambda peer: peer.commit("%LMQ%ours", "%LMQ%b", 0, 2))
            wait_saved(store, "%LMQ%ours", 2)
            end(process)
        with broker_on(True, tmp_path, namesrv, store) as (address, process):
            assert ask(address, batches) == expected_batches(5, 7, 4, 1, 3, 3)
            assert ask(address, light) == ([b"0", b"2"], [b"0", b"1", b"2", b"3"])
            assert ask(address, committed("%LMQ%ours", "%LMQ%b")) == 2
            ask(address, lambda peer: peer.commit("%LMQ%java", "%LMQ%b", 0, 3))
            send_batch(namesrv, 2, "Java3")
            sdk_send_batch(namesrv, 3, "Sdk2", 25)
            every = consumed(namesrv, "late", 28)
            assert every == [
                *expected(("Java1", 5), ("Java2", 7), ("Ours1", 4)),
                (16, "null", "single"),
                *expected_from(17, ("Ours2", 3), ("Sdk1", 3), ("Java3", 2), ("Sdk2", 3)),
            ]
            assert sdk_consumed(namesrv, "sdk3", 28) == every
            end(process, killed=False)
    assert saved_offsets(store)["%LMQ%java"] == {"%LMQ%b": {0: 3}}
    command = [sys.executable, "-m", "triomq.broker.inspect", "verify", str(store), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["queues"]["entries"] > 0


@pytest.mark.loss
@pytest.mark.feature("187a", "187b")
@pytest.mark.compatible("light queues", peer="java-server-4.9.4")
def test_light_queues_go_to_the_old_release_and_back(tmp_path: Path) -> None:
    if processes.java_home("4.9.4") is None:
        pytest.skip("the Java peers 4.9.4 are not installed: run `make peers`")
    store = tmp_path / "store"
    with processes.our_name_server(tmp_path / "namesrv") as namesrv:
        with broker_on(True, tmp_path, namesrv, store, "4.9.4") as (address, process):
            ask(address, lambda peer: peer.create_topic(PLAIN, 1))
            ask(address, send_to_light(b"0", b"1"))
            ask(address, lambda peer: peer.commit("%LMQ%java", "%LMQ%b", 0, 1))
            end(process, killed=False)
        with broker_on(False, tmp_path / "ours", namesrv, store) as (address, process):
            assert ask(address, light) == ([b"0"], [b"0", b"1"])
            assert ask(address, committed("%LMQ%java", "%LMQ%b")) == 1
            ask(address, send_to_light(b"2", b"3"))
            ask(address, lambda peer: peer.commit("%LMQ%ours", "%LMQ%b", 0, 2))
            wait_saved(store, "%LMQ%ours", 2)
            end(process)
        with broker_on(True, tmp_path, namesrv, store, "4.9.4") as (address, process):
            assert ask(address, light) == ([b"0", b"2"], [b"0", b"1", b"2", b"3"])
            assert ask(address, committed("%LMQ%ours", "%LMQ%b")) == 2
            process.kill()
