"""Old messages go and clients go on: deletion, full disks and clean-up by an operator, through
sockets and on real files.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from brokers import BrokerPeer, peer_of, running_broker
from mqadmin_calls import failed, mqadmin

from triomq import Message, Producer, PushConsumer
from triomq.broker.store.core.disk_space import Usage
from triomq.broker.store.io.disk import Disk
from triomq.remoting.client.connector import Connector, ConnectorConfig
from triomq.remoting.protocol.bodies.cluster import KvTable
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.headers.offset import GetMinOffsetHeader, OffsetResponseHeader
from triomq.testing import local_cluster

SEGMENT = 16_384
OTHER_HOUR = f"{(time.localtime().tm_hour + 12) % 24:02d}"
SETTINGS: dict[str, Any] = {
    "mappedFileSizeCommitLog": SEGMENT,
    "mappedFileSizeConsumeQueue": 200,
    "deleteWhen": OTHER_HOUR,
    "flushConsumeQueueThoroughInterval": 20,
    "flushIntervalConsumeQueue": 10,
    "flushIntervalCommitLog": 10,
    "deleteCommitLogFilesInterval": 0,
    "cleanResourceInterval": 50,
}


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    with trio.fail_after(20):
        while not await true():
            await trio.sleep(0.02)


def make_old(root: Path, hours: float = 100) -> None:
    """All commit log files but the last were written to that long ago."""
    seconds = time.time() - hours * 3600
    for path in sorted((root / "commitlog").iterdir())[:-1]:
        os.utime(path, (seconds, seconds))


async def min_offset(peer: BrokerPeer, topic: str, queue_id: int = 0) -> int:
    answer = await peer.call(Code.GET_MIN_OFFSET, GetMinOffsetHeader(topic, queue_id))
    return answer.header(OffsetResponseHeader).offset


async def figures(peer: BrokerPeer) -> dict[str, str]:
    return dict(KvTable.decode(bytes((await peer.call(Code.GET_BROKER_RUNTIME_INFO)).body)).table)


@pytest.mark.feature("52a", "52c")
async def test_an_operator_has_expired_messages_deleted(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **SETTINGS) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 1)
        for number in range(60):
            await peer.send("T", f"{number}:".encode() + b"x" * 1000)
        assert (await figures(peer))["commitLogMinOffset"] == "0"
        make_old(tmp_path)
        done = await mqadmin("deleteExpiredCommitLog", "-b", peer.address, "-n", "127.0.0.1:1")
        assert (done.code, done.out) == (0, "success\n"), done

        async def deleted() -> bool:
            return await min_offset(peer, "T") > 30

        await until(deleted)
        first = await min_offset(peer, "T")
        behind = await peer.pull("T", 0, 3)
        assert (behind.code, behind.header.next_begin_offset, behind.header.min_offset) == (
            ResponseCode.PULL_OFFSET_MOVED,
            first,
            first,
        )
        assert (await peer.pull("T", 0, first)).bodies[0].startswith(f"{first}:".encode())
        table = await figures(peer)
        assert (
            int(table["commitLogMinOffset"])
            == min(int(path.name) for path in (tmp_path / "commitlog").iterdir())
            > 0
        )
        assert 0 < float(table["commitLogDiskRatio"]) < 1
        assert int(table["earliestMessageTimeStamp"]) > 0
        assert (await peer.send("T")).queue_offset == 60


async def test_a_consumer_far_behind_goes_on_with_what_is_left(tmp_path: Path) -> None:
    received: list[bytes] = []
    async with local_cluster(dir=tmp_path, settings=SETTINGS) as cluster:
        root = cluster.brokers[0].store_dir
        async with Producer(cluster.namesrv_address, group="P") as producer:
            for number in range(60):
                await producer.send(Message(topic="T", body=f"{number}:".encode() + b"x" * 1000))
        address = cluster.brokers[0].address
        async with Connector(ConnectorConfig()) as connector:
            for queue_id in range(8):
                await BrokerPeer(connector, address).commit(
                    "G", "T", queue_id, 1
                )  # it has read one message of each queue
        make_old(root)
        assert (
            await mqadmin(
                "delete-expired-commit-log", "-c", "DefaultCluster", "-n", cluster.namesrv_address
            )
        ).out == "success\n"

        async def deleted() -> bool:
            status = (
                await mqadmin(
                    "brokerStatus", "-b", address, "-n", cluster.namesrv_address, "--json"
                )
            ).document
            return int(status["brokers"][address]["commitLogMinOffset"]) > 0

        await until(deleted)

        async def note(message: Any) -> None:
            received.append(message.body)

        async with PushConsumer(
            cluster.namesrv_address, group="G", subscriptions="T", handler=note
        ):

            async def all_there() -> bool:
                return any(body.startswith(b"59:") for body in received)

            await until(all_there)
    numbers = sorted(int(body.split(b":")[0]) for body in received)
    assert 0 < numbers[0] < 59


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Say how full every disk is, in per cent."""
    percent = 10

    def usage(self: Disk, path: Path) -> Usage:
        return Usage(percent << 30, (100 - percent) << 30)

    def set_percent(value: int) -> None:
        nonlocal percent
        percent = value

    monkeypatch.setattr(Disk, "usage", usage)
    return set_percent


