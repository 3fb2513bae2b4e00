"""Start, stop, limits and figures of a server."""

from __future__ import annotations

import errno
import re
import socket
import struct
from pathlib import Path

import pytest
import trio
from brokers import peer_of, running_broker
from ipv6_cluster import has_ipv6
from serving import ECHO, ECHO_LATER, STAGES, RawPeer, hold, make_server, serving, until

from triomq.remoting.protocol.command import ONEWAY_FLAG, Command
from triomq.remoting.server.config import PoolConfig, ServerConfig
from triomq.remoting.server.connection import Connection
from triomq.remoting.server.handlers import Handler, HandlerTable
from triomq.remoting.server.listen import AddressInUse, ListenFailed
from triomq.remoting.server.requests import Deferred, Request, Response
from triomq.remoting.server.server import Server


@pytest.mark.feature("21a", 23)
@pytest.mark.parametrize("stages", STAGES, ids=["1-1", "3-8"])
async def test_a_task_dump_names_every_stage(stages: tuple[int, int]) -> None:
    pools = {"send": PoolConfig(workers=4), "pull": PoolConfig(workers=2)}
    async with serving(stages=stages, pools=pools) as server, await RawPeer.open(server) as peer:
        await peer.call(ECHO)
        await trio.testing.wait_all_tasks_blocked()
        dump = server.task_dump()
        names = re.findall(r"^ *(\S+)", dump, re.MULTILINE)
        expected = ["boss", "sweeper", "idle-scan"]
        expected += [f"selector-{number}" for number in range(stages[0])]
        expected += [f"codec-{number}" for number in range(stages[1])]
        expected += [f"pool-send-{number}" for number in range(4)] + [
            f"pool-pull-{number}" for number in range(2)
        ]
        assert set(expected) <= set(names)
        assert all(names.count(name) == 1 for name in expected)
        assert re.search(r"^ *boss .*boss\.py:\d+ in run$", dump, re.MULTILINE)
        assert re.search(r"^ *selector-0 .*selector\.py:\d+ in run$", dump, re.MULTILINE)
        assert re.search(r"^ *pool-send-3 .*pool\.py:\d+ in work$", dump, re.MULTILINE)
    assert make_server().task_dump() == ""


async def test_a_port_in_use() -> None:
    async with serving() as server:
        second = make_server(port=server.port)
        with pytest.raises(AddressInUse) as caught:
            await second.run()
        assert caught.value.errno == errno.EADDRINUSE
        assert str(caught.value) == (
            f"cannot listen on 127.0.0.1:{server.port}: the port is in use; "
            "stop the process that holds it or configure another port"
        )
        assert isinstance(caught.value, OSError)


@pytest.mark.parametrize(
    ("host", "number", "cause"),
    [
        ("192.0.2.1", errno.EADDRNOTAVAIL, "does not belong to this machine"),
        ("no.such.host.invalid", errno.EADDRNOTAVAIL, "unknown host"),
    ],
)
async def test_an_address_of_another_machine(host: str, number: int, cause: str) -> None:
    with pytest.raises(ListenFailed, match=cause) as caught:
        await make_server(host=host).run()
    assert caught.value.errno == number


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")
async def test_ipv6() -> None:
    connections: list[Connection] = []

    def keep(request: Request) -> Response:
        connections.append(request.connection)
        return Response(0)

    async with (
        serving([Handler(9301, keep)], host="::1") as server,
        await RawPeer.open(server) as peer,
    ):
        await peer.call(9301)
        port = peer.stream.socket.getsockname()[1]
        assert connections[0].peer_text == f"[::1]:{port}"
        assert connections[0].peer == ("::1", port)
        assert connections[0].peer_bytes == bytes(15) + b"\1" + port.to_bytes(4, "big")


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")
async def test_an_ipv4_peer_of_an_ipv6_server_shows_its_ipv4_address() -> None:
    async with serving(host="::") as server:
        server.host = "127.0.0.1"
        async with await RawPeer.open(server) as peer:
            await peer.call(ECHO)
            connection = next(server.connections())
            assert connection.peer[0] == "127.0.0.1"
            assert len(connection.peer_bytes) == 8


async def test_facts_of_an_ipv4_peer() -> None:
    async with serving() as server, await RawPeer.open(server) as peer:
        await peer.call(ECHO)
        connection = next(server.connections())
        port = peer.stream.socket.getsockname()[1]
        assert connection.peer_text == f"127.0.0.1:{port}"
        assert connection.peer_bytes == bytes((127, 0, 0, 1)) + port.to_bytes(4, "big")
        assert connection.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.feature("21b", "25a")
async def test_silent_connections_are_closed() -> None:
    closed: list[str] = []
    async with serving(
        idle_seconds=0.4, on_close=lambda connection: closed.append(connection.close_reason)
    ) as server:
        async with await RawPeer.open(server) as silent, await RawPeer.open(server) as lively:
            with trio.fail_after(20):
                async with trio.open_nursery() as nursery:

                    async def chat() -> None:
                        while True:
                            await lively.call(ECHO)
                            await trio.sleep(0.01)

                    nursery.start_soon(chat)
                    await silent.ended()
                    nursery.cancel_scope.cancel()
            assert closed == ["idle"]
            assert server.statistics().closed_idle == 1


