"""Slow and hostile peers: the server's memory stays bounded, all other peers are served, and the
log has one entry of each kind.

No test measures time: every attack runs for as long as a good client needs for its calls.
"""

from __future__ import annotations

import contextlib
import resource
import socket
import struct
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import psutil
import pytest
import trio
from serving import ECHO, ECHO_ONE, RawPeer, serving, until

from triomq.remoting.server.config import PoolConfig
from triomq.remoting.server.connection import Outboxes
from triomq.remoting.server.handlers import Handler
from triomq.remoting.server.requests import Request, Response
from triomq.remoting.server.server import Server

CALLS = 30
MIB = 1024 * 1024


def resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


async def is_served(peer: RawPeer, calls: int = CALLS) -> None:
    """Check that a good client's calls are answered meanwhile."""
    for number in range(calls):
        assert (await peer.call(ECHO, b"%d" % number)).body == b"%d" % number


def kept_bytes(server: Server) -> int:
    return sum(
        connection.frames.pending_bytes + connection.outbox_bytes
        for connection in server.connections()
    )


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage() for record in caplog.records if record.levelname in {"WARNING", "ERROR"}
    ]


@asynccontextmanager
async def many_peers(server: Server, count: int, **more: int) -> AsyncIterator[list[RawPeer]]:
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(await RawPeer.open(server, **more))
            for _ in range(count)
        ]


async def test_slow_readers_with_megabytes_pending(caplog: pytest.LogCaptureFixture) -> None:
    """Each asks for 40 MB and reads nothing: first the server stops reading at the high mark, then
    the guard closes the greediest.
    """
    answer = bytes(MIB)
    handler = Handler(9701, lambda request: Response(0, body=answer), "flood")
    limits = {
        "outbox_high_bytes": 2 * MIB,
        "outbox_hard_bytes": 64 * MIB,
        "buffers_max_bytes": 20 * MIB,
    }
    async with serving([handler], **limits) as server, await RawPeer.open(server) as good:
        before = resident_bytes()
        async with many_peers(server, 10, receive_buffer=4096) as slow:
            for peer in slow:
                await peer.send(b"".join(peer.frame(9701)[1] for _ in range(40)))
                await is_served(good, 3)
            await until(
                lambda: server.statistics().closed_greedy > 0 and kept_bytes(server) <= 20 * MIB
            )
            await is_served(good)
            assert resident_bytes() - before < 500 * MIB, (
                "bounded: 400 MB were requested, and Python keeps some freed memory"
            )
    lines = warnings(caplog)
    assert len(lines) == 1
    assert "all connections keep more than" in lines[0]


async def test_peers_that_never_read_pass_no_limit_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """200 peers ask for 800 MiB at once: the guard acts at once, not at its next scan."""
    answer = bytes(64 * 1024)
    handler = Handler(9701, lambda request: Response(0, body=answer), "flood")
    limits = {
        "outbox_high_bytes": 2 * MIB,
        "outbox_hard_bytes": 64 * MIB,
        "buffers_max_bytes": 20 * MIB,
    }
    async with serving([handler], **limits) as server, await RawPeer.open(server) as good:
        kept: list[int] = []
        add = Outboxes.add

        def note(outboxes: Outboxes, size: int) -> None:
            add(outboxes, size)
            kept.append(outboxes.total_bytes)

        monkeypatch.setattr(Outboxes, "add", note)
        async with many_peers(server, 200, receive_buffer=4096) as slow:
            for peer in slow:
                with contextlib.suppress(trio.BrokenResourceError):
                    await peer.send(b"".join(peer.frame(9701)[1] for _ in range(64)))
            await is_served(good, 3)
            await until(
                lambda: server.statistics().closed_greedy > 0 and kept_bytes(server) <= 20 * MIB
            )
            assert max(kept) <= 20 * MIB + 256 * len(answer), "more than one turn of a pool makes"
            assert kept[-1] == kept_bytes(server)
        await until(lambda: server.statistics().connections == 1)
        assert server._outboxes.total_bytes == 0
        await is_served(good)


async def test_half_frames_of_many_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    """Each announces 16 MiB and sends all but the last bytes."""
    async with serving(buffers_max_bytes=8 * MIB) as server, await RawPeer.open(server) as good:
        async with many_peers(server, 12) as bad:
            for peer in bad:
                await peer.send(struct.pack(">iI", 4 * MIB, 20) + bytes(MIB))
            await until(lambda: server.statistics().closed_greedy >= 4)
            assert kept_bytes(server) <= 8 * MIB
            await is_served(good)
            assert server.statistics().connections == 13 - server.statistics().closed_greedy
    assert len(warnings(caplog)) == 1


async def test_a_peer_that_sends_byte_by_byte(autojump_clock: trio.testing.MockClock) -> None:
    """One byte a second for an hour: never idle, never a complete request; its bytes are kept."""
    async with (
        serving() as server,
        await RawPeer.open(server) as good,
        await RawPeer.open(server) as slow,
    ):
        await slow.call(ECHO)
        _, frame = slow.frame(ECHO, bytes(5000))
        connection = next(each for each in server.connections() if each.number == 1)
        for number in range(3600):
            await slow.send(frame[number : number + 1])
            await trio.sleep(1)
            if number % 100 == 0:
                await is_served(good, 2)
        assert connection.frames.pending_bytes == 3600
        assert len(connection.frames._pieces) <= 1025
        await slow.send(frame[3600:])
        assert (await slow.call(ECHO_ONE, b"after all")).body == b"after all"