async def test_a_full_disk_refuses_sends_serves_pulls_and_recovers(
    tmp_path: Path, disk: Callable[[int], None]
) -> None:
    async with running_broker(tmp_path, **SETTINGS) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 1)
        await peer.send("T", b"first")
        disk(91)

        async def refused() -> bool:
            return (await peer.send_raw("T", b"too much")).code != 0

        await until(refused)
        answer = await peer.send_raw("T", b"too much")
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert answer.remark is not None
        assert answer.remark.startswith(
            "service not available now. It may be caused by one of the following reasons: the"
            " broker's disk is full [CL:  0.91 CQ:  0.91 INDEX:  0.91], messages are put to the"
            " slave, message store has been shut down, etc."
        )
        assert "free some space" in answer.remark
        assert (await peer.pull("T")).bodies[0] == b"first"
        assert (await figures(peer))["commitLogDiskRatio"] == "0.9100"
        disk(86)
        await trio.sleep(0.2)
        assert (
            await peer.send_raw("T", b"too much")
        ).code == ResponseCode.SERVICE_NOT_AVAILABLE  # not before 85
        disk(85)

        async def taken() -> bool:
            return (await peer.send_raw("T", b"again")).code == 0

        await until(taken)


@pytest.mark.feature("52a", "52c")
async def test_a_disk_above_85_percent_deletes_the_oldest_whatever_their_age(
    tmp_path: Path, disk: Callable[[int], None]
) -> None:
    async with running_broker(tmp_path, **SETTINGS) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 1)
        for _ in range(60):
            await peer.send("T", b"x" * 1000)
        disk(86)

        async def deleted() -> bool:
            return await min_offset(peer, "T") > 30

        await until(deleted)
        assert (await peer.send("T")).queue_offset == 60


async def test_queues_without_messages_and_topics_that_do_not_exist(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **SETTINGS) as ready, peer_of(ready) as peer:
        await peer.create_topic("Idle", 1)
        await peer.create_topic("T", 1)
        await peer.send("Idle", b"once")
        for _ in range(60):
            await peer.send("T", b"x" * 1000)
        words = ("-b", peer.address, "-n", "127.0.0.1:1")
        assert (await mqadmin("cleanExpiredCQ", *words)).out == "success\n"
        assert (await peer.send("Idle")).queue_offset == 1  # its message was there still
        for _ in range(20):
            await peer.send("T", b"x" * 1000)
        make_old(tmp_path)
        assert (await mqadmin("deleteExpiredCommitLog", *words)).code == 0

        async def deleted() -> bool:
            return await min_offset(peer, "Idle") == 2

        await until(deleted)
        assert (await mqadmin("cleanExpiredCQ", *words)).out == "success\n"
        assert not (tmp_path / "consumequeue" / "Idle").exists()
        assert (await peer.send("Idle")).queue_offset == 0
        # A topic that vanished from the table, as after a restored topics.json.
        assert (await mqadmin("cleanUnusedTopic", *words)).out == "success\n"
        assert (tmp_path / "consumequeue" / "T").exists()
    (tmp_path / "config" / "topics.json").unlink()
    (tmp_path / "config" / "topics.json.bak").unlink(missing_ok=True)
    async with running_broker(tmp_path, **SETTINGS) as ready, peer_of(ready) as peer:
        assert (
            await mqadmin("cleanUnusedTopic", "-b", peer.address, "-n", "127.0.0.1:1", "--json")
        ).document == {"brokers": [peer.address], "failures": {}}
        assert not (tmp_path / "consumequeue" / "T").exists()


async def test_a_broker_that_cannot_be_reached_is_an_error() -> None:
    done = await mqadmin("cleanExpiredCQ", "-b", "127.0.0.1:1", "-n", "127.0.0.1:1")
    assert failed(done, done.code, "127.0.0.1:1")
    assert done.code != 0
