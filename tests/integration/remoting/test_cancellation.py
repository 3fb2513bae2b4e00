"""A server or client cancelled at any step leaves no task, no socket and no pending call."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable

import pytest
import trio
from cancelling import cancel_everywhere
from serving import ECHO, ECHO_LATER, FAIL, RawPeer, make_server

from triomq.remoting.client.connector import Connector
from triomq.remoting.core.errors import ConnectFailed, ConnectionLost, Rejected, RequestTimeout
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.command import Command
from triomq.remoting.server.handlers import Handler
from triomq.remoting.server.requests import Deferred, Request, Response
from triomq.remoting.server.server import Server

Begin = Callable[[trio.CancelScope], None]
SLEEPY, AWAY, ASKING, SILENT = 9801, 9802, 9803, 9804
ENDS = (ConnectFailed, ConnectionLost, RequestTimeout)


async def sleepy(request: Request) -> Response:
    await trio.sleep(0.5)
    return Response(0, body=request.body)


def away(request: Request) -> Response:
    raise Rejected(ResponseCode.GO_AWAY, "please go away")


async def asking(request: Request) -> Response:
    """Send a request to the client from a handler, and wait."""
    answer = await request.connection.invoke(Command(307), 2)
    return Response(0, body=bytes(answer.body))


def handlers() -> list[Handler]:
    return [
        Handler(SLEEPY, sleepy, "slow"),
        Handler(AWAY, away, "away"),
        Handler(ASKING, asking, "slow"),
        Handler(SILENT, lambda request: Deferred((request,)), "away"),
    ]


def is_empty(server: Server) -> None:
    """Check that nothing is left of a server that has ended."""
    assert list(server.connections()) == []
    statistics = server.statistics()
    assert statistics.connections == 0
    assert {pool.queued_requests for pool in statistics.pools.values()} == {0}
    assert {pool.queued_bytes for pool in statistics.pools.values()} == {0}
    assert all(not pool._waiting for pool in server.pools.values())


@pytest.mark.parametrize("drain_seconds", [5.0, 0.0])
def test_a_server_cancelled_at_every_step(drain_seconds: float) -> None:
    async def scenario(begin: Begin) -> None:
        server = make_server(
            handlers(), drain_seconds=drain_seconds, selector_count=2, codec_count=2
        )

        async def serve(*, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
            with trio.CancelScope() as scope:
                begin(scope)
                await server.run(task_status=_Once(task_status, scope))
            task_status_done(task_status, scope)

        async with trio.open_nursery() as nursery:
            scope = await nursery.start(serve)
            gone = (OSError, AssertionError, trio.BrokenResourceError, trio.ClosedResourceError)
            with contextlib.suppress(
                *gone
            ):  # the server ended in the middle: only what it leaves is checked
                async with await RawPeer.open(server) as peer, await RawPeer.open(server) as other:
                    frames = [
                        peer.frame(code, b"x")
                        for code in (ECHO, ECHO_LATER, SLEEPY, FAIL, ASKING, SILENT, 4711)
                    ]
                    await peer.send(
                        b"".join(data for _, data in frames) + peer.frame(SLEEPY, flag=2)[1]
                    )
                    await other.send(other.frame(SLEEPY)[1][:20])  # and half a frame
                    with trio.move_on_after(10):
                        for opaque, _ in frames[:4]:
                            await peer.answer(opaque)
            scope.cancel()
        is_empty(server)

    assert cancel_everywhere(scenario) > 20


class _Once:
    """Report the scope instead of the address."""

    def __init__(
        self, task_status: trio.TaskStatus[trio.CancelScope], scope: trio.CancelScope
    ) -> None:
        self.task_status, self.scope = task_status, scope

    def started(self, _value: object = None) -> None:
        self.task_status.started(self.scope)


def task_status_done(
    task_status: trio.TaskStatus[trio.CancelScope], scope: trio.CancelScope
) -> None:
    """A server cancelled before it listened: its caller must not wait for ever."""
    try:
        task_status.started(scope)
    except RuntimeError:
        return  # it was called before


def test_client_calls_cancelled_at_every_step() -> None:
    """Connecting, waiting, GO_AWAY, answering a server, one-way, and an address where no server
    answers.
    """

    async def scenario(begin: Begin) -> None:
        server = make_server(handlers(), drain_seconds=0.0)
        with socket.create_server(("127.0.0.1", 0)) as mute:  # connects and sends nothing
            nobody = f"127.0.0.1:{mute.getsockname()[1]}"
            async with trio.open_nursery() as nursery:
                await nursery.start(server.run)
                address = f"127.0.0.1:{server.port}"
                left: list[Connector] = []

                async def answer_server(_address: str, command: Command) -> Command | None:
                    await trio.sleep(0.1)
                    return Command(0, body=b"answered")

                async def call(connector: Connector, to: str, code: int) -> None:
                    try:
                        await connector.invoke(to, Command(code, body=b"x"), timeout=1.5)
                    except ENDS:
                        return

                with trio.CancelScope() as scope:
                    begin(scope)
                    async with Connector(handlers={307: answer_server}) as connector:
                        left.append(connector)
                        async with trio.open_nursery() as callers:
                            for code in (ECHO, SLEEPY, AWAY, ASKING, FAIL):
                                callers.start_soon(call, connector, address, code)
                            callers.start_soon(call, connector, nobody, ECHO)
                            await connector.oneway(address, Command(ECHO))
                for connector in left:
                    statistics = connector.statistics()
                    assert (statistics.pending, statistics.open) == (0, 0)
                nursery.cancel_scope.cancel()
        is_empty(server)

    assert cancel_everywhere(scenario) > 20


def test_one_call_cancelled_at_every_step_leaves_the_connection_usable() -> None:
    """The connector outlives its callers: the late answer is dropped, the next call works."""

    async def scenario(begin: Begin) -> None:
        server = make_server(handlers(), drain_seconds=0.0)
        async with trio.open_nursery() as nursery:
            await nursery.start(server.run)
            address = f"127.0.0.1:{server.port}"
            async with Connector() as connector:
                for code in (SLEEPY, ASKING, AWAY, SILENT):
                    with trio.CancelScope() as scope:
                        if code == SLEEPY:
                            begin(scope)
                        with trio.move_on_after(3):
                            await connector.invoke(
                                address,
                                Command(code, body=b"gone"),
                                timeout=2.5 if code != SILENT else 60,
                            )
                    assert connector.statistics().pending == 0
                assert (
                    await connector.invoke(address, Command(ECHO, body=b"next"))
                ).body == b"next"
            nursery.cancel_scope.cancel()
        is_empty(server)

    assert cancel_everywhere(scenario, steps_max=400) > 10


def test_the_checker_finds_leftovers() -> None:
    """A socket that stays open and a task that goes on are both seen."""
    kept: list[socket.socket] = []

    async def forgets_a_socket(begin: Begin) -> None:
        with trio.CancelScope() as scope:
            begin(scope)
            kept.append(socket.socket())
            await trio.lowlevel.checkpoint()

    with pytest.raises(AssertionError, match="cancelled before step 1"):
        cancel_everywhere(forgets_a_socket)
    kept.pop().close()

    async def forgets_a_task(begin: Begin) -> None:
        with trio.CancelScope() as scope:
            begin(scope)
            trio.lowlevel.spawn_system_task(trio.sleep_forever)
            await trio.lowlevel.checkpoint()

    with pytest.raises(AssertionError, match="cancelled before step 1"):
        cancel_everywhere(forgets_a_task)
