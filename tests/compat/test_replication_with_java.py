"""Master and slave of different makers: a Java slave follows our master, ours follows a Java
master; logs equal byte for byte, through kills of either.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import processes
import pytest
import trio
from brokers import BrokerPeer
from processes import (
    java_command,
    our_broker,
    running,
    wait_registered,
    write_java_conf,
    write_logback,
)
from topic_reader import read_topic

from triomq.remoting.client.connector import Connector, ConnectorConfig
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.protocol.bodies.offsets import ConsumerOffsetTable
from triomq.remoting.protocol.bodies.topics import TopicTable
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.headers.client import ConsumerGroupHeader

pytestmark = [pytest.mark.compat, pytest.mark.slow, pytest.mark.timeout(240)]

NAME = "broker-pair"
TOPIC = "Copied"
SEGMENT = 65_536
SMALL = {
    "mappedFileSizeCommitLog": SEGMENT,
    "mappedFileSizeConsumeQueue": 20 * 1000,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
    "haSendHeartbeatInterval": 500,  # Java's slave says nothing before this time has passed
}
SECONDS_MAX = 60


@contextmanager
def java_broker_of(
    version: str, folder: Path, namesrv: str, port: int, **settings: object
) -> Iterator[subprocess.Popen[bytes]]:
    write_logback(folder)
    conf = write_java_conf(folder, NAME, namesrv, port, **SMALL, **settings)
    command = java_command(
        version, "org.apache.rocketmq.broker.BrokerStartup", "-c", str(conf), home=folder
    )
    with running(command, folder / "broker.log", port=port) as process:
        yield process


@contextmanager
def our_broker_of(
    folder: Path, namesrv: str, port: int, **settings: object
) -> Iterator[subprocess.Popen[bytes]]:
    with our_broker(folder, NAME, namesrv, port, **SMALL, **settings) as (_, process):
        yield process


def log_from(folder: Path, offset: int | None = None) -> tuple[int, bytes]:
    """Where a log begins, and its bytes from ``offset`` on, without the zeros behind them."""
    files = sorted((folder / "store" / "commitlog").glob("[0-9]*"))
    begin = int(files[0].name) if files else 0
    data = b"".join(path.read_bytes() for path in files).rstrip(b"\0")
    return begin, data[(begin if offset is None else offset) - begin :]


def wait_copied(master: Path, slave: Path) -> int:
    """Until both logs are the same on all that the slave has, and that reaches to the master's end;
    where the slave's begins.
    """
    deadline = time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline:
        begin, copy = log_from(slave)
        if copy and copy == log_from(master, begin)[1]:
            return begin
        time.sleep(0.1)
    raise AssertionError(
        f"the logs differ: {len(log_from(master)[1])} bytes from {log_from(master)[0]},"
        f" {len(log_from(slave)[1])} from {log_from(slave)[0]}"
    )


def wait_text(path: Path, text: str) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not path.exists() or text not in path.read_text():
        assert time.monotonic() < deadline, f"no {text} in {path}"
        time.sleep(0.2)


@asynccontextmanager
async def peer_at(port: int) -> AsyncIterator[BrokerPeer]:
    async with Connector(ConnectorConfig()) as connector:
        yield BrokerPeer(connector, f"127.0.0.1:{port}")


async def send_until(
    peer: BrokerPeer, wanted: Callable[[int], bool], body: bytes = b"x" * 700
) -> list[int]:
    """Send until an answer is as wanted; all codes."""
    codes: list[int] = []
    with trio.fail_after(SECONDS_MAX):
        while not codes or not wanted(codes[-1]):
            try:
                codes.append((await peer.send_raw(TOPIC, body)).code)
            except RemotingError:
                await trio.sleep(0.2)
            await trio.sleep(0.05)
    return codes


def ok(code: int) -> bool:
    return code == ResponseCode.SUCCESS


@pytest.mark.loss
@pytest.mark.compatible("slave of ours", peer="java-server-{java_version}")
@pytest.mark.feature("56a", "188a")
async def test_a_java_slave_follows_our_master(java_version: str, tmp_path: Path) -> None:
    """It begins with our last segment, gets rolls and what comes; killed and back, our master
    killed and back: nothing is missing.
    """
    ours, java = tmp_path / "ours", tmp_path / "java"
    port, java_port = processes.free_port(span=2), processes.free_port(span=2)
    with processes.our_name_server(tmp_path / "namesrv") as namesrv:
        with our_broker_of(ours, namesrv, port, brokerRole="SYNC_MASTER") as master:
            wait_registered(namesrv, NAME)
            async with peer_at(port) as peer:
                await peer.create_topic(TOPIC, 2)
                for _ in range(200):
                    assert (
                        await peer.send_raw(TOPIC, b"x" * 700)
                    ).code == ResponseCode.SLAVE_NOT_AVAILABLE
                with java_broker_of(
                    java_version, java, namesrv, java_port, brokerRole="SLAVE", brokerId=1
                ) as slave:
                    await send_until(peer, ok)
                    begin = wait_copied(ours, java)
                    assert begin % SEGMENT == 0
                    assert begin >= 2 * SEGMENT
                    for number in range(120):
                        assert ok((await peer.send_raw(TOPIC, b"m%d" % number + bytes(600))).code)
                    wait_copied(ours, java)
                    if java_version == "5.5.0":  # 4.9 has no such command
                        (table,) = processes.java_mqadmin(
                            java_version, namesrv, [["haStatus", "-b", f"127.0.0.1:{port}"]]
                        )
                        assert "#InSyncSlaveNum\t1" in table, table
                        assert " OK " in table, table
                    else:  # it copies tables every 10 s, 5.5.0 every 60 s
                        wait_text(java / "store" / "config" / "topics.json", f'"{TOPIC}"')
                    slave.kill()
                    slave.wait()
                codes = await send_until(
                    peer, lambda code: code == ResponseCode.SLAVE_NOT_AVAILABLE
                )
                assert set(codes[:-1]) <= {ResponseCode.SUCCESS, ResponseCode.FLUSH_SLAVE_TIMEOUT}
            with java_broker_of(
                java_version, java, namesrv, java_port, brokerRole="SLAVE", brokerId=1
            ):
                wait_copied(ours, java)
                master.kill()
                master.wait()
                with our_broker_of(ours, namesrv, port, brokerRole="SYNC_MASTER"):
                    async with peer_at(port) as peer:
                        await send_until(peer, ok)
                        assert ok((await peer.send_raw(TOPIC, b"last")).code)
                        assert wait_copied(ours, java) == begin


@pytest.mark.loss
@pytest.mark.compatible("slave of theirs", peer="java-server-{java_version}")
@pytest.mark.feature("56a", "188b")
async def test_our_slave_follows_a_java_master(java_version: str, tmp_path: Path) -> None:
    """Its tables, too; a synchronous master of Java counts our reports; kills of either; then
    consumers read from us.
    """
    ours, java = tmp_path / "ours", tmp_path / "java"
    port, java_port = processes.free_port(span=2), processes.free_port(span=2)
    synchronous = {"brokerRole": "SYNC_MASTER"} | (
        {"inSyncReplicas": 2} if java_version.startswith("5") else {}
    )
    following = {"brokerRole": "SLAVE", "brokerId": 1, "slaveReadEnable": "true"}
    with processes.our_name_server(tmp_path / "namesrv") as namesrv:
        with java_broker_of(java_version, java, namesrv, java_port, **synchronous) as master:
            wait_registered(namesrv, NAME)
            async with peer_at(java_port) as peer:
                await peer.create_topic(TOPIC, 2)
                for _ in range(99):
                    assert (
                        await peer.send_raw(TOPIC, b"x" * 700, properties={"WAIT": "false"})
                    ).code == ResponseCode.SUCCESS
                with our_broker_of(ours, namesrv, port, **following) as slave:
                    await send_until(peer, ok)
                    begin = wait_copied(java, ours)
                    assert begin == SEGMENT
                    for number in range(120):
                        assert ok((await peer.send_raw(TOPIC, b"m%d" % number + bytes(600))).code)
                        _, copy = log_from(ours)
                        assert b"m%d" % number + bytes(600) in copy
                    wait_copied(java, ours)
                    slave.kill()
                    slave.wait()
                assert not ok((await peer.send_raw(TOPIC, b"alone")).code)
                await peer.heartbeat(group="G", subscriptions={TOPIC: "*"})
                await peer.commit("G", TOPIC, 0, 7)
            with our_broker_of(ours, namesrv, port, **following):
                wait_copied(java, ours)
                async with peer_at(port) as peer:
                    await wait_tables(peer)
                    master.kill()
                    master.wait()
                    found = await count_messages(peer)
                    with java_broker_of(java_version, java, namesrv, java_port, **synchronous):
                        async with peer_at(java_port) as restarted:
                            await send_until(restarted, ok)
                            assert wait_copied(java, ours) == begin
                            assert await count_messages(peer) > found > 120
                            answer = await restarted.call(
                                Code.GET_CONSUMER_LIST_BY_GROUP, ConsumerGroupHeader("nobody")
                            )
                            assert (
                                answer.code == ResponseCode.SYSTEM_ERROR
                            )  # it is really Java that answers


async def wait_tables(peer: BrokerPeer) -> None:
    """Until our slave has the topic and the group's offset."""
    with trio.fail_after(SECONDS_MAX):
        while True:
            topics = TopicTable.decode(
                bytes((await peer.call(Code.GET_ALL_TOPIC_CONFIG)).body)
            ).topic_config_table
            offsets = ConsumerOffsetTable.decode(
                bytes((await peer.call(Code.GET_ALL_CONSUMER_OFFSET)).body)
            ).offset_table
            if TOPIC in topics and offsets.get(f"{TOPIC}@G", {}).get(0) == 7:
                return
            await trio.sleep(0.2)