@pytest.mark.parametrize("total", [2**31 - 1, 2**31 - 5, -(2**31), 16 * MIB])
async def test_absurd_lengths_cost_nothing(total: int, caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as server, await RawPeer.open(server) as good:
        before = resident_bytes()
        for _ in range(50):
            async with await RawPeer.open(server) as bad:
                await bad.send(struct.pack(">i", total) + bytes(2000))
                await bad.ended()
        await is_served(good)
        assert server.statistics().broken == 50
        assert resident_bytes() - before < 50 * MIB
    assert len(warnings(caplog)) == 1, "50 of a kind: one entry"


async def test_peers_that_vanish_without_a_packet(autojump_clock: trio.testing.MockClock) -> None:
    """Half open connections: no packet reports their end, some in the middle of a frame. The idle
    scan finds them all.
    """
    closed: list[str] = []
    async with serving(
        on_close=lambda connection: closed.append(connection.close_reason)
    ) as server:
        async with many_peers(server, 20) as gone, await RawPeer.open(server) as good:
            for peer in gone[::2]:
                await peer.send(peer.frame(ECHO, bytes(1000))[1][:500])
            for _ in range(4):
                await trio.sleep(50)
                await is_served(good, 1)
            assert closed == ["idle"] * 20
            assert server.statistics().connections == 1


async def test_peers_that_only_half_close() -> None:
    """Peers close their sending side and never read: nothing of them stays."""
    async with serving() as server, await RawPeer.open(server) as good:
        async with many_peers(server, 20, receive_buffer=4096) as bad:
            for peer in bad:
                await peer.send(peer.frame(ECHO, bytes(100_000))[1])
                await peer.stream.send_eof()
            await until(lambda: server.statistics().connections == 1)
            await is_served(good)
        assert kept_bytes(server) == 0


async def test_a_flood_beyond_the_pools(caplog: pytest.LogCaptureFixture) -> None:
    """50,000 requests for a pool of one worker and 100 places: each is answered, nearly all at
    once, and other peers are served.
    """
    gate = trio.Event()

    async def slow(request: Request) -> Response:
        await gate.wait()
        return Response(0)

    pools = {"slow": PoolConfig(workers=1, queue_requests_max=100)}
    async with (
        serving([Handler(9702, slow, "slow")], pools=pools) as server,
        await RawPeer.open(server) as good,
    ):
        async with many_peers(server, 10) as flood:

            async def pour(peer: RawPeer) -> None:
                for _ in range(50):
                    frames = [peer.frame(9702, bytes(100)) for _ in range(100)]
                    await peer.send(b"".join(data for _, data in frames))
                while len(peer.received) < 5000 - 101:
                    await peer.more()
                assert {(command.code, command.remark) for command in peer.received} == {
                    (2, "[OVERLOAD]system busy, start flow control for a while")
                }

            async with trio.open_nursery() as nursery:
                for peer in flood:
                    nursery.start_soon(pour, peer)
                for _ in range(CALLS):
                    await is_served(good, 1)
                    assert server.statistics().pools["slow"].queued_requests <= 100
            assert server.statistics().pools["slow"].overloaded == 50_000 - 101
            gate.set()
            await until(lambda: server.statistics().pools["slow"].queued_requests == 0)
    assert warnings(caplog) == []


async def test_a_flood_of_connections(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(connections_max=10) as server, await RawPeer.open(server) as good:
        for _ in range(200):
            async with await RawPeer.open(server) as one:
                await trio.lowlevel.checkpoint()
                del one
        await is_served(good)
        async with many_peers(server, 30) as peers:
            await until(lambda: server.statistics().turned_away >= 21)
            await is_served(good)
            del peers
    assert len(warnings(caplog)) == 1


@pytest.mark.feature("25a")
@pytest.mark.skipif(
    sys.platform != "linux", reason="raising the limit of open files is tried out on Linux"
)
async def test_five_thousand_idle_connections(autojump_clock: trio.testing.MockClock) -> None:
    count = 5000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * count + 500
    if hard != resource.RLIM_INFINITY and hard < needed:
        pytest.skip(f"this system allows {hard} open files, and {needed} are needed (ulimit -Hn)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    idle: list[socket.socket] = []
    try:
        async with serving(backlog=4096) as server, await RawPeer.open(server) as good:
            before = resident_bytes()
            for _ in range(count // 500):
                for _ in range(500):
                    sock = socket.socket()
                    sock.setblocking(False)
                    sock.connect_ex((server.host, server.port))
                    idle.append(sock)
                wanted = len(idle) + 1
                while server.statistics().connections < wanted:
                    await trio.sleep(0.001)
                await is_served(good, 2)
            assert server.statistics().connections == count + 1
            assert resident_bytes() - before < 100 * MIB, "about 10 KiB each"
            await is_served(good)
            for _ in range(4):
                await trio.sleep(50)
                await is_served(good, 1)
            assert server.statistics().closed_idle == count
            assert server.statistics().connections == 1
    finally:
        for sock in idle:
            sock.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_out_of_descriptors(caplog: pytest.LogCaptureFixture) -> None:
    """Connected peers are served; new connections wait until another is closed."""
    async with serving() as server, await RawPeer.open(server) as good:
        await is_served(good, 1)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        waiting = [socket.socket() for _ in range(3)]
        try:
            resource.setrlimit(
                resource.RLIMIT_NOFILE, (max(sock.fileno() for sock in waiting) + 1, hard)
            )
            for sock in waiting:
                sock.setblocking(False)
                sock.connect_ex((server.host, server.port))
            await until(lambda: server.places.failed_accepts > 0)
            await is_served(good)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            await until(lambda: server.statistics().connections == 4)
            for sock in waiting:
                sock.close()
    assert [line.partition(":")[0] for line in warnings(caplog)] == [
        "cannot accept connections for now"
    ]
