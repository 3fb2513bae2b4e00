"""A broker that cannot keep up refuses at once, with Java's codes and remarks, and goes on serving
all other requests.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from brokers import BrokerPeer, peer_of, running_broker
from serving import until

from triomq.broker.processors.query import QueryMessages
from triomq.broker.store.io.disk import Disk
from triomq.remoting.protocol.bodies.cluster import KvTable
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.command import decode_frame, encode_command, request
from triomq.remoting.protocol.headers.query import ViewMessageHeader
from triomq.remoting.protocol.headers.send import SendMessageHeader

REJECTED = "[REJECTREQUEST]system busy, start flow control for a while"
OVERLOAD = "[OVERLOAD]system busy, start flow control for a while"
TOO_OLD = re.compile(
    r"\[TIMEOUT_CLEAN_QUEUE\]broker busy, start flow control for a while, period in queue: (\d+)ms,"
    r" size of queue: \d+"
)


async def runtime(peer: BrokerPeer) -> dict[str, str]:
    return KvTable.decode(bytes((await peer.call(Code.GET_BROKER_RUNTIME_INFO)).body)).table


class Plain:
    """A sender without a loop, for the moment in which the broker's loop hangs."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port))

    def post(self, topic: str, opaque: int) -> None:
        command = request(
            Code.SEND_MESSAGE_V2,
            SendMessageHeader("P", topic, "TBW102", 1, 0, 0, 0, 0, ""),
            b"late",
        )
        command.opaque = opaque
        self.sock.sendall(encode_command(command))

    def answer(self) -> Any:
        size = int.from_bytes(self.sock.recv(4, socket.MSG_WAITALL), "big")
        return decode_frame(self.sock.recv(size, socket.MSG_WAITALL))


@pytest.mark.feature("134a")
async def test_sends_that_come_while_the_log_hangs_are_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    during: list[Callable[[], None]] = []
    write_at = Disk.write_at

    def hanging(self: Disk, *arguments: Any) -> None:
        write_at(self, *arguments)
        if during:
            during.pop()()
            time.sleep(0.41)

    async with (
        running_broker(tmp_path, osPageCacheBusyTimeOutMills=400) as ready,
        peer_of(ready) as peer,
    ):
        await peer.create_topic("T", 1)
        await peer.send("T")
        other = await trio.to_thread.run_sync(Plain, ready.port)
        monkeypatch.setattr(Disk, "write_at", hanging)
        during.append(lambda: other.post("T", 7))
        assert (await peer.send("T", b"it hangs, and is stored")).queue_offset == 1
        refused = await trio.to_thread.run_sync(other.answer)
        assert (refused.opaque, refused.code, refused.remark) == (7, 2, REJECTED)
        assert int((await runtime(peer))["pageCacheLockTimeMills"]) >= 400
        assert (await peer.pull("T")).code == 0, "only sends are refused"
        answer = await peer.send_raw("T")
        while answer.code == 2:  # for a moment; then the disk gets its next chance
            assert answer.remark == REJECTED
            answer = await peer.send_raw("T")
        assert answer.code == 0
        assert (await runtime(peer))["pageCacheLockTimeMills"] == "0"
        assert (await peer.pull("T")).header.max_offset == 3, "what was refused is not stored"
        other.sock.close()


@pytest.mark.feature("134b")
async def test_an_append_within_the_limit_refuses_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_at = Disk.write_at

    def slow(self: Disk, *arguments: Any) -> None:
        write_at(self, *arguments)
        time.sleep(0.25)

    async with (
        running_broker(tmp_path, osPageCacheBusyTimeOutMills=20_000) as ready,
        peer_of(ready) as peer,
    ):
        await peer.create_topic("T", 1)
        monkeypatch.setattr(Disk, "write_at", slow)
        for number in range(2):
            assert (await peer.send("T")).queue_offset == number
        assert (await runtime(peer))["pageCacheLockTimeMills"] == "0"