async def count_messages(peer: BrokerPeer) -> int:
    """Messages that our slave serves; near the end it sends consumers to a master that is there,
    with code 20.
    """
    count = 0
    for queue_id in range(2):
        pulled = await peer.pull(TOPIC, queue_id, 0)
        offset = pulled.header.min_offset
        while True:
            pulled = await peer.pull(TOPIC, queue_id, offset)
            if not pulled.messages:
                break
            count += len(pulled.messages)
            offset = pulled.header.next_begin_offset
    return count


@pytest.mark.loss
@pytest.mark.compatible("read from a slave", peer="java-client-{java_version}")
@pytest.mark.feature("60a")
async def test_a_java_consumer_reads_from_our_slave_when_the_master_is_dead(
    java_version: str, tmp_path: Path
) -> None:
    port = processes.free_port(span=2)
    readable = {"slaveReadEnable": "true"}
    with (
        processes.our_name_server(tmp_path / "namesrv") as namesrv,
        our_broker(
            tmp_path / "slave", NAME, namesrv, brokerRole="SLAVE", brokerId=1, **readable
        ) as (address, _),
    ):
        with our_broker(
            tmp_path / "master", NAME, namesrv, port, brokerRole="SYNC_MASTER", **readable
        ) as (_, master):
            wait_registered(namesrv, NAME)
            async with peer_at(port) as peer:
                await peer.create_topic(TOPIC, 2)
                await send_until(peer, ok)
                for number in range(20):
                    assert ok(
                        (await peer.send_raw(TOPIC, b"m%d" % number, queue_id=number % 2)).code
                    )
            async with peer_at(int(address.rpartition(":")[2])) as peer:
                with trio.fail_after(SECONDS_MAX):
                    while (await peer.pull_raw(TOPIC)).code != ResponseCode.SUCCESS:
                        await trio.sleep(0.1)
                count = await count_messages(
                    peer
                )  # those sent before the slave was there are among them
            master.kill()
            master.wait()
        lines = processes.java_peer(
            java_version,
            "consume",
            namesrv,
            TOPIC,
            "late",
            "*",
            str(count),
            "60",
            seconds=120,
            define=["rocketmq.client.rebalance.waitInterval=1000"],
        )
        bodies = {line[7] for line in lines if line[0] == "GOT"}
        assert {f"m{number}" for number in range(20)} <= bodies


