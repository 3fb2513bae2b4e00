"""Slow and hostile clients over real sockets: the connection or the call ends and is counted under
the name of the limit, memory stays bounded, one log line says why, other clients are served.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

import pytest
import tls_files
import trio
from grpc_serving import ECHO, HOLD, JOIN, REPEAT, TALK, Echo, channel_to, grpc_serving, in_thread
from http2_pair import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    HELLO,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    message,
)
from serving import until

from triomq.remoting.grpc import grpc_connection
from triomq.remoting.grpc.grpc_server import ALPN, GrpcServer
from triomq.remoting.grpc.http2_session import Http2Session
from triomq.remoting.grpc.methods import RequestStream
from triomq.remoting.grpc.status import GrpcStatus
from triomq.remoting.server.connection_sniffer import open_sniffer
from triomq.remoting.tls.security_settings import ProxyMode, Security, TlsMode

MIB = 1024 * 1024
WIDE = frame(SETTINGS, 0, 0, (4).to_bytes(2) + (2**31 - 1).to_bytes(4)) + frame(
    WINDOW_UPDATE, 0, 0, (2**31 - 65_536).to_bytes(4)
)


def block(path: str) -> bytes:
    """The headers of a call in HPACK, as literals without indexing."""
    return (
        bytes((0x83, 0x86))
        + bytes((0x04, len(path)))
        + path.encode()
        + b"\x01\x01h"
        + b"\x0f\x10\x10application/grpc"
    )


def opened(stream: int, path: str) -> bytes:
    return frame(HEADERS, END_HEADERS, stream, block(path))


def call(stream: int, path: str, data: bytes) -> bytes:
    return opened(stream, path) + frame(DATA, END_STREAM, stream, message(data))


class RawClient:
    """Sends any bytes, and reads frames."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.data = b""

    @classmethod
    @asynccontextmanager
    async def open(
        cls, server: GrpcServer, first: bytes = HELLO, *, receive_buffer: int = 0
    ) -> AsyncIterator[Self]:
        sock = trio.socket.socket()
        if receive_buffer:
            sock.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, receive_buffer)
        try:
            await sock.connect(("127.0.0.1", server.port))
            client = cls(trio.SocketStream(sock))
            if first:
                await client.send(first)
            yield client
        finally:
            sock.close()

    async def send(self, data: bytes) -> None:
        """Send; a server that has closed the connection is no error."""
        try:
            await self.stream.send_all(data)
        except trio.BrokenResourceError:
            return

    async def frame(self) -> tuple[int, int, int, bytes] | None:
        """Return kind, flags, stream and payload of the next frame; None at the end."""
        while len(self.data) < 9 or len(self.data) < 9 + int.from_bytes(self.data[:3]):
            try:
                more = await self.stream.receive_some()
            except trio.BrokenResourceError:
                more = b""
            if not more:
                return None
            self.data += more
        size = int.from_bytes(self.data[:3])
        head, payload = self.data[:9], self.data[9 : 9 + size]
        self.data = self.data[9 + size :]
        return head[3], head[4], int.from_bytes(head[5:9]), payload

    async def rest(self) -> list[tuple[int, int, int, bytes]]:
        """Return all frames until the server closes."""
        frames = []
        while (one := await self.frame()) is not None:
            frames.append(one)
        return frames

    async def wait_for(self, kind: int, stream: int) -> tuple[int, int, int, bytes]:
        while True:
            one = await self.frame()
            assert one is not None, "closed"
            if (one[0], one[2]) == (kind, stream):
                return one


