"""A server with test handlers inside this loop, and a peer that speaks raw bytes to it."""

from __future__ import annotations

import itertools
import socket
import struct
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Self

import trio

from triomq.remoting.core.open_files import Places
from triomq.remoting.protocol.codes import SerializeType
from triomq.remoting.protocol.command import Command, decode_frame, encode_command
from triomq.remoting.protocol.framing import FrameBuffer
from triomq.remoting.server.config import PoolConfig, ServerConfig
from triomq.remoting.server.handlers import Handler, HandlerTable
from triomq.remoting.server.requests import Deferred, Request, Response
from triomq.remoting.server.server import Server

ECHO, ECHO_ONE, ECHO_LATER, FAIL = 9001, 9002, 9003, 9004
STAGES = [(1, 1), (3, 8)]


def echo(request: Request) -> Response:
    return Response(0, None, request.body, ext=request.ext() or None)


def echo_all(requests: list[Request]) -> list[Response | None]:
    return [echo(request) for request in requests]


async def echo_later(requests: list[Request]) -> list[Response | None]:
    await trio.lowlevel.checkpoint()
    return echo_all(requests)


def hold(held: list[Deferred], request: Request) -> Deferred:
    """Keep a request for the test, which finishes it."""
    held.append(Deferred((request,)))
    return held[-1]


def fail(request: Request) -> Response:
    raise LookupError(f"no such thing: {request.body.decode()}")


ECHOES = (
    Handler(ECHO, echo_all, "echo", batch=True),
    Handler(ECHO_ONE, echo, "echo"),
    Handler(ECHO_LATER, echo_later, "later", batch=True),
    Handler(FAIL, fail, "echo"),
)


def make_server(
    handlers: Iterable[Handler] = (),
    *,
    on_close: Callable[..., None] | None = None,
    places: Places | None = None,
    **settings: Any,
) -> Server:
    """Return a server with the echo handlers and more, on a free port of this machine; one pool for
    each name that handlers use.
    """
    table = HandlerTable((*ECHOES, *handlers))
    pools = {
        handler.pool: PoolConfig(workers=4) for handler in table.handlers.values()
    } | settings.pop("pools", {})
    server = Server(
        ServerConfig(**{"host": "127.0.0.1", **settings, "pools": pools}),
        table,
        on_close=on_close,
        name="test",
    )
    server.places = places or server.places
    return server


@asynccontextmanager
async def serving(
    handlers: Iterable[Handler] = (), *, stages: tuple[int, int] = (1, 1), **settings: Any
) -> AsyncIterator[Server]:
    """Run such a server."""
    server = make_server(handlers, selector_count=stages[0], codec_count=stages[1], **settings)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        yield server
        nursery.cancel_scope.cancel()


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition that no event announces is true."""
    with trio.fail_after(60):
        while not condition():
            await trio.sleep(0.002)


def ping_pong(address: tuple[str, int], frame: bytes, rounds: int, done: threading.Event) -> int:
    """Send requests one after the other, in a thread, until *done*; return how many."""
    with socket.create_connection(address, timeout=30) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for count in range(rounds):
            if done.is_set():
                return count
            sock.sendall(frame)
            (left,) = struct.unpack(">i", sock.recv(4, socket.MSG_WAITALL))
            assert len(sock.recv(left, socket.MSG_WAITALL)) == left
    return rounds


class RawPeer:
    """A client that sends given bytes, complete frames or not, and reads complete frames."""

    opaques = itertools.count(1)

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.frames = FrameBuffer()
        self.received: list[Command] = []

    @classmethod
    async def open(cls, server: Server, *, receive_buffer: int = 0) -> Self:
        sock = trio.socket.socket(socket.AF_INET6 if ":" in server.host else socket.AF_INET)
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        try:
            await sock.connect((server.host, server.port))
        except BaseException:
            sock.close()
            raise
        return cls(trio.SocketStream(sock))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await trio.aclose_forcefully(self.stream)

    def frame(self, code: int, body: bytes = b"", **more: Any) -> tuple[int, bytes]:
        """Return (opaque number, bytes) of a request."""
        command = Command(code, next(self.opaques), body=body, **more)
        return command.opaque, encode_command(command)

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def call(self, code: int, body: bytes = b"", **more: Any) -> Command:
        """Send a request and wait for its answer."""
        opaque, data = self.frame(code, body, **more)
        await self.send(data)
        return await self.answer(opaque)

    async def answer(self, opaque: int) -> Command:
        """Wait for one answer; keep others."""
        while True:
            for number, command in enumerate(self.received):
                if command.opaque == opaque and command.is_response:
                    return self.received.pop(number)
            await self.more()

    async def request(self) -> Command:
        """Wait for a request of the server."""
        while True:
            for number, command in enumerate(self.received):
                if not command.is_response:
                    return self.received.pop(number)
            await self.more()

    async def more(self) -> None:
        with trio.fail_after(20):
            data = await self.stream.receive_some(65536)
        assert data, "the server closed the connection"
        self.received += [decode_frame(frame) for frame in self.frames.feed(bytes(data))]

    async def ended(self) -> None:
        """Wait until the server closes the connection; keep frames that come before."""
        with trio.fail_after(20):
            try:
                while data := await self.stream.receive_some(65536):
                    self.received += [
                        decode_frame(frame) for frame in self.frames.feed(bytes(data))
                    ]
            except trio.BrokenResourceError:
                return  # reset: the server had not read all bytes


BOTH_FORMS = [SerializeType.JSON, SerializeType.ROCKETMQ]
