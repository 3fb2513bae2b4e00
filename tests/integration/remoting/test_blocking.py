"""The blocking connection in a thread, against our server in the loop and against misbehaving
sockets.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import trio
from serving import BOTH_FORMS, ECHO, STAGES, hold, serving, until

from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.core.errors import ConnectFailed, ConnectionLost, RequestTimeout
from triomq.remoting.protocol.command import Command, decode_frame
from triomq.remoting.protocol.framing import FrameBuffer
from triomq.remoting.server.connection import Connection
from triomq.remoting.server.handlers import Handler
from triomq.remoting.server.requests import Deferred, Request, Response


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def address_of(listener: socket.socket) -> str:
    return f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.feature(18)
@pytest.mark.parametrize("stages", STAGES, ids=["1-1", "3-8"])
async def test_pipelining(stages: tuple[int, int]) -> None:
    async with serving(stages=stages) as server:

        def work() -> None:
            with BlockingConnection(f"127.0.0.1:{server.port}") as connection:
                sent = [
                    connection.send(
                        Command(ECHO, body=b"%d" % number, serialize=BOTH_FORMS[number % 2])
                    )
                    for number in range(64)
                ]
                for number in (
                    *range(63, 31, -1),
                    *range(32),
                ):  # in the order in which they are needed
                    assert connection.receive(sent[number]).body == b"%d" % number
                assert connection.invoke(Command(ECHO, body=b"x" * 500_000)).body == b"x" * 500_000
                connection.oneway(Command(ECHO))
                assert connection.invoke(Command(7)).code == 3
                with pytest.raises(KeyError):
                    connection.receive(sent[0])
                assert not connection.closed
            assert connection.closed
            with pytest.raises(ConnectionLost, match="closed by this side"):
                connection.invoke(Command(ECHO))
            connection.close()

        await trio.to_thread.run_sync(work)


async def test_a_late_answer_is_dropped() -> None:
    held: list[Deferred] = []

    async with serving([Handler(9501, lambda request: hold(held, request))]) as server:

        def wait_in_vain() -> BlockingConnection:
            connection = BlockingConnection(f"127.0.0.1:{server.port}")
            with pytest.raises(RequestTimeout) as caught:
                connection.invoke(Command(9501), timeout=0.02)
            assert (caught.value.code, caught.value.seconds) == (9501, 0.02)
            return connection

        connection = await trio.to_thread.run_sync(wait_in_vain)
        held[0].finish(lambda: Response(0, body=b"late"))

        def go_on() -> None:
            with connection:
                assert connection.invoke(Command(ECHO, body=b"x")).body == b"x"
                with pytest.raises(RequestTimeout):
                    connection.invoke(Command(9501), timeout=0.02)
                trio.from_thread.run_sync(held[1].finish, lambda: Response(0, body=b"late again"))
                assert connection.invoke(Command(ECHO, body=b"y")).body == b"y"
                statistics = connection.statistics()
                assert (statistics.pending, statistics.late_replies) == (0, 2)
                assert (connection._asked, connection._answers) == ({}, {}), (
                    "kept for the life of the connection"
                )

        await trio.to_thread.run_sync(go_on)


@pytest.mark.feature("19a")
async def test_a_call_waits_to_its_deadline_whatever_else_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Notices of the server and answers to other calls make the wait neither shorter nor longer."""
    held: list[Deferred] = []
    waits: list[float] = []
    read = BlockingConnection._read

    def watched(connection: BlockingConnection, seconds: float) -> bool:
        waits.append(seconds)
        return read(connection, seconds)

    monkeypatch.setattr(BlockingConnection, "_read", watched)
    async with (
        serving([Handler(9501, lambda request: hold(held, request))]) as server,
        trio.open_nursery() as nursery,
    ):

        def wait_in_vain() -> float:
            with BlockingConnection(f"127.0.0.1:{server.port}") as connection:
                connection.send(Command(9501, body=b"other"))
                began = time.monotonic()
                with pytest.raises(RequestTimeout):
                    connection.invoke(Command(9501), timeout=0.3)
                seconds = time.monotonic() - began
                assert len(waits) > 1, "nothing came in between"
                assert waits == sorted(waits, reverse=True), "each wait is for the remaining time"
                assert waits[-1] < waits[0] <= 0.3
                with pytest.raises(RequestTimeout):
                    connection.invoke(Command(9501), timeout=0.1)
                return seconds

        async def disturb() -> None:
            await until(lambda: len(held) == 2)
            held[0].finish(lambda: Response(0, body=b"of the other one"))
            while True:
                held[0].requests[0].connection.oneway(Command(40))
                await trio.sleep(0.01)

        nursery.start_soon(disturb)
        with trio.fail_after(20):
            assert await trio.to_thread.run_sync(wait_in_vain, abandon_on_cancel=True) >= 0.3
        nursery.cancel_scope.cancel()


