"""A connection that died without a word is given up at the first time-out, and a slow one is not:
a firewall that forgot it, a machine that lost its power.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import attrs
import pytest
import trio
from serving import ECHO, hold, serving

from triomq.remoting.client import dial as dialling
from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.client.connector import Connector
from triomq.remoting.client.dial import dial
from triomq.remoting.core.errors import ConnectionLost, RequestTimeout
from triomq.remoting.core.socket_options import SILENT_SECONDS
from triomq.remoting.protocol.command import Command
from triomq.remoting.server.handlers import Handler
from triomq.remoting.server.requests import Deferred, Response

HELD = 9100


@attrs.define(eq=False)
class Relay:
    """Passes bytes on, until ``forget``: then connections of before stay open and say nothing."""

    port: int
    passed: int = 0
    _forgotten: int = 0

    def forget(self) -> None:
        self._forgotten = self.passed

    async def serve(self, target: int, near: trio.SocketStream) -> None:
        self.passed += 1
        number = self.passed
        far = await trio.open_tcp_stream("127.0.0.1", target)

        async def move(source: trio.SocketStream, sink: trio.SocketStream) -> None:
            async for data in source:
                if number > self._forgotten:
                    await sink.send_all(data)

        async with near, far, trio.open_nursery() as nursery:
            nursery.start_soon(move, near, far)
            await move(far, near)
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def relaying(target: int) -> AsyncIterator[Relay]:
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        relay = Relay(listeners[0].socket.getsockname()[1])
        serve = partial(relay.serve, target)
        nursery.start_soon(trio.serve_listeners, serve, listeners)
        yield relay
        nursery.cancel_scope.cancel()


async def test_the_request_after_the_time_out_has_a_new_connection() -> None:
    async with serving() as server, relaying(server.port) as relay, Connector() as connector:
        address = f"127.0.0.1:{relay.port}"
        for _ in range(2):  # the connection that replaces one may die, too
            assert (await connector.invoke(address, Command(ECHO, body=b"a"))).body == b"a"
            relay.forget()
            with pytest.raises(RequestTimeout):
                await connector.invoke(address, Command(ECHO), timeout=1.1 * SILENT_SECONDS)
        assert (await connector.invoke(address, Command(ECHO, body=b"b"))).body == b"b"
        assert connector.statistics().opened == 3


async def test_short_time_outs_in_a_row_have_a_new_connection() -> None:
    """Nobody waits as long as the silence of a dead link must last."""
    async with serving() as server, relaying(server.port) as relay, Connector() as connector:
        address = f"127.0.0.1:{relay.port}"
        assert (await connector.invoke(address, Command(ECHO, body=b"a"))).body == b"a"
        relay.forget()
        with trio.fail_after(20):
            while connector.statistics().opened == 1:
                with suppress(RequestTimeout):
                    await connector.invoke(address, Command(ECHO), timeout=SILENT_SECONDS / 4)
        assert (await connector.invoke(address, Command(ECHO, body=b"b"))).body == b"b"


async def test_an_answer_that_comes_late_ends_the_row() -> None:
    held: list[Deferred] = []
    handlers = [Handler(HELD, partial(hold, held), "held")]
    async with serving(handlers) as server, Connector() as connector:
        address = f"127.0.0.1:{server.port}"
        for number in range(6):
            with pytest.raises(RequestTimeout):
                await connector.invoke(address, Command(HELD), timeout=SILENT_SECONDS / 4)
            held.pop().finish(lambda: Response(0))
            with trio.fail_after(5):
                while connector.statistics().late <= number:
                    await trio.sleep(0.01)
        assert connector.statistics().opened == 1


async def test_a_request_that_came_late_says_nothing_about_the_peer() -> None:
    """Its time-out is long, but most of it went by before it was posted."""
    async with serving([Handler(HELD, partial(hold, []), "held")]) as server:
        async with Connector() as connector:
            address = f"127.0.0.1:{server.port}"
            assert (await connector.invoke(address, Command(ECHO, body=b"a"))).body == b"a"
            soon = trio.current_time() + SILENT_SECONDS / 10
            with pytest.raises(RequestTimeout):
                await connector.invoke(address, Command(HELD), timeout=3, deadline=soon)
            assert (await connector.invoke(address, Command(ECHO, body=b"b"))).body == b"b"
            assert connector.statistics().opened == 1


async def test_others_that_wait_on_it_are_told_at_once() -> None:
    held: list[Deferred] = []
    handlers = [Handler(HELD, partial(hold, held), "held")]
    async with (
        serving(handlers) as server,
        relaying(server.port) as relay,
        Connector() as connector,
        trio.open_nursery() as nursery,
    ):
        address = f"127.0.0.1:{relay.port}"
        lost: list[str] = []

        async def pull() -> None:
            with pytest.raises(ConnectionLost) as caught:
                await connector.invoke(address, Command(HELD), timeout=60)
            lost.append(str(caught.value))

        nursery.start_soon(pull)
        while not held:
            await trio.sleep(0.01)
        relay.forget()
        with trio.fail_after(20), pytest.raises(RequestTimeout):
            await connector.invoke(address, Command(ECHO), timeout=1.1 * SILENT_SECONDS)
        with trio.fail_after(5):
            while not lost:
                await trio.sleep(0.01)
        assert "sent nothing for 1" in lost[0]
        held[0].finish(lambda: Response(0))


@pytest.mark.parametrize(
    ("timeout", "others"), [(SILENT_SECONDS, True), (SILENT_SECONDS / 10, False)]
)
async def test_a_slow_answer_beside_others_or_a_short_time_out_closes_nothing(
    timeout: float, others: bool
) -> None:
    held: list[Deferred] = []
    handlers = [Handler(HELD, partial(hold, held), "held")]
    async with serving(handlers) as server, Connector() as connector:
        address = f"127.0.0.1:{server.port}"

        async def echo() -> None:
            await trio.sleep(timeout / 2)
            await connector.invoke(address, Command(ECHO))

        async with trio.open_nursery() as nursery:
            if others:
                nursery.start_soon(echo)
            with pytest.raises(RequestTimeout):
                await connector.invoke(address, Command(HELD), timeout=timeout)
        assert (await connector.invoke(address, Command(ECHO, body=b"on"))).body == b"on"
        assert connector.statistics().opened == 1
        held[0].finish(lambda: Response(0))


def forgetful(port: int) -> None:
    """Use a blocking connection whose peer never answers."""
    with BlockingConnection(f"127.0.0.1:{port}") as connection:
        with pytest.raises(RequestTimeout):
            connection.invoke(Command(ECHO), SILENT_SECONDS / 10)
        assert not connection.closed
        with pytest.raises(RequestTimeout):
            connection.invoke(Command(ECHO), SILENT_SECONDS)
        assert connection.closed
        with pytest.raises(ConnectionLost, match=r"sent nothing for 1\.\d* s"):
            connection.invoke(Command(ECHO), SILENT_SECONDS)
        connection.reconnect()
        for _ in range(4):  # short ones in a row say the same, and the new connection begins anew
            assert not connection.closed
            with pytest.raises(RequestTimeout):
                connection.invoke(Command(ECHO), SILENT_SECONDS / 4)
        assert connection.closed


async def test_a_blocking_connection_gives_up_as_well() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        await trio.to_thread.run_sync(forgetful, silent.getsockname()[1])


async def test_the_system_looks_after_idle_streams_on_both_sides() -> None:
    async with serving() as server:
        sock = await dial("127.0.0.1", server.port)
        with sock:
            for option, value in ((socket.TCP_KEEPIDLE, 30), (socket.TCP_USER_TIMEOUT, 60_000)):
                assert sock.getsockopt(socket.IPPROTO_TCP, option) == value
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            with trio.fail_after(5):
                while not (found := [*server_sockets(server)]):
                    await trio.sleep(0.01)
            assert found[0].getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1


def server_sockets(server: Any) -> list[socket.socket]:
    return [connection.sock for connection in server.connections()]


async def test_a_silent_address_of_a_name_does_not_hide_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first address takes no connection; each connect asks for the addresses again."""
    monkeypatch.setattr(dialling, "ADDRESS_SECONDS", 0.2)
    asked: list[str] = []
    async with serving() as server:
        with socket.socket() as full:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            others = [await dial("127.0.0.1", full.getsockname()[1])]  # fills the backlog

            async def lookup(host: str, port: int, **_: Any) -> list[Any]:
                asked.append(host)
                kind = (socket.AF_INET, socket.SOCK_STREAM, 0, "")
                return [(*kind, full.getsockname()), (*kind, ("127.0.0.1", server.port))]

            monkeypatch.setattr(trio.socket, "getaddrinfo", lookup)
            with trio.fail_after(10):
                for _ in range(2):
                    with await dial("broker.example", 10911) as sock:
                        assert sock.getpeername()[1] in (server.port, full.getsockname()[1])
            for other in others:
                other.close()
    assert asked == ["broker.example", "broker.example"]
