"""A gRPC server with test methods inside this loop, and grpcio's client in threads as its peer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import grpc
import trio

from triomq.remoting.grpc.grpc_server import GrpcServer
from triomq.remoting.grpc.grpc_settings import GrpcSettings
from triomq.remoting.grpc.methods import (
    AnswerStream,
    CallContext,
    Method,
    MethodTable,
    RequestStream,
    bidirectional,
    client_streaming,
    server_streaming,
    unary,
)
from triomq.remoting.grpc.status import CallFailed, GrpcStatus

ECHO, REPEAT, JOIN, TALK, HOLD, FAIL = (
    f"/test.Echo/{name}" for name in ("Echo", "Repeat", "Join", "Talk", "Hold", "Fail")
)


def same(data: bytes) -> bytes:
    return data


@attrs.define(eq=False, slots=False)
class Echo:
    """Messages are bytes. ``started`` and ``ended`` record the calls of ``hold``."""

    started: list[CallContext] = attrs.field(factory=list)
    ended: list[str] = attrs.field(factory=list)

    async def echo(self, request: bytes, call: CallContext) -> bytes:
        if "x-trailer" in call.metadata:
            call.add_trailer("x-trailer", call.metadata["x-trailer"])
        return request

    async def repeat(self, request: bytes, answers: AnswerStream[bytes], call: CallContext) -> None:
        """``COUNT SIZE``: that many messages of that size."""
        count, size = map(int, request.split())
        for number in range(count):
            await answers.send(b"%08d" % number + bytes(size))

    async def join(self, requests: RequestStream[bytes], call: CallContext) -> bytes:
        return b",".join([request async for request in requests])

    async def talk(
        self, requests: RequestStream[bytes], answers: AnswerStream[bytes], call: CallContext
    ) -> None:
        async for request in requests:
            await answers.send(request)

    async def hold(self, request: bytes, call: CallContext) -> bytes:
        """Wait until cancelled, or until the server begins to stop (``drain``)."""
        self.started.append(call)
        try:
            if request == b"drain":
                await call.draining.wait()
                return b"drained"
            await trio.sleep_forever()
        except trio.Cancelled:
            self.ended.append("cancelled")
            raise
        return b""

    async def fail(self, request: bytes, call: CallContext) -> bytes:
        match request:
            case b"status":
                raise CallFailed(
                    GrpcStatus.NOT_FOUND, "no topic “T” 100%\n", (("x-why", "because"),)
                )
            case b"nursery":
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._fail)
                    await trio.sleep_forever()
        raise LookupError("a secret")

    async def _fail(self) -> None:
        raise CallFailed(GrpcStatus.ABORTED, "from a child")

    def methods(self) -> Sequence[Method]:
        return (
            unary(ECHO, same, same, self.echo),
            server_streaming(REPEAT, same, same, self.repeat),
            client_streaming(JOIN, same, same, self.join),
            bidirectional(TALK, same, same, self.talk),
            unary(HOLD, same, same, self.hold),
            unary(FAIL, same, same, self.fail),
        )


@asynccontextmanager
async def grpc_serving(
    echo: Echo | None = None, *, server_options: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[GrpcServer]:
    """Run such a server; at the end it stops at once unless it has calls."""
    # The methods take bytes as they are: nothing is parsed.
    large = {"message_bytes_max": 64 << 20, "fields_bytes_max": 64 << 20}
    settings = {"drain_seconds": 0, **large, **settings}
    server = GrpcServer(
        MethodTable((echo or Echo()).methods()),
        GrpcSettings(**settings),
        listen_host="127.0.0.1",
        **(server_options or {}),
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        yield server
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def channel_to(server: GrpcServer, **options: Any) -> AsyncIterator[grpc.Channel]:
    """A channel of grpcio; *options* such as ``max_receive_message_length``."""
    pairs = [(f"grpc.{name}", value) for name, value in options.items()]
    pairs.append(("grpc.use_local_subchannel_pool", 1))  # no connection of another test
    channel = grpc.insecure_channel(f"127.0.0.1:{server.port}", options=pairs)
    try:
        yield channel
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(channel.close)


async def in_thread(call: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
    """Call grpcio's blocking client. A test that is cancelled does not wait for it."""
    return await trio.to_thread.run_sync(lambda: call(*arguments, **more), abandon_on_cancel=True)
