"""A connection of a connector over a socket pair: traffic, room in the outbox, and retirement."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio
import trio.lowlevel
import trio.testing

from triomq.remoting.client.connection import ClientConnection
from triomq.remoting.client.connector import Connector, ConnectorConfig
from triomq.remoting.core.errors import ConnectionLost, RequestTimeout
from triomq.remoting.protocol.command import Command, encode_command, response_to
from triomq.remoting.protocol.peer import ClientPeer

ECHO = 9001


@attrs.define(eq=False)
class Wire:
    """A connection, the other end of its socket, and its callbacks."""

    connection: ClientConnection
    far: socket.socket
    requests: list[Command] = attrs.field(factory=list)
    lost: list[str] = attrs.field(factory=list)

    def drain(self) -> bytes:
        pieces = []
        while True:
            try:
                pieces.append(self.far.recv(1 << 20))
            except BlockingIOError:
                return b"".join(pieces)

    async def until_sent(self) -> None:
        """Read until the outbox is empty."""
        with trio.fail_after(10):
            while self.connection._outbox or self.connection._rest:
                self.drain()
                await trio.lowlevel.checkpoint()
        self.drain()


@asynccontextmanager
async def wired(high_bytes: int = 1 << 20) -> AsyncIterator[Wire]:
    near, far = socket.socketpair()
    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    for end in (near, far):
        end.setblocking(False)
    connection = ClientConnection(
        "127.0.0.1:1",
        near,
        ClientPeer(),
        high_bytes,
        lambda _, command: wire.requests.append(command),
        lambda ended: wire.lost.append(ended.reason),
        lambda _: None,
        busy_poll=False,
    )
    wire = Wire(connection, far)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run)
        await trio.testing.wait_all_tasks_blocked()
        yield wire
        connection.close("the test is over")
    far.close()


async def test_sends_and_reads_count_as_traffic() -> None:
    """The idle scan closes a connection whose count does not change."""
    async with wired() as wire:
        connection = wire.connection
        for count in (1, 2):
            await connection.oneway(Command(ECHO), deadline=trio.current_time() + 5, timeout=5)
            assert connection.traffic == count
        for count in (3, 4):
            wire.far.send(encode_command(Command(40)))
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert (connection.traffic, len(wire.requests)) == (count, count - 2)


async def test_callers_get_room_each_time_that_the_outbox_has_some() -> None:
    async with wired(high_bytes=100_000) as wire:
        connection = wire.connection
        later = trio.current_time() + 60
        for _ in range(2):
            await connection.oneway(Command(ECHO, body=b"x" * 500_000), deadline=later, timeout=60)
            await connection.oneway(Command(ECHO, body=b"x" * 500_000), deadline=later, timeout=60)
            sent: list[int] = []

            async def send(sent: list[int] = sent) -> None:
                await connection.oneway(Command(ECHO), deadline=later, timeout=60)
                sent.append(1)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(send)
                await trio.testing.wait_all_tasks_blocked(0.01)
                assert sent == []
                await wire.until_sent()
            assert connection._outbox_bytes == 0


async def test_callers_that_wait_for_room_learn_at_once_that_the_connection_is_lost() -> None:
    async with wired(high_bytes=100_000) as wire, trio.open_nursery() as nursery:
        connection = wire.connection
        later = trio.current_time() + 60
        for _ in range(2):
            await connection.oneway(Command(ECHO, body=b"x" * 500_000), deadline=later, timeout=60)
        ended: list[int] = []

        async def ask() -> None:
            with pytest.raises(ConnectionLost, match="by hand"):
                await connection.invoke(Command(ECHO), deadline=later, timeout=60)
            ended.append(1)

        nursery.start_soon(ask)
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked(0.01)
        connection.close("by hand")
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert len(ended) == 2
        assert wire.lost == ["by hand"]


@pytest.mark.parametrize("end", ["answer", "deadline"])
async def test_a_retired_connection_closes_when_no_answer_is_due(end: str) -> None:
    async with wired() as wire, trio.open_nursery() as nursery:
        connection = wire.connection
        results: list[object] = []

        async def ask(number: int) -> None:
            try:
                answer = await connection.invoke(
                    Command(ECHO, body=b"%d" % number),
                    deadline=trio.current_time() + 60,
                    timeout=60,
                )
                results.append(answer.body)
            except RequestTimeout:
                results.append(RequestTimeout)

        for number in (1, 2):
            nursery.start_soon(ask, number)
            await trio.testing.wait_all_tasks_blocked(0.01)
        connection.retire()
        assert not connection.lost
        wire.far.send(encode_command(response_to(Command(ECHO, 0), 0, body=b"first")))
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert (results, connection.lost) == ([b"first"], False)
        if end == "answer":
            wire.far.send(encode_command(response_to(Command(ECHO, 1), 0, body=b"second")))
        else:
            connection.expire(trio.current_time() + 61)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert results == [b"first", b"second" if end == "answer" else RequestTimeout]
        assert wire.lost == ["the server asked to go away"]


async def test_the_idle_scan_counts_from_the_last_traffic(
    autojump_clock: trio.testing.MockClock,
) -> None:
    def made(number: int) -> Any:
        lines: Any = SimpleNamespace(
            traffic=0,
            idle_traffic=-1,
            idle_since=trio.current_time(),
            peer=SimpleNamespace(pending_count=0),
            reasons=[],
        )
        lines.close = lines.reasons.append
        lines.flush_nowait = lambda: None
        lines.number = number
        lines.peer.next_deadline = lambda: None
        return lines

    async with Connector(ConnectorConfig(idle_seconds=100)) as connector:
        silent, lively, waiting = (made(number) for number in range(3))
        waiting.peer.pending_count = 1
        connector._connections.update({"silent": silent, "lively": lively, "waiting": waiting})
        for _ in range(9):
            lively.traffic += 1
            await trio.sleep(20)
        assert (silent.reasons[:1], lively.reasons, waiting.reasons) == (["idle"], [], [])
        del connector._connections["silent"]
        waiting.peer.pending_count = 0
        await trio.sleep(
            60
        )  # a pause shorter than the time allowed, however long ago the connection was made
        assert (lively.reasons, waiting.reasons) == ([], [])
        await trio.sleep(100)
        assert (lively.reasons[:1], waiting.reasons[:1]) == (["idle"], ["idle"])
        connector._connections.clear()