FLOODS = {
    "rapid reset": (
        b"".join(
            opened(number, HOLD) + frame(RST_STREAM, 0, number, (8).to_bytes(4))
            for number in range(1, 601, 2)
        ),
        {"resets_per_second": 10},
        "grpcResetsPerSecond",
    ),
    "settings": (frame(SETTINGS, 0, 0) * 200, {}, "grpcSettingsPerSecond"),
    "pings": (frame(PING, 0, 0, bytes(8)) * 600, {"pings_per_second": 20}, "grpcPingsPerSecond"),
    "continuations": (
        frame(HEADERS, 0, 1, block(ECHO)) + frame(CONTINUATION, 0, 1) * 200,
        {},
        "grpcHeadersMaxBytes",
    ),
    "headers": (
        frame(HEADERS, 0, 1, block(ECHO)) + frame(CONTINUATION, 0, 1, bytes(16_000)) * 10,
        {},
        "grpcHeadersMaxBytes",
    ),
    "empty data": (
        opened(1, ECHO) + frame(DATA, 0, 1) * 700,
        {"controls_per_second": 20},
        "grpcControlsPerSecond",
    ),
    "calls": (
        b"".join(opened(number, HOLD) for number in range(1, 301, 2)),
        {"calls_max": 10, "resets_per_second": 10},
        "grpcResetsPerSecond",
    ),
}


@pytest.mark.parametrize("name", FLOODS)
async def test_a_flood_ends_its_connection(name: str, caplog: pytest.LogCaptureFixture) -> None:
    data, settings, setting = FLOODS[name]
    echo = Echo()
    async with grpc_serving(echo, **settings) as server, channel_to(server) as good:
        assert await in_thread(good.unary_unary(ECHO), b"1", timeout=20) == b"1"
        async with RawClient.open(server) as bad:
            await bad.send(data)
            with trio.fail_after(20):
                frames = await bad.rest()
        assert frames == [] or frames[-1][0] == GOAWAY
        await until(lambda: server.statistics().connections == 1)
        assert server.statistics().refused[setting] >= 1
        assert server.statistics().broken == 1
        await until(lambda: server.statistics().calls == 0)
        assert await in_thread(good.unary_unary(ECHO), b"2", timeout=20) == b"2"
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 1
    assert setting in warnings[0]


async def test_a_client_that_opens_no_window() -> None:
    """Its calls end after the time limit; the connection goes on."""
    echo = Echo()
    async with grpc_serving(echo, stall_ms=200) as server:
        no_window = PREFACE + frame(SETTINGS, 0, 0, (4).to_bytes(2) + bytes(4))
        async with RawClient.open(server, no_window) as bad:
            await bad.send(call(1, ECHO, b"x") + call(3, REPEAT, b"5 1000"))
            with trio.fail_after(20):
                assert await bad.wait_for(RST_STREAM, 1)
                await bad.send(frame(PING, 0, 0, b"12345678"))
                assert await bad.wait_for(PING, 0) == (PING, ACK, 0, b"12345678")
            await until(lambda: server.statistics().calls == 0)
            assert server.statistics().refused == {"grpcStallMs": 2}
            assert server.statistics().connections == 1


async def test_a_client_that_reads_nothing() -> None:
    """With the widest windows: at most some buffers are filled, and then the connection ends."""
    sent = []
    echo = Echo()

    async def flood(request: bytes, answers: object, context: object) -> None:
        while True:
            await answers.send(bytes(100_000))  # type: ignore[attr-defined]
            sent.append(100_000)

    echo.repeat = flood  # type: ignore[method-assign,assignment]
    async with grpc_serving(echo, stall_ms=300) as server:
        async with RawClient.open(server, PREFACE + WIDE, receive_buffer=4096) as bad:
            await bad.send(call(1, REPEAT, b"") + call(3, REPEAT, b""))
            await until(lambda: server.statistics().connections == 0)
        assert server.statistics().refused["grpcStallMs"] >= 1
        assert sum(sent) < 20 * MIB


