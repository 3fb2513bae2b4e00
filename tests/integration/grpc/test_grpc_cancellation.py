"""A gRPC server that is cancelled at any step of its life leaves no task, socket or byte behind."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from cancelling import cancel_everywhere
from grpc_serving import ECHO, HOLD, TALK, Echo
from http2_pair import DATA, END_HEADERS, END_STREAM, HEADERS, HELLO, WINDOW_UPDATE, frame, message

from triomq.remoting.grpc.grpc_server import GrpcServer
from triomq.remoting.grpc.grpc_settings import GrpcSettings
from triomq.remoting.grpc.methods import MethodTable

SUPPORT = Path(__file__).resolve().parents[2] / "support"


def begin_call(stream: int, path: str) -> bytes:
    block = (
        bytes((0x83, 0x86, 0x04, len(path)))
        + path.encode()
        + b"\x01\x01h\x0f\x10\x10application/grpc"
    )
    return frame(HEADERS, END_HEADERS, stream, block)


async def use(server: GrpcServer, echo: Echo) -> None:
    """Calls of three kinds: one is answered, one waits for its window, one is held."""
    stream = await trio.open_tcp_stream("127.0.0.1", server.port)
    async with stream:
        await stream.send_all(
            HELLO
            + begin_call(1, ECHO)
            + frame(DATA, END_STREAM, 1, message(b"x"))
            + begin_call(3, TALK)
            + frame(DATA, 0, 3, message(bytes(100_000))[:16_000])
            + begin_call(5, HOLD)
            + frame(DATA, END_STREAM, 5, message(b""))
        )
        received = b""
        while received.count(b"grpc-status") < 1 or not echo.started:
            if not (data := await stream.receive_some()):
                return
            received += data
        await stream.send_all(frame(WINDOW_UPDATE, 0, 0, (1000).to_bytes(4)))


def everywhere(orderly: bool) -> int:
    """Return in how many runs all was over."""

    async def scenario(begin: Callable[[trio.CancelScope], None]) -> None:
        echo = Echo()
        server = GrpcServer(
            MethodTable(echo.methods()), GrpcSettings(drain_seconds=1), listen_host="127.0.0.1"
        )
        with trio.CancelScope() as scope:
            begin(scope)
            async with trio.open_nursery() as nursery:
                await nursery.start(server.run)
                with contextlib.suppress(trio.BrokenResourceError):
                    await use(server, echo)
                if orderly:
                    nursery.cancel_scope.cancel()
                else:
                    for connection in server.connections:
                        connection.sock.shutdown(2)
                    await trio.sleep(0.5)
                    nursery.cancel_scope.cancel()
        assert server.connections == set()
        assert server.places.taken == 0
        assert server.statistics().kept_bytes == 0

    return cancel_everywhere(scenario, stride=2)


@pytest.mark.parametrize("end", ["orderly", "lost"])
def test_a_server_cancelled_at_every_step(end: str) -> None:
    """In a process of its own: grpcio's threads close descriptors of earlier tests at any time."""
    done = subprocess.run(
        [sys.executable, "-W", "error", __file__, end],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(SUPPORT)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 20


if __name__ == "__main__":
    print(everywhere(sys.argv[1] == "orderly"))