async def test_the_log_distinguishes_a_reset_from_an_orderly_end() -> None:
    closed: list[str] = []
    async with serving(
        on_close=lambda connection: closed.append(connection.close_reason)
    ) as server:
        for number in (1, 2):
            peer = await RawPeer.open(server)
            await peer.call(ECHO)
            peer.stream.socket.setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
            await peer.stream.aclose()
            await until(lambda: server.statistics().connections == 0)
            async with await RawPeer.open(server) as peer:
                await peer.call(ECHO)
            await until(lambda: server.statistics().connections == 0)
            assert server.statistics().closed == 2 * number
    assert (
        closed
        == ["the connection broke: Connection reset by peer", "the peer closed the connection"] * 2
    )


@pytest.mark.parametrize("speaker", ["client", "server"])
async def test_a_connection_with_oneway_requests_only_is_not_silent(speaker: str) -> None:
    closed: list[Connection] = []
    heard: list[Deferred] = []
    handlers = [Handler(9304, lambda request: hold(heard, request))]
    async with serving(handlers, idle_seconds=0.8, on_close=closed.append) as server:
        async with await RawPeer.open(server) as lively:
            await lively.send(lively.frame(9304, flag=ONEWAY_FLAG)[1])
            await until(lambda: bool(heard))
            connection = heard[0].requests[0].connection
            async with await RawPeer.open(server) as silent, trio.open_nursery() as nursery:

                async def speak() -> None:
                    while True:
                        if speaker == "client":
                            await lively.send(lively.frame(9304, flag=ONEWAY_FLAG)[1])
                        else:
                            connection.oneway(Command(40))
                        await trio.sleep(0.02)

                nursery.start_soon(speak)
                await silent.ended()  # longer than the active connection's idle limit
                assert connection not in closed
                nursery.cancel_scope.cancel()
            assert (len(closed), connection.closed, server.statistics().closed_idle) == (
                1,
                False,
                1,
            )
            await lively.ended()
            assert connection.close_reason == "idle"


async def test_the_number_of_connections_is_limited(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        serving(connections_max=2) as server,
        await RawPeer.open(server) as first,
        await RawPeer.open(server) as second,
    ):
        await first.call(ECHO)
        await second.call(ECHO)
        async with await RawPeer.open(server) as third:
            await third.ended()
        assert server.statistics().turned_away == 1
        await first.stream.aclose()
        await until(lambda: server.statistics().connections <= 1)
        async with await RawPeer.open(server) as fourth:
            await fourth.call(ECHO)
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        (
            "turning away a connection: 2 are open, the limit; raise serverConnectionsMax, or close"
            " clients"
        )
    ]


async def test_the_connections_of_one_address_are_limited(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        serving(address_connections_max=2) as server,
        await RawPeer.open(server) as first,
        await RawPeer.open(server) as second,
    ):
        await first.call(ECHO)
        await second.call(ECHO)
        async with await RawPeer.open(server) as third:
            await third.ended()
        assert server.statistics().turned_away == 1
        elsewhere = await trio.open_tcp_stream("127.0.0.1", server.port, local_address="127.0.0.2")
        async with RawPeer(elsewhere) as fourth:
            await fourth.call(ECHO)
        await first.stream.aclose()
        await until(lambda: server.statistics().connections <= 2)
        async with await RawPeer.open(server) as fifth:
            await fifth.call(ECHO)
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        (
            "turning away a connection: 2 of 127.0.0.1 are open, the limit of one address; raise"
            " serverConnectionsPerAddressMax, or close clients there"
        )
    ]


async def test_every_callback_is_called_once_when_a_connection_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    closed: list[tuple[str, str]] = []

    def note(connection: Connection) -> None:
        closed.append((connection.peer_text, connection.close_reason))
        assert connection.closed
        connection.close("again")
        connection.write([b"to nobody"])
        raise KeyError("the callback's own fault")

    def hang_up(request: Request) -> Response:
        request.connection.close("told to")
        return Response(0)

    async with serving([Handler(9302, hang_up)], on_close=note) as server:
        peers = [await RawPeer.open(server) for _ in range(3)]
        names = ["{}:{}".format(*peer.stream.socket.getsockname()) for peer in peers]
        for peer in peers:
            await peer.call(ECHO)
        await peers[0].stream.aclose()
        await until(lambda: len(closed) >= 1)
        await peers[1].send(peers[1].frame(9302)[1] + peers[1].frame(9302)[1])
        await peers[1].ended()
    for peer in peers:
        await trio.aclose_forcefully(peer.stream)
    assert closed == [
        (names[0], "the peer closed the connection"),
        (names[1], "told to"),
        (names[2], "the server stopped"),
    ]
    assert (
        len(
            [
                record
                for record in caplog.records
                if "the callback for the end" in record.getMessage()
            ]
        )
        == 1
    )  # rate-limited