async def test_pings_of_a_client_that_reads_nothing_stop_being_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each needs an answer: unread answers stop the reading of further pings."""
    monkeypatch.setattr(grpc_connection, "_OUTPUT_PAUSE_BYTES", 4096)
    async with grpc_serving(pings_per_second=10**9, stall_ms=600) as server:
        async with RawClient.open(server, receive_buffer=4096) as bad:
            await until(lambda: server.statistics().connections == 1)
            (connection,) = server.connections
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            with trio.fail_after(20):
                while server.connections:
                    await bad.send(frame(PING, 0, 0, bytes(8)) * 3000)
                    await trio.sleep(0.01)
        assert server.statistics().refused == {"grpcStallMs": 1}
        assert server.statistics().received_bytes < 150_000


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("first", [b"", b"\x16\x03\x01", PREFACE[:10]], ids=["", "tls", "http2"])
async def test_a_client_that_never_begins(first: bytes, tls: bool, tmp_path: Path) -> None:
    options = {}
    if tls:
        security = Security(
            mode=TlsMode.PERMISSIVE,
            server=tls_files.write(tmp_path / "tls").server(),
            client=None,
            proxy_protocol=ProxyMode.OFF,
        )
        options = {"sniffer": open_sniffer(security, (), ALPN)}
    async with grpc_serving(server_options=options, handshake_ms=200) as server:
        async with RawClient.open(server, first) as silent:
            with trio.fail_after(20):
                await silent.rest()
        await until(lambda: server.statistics().connections == 0)
        if tls or not first.startswith(b"\x16"):
            assert server.statistics().refused == {"grpcHandshakeMs": 1}
        else:
            assert server.statistics().broken == 1


async def test_idle_connections_are_closed_with_a_goaway() -> None:
    async with grpc_serving(idle_ms=300) as server, RawClient.open(server) as client:
        await client.send(call(1, ECHO, b"x"))
        with trio.fail_after(20):
            frames = await client.rest()
        assert frames[-1][0] == GOAWAY
        assert frames[-1][3][4:] == bytes(4)  # NO_ERROR
        assert server.statistics().refused == {"grpcClientIdleTimeMills": 1}


async def test_a_connection_that_ends_slowly_is_counted_once() -> None:
    async with grpc_serving(idle_ms=200) as server:
        async with RawClient.open(server, PREFACE + WIDE, receive_buffer=4096) as client:
            await until(lambda: server.statistics().connections == 1)
            (connection,) = server.connections
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            await client.send(call(1, REPEAT, b"1 200000"))
            await until(lambda: server.statistics().refused != {})
            await trio.sleep(0.3)
            assert server.statistics().connections == 1
            with trio.fail_after(20):
                await client.rest()
        assert server.statistics().refused == {"grpcClientIdleTimeMills": 1}


async def test_a_silent_client_with_a_call_is_asked_and_then_given_up() -> None:
    """As if its machine had lost its power: the handler must not wait for ever."""
    echo = Echo()
    async with grpc_serving(echo, keepalive_ms=200, keepalive_timeout_ms=200) as server:
        async with RawClient.open(server) as client:
            await client.send(call(1, HOLD, b""))
            for _ in range(2):  # it answers twice
                with trio.fail_after(20):
                    ping = await client.wait_for(PING, 0)
                assert not ping[1] & ACK
                await client.send(frame(PING, ACK, 0, ping[3]))
            assert echo.ended == []
            await until(lambda: echo.ended == ["cancelled"])
        assert server.statistics().refused == {"grpcKeepaliveTimeoutMs": 1}


@pytest.mark.parametrize("data", [b"", message(bytes(100))[:50]], ids=["headers", "half"])
async def test_a_request_that_does_not_come(data: bytes) -> None:
    async with grpc_serving(stall_ms=200) as server, RawClient.open(server) as client:
        await client.send(opened(1, ECHO) + (frame(DATA, 0, 1, data) if data else b""))
        with trio.fail_after(20):
            assert await client.wait_for(RST_STREAM, 1)
        await until(lambda: server.statistics().calls == 0)
        assert server.statistics().refused == {"grpcStallMs": 1}


async def test_a_connection_ends_with_the_last_call_of_a_client_that_leaves() -> None:
    """Node's client half-closes, says GOAWAY, and waits for the end of its telemetry call."""
    async with grpc_serving() as server, RawClient.open(server) as client:
        await client.send(opened(1, TALK) + frame(DATA, 0, 1, message(b"x")))
        await client.wait_for(DATA, 1)
        await client.send(frame(GOAWAY, 0, 0, bytes(8)))
        await client.send(frame(PING, 0, 0, bytes(8)))
        await client.wait_for(PING, 0)
        await client.send(frame(DATA, END_STREAM, 1))
        with trio.fail_after(20):
            frames = await client.rest()
        assert frames[-1][:3] == (HEADERS, END_HEADERS | END_STREAM, 1)
        assert server.statistics().statuses == {(TALK, GrpcStatus.OK): 1}


