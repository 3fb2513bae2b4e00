"""A server that stops answers accepted requests and sends later requests away; no call is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from serving import ECHO, RawPeer, make_server, until

from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.client.connector import Connector
from triomq.remoting.core.errors import ConnectFailed, Rejected
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.command import Command
from triomq.remoting.server.handlers import Handler
from triomq.remoting.server.requests import Request, Response
from triomq.remoting.server.server import Server

SLOW, NOTE = 9501, 9502
GO_AWAY = (int(ResponseCode.GO_AWAY), "please go away")


@attrs.define(eq=False)
class Stopping:
    """A server that has begun to stop and waits for a request in its handler."""

    server: Server
    nursery: trio.Nursery
    gate: trio.Event
    notes: list[bytes]

    async def stop(self) -> None:
        """Begin to stop; return when new requests are sent away."""
        self.nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await until(lambda: self.server._codecs[0]._left is not None)


@asynccontextmanager
async def stopping(**settings: Any) -> AsyncIterator[tuple[Stopping, RawPeer, int]]:
    """Yield (server, peer that waits for an answer, its opaque number). The block runs shielded."""
    gate = trio.Event()
    notes: list[bytes] = []

    async def slow(request: Request) -> Response:
        await gate.wait()
        return Response(0, body=b"done")

    handlers = [
        Handler(SLOW, slow, "slow"),
        Handler(NOTE, lambda request: notes.append(request.body), "notes"),
    ]
    server = make_server(handlers, **settings)
    async with trio.open_nursery() as outer:
        nursery = await outer.start(run_in_nursery, server)
        with trio.CancelScope(shield=True):
            async with await RawPeer.open(server) as peer:
                opaque, data = peer.frame(SLOW)
                await peer.send(data)
                await until(lambda: server.statistics().requests == 1)
                yield Stopping(server, nursery, gate, notes), peer, opaque
                gate.set()
                nursery.cancel_scope.cancel()


async def run_in_nursery(server: Server, *, task_status: trio.TaskStatus[trio.Nursery]) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        task_status.started(nursery)


async def test_new_requests_are_sent_away_and_old_ones_answered() -> None:
    async with stopping() as (stop, peer, opaque), await RawPeer.open(stop.server) as other:
        assert (await other.call(ECHO, b"before")).body == b"before"
        await stop.stop()
        for code in (ECHO, SLOW, 4711):  # unknown codes, too: another server may know them
            answer = await other.call(code)
            assert (answer.code, answer.remark) == GO_AWAY
        stop.gate.set()
        assert (await peer.answer(opaque)).body == b"done"
        await peer.ended()
        await other.ended()


async def test_older_clients_do_not_know_the_code() -> None:
    async with stopping() as (stop, peer, _opaque), await RawPeer.open(stop.server) as old:
        assert (await old.call(ECHO, version=475)).code == 0
        await stop.stop()
        await old.send(old.frame(ECHO, version=475)[1] + old.frame(ECHO, version=475)[1])
        assert (await peer.call(ECHO)).code == ResponseCode.GO_AWAY
        stop.gate.set()
        await old.ended()
        assert old.received == []


async def test_one_way_requests_are_still_carried_out() -> None:
    """No client would repeat a one-way request."""
    async with stopping() as (stop, peer, _opaque):
        await stop.stop()
        await peer.send(peer.frame(NOTE, b"last offsets", flag=2)[1] + peer.frame(4711, flag=2)[1])
        assert (await peer.call(ECHO)).code == ResponseCode.GO_AWAY
        assert stop.notes == [b"last offsets"]


async def test_hooks_see_late_requests_too() -> None:
    """Hooks refuse requests also while the server stops."""

    def only_signed(request: Request) -> None:
        if request.code == NOTE and request.body != b"signed":
            raise Rejected(1, "no signature")

    async with stopping(request_hooks=(only_signed,)) as (stop, peer, _opaque):
        await stop.stop()
        await peer.send(
            peer.frame(NOTE, b"forged", flag=2)[1] + peer.frame(NOTE, b"signed", flag=2)[1]
        )
        assert (await peer.call(ECHO)).code == ResponseCode.GO_AWAY
        assert stop.notes == [b"signed"]


async def test_requests_that_wait_in_a_mailbox_are_let_in() -> None:
    """They were read before the stop began, so they are served."""
    async with stopping() as (stop, peer, _opaque):
        frames = [peer.frame(ECHO, b"%d" % number) for number in range(50)]
        codec = stop.server._codecs[0]
        connection = next(stop.server.connections())
        codec.mailbox.put(
            (trio.current_time(), [(connection, b"".join(data for _, data in frames))])
        )
        codec.leave()  # in the same step: the codec's task has not taken the batch
        assert [(await peer.answer(opaque)).body for opaque, _ in frames] == [
            b"%d" % number for number in range(50)
        ]


@asynccontextmanager
async def successor(port: int) -> AsyncIterator[Server]:
    """Serve the same address with another server."""
    server = make_server([Handler(SLOW, lambda request: Response(0, body=b"welcome"))], port=port)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        yield server
        nursery.cancel_scope.cancel()


async def test_our_client_goes_on_at_the_same_address_without_losing_a_call() -> None:
    """The old server answers accepted requests, its successor all others; no caller notices."""
    async with stopping() as (stop, _peer, _opaque), Connector() as connector:
        address = f"127.0.0.1:{stop.server.port}"
        answers: list[bytes | memoryview] = []

        async def call(code: int, body: bytes) -> None:
            answers.append(
                (await connector.invoke(address, Command(code, body=body), timeout=20)).body
            )

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, SLOW, b"old")
            await until(lambda: stop.server.statistics().requests == 2)
            await stop.stop()
            async with successor(stop.server.port):
                async with trio.open_nursery() as callers:
                    for number in range(100):
                        callers.start_soon(call, ECHO, b"%d" % number)
                assert sorted(answers) == sorted(b"%d" % number for number in range(100))
                assert connector.statistics().opened == 2
                stop.gate.set()
                await until(lambda: len(answers) == 101)
        assert answers[-1] == b"done"
        assert connector.statistics().pending == 0


async def test_the_blocking_client_connects_anew_too() -> None:
    async with stopping() as (stop, _peer, _opaque):
        with await trio.to_thread.run_sync(
            BlockingConnection, f"127.0.0.1:{stop.server.port}"
        ) as client:
            assert (
                await trio.to_thread.run_sync(client.invoke, Command(ECHO, body=b"old"))
            ).body == b"old"
            await stop.stop()
            opaque = await trio.to_thread.run_sync(client.send, Command(ECHO))
            assert (
                await trio.to_thread.run_sync(client.receive, opaque)
            ).code == ResponseCode.GO_AWAY
            async with successor(stop.server.port):
                assert (
                    await trio.to_thread.run_sync(client.invoke, Command(ECHO, body=b"new"))
                ).body == b"new"
                assert not client.closed


async def test_no_successor_after_go_away() -> None:
    """After GO_AWAY there may be no successor: a clear error, since the request was not carried
    out.
    """
    async with stopping() as (stop, _peer, _opaque), Connector() as connector:
        address = f"127.0.0.1:{stop.server.port}"
        await connector.invoke(address, Command(ECHO))
        await stop.stop()
        with pytest.raises(ConnectFailed, match="cannot connect"):
            await connector.invoke(address, Command(ECHO))
