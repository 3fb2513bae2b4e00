"""A broker with SYNC_FLUSH over real sockets, on a disk that the test delays or breaks: which
response the sender gets, and when.
"""

from __future__ import annotations

import errno
import functools
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import brokers
import processes
import pytest
import trio
from brokers import BrokerPeer, peer_of, running_broker

from triomq.broker import app
from triomq.broker.config import BrokerConfig
from triomq.broker.store.core.errors import FlushFailed
from triomq.broker.store.io.disk import Disk
from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.protocol.bodies.cluster import KvTable
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.send import (
    SendBackHeader,
    SendMessageHeader,
    SendMessageResponseHeader,
)

BROKEN = Path(__file__).resolve().parents[2] / "support" / "broken_broker.py"


class HeldDisk(Disk):
    """Flushes of the log wait until they are ``released``, and fail when ``broken``."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()
        self.released.set()
        self.broken = False
        self.flushes = 0
        self.write_error_number = 0
        """What the next write to the log fails with."""

    def write_at(
        self, fd: int, data: bytes | bytearray | memoryview, offset: int, path: Path
    ) -> None:
        number = self.write_error_number if path.parent.name == "commitlog" else 0
        if number:
            self.write_error_number = 0
            os.pwrite(fd, data[: len(data) // 2], offset)
            raise self.write_error(path, OSError(number, os.strerror(number)))
        super().write_at(fd, data, offset, path)

    def sync_path(self, path: Path) -> None:
        if path.parent.name == "commitlog":
            self.flushes += 1
            self.released.wait(20)
            if self.broken:
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        super().sync_path(path)


@asynccontextmanager
async def held_broker(
    folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: object
) -> AsyncIterator[tuple[HeldDisk, BrokerPeer]]:
    disk = HeldDisk()
    monkeypatch.setattr(brokers, "run_broker", functools.partial(app.run_broker, disk=disk))
    async with (
        running_broker(folder, flushDiskType="SYNC_FLUSH", **settings) as ready,
        peer_of(ready) as peer,
    ):
        await peer.create_topic("T")
        await peer.send("T", b"0")
        try:
            yield disk, peer
        finally:
            disk.released.set()


async def figures(peer: BrokerPeer) -> dict[str, str]:
    answer = await peer.call(Code.GET_BROKER_RUNTIME_INFO)
    return KvTable.decode(answer.body).table


@pytest.mark.feature("37a", "64a")
async def test_with_a_slow_disk_the_code_is_10_and_the_message_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert BrokerConfig().store.sync_flush_timeout_ms == 5_000
    async with held_broker(tmp_path, monkeypatch, syncFlushTimeout=100) as (disk, peer):
        disk.released.clear()
        answer = await peer.send_raw("T", b"slow")
        assert answer.code == ResponseCode.FLUSH_DISK_TIMEOUT
        assert answer.header(SendMessageResponseHeader).queue_offset == 1
        assert (await peer.pull("T")).bodies == [b"0"], "not shown before the disk has it"
        disk.released.set()
        assert await peer.next_bodies("T", 2) == [b"0", b"slow"]


async def test_wait_false_is_answered_while_the_disk_is_still_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with held_broker(tmp_path, monkeypatch) as (disk, peer):
        disk.released.clear()
        answered: list[str] = []

        async def send(name: str, **properties: str) -> None:
            await peer.send("T", name.encode(), properties=properties)
            answered.append(name)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(functools.partial(send, "waits", WAIT="true"))
            with trio.fail_after(5):
                await send("hasty", WAIT="false")
                await send("hasty, with a key", WAIT="false", UNIQ_KEY="U1")
            assert answered == ["hasty", "hasty, with a key"]
            disk.released.set()
        assert sorted(await peer.next_bodies("T", 4)) == [
            b"0",
            b"hasty",
            b"hasty, with a key",
            b"waits",
        ]


async def test_one_flush_answers_all_senders_that_came_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with held_broker(tmp_path, monkeypatch) as (disk, peer):
        disk.released.clear()
        before = disk.flushes
        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(peer.send, "T", b"%d" % number)
            with trio.fail_after(10):
                while int((await figures(peer))["commitLogMaxOffset"]) < 100 * 100:
                    await trio.sleep(0.01)
            disk.released.set()
        assert disk.flushes - before <= 3


async def test_every_watermark_is_in_the_runtime_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with held_broker(tmp_path, monkeypatch) as (disk, peer):
        calm = await figures(peer)
        end = calm["commitLogMaxOffset"]
        assert int(end) > 0
        assert [
            calm[name]
            for name in (
                "commitLogFlushedOffset",
                "commitLogConfirmedOffset",
                "commitLogIndexedOffset",
            )
        ] == [end] * 3
        disk.released.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer.send, "T", b"1")
            with trio.fail_after(5):
                while (await figures(peer))["commitLogMaxOffset"] == end:
                    await trio.sleep(0.01)
            busy = await figures(peer)
            assert (
                busy["commitLogFlushedOffset"],
                busy["commitLogConfirmedOffset"],
                busy["commitLogIndexedOffset"],
            ) == (end, end, end)
            assert (
                busy["remainHowManyDataToFlush"]
                == f"{int(busy['commitLogMaxOffset']) - int(end)} B"
            )
            disk.released.set()


@pytest.mark.parametrize(
    ("number", "code", "words"),
    [
        (errno.ENOSPC, ResponseCode.SERVICE_NOT_AVAILABLE, "no space left for"),
        (errno.EIO, ResponseCode.SYSTEM_ERROR, "Input/output error"),
    ],
    ids=["full", "broken"],
)
async def test_a_write_that_fails_halfway_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: int, words: str
) -> None:
    async with held_broker(tmp_path, monkeypatch) as (disk, peer):
        disk.write_error_number = number
        answer = await peer.send_raw("T", b"refused")
        assert answer.code == code
        assert words in (answer.remark or "")
        assert (await peer.send("T", b"1")).queue_offset == 1
        assert await peer.next_bodies("T", 2) == [b"0", b"1"]


@pytest.mark.feature("37a")
async def test_an_fsync_that_fails_refuses_every_sender_and_ends_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remarks: list[str] = []
    with pytest.raises(BaseExceptionGroup) as caught:  # noqa: PT012 - the broker dies under the block
        async with held_broker(tmp_path, monkeypatch) as (disk, peer):
            disk.released.clear()
            async with trio.open_nursery() as nursery:

                async def send(number: int) -> None:
                    answer = await peer.send_raw("T", b"%d" % number)
                    assert answer.code == ResponseCode.SYSTEM_ERROR
                    remarks.append(answer.remark or "")

                for number in range(5):
                    nursery.start_soon(send, number)
                await trio.sleep(0.1)
                disk.broken = True
                disk.released.set()
                deadline = trio.current_time() + 4  # not the five seconds of a slow disk
            assert trio.current_time() < deadline
            await trio.sleep_forever()
    assert caught.group_contains(FlushFailed)
    assert len(remarks) == 5
    assert all(
        "to the disk failed (Input/output error)" in remark and "check the disk" in remark
        for remark in remarks
    )
    assert (tmp_path / "abort").exists()


@pytest.mark.feature("37a")
def test_the_process_ends_says_why_and_its_successor_has_what_was_acknowledged(
    tmp_path: Path,
) -> None:
    """The real process: fsync of the log fails from the tenth on."""
    port = processes.free_port(span=2)
    conf = processes.write_broker_conf(
        tmp_path,
        "broker-a",
        "127.0.0.1:9",
        port,
        flushDiskType="SYNC_FLUSH",
        mappedFileSizeCommitLog=1 << 20,
        maxHashSlotNum=1000,
        maxIndexNum=10_000,
    )
    log = tmp_path / "log"
    with log.open("wb") as output:
        broker = subprocess.Popen(
            [sys.executable, str(BROKEN), "tenth-fsync-fails", "-c", str(conf)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        processes.wait_listening(port, broker, log)
        acknowledged = send_until_refused(f"127.0.0.1:{port}")
        assert broker.wait(timeout=20) == 1
    finally:
        broker.kill()
        broker.wait()
    assert 1 <= acknowledged <= 9
    assert "to the disk failed (Input/output error)" in log.read_text().splitlines()[-1]
    with processes.our_broker(
        tmp_path,
        "broker-a",
        "127.0.0.1:9",
        flushDiskType="SYNC_FLUSH",
        mappedFileSizeCommitLog=1 << 20,
        maxHashSlotNum=1000,
        maxIndexNum=10_000,
    ) as (address, _):
        with BlockingConnection(address) as connection:
            answer = connection.invoke(
                request(
                    Code.SEND_MESSAGE_V2,
                    SendMessageHeader("P", "T", "TBW102", 4, 0, 0, 0, 0, ""),
                    b"next",
                )
            )
            assert answer.code == 0
            assert answer.header(SendMessageResponseHeader).queue_offset >= acknowledged


def send_until_refused(address: str) -> int:
    """How many messages were acknowledged before the first that was not."""
    count = 0
    with BlockingConnection(address) as connection:
        while True:
            header = SendMessageHeader("P", "T", "TBW102", 4, 0, 0, int(time.time() * 1000), 0, "")
            try:
                answer = connection.invoke(
                    request(Code.SEND_MESSAGE_V2, header, b"%d" % count), timeout=10
                )
            except RemotingError as error:
                pytest.fail(f"the sender got no response: {error}")
            if answer.code != 0:
                assert answer.code == ResponseCode.SYSTEM_ERROR
                assert "to the disk failed" in (answer.remark or "")
                return count
            count += 1


async def test_delayed_messages_and_retries_come_when_they_are_due(tmp_path: Path) -> None:
    """An entry of the schedule topic can be read only after the fsync; four messages of a level,
    each alone, and what a consumer gave back.
    """
    async with (
        running_broker(tmp_path, flushDiskType="SYNC_FLUSH") as ready,
        peer_of(ready) as peer,
    ):
        await peer.create_topic("T", 1)
        await peer.heartbeat(group="G", subscriptions={"T": "*"})
        for number in range(4):
            await peer.send("T", b"%d" % number, properties={"DELAY": "1"})
            await trio.sleep(0.1)
        with trio.fail_after(6):
            assert await peer.next_bodies("T", 4) == [b"0", b"1", b"2", b"3"]
        given_back = (await peer.pull("T", 0, 0)).messages[0]
        assert (
            await peer.call(
                Code.CONSUMER_SEND_MSG_BACK, SendBackHeader(given_back.log_offset, "G", 1)
            )
        ).code == 0
        with trio.fail_after(6):
            assert await peer.next_bodies("%RETRY%G", 1) == [b"0"]