async def test_a_client_that_leaves_without_a_call_is_gone_at_once() -> None:
    async with grpc_serving() as server, RawClient.open(server) as client:
        await client.send(frame(GOAWAY, 0, 0, bytes(8)))
        with trio.fail_after(20):
            await client.rest()
        await until(lambda: server.statistics().connections == 0)
        assert (server.statistics().broken, server.statistics().refused) == (0, {})


async def test_a_server_that_stops_waits_for_no_idle_client() -> None:
    with trio.fail_after(20):
        async with grpc_serving(drain_seconds=60) as server:
            stream = await trio.open_tcp_stream("127.0.0.1", server.port)
            client = RawClient(stream)
            await client.send(HELLO + call(1, ECHO, b"x"))
            await client.wait_for(HEADERS, 1)
        frames = await client.rest()
        await stream.aclose()
    assert [one[0] for one in frames].count(GOAWAY) == 2


@pytest.mark.parametrize("method", ["receive", "finish", "take_output"])
async def test_a_defect_in_one_connection_ends_only_that(
    method: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The other client is served meanwhile. It may send a PING or a WINDOW_UPDATE at any moment."""
    working = getattr(Http2Session, method)

    def broken(self: Http2Session, *words: object) -> object:
        if self in sound:
            return working(self, *words)
        raise KeyError("a defect")

    echo = Echo()
    async with grpc_serving(echo) as server, channel_to(server) as good:
        assert await in_thread(good.unary_unary(ECHO), b"1", timeout=20) == b"1"
        sound = {connection.session for connection in server.connections}
        async with RawClient.open(server) as bad:
            half = opened(5, ECHO) + frame(DATA, 0, 5, message(bytes(100))[:50])
            await bad.send(call(1, HOLD, b"") + half)
            await until(lambda: len(echo.started) == 1)
            assert server.statistics().kept_bytes == 50
            with monkeypatch.context() as patch:
                patch.setattr(Http2Session, method, broken)
                await bad.send(call(7, ECHO, b""))
                with trio.fail_after(20):
                    await bad.rest()
                await until(lambda: server.statistics().connections == 1)
                assert await in_thread(good.unary_unary(ECHO), b"2", timeout=20) == b"2"
        assert echo.ended == ["cancelled"]
        assert (server.statistics().broken, server.statistics().kept_bytes) == (1, 0)
    assert [record.levelname for record in caplog.records] == ["ERROR"]


async def test_a_slow_client_gets_the_last_answer_of_a_connection_that_ends() -> None:
    """The call is finished, the server waits for no other, and 200 KB are not sent yet."""
    async with grpc_serving() as server:
        async with RawClient.open(server, PREFACE + WIDE, receive_buffer=4096) as client:
            await until(lambda: server.statistics().connections == 1)
            (connection,) = server.connections
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            await client.send(call(1, REPEAT, b"1 200000"))
            await until(lambda: server.statistics().statuses != {})
            connection.begin_drain()
            await trio.sleep(0.1)
            with trio.fail_after(20):
                frames = await client.rest()
        data = b"".join(one[3] for one in frames if one[0] == DATA)
        assert len(data) == 5 + 8 + 200_000
        assert any(one[0] == HEADERS and one[1] & END_STREAM for one in frames)
        await until(lambda: server.statistics().connections == 0)


async def test_taken_messages_widen_the_windows_at_once() -> None:
    """Nothing else is sent that could carry the update with it."""
    taken = trio.Event()
    echo = Echo()

    async def slow(requests: RequestStream[bytes], context: object) -> bytes:
        await taken.wait()
        async for _ in requests:
            await trio.lowlevel.checkpoint()
        return b""

    echo.join = slow  # type: ignore[method-assign,assignment]
    async with grpc_serving(echo, stream_window_bytes=65_535) as server:
        async with RawClient.open(server) as client:
            await client.send(opened(1, JOIN) + frame(DATA, 0, 1, message(bytes(10_000))) * 6)
            await until(lambda: server.statistics().kept_bytes == 60_030)
            taken.set()
            with trio.fail_after(10):
                await client.wait_for(WINDOW_UPDATE, 1)


async def test_a_deadline_holds_although_the_client_does_not_cancel() -> None:
    echo = Echo()
    async with grpc_serving(echo) as server, RawClient.open(server) as client:
        timeout = b"\x00\x0cgrpc-timeout\x04100m"
        await client.send(frame(HEADERS, END_HEADERS, 1, block(HOLD) + timeout))
        await client.send(frame(DATA, END_STREAM, 1, message(b"")))
        with trio.fail_after(20):
            _, flags, _, _ = await client.wait_for(HEADERS, 1)
        assert flags & END_STREAM
        assert echo.ended == ["cancelled"]
        await until(lambda: server.statistics().calls == 0)
        assert server.statistics().statuses == {(HOLD, GrpcStatus.DEADLINE_EXCEEDED): 1}


async def test_messages_that_no_handler_takes_stay_within_the_window() -> None:
    """Tiny messages cost no more memory than their bytes."""
    echo = Echo()

    async def takes_nothing(requests: object, context: object) -> bytes:
        await trio.sleep_forever()
        return b""

    echo.join = takes_nothing  # type: ignore[method-assign,assignment]
    async with grpc_serving(echo, stream_window_bytes=65_535) as server:
        async with RawClient.open(server) as client:
            await client.send(opened(1, JOIN) + frame(DATA, 0, 1, bytes(5) * 3000) * 4)
            await until(lambda: server.statistics().kept_bytes == 60_000)
            await client.send(frame(DATA, 0, 1, bytes(5) * 2000))  # beyond the window
            with trio.fail_after(20):
                frames = await client.rest()
            assert (frames[-1][0], frames[-1][3][-4:]) == (GOAWAY, (3).to_bytes(4))
        await until(lambda: server.statistics().kept_bytes == 0)
        assert server.statistics().broken == 1


async def test_a_client_that_connects_again_has_no_new_budget_of_resets(
    caplog: pytest.LogCaptureFixture,
) -> None:
    flood = b"".join(
        opened(number, HOLD) + frame(RST_STREAM, 0, number, (8).to_bytes(4))
        for number in range(1, 161, 2)
    )
    async with grpc_serving(Echo(), address_resets_per_second=10) as server:
        closed = 0
        for _ in range(3):
            async with RawClient.open(server) as bad:
                await bad.send(flood + frame(PING, 0, 0, b"8 bytes."))
                with trio.fail_after(20):
                    while (one := await bad.frame()) is not None and one[0] not in (GOAWAY, PING):
                        pass
                closed += one is None or one[0] == GOAWAY
        assert closed >= 1
        assert server.statistics().refused["grpcResetsPerAddressPerSecond"] == closed
        assert "raise grpcResetsPerAddressPerSecond" in caplog.text
        async with channel_to(server) as good:
            assert await in_thread(good.unary_unary(ECHO), b"1", timeout=20) == b"1"