@pytest.mark.loss
@pytest.mark.compatible("read from a slave", peer="java-server-{java_version}")
async def test_our_consumer_reads_from_a_java_slave_when_the_master_is_dead(
    java_version: str, tmp_path: Path
) -> None:
    ours, java = tmp_path / "ours", tmp_path / "java"
    port, java_port = processes.free_port(span=2), processes.free_port(span=2)
    following = {"brokerRole": "SLAVE", "brokerId": 1, "slaveReadEnable": "true"}
    with (
        processes.our_name_server(tmp_path / "namesrv") as namesrv,
        our_broker_of(ours, namesrv, port, brokerRole="SYNC_MASTER") as master,
    ):
        wait_registered(namesrv, NAME)
        async with peer_at(port) as peer:
            await peer.create_topic(TOPIC, 2)
            # It copies tables after a while only: 5.5.0 after a minute.
            config = Path("store") / "config"
            (java / config).mkdir(parents=True)
            shutil.copy(ours / config / "topics.json", java / config)
            with java_broker_of(java_version, java, namesrv, java_port, **following) as slave:
                codes = await send_until(peer, ok, b"x")  # all are in the first file
                for number in range(20):
                    assert ok(
                        (await peer.send_raw(TOPIC, b"m%d" % number, queue_id=number % 2)).code
                    )
                assert wait_copied(ours, java) == 0
                master.kill()
                master.wait()
                found = await read_topic(namesrv, TOPIC, len(codes) + 20)
                slave.kill()  # an orderly stop takes it eight seconds
        bodies = {message.body for message in found}
        assert bodies >= {b"m%d" % number for number in range(20)}