@pytest.mark.feature("19a")
async def test_an_answer_just_before_the_deadline_is_in_time() -> None:
    async def slow(request: Request) -> Response:
        await trio.sleep(0.15)
        return Response(0, body=b"in time")

    async with serving([Handler(9502, slow)]) as server:

        def ask() -> bytes:
            with BlockingConnection(f"127.0.0.1:{server.port}") as connection:
                return bytes(connection.invoke(Command(9502), timeout=10).body)

        assert await trio.to_thread.run_sync(ask) == b"in time"


async def test_requests_of_the_server_are_refused() -> None:
    connections: list[Connection] = []

    def keep(request: Request) -> Response:
        connections.append(request.connection)
        return Response(0)

    async with serving([Handler(9502, keep)]) as server, trio.open_nursery() as nursery:
        answers: list[Command] = []

        async def ask() -> None:
            connections[0].oneway(Command(40))
            answers.append(await connections[0].invoke(Command(307), 10))

        def work() -> None:
            with BlockingConnection(f"127.0.0.1:{server.port}") as connection:
                connection.invoke(Command(9502))
                trio.from_thread.run_sync(nursery.start_soon, ask)
                while not answers:
                    assert connection.invoke(Command(ECHO, body=b"x")).body == b"x"

        await trio.to_thread.run_sync(work)
        assert [(answer.code, answer.remark) for answer in answers] == [
            (3, " request type 307 not supported")
        ]


def test_no_server_listens(listener: socket.socket) -> None:
    address = address_of(listener)
    listener.close()
    with pytest.raises(ConnectFailed, match="Connection refused"):
        BlockingConnection(address)
    with pytest.raises(ConnectFailed, match="no-such-host"):
        BlockingConnection("no-such-host.invalid:1")
    with pytest.raises(ValueError, match="has no port"):
        BlockingConnection("localhost")


def test_connecting_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    def create_connection(address: tuple[str, int], timeout: float) -> socket.socket:
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", create_connection)
    with pytest.raises(ConnectFailed, match=r"no answer within 0.5 s"):
        BlockingConnection("192.0.2.1:1", timeout=0.5)


def test_a_server_that_resets_at_once(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = socket.create_connection
    made: list[socket.socket] = []

    def connect_and_be_reset(*arguments: Any) -> socket.socket:
        sock = connect(*arguments)
        made.append(sock)
        accepted, _ = listener.accept()
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        accepted.close()
        with contextlib.suppress(ConnectionResetError):
            sock.recv(1)
        return sock

    monkeypatch.setattr(socket, "create_connection", connect_and_be_reset)
    with pytest.raises(ConnectFailed, match="cannot connect to "):
        BlockingConnection(address_of(listener))
    assert made[0].fileno() == -1, "the socket was left open"


@pytest.mark.parametrize(
    ("reply", "reason"),
    [(b"", "the peer closed the connection"), (b"HTTP/1.1 400 Bad Request\r\n\r\n", "speaks HTTP")],
)
def test_a_peer_that_closes_or_sends_nonsense(
    listener: socket.socket, reply: bytes, reason: str
) -> None:
    with BlockingConnection(address_of(listener)) as connection:
        peer, _ = listener.accept()
        first = connection.send(Command(ECHO))
        second = connection.send(Command(ECHO))
        frames = FrameBuffer()
        received: list[bytes] = []
        while len(received) < 2:
            received += frames.feed(peer.recv(65536))
        assert [decode_frame(frame).opaque for frame in received] == [first, second]
        peer.sendall(reply)
        peer.close()
        for opaque in (first, second):
            with pytest.raises(ConnectionLost, match=reason):
                connection.receive(opaque, 10)
        with pytest.raises(ConnectionLost):
            connection.send(Command(ECHO))


def test_a_peer_that_does_not_read(listener: socket.socket) -> None:
    with BlockingConnection(address_of(listener), timeout=0.1) as connection:
        peer, _ = listener.accept()
        with peer, pytest.raises(ConnectionLost, match="did not take"):  # noqa: PT012
            for _ in range(1000):
                connection.oneway(Command(ECHO, body=b"x" * 100_000))


def test_a_reset_connection(listener: socket.socket) -> None:
    with BlockingConnection(address_of(listener)) as connection:
        peer, _ = listener.accept()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        threading.Timer(0.01, peer.close).start()
        with pytest.raises(ConnectionLost, match=r"reading failed|closed"):
            connection.invoke(Command(ECHO), 10)


def test_no_event_loop_is_imported() -> None:
    code = (
        "import sys, triomq.remoting.client.blocking; sys.exit('trio' in sys.modules or 'asyncio'"
        " in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
