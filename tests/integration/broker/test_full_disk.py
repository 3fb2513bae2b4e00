"""A broker on a real file system without a free block: it refuses sends and names the cause, serves
readers, and goes on when there is room. Nothing kills it.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import trio
from brokers import BrokerPeer
from processes import free_port, write_broker_conf
from small_file_system import SmallFileSystem, why_not

from triomq.broker.store.io.checkpoint import Checkpoint
from triomq.broker.store.io.disk import Disk
from triomq.broker.store.keys.index_file import Geometry, KeyIndexFile
from triomq.remoting.client.connector import Connector, ConnectorConfig
from triomq.remoting.core.process import ExitCode
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.headers.query import QueryMessageHeader
from triomq.remoting.protocol.headers.send import SendMessageResponseHeader
from triomq.remoting.protocol.headers.topic import DeleteTopicHeader
from triomq.remoting.protocol.record_reader import decode_records

QUEUES = 4
BODY = bytes(range(256)) * 8
ROOM_BYTES = 700_000
"""Some hundred messages, a log segment, queue files and the better part of a key index."""
SETTINGS = {
    "flushDiskType": "SYNC_FLUSH",
    "haListenPort": 0,
    "mappedFileSizeCommitLog": 256 * 1024,
    "mappedFileSizeConsumeQueue": 20 * 100,
    "maxHashSlotNum": 4000,
    "maxIndexNum": 200_000,  # more than it claims at once: the rest is a hole
    "flushIntervalConsumeQueue": 100,
    "flushConsumeQueueThoroughInterval": 300,
    "cleanResourceInterval": 3_600_000,  # else it would refuse at 90 %, before there is no room
    "cleanFileForciblyEnable": "false",
}


@pytest.fixture(params=["tmpfs", "ext4"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SmallFileSystem]:
    missing = why_not(request.param)
    if missing:
        pytest.skip(
            missing
            if request.param == "tmpfs"
            else f"this kernel has no {request.param} on a loop device: {missing}"
        )
    with SmallFileSystem(tmp_path / "disk", request.param) as mounted:
        yield mounted


class Broker:
    """A process that is started again on the same store."""

    def __init__(self, disk: SmallFileSystem) -> None:
        self.port = free_port()
        self.folder = disk.path
        self.log = disk.path.parent / "broker.log"
        self.process: subprocess.Popen[bytes]

    def start(self, **settings: object) -> None:
        conf = write_broker_conf(
            self.folder.parent,
            "broker-a",
            "",
            self.port,
            storePathRootDir=self.folder / "store",
            **{**SETTINGS, **settings},
        )
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "triomq.broker", "-c", str(conf)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    async def is_ready(self) -> bool:
        """Whether it comes to listen; False when it has ended."""
        with trio.fail_after(60):
            while self.process.poll() is None:
                with (
                    contextlib.suppress(OSError),
                    socket.create_connection(("127.0.0.1", self.port), timeout=1),
                ):
                    return True
                await trio.sleep(0.05)
        return False

    async def has_logged(self, words: str) -> bool:
        return words in self.log.read_text()

    def last_line(self) -> str:
        return self.log.read_text().splitlines()[-1]

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)

    @contextlib.asynccontextmanager
    async def peer(self) -> AsyncIterator[BrokerPeer]:
        async with Connector(ConnectorConfig()) as connector:
            yield BrokerPeer(connector, f"127.0.0.1:{self.port}")


@pytest.fixture
async def broker(disk: SmallFileSystem) -> AsyncIterator[Broker]:
    broker = Broker(disk)
    broker.start()
    try:
        assert await broker.is_ready(), broker.log.read_text()
        yield broker
    finally:
        broker.process.kill()
        broker.process.wait()


async def until(what: Callable[[], Awaitable[bool]]) -> None:
    with trio.fail_after(30):
        while not await what():
            await trio.sleep(0.05)


async def send(peer: BrokerPeer, number: int, size: int = len(BODY)) -> int | None:
    """Send a message with its number as key; its queue offset, or None if the disk is full, which
    the answer must say.
    """
    body = b"%d:" % number + BODY[:size]
    answer = await peer.send_raw(
        "T",
        body,
        queue_id=number % QUEUES,
        properties={"KEYS": f"k{number}", "UNIQ_KEY": f"{number:032}"},
    )
    if answer.code == ResponseCode.SERVICE_NOT_AVAILABLE:
        assert re.search(
            "no space left for /|% full, more than diskSpaceWarningLevelRatio=90 allows",
            answer.remark or "",
        ), answer.remark
        return None
    assert answer.code == 0, (answer.code, answer.remark)
    return answer.header(SendMessageResponseHeader).queue_offset


async def check(peer: BrokerPeer, acknowledged: dict[int, int]) -> None:
    """Every message is read at its place, and nothing else."""
    found = []
    for queue_id in range(QUEUES):
        offset = 0
        while (pulled := await peer.pull("T", queue_id, offset)).code in (
            ResponseCode.SUCCESS,
            ResponseCode.PULL_OFFSET_MOVED,
        ):
            found += [
                (int(message.body.partition(b":")[0]), message.queue_offset)
                for message in pulled.messages
            ]
            offset = pulled.header.next_begin_offset
    assert sorted(found) == sorted(acknowledged.items())


async def found_by_key(peer: BrokerPeer, number: int) -> bool:
    answer = await peer.call(
        Code.QUERY_MESSAGE, QueryMessageHeader("T", f"k{number}", 10, 0, 2**62)
    )
    return answer.code == 0 and any(
        message.body.startswith(b"%d:" % number) for message in decode_records(bytes(answer.body))
    )


async def is_checkpointed(store: Path) -> bool:
    """Whether the next start can trust queues and key index up to somewhere."""
    return Checkpoint.decode((store / "checkpoint").read_bytes()).mark is not None


@pytest.mark.slow
async def test_a_disk_that_is_really_full_ends_no_process(
    disk: SmallFileSystem, broker: Broker
) -> None:
    acknowledged: dict[int, int] = {}
    number = 0

    async def tried(peer: BrokerPeer, size: int = len(BODY), *, stored: bool) -> bool:
        """Send the next message; whether what became of it is what is waited for."""
        nonlocal number
        number += 1
        offset = await send(peer, number, size)
        if offset is not None:
            acknowledged[number] = offset
        return (offset is not None) == stored

    async with broker.peer() as peer:
        await peer.create_topic("T", QUEUES)
        await peer.create_topic("Gone", QUEUES)
        await peer.send("Gone")
        for _ in range(10):  # the key index has claimed its first piece
            assert await tried(peer, stored=True)
        await until(lambda: found_by_key(peer, 9))
        await until(lambda: is_checkpointed(disk.path / "store"))
        disk.fill(leave=ROOM_BYTES)
        while await tried(peer, stored=True):
            pass
        assert len(acknowledged) > 100
        disk.fill()
        for _ in range(200):  # what fits into blocks that are there is taken
            await tried(peer, number % 50, stored=True)
        await until(lambda: tried(peer, stored=False))
        await peer.create_topic("New", QUEUES)
        await peer.commit("G", "T", 0, 1)
        await until(lambda: broker.has_logged("cannot save"))
        assert (await peer.call(Code.DELETE_TOPIC_IN_BROKER, DeleteTopicHeader("Gone"))).code == 0
        await check(peer, acknowledged)
        assert await found_by_key(peer, 7)
    disk.fill()  # what became free meanwhile, too
    broker.end(signal.SIGKILL)
    broker.start(cleanResourceInterval=200)
    if await broker.is_ready():
        async with broker.peer() as peer:
            await until(lambda: tried(peer, stored=False))
            await check(peer, acknowledged)
    else:
        assert broker.process.wait(60) == ExitCode.FAILED
        assert broker.last_line().endswith(
            "no space left; free some space on its file system, then start the broker again"
        )
        disk.free()
        broker.start(cleanResourceInterval=200)
        assert await broker.is_ready()
    disk.free()
    async with broker.peer() as peer:
        await until(lambda: tried(peer, stored=True))
        await check(peer, acknowledged)
        for known in (3, max(acknowledged)):
            await until(lambda known=known: found_by_key(peer, known))  # type: ignore[misc]
    assert broker.end(signal.SIGTERM) == 0
    done = await trio.run_process(
        [sys.executable, "-m", "triomq.broker.inspect", "verify", str(disk.path / "store")],
        capture_stdout=True,
        capture_stderr=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not any("Traceback" in line for line in broker.log.read_text().splitlines())


def test_a_key_index_on_a_full_disk_that_copies_on_write_is_written_where_it_lies(
    tmp_path: Path,
) -> None:
    """Through its map, where a page that needs room would be the end of the process."""
    missing = why_not("btrfs")
    if missing:
        pytest.skip(f"this kernel has no btrfs on a loop device: {missing}")
    with SmallFileSystem(tmp_path / "disk", "btrfs") as disk:
        file = KeyIndexFile.create(Disk(), disk.path / "index", Geometry(1000, 60_000))
        file.reserve(100)
        file.put([1, 2, 3], [100, 200, 300], [1000, 1000, 1000])
        Disk().sync_path(file.path)
        disk.fill()
        child = os.fork()
        if child == 0:
            file.put([1, 2, 3, 4], [400, 500, 600, 700], [2000, 2000, 2000, 2000])
            Disk().sync_path(file.path)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        file.close()
        assert KeyIndexFile.load(Disk(), file.path, file.geometry).next_entry == 8