@pytest.mark.parametrize("stages", STAGES, ids=["1-1", "3-8"])
async def test_a_stopping_server_finishes_accepted_requests(stages: tuple[int, int]) -> None:
    gate = trio.Event()
    begun = 0

    async def slow(requests: list[Request]) -> list[Response | None]:
        nonlocal begun
        begun += len(requests)
        await gate.wait()
        return [Response(0, body=b"done") for _ in requests]

    handler = Handler(9303, slow, "slow", batch=True)
    server = make_server(
        [handler],
        selector_count=stages[0],
        codec_count=stages[1],
        pools={"slow": PoolConfig(workers=2)},
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        async with await RawPeer.open(server) as peer:
            frames = [peer.frame(9303) for _ in range(300)]
            await peer.send(b"".join(data for _, data in frames))
            await until(lambda: server.statistics().requests >= 300)
            assert begun < 300
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await trio.testing.wait_all_tasks_blocked()
                with pytest.raises(ConnectionRefusedError):  # no connection is accepted any more
                    await RawPeer.open(server)
                away = peer.frame(ECHO)
                await peer.send(away[1])
                gate.set()
                for opaque, _ in frames:
                    assert (await peer.answer(opaque)).body == b"done"
                answer = await peer.answer(away[0])
                assert (answer.code, answer.remark) == (1500, "please go away")
                await peer.ended()
                assert peer.received == []
    assert (server.statistics().connections, server.statistics().sent_away) == (0, 1)


async def test_a_stopping_server_does_not_wait_for_ever() -> None:
    async def never(request: Request) -> Response:
        await trio.sleep_forever()
        return Response(0)

    async with serving(
        [Handler(9304, never, "never")], pools={"never": PoolConfig(workers=1)}, drain_seconds=0.05
    ) as server:
        async with await RawPeer.open(server) as peer:
            await peer.send(b"".join(peer.frame(9304)[1] for _ in range(3)))
            assert (await peer.call(ECHO)).code == 0
            await until(lambda: server.statistics().pools["never"].queued_requests == 2)
    assert server.statistics().pools["never"].queued_requests == 0


async def test_a_crash_of_a_stage_ends_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(*_arguments: object) -> None:
        raise ZeroDivisionError

    server = make_server()
    with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012
        async with trio.open_nursery() as nursery:
            await nursery.start(server.run)
            monkeypatch.setattr(type(server._codecs[0]), "step", explode)
            async with await RawPeer.open(server) as peer:
                await peer.send(peer.frame(ECHO)[1])
                with trio.CancelScope(shield=True):
                    await peer.ended()
    assert caught.group_contains(ZeroDivisionError)
    assert server.statistics().connections == 0


async def test_statistics() -> None:
    async with serving() as server, await RawPeer.open(server) as peer:
        opaque, data = peer.frame(ECHO, b"x")
        await peer.send(data)
        await peer.answer(opaque)
        await peer.call(ECHO_LATER)
        statistics = server.statistics()
        assert (
            statistics.connections,
            statistics.accepted,
            statistics.requests,
            statistics.broken,
        ) == (1, 1, 2, 0)
        assert statistics.received_bytes > len(data)
        assert statistics.sent_bytes > 100
        assert {code: numbers.requests for code, numbers in statistics.codes.items()} == {
            ECHO: 1,
            ECHO_LATER: 1,
        }
        assert statistics.pools["later"].workers == statistics.pools["later"].idle_workers == 4


def test_a_table_is_checked() -> None:
    def answer(request: Request) -> Response:
        return Response(0)

    with pytest.raises(ValueError, match="request code 9 has two handlers"):
        HandlerTable([Handler(9, answer), Handler(9, answer)])
    table = HandlerTable([Handler(9, answer), Handler(10, answer)])
    assert list(table.restricted([9]).handlers) == [10]
    with pytest.raises(ValueError, match="names the pool 'nowhere'"):
        Server(ServerConfig(), HandlerTable([Handler(9, answer, "nowhere")]))


def task_names(task: trio.lowlevel.Task | None) -> list[str]:
    """Return the names of all tasks below a task."""
    assert task is not None
    below = [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    return [child.name for child in below] + [name for child in below for name in task_names(child)]


@pytest.mark.feature("21c")
async def test_the_number_of_selectors_and_codecs_is_a_setting(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path, serverSelectorThreads=3, serverWorkerThreads=8) as ready,
        peer_of(ready) as peer,
    ):
        await peer.create_topic("T")
        names = task_names(trio.lowlevel.current_root_task())
    found = {
        kind: sum(re.fullmatch(rf".*\b{kind}-\d+", name) is not None for name in names)
        for kind in ("selector", "codec")
    }
    assert found == {"selector": 3, "codec": 8}