@pytest.mark.feature("22b", 135)
async def test_sends_that_wait_too_long_are_refused_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk takes no flush: senders with SYNC_FLUSH wait in the pool, and everybody else is
    served.
    """
    gate = threading.Event()
    sync_path = Disk.sync_path

    def slow(self: Disk, path: Path) -> None:
        if "commitlog" in str(path):
            gate.wait(20)
        sync_path(self, path)

    monkeypatch.setattr(Disk, "open_sync_queue", lambda disk: None)  # a thread can be held up
    settings = {"flushDiskType": "SYNC_FLUSH", "sendMessageThreadPoolNums": 1}
    try:
        async with (
            running_broker(tmp_path, **settings) as ready,
            peer_of(ready) as peer,
            peer_of(ready) as other,
        ):
            await peer.create_topic("T", 1)
            await peer.send("T", b"first")
            assert (
                "waitTimeMillsInSendQueue=200\n"
                in bytes((await peer.call(Code.GET_BROKER_CONFIG)).body).decode()
            )
            monkeypatch.setattr(Disk, "sync_path", slow)
            codes: dict[bytes, tuple[int, str | None]] = {}

            async def send(body: bytes) -> None:
                answer = await peer.send_raw("T", body)
                codes[body] = (answer.code, answer.remark)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(send, b"waits for the disk")
                # It is in the log; only its sender waits.
                await until(lambda: (tmp_path / "commitlog").exists())
                while int((await runtime(other))["commitLogMaxOffset"]) == int(
                    (await runtime(other))["commitLogMinOffset"]
                ):
                    await trio.lowlevel.checkpoint()
                for number in range(5):
                    nursery.start_soon(send, b"late-%d" % number)
                await until(lambda: len(codes) == 5)
                assert (await other.pull("T")).code == 0
                await other.heartbeat("somebody", producers=("P",))
                gate.set()
            late = [codes[b"late-%d" % number] for number in range(5)]
            assert [code for code, _ in late] == [2] * 5
            waits = [TOO_OLD.fullmatch(remark or "") for _, remark in late]
            assert all(found is not None and int(found[1]) >= 200 for found in waits)
            assert codes[b"waits for the disk"] == (0, None)
            assert await peer.next_bodies("T", 2) == [b"first", b"waits for the disk"]
    finally:
        gate.set()


@pytest.mark.feature("22a")
async def test_every_family_has_its_own_queue_and_its_figures_are_real(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = trio.Event()

    async def slow(self: QueryMessages, _request: object) -> Any:
        await gate.wait()

    monkeypatch.setattr(QueryMessages, "by_offset", slow)
    async with (
        running_broker(
            tmp_path, queryMessageThreadPoolNums=1, queryThreadPoolQueueCapacity=2
        ) as ready,
        peer_of(ready) as peer,
    ):
        codes: list[tuple[int, str | None]] = []

        async def query() -> None:
            answer = await peer.call(Code.VIEW_MESSAGE_BY_ID, ViewMessageHeader(0), timeout=20)
            codes.append((answer.code, answer.remark))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(query)
            await until(lambda: len(codes) == 2)
            assert codes == [(2, OVERLOAD)] * 2
            await trio.sleep(0.02)
            figures = await runtime(peer)
            assert (
                figures["queryThreadPoolQueueSize"],
                figures["queryThreadPoolQueueCapacity"],
            ) == ("2", "2")
            assert int(figures["queryThreadPoolQueueHeadWaitTimeMills"]) >= 20
            for key in ("send", "pull", "litePull", "ack"):
                assert (
                    figures[f"{key}ThreadPoolQueueSize"],
                    figures[f"{key}ThreadPoolQueueHeadWaitTimeMills"],
                ) == ("0", "0")
            assert (
                figures["ackThreadPoolQueueCapacity"]
                == figures["EndTransactionThreadPoolQueueCapacity"]
                == "100000"
            )
            await peer.create_topic("T", 1)
            await peer.send("T")
            assert (await peer.pull("T")).code == 0
            nursery.cancel_scope.cancel()
        gate.set()


@pytest.mark.feature("34b")
async def test_sends_and_pulls_at_the_end_do_not_wait_for_a_disk_that_takes_no_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ASYNC_FLUSH: a flush hangs all the time, and messages go through."""
    hangs, gate = threading.Event(), threading.Event()
    sync_path = Disk.sync_path

    def slow(self: Disk, path: Path) -> None:
        if "commitlog" in str(path):
            hangs.set()
            gate.wait(20)
        sync_path(self, path)

    monkeypatch.setattr(Disk, "sync_path", slow)
    try:
        async with (
            running_broker(tmp_path, flushIntervalCommitLog=10) as ready,
            peer_of(ready) as peer,
        ):
            await peer.create_topic("T", 1)
            await peer.send("T", b"begin")
            await until(hangs.is_set)
            with trio.fail_after(10):
                for number in range(1, 50):
                    assert (await peer.send("T", b"%d" % number)).queue_offset == number
                    assert (await peer.pull("T", 0, number)).bodies == [b"%d" % number]
            figures = await runtime(peer)
            assert int(figures["commitLogFlushedOffset"]) < int(figures["commitLogMaxOffset"])
            gate.set()
    finally:
        gate.set()
