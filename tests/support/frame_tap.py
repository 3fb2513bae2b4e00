"""A listener between a client and a server that passes every byte on and keeps every frame
it sees.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio

from triomq.remoting.core.address import parse_address
from triomq.remoting.protocol.command import Command, decode_frame
from triomq.remoting.protocol.framing import FrameBuffer


@attrs.define
class Tap:
    """``asked``: what came from the side that connects; ``answered``: what came from the server."""

    address: str
    asked: list[Command] = attrs.field(factory=list)
    answered: list[Command] = attrs.field(factory=list)


@asynccontextmanager
async def frame_tap(target: str) -> AsyncIterator[Tap]:
    async def serve(client: trio.SocketStream) -> None:
        host, port = parse_address(target)
        server = await trio.open_tcp_stream(host, port)
        async with client, server, trio.open_nursery() as nursery:
            nursery.start_soon(copy, client, server, tap.asked)
            nursery.start_soon(copy, server, client, tap.answered)

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        tap = Tap(f"127.0.0.1:{listener.socket.getsockname()[1]}")
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        yield tap
        nursery.cancel_scope.cancel()


async def copy(source: trio.SocketStream, sink: trio.SocketStream, seen: list[Command]) -> None:
    frames = FrameBuffer()
    try:
        async for data in source:
            seen += [decode_frame(frame) for frame in frames.feed(bytes(data))]
            await sink.send_all(data)
        await sink.send_eof()
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass  # a peer that hangs up ends the copy
