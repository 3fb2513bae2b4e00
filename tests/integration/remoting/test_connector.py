"""The connector against our server, and against peers that misbehave."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from serving import BOTH_FORMS, ECHO, ECHO_LATER, STAGES, hold, make_server, serving, until

from triomq.remoting.client.connection import ClientConnection
from triomq.remoting.client.connector import Connector, ConnectorConfig
from triomq.remoting.core.errors import ConnectFailed, ConnectionLost, Rejected, RequestTimeout
from triomq.remoting.protocol.command import Command, encode_command, response_to
from triomq.remoting.protocol.peer import ClientPeer
from triomq.remoting.server.connection import Connection
from triomq.remoting.server.handlers import Handler
from triomq.remoting.server.requests import Deferred, Request, Response
from triomq.remoting.server.server import Server


def address_of(server: Server) -> str:
    return f"127.0.0.1:{server.port}"


@asynccontextmanager
async def listening(serve: Callable[[trio.SocketStream], Awaitable[None]]):
    """Yield the address of a peer that runs *serve* for each connection."""
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")

        async def handle(stream: trio.SocketStream) -> None:
            try:
                await serve(stream)
            except trio.BrokenResourceError:
                return

        nursery.start_soon(trio.serve_listeners, handle, listeners)
        yield f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


async def silence(stream: trio.SocketStream) -> None:
    while await stream.receive_some():
        pass


@pytest.mark.feature(18, "19b")
@pytest.mark.parametrize("stages", STAGES, ids=["1-1", "3-8"])
async def test_many_callers_share_one_connection(stages: tuple[int, int]) -> None:
    async with serving(stages=stages) as server, Connector() as connector:

        async def ask(number: int) -> None:
            for turn in range(5):
                code = (ECHO, ECHO_LATER)[(number + turn) % 2]
                body = b"%d %d" % (number, turn)
                answer = await connector.invoke(
                    address_of(server), Command(code, body=body, serialize=BOTH_FORMS[number % 2])
                )
                assert (answer.code, answer.body, answer.serialize) == (
                    0,
                    body,
                    BOTH_FORMS[number % 2],
                )

        async with trio.open_nursery() as nursery:
            for number in range(64):
                nursery.start_soon(ask, number)
        assert server.statistics().accepted == 1
        statistics = connector.statistics()
        assert (statistics.open, statistics.opened, statistics.pending, statistics.late) == (
            1,
            1,
            0,
            0,
        )


async def test_concurrent_requests_are_joined_into_few_sends() -> None:
    async with serving() as server, Connector() as connector:
        address = address_of(server)
        await connector.invoke(address, Command(ECHO))
        before = connector._connections[address].traffic
        async with trio.open_nursery() as nursery:
            for _ in range(200):
                nursery.start_soon(connector.invoke, address, Command(ECHO, body=b"x"))
        assert server.statistics().requests == 201
        assert connector._connections[address].traffic - before < 20  # reads and sends together


async def test_no_server_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        address = f"127.0.0.1:{held.getsockname()[1]}"
    async with Connector() as connector:
        with pytest.raises(
            ConnectFailed, match=f"cannot connect to {address}: Connection refused"
        ) as caught:
            await connector.invoke(address, Command(ECHO))
        assert isinstance(caught.value, OSError)
        with pytest.raises(ConnectFailed, match="cannot connect to no-such-host"):
            await connector.oneway("no-such-host.invalid:1", Command(ECHO))
        with pytest.raises(ValueError, match="has no port"):
            await connector.invoke("localhost", Command(ECHO))
    with pytest.raises(ConnectFailed, match="not open"):
        await Connector().invoke(address, Command(ECHO))
    with pytest.raises(ConnectFailed, match="not open"):
        await connector.invoke(address, Command(ECHO))


async def test_concurrent_callers_share_one_attempt_and_its_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attempts = 0

    async def dial(host: str, port: int) -> socket.socket:
        nonlocal attempts
        attempts += 1
        await trio.sleep(0.01)
        raise OSError(113, "No route to host")

    monkeypatch.setattr("triomq.remoting.client.connector.dial", dial)
    failures: list[str] = []
    async with Connector() as connector, trio.open_nursery() as nursery:

        async def ask() -> None:
            with pytest.raises(ConnectFailed) as caught:
                await connector.invoke("192.0.2.1:1", Command(ECHO))
            failures.append(caught.value.reason)

        for _ in range(10):
            nursery.start_soon(ask)
    assert (attempts, failures) == (1, ["No route to host"] * 10)


async def test_connecting_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    async def dial(host: str, port: int) -> socket.socket:
        await trio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr("triomq.remoting.client.connector.dial", dial)
    async with Connector(ConnectorConfig(connect_seconds=0.03)) as connector:
        with pytest.raises(ConnectFailed, match=r"no answer within 0.03 s"):
            await connector.invoke("192.0.2.1:1", Command(ECHO))
        with pytest.raises(
            ConnectFailed, match=r"no connection within 0.01 s"
        ):  # nothing was sent, so the request was not carried out
            await connector.invoke("192.0.2.1:1", Command(ECHO), timeout=0.01)


@pytest.mark.feature("19a")
async def test_a_late_answer_is_dropped_and_the_connection_lives() -> None:
    held: list[Deferred] = []

    async with (
        serving([Handler(9401, lambda request: hold(held, request), "held")]) as server,
        Connector() as connector,
    ):
        address = address_of(server)
        await connector.invoke(address, Command(ECHO))  # the timeout includes connecting
        with pytest.raises(RequestTimeout) as caught:
            await connector.invoke(address, Command(9401), timeout=0.02)
        assert isinstance(caught.value, TimeoutError)
        assert (caught.value.code, caught.value.seconds, caught.value.address) == (
            9401,
            0.02,
            address,
        )
        with trio.move_on_after(0.02) as scope:
            await connector.invoke(address, Command(9401), timeout=60)
        assert scope.cancelled_caught
        assert connector.statistics().pending == 0
        await until(lambda: len(held) == 2)
        for deferred in held:
            deferred.finish(lambda: Response(0, body=b"late"))
        assert (await connector.invoke(address, Command(ECHO, body=b"x"))).body == b"x"
        assert connector.statistics().late == 2
        assert server.statistics().accepted == 1


async def test_cancellation_never_leaves_half_a_frame() -> None:
    """Large requests, cancelled at every step: the connection can be used afterwards."""
    body = b"x" * 300_000
    async with (
        serving() as server,
        Connector(ConnectorConfig(outbox_high_bytes=1_000_000)) as connector,
    ):
        address = address_of(server)

        async def ask(delay: int) -> None:
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(connector.invoke, address, Command(ECHO, body=body))
                    for _ in range(delay):
                        await trio.lowlevel.checkpoint()
                    scope.cancel()

        for round_number in range(4):
            async with trio.open_nursery() as nursery:
                for delay in range(20):
                    nursery.start_soon(ask, delay * (round_number + 1))
            assert (
                await connector.invoke(
                    address, Command(ECHO, body=b"%d" % round_number), timeout=30
                )
            ).body == b"%d" % round_number
        assert (server.statistics().accepted, server.statistics().broken) == (1, 0)
        assert connector.statistics().pending == 0


async def test_all_pending_fail_at_once_and_the_next_use_connects_again() -> None:
    lost: list[tuple[str, str]] = []
    connected: list[str] = []

    async def never(request: Request) -> Response:
        await trio.sleep_forever()
        return Response(0)

    server = make_server([Handler(9402, never)], drain_seconds=0)
    failures: list[str] = []
    async with Connector(
        on_connected=connected.append, on_lost=lambda *facts: lost.append(facts)
    ) as connector:

        async def ask() -> None:
            with pytest.raises(ConnectionLost) as caught:
                await connector.invoke(address, Command(9402), timeout=60)
            assert isinstance(caught.value, OSError)
            failures.append(caught.value.reason)

        async with trio.open_nursery() as asking:
            async with trio.open_nursery() as nursery:
                await nursery.start(server.run)
                address = address_of(server)
                for _ in range(10):
                    asking.start_soon(ask)
                await until(lambda: server.statistics().requests >= 10)
                nursery.cancel_scope.cancel()
        assert (
            failures
            == ["the peer closed the connection before it answered anything (does it demand TLS?)"]
            * 10
        )
        assert (connected, lost) == (
            [address],
            [
                (
                    address,
                    (
                        "the peer closed the connection before it answered anything (does it demand"
                        " TLS?)"
                    ),
                )
            ],
        )
        with pytest.raises(ConnectFailed):
            await connector.invoke(address, Command(ECHO))
        async with serving(port=server.port) as again:
            assert (await connector.invoke(address, Command(ECHO, body=b"back"))).body == b"back"
            assert connected == [address, address]
            assert connector.connected(address)
            connector.close_address(address)
            connector.close_address("127.0.0.1:1")
            assert not connector.connected(address)
            assert lost[-1] == (address, "closed by this side")
            assert (await connector.invoke(address, Command(ECHO, body=b"again"))).body == b"again"
            assert again.statistics().accepted == 2


async def test_go_away_leads_to_one_new_connection() -> None:
    connections: list[Connection] = []
    held: list[Deferred] = []

    def sometimes(request: Request) -> Response:
        if request.connection not in connections:
            connections.append(request.connection)
        if request.connection is connections[0] or request.body == b"always":
            raise Rejected(1500, "please go away")
        return Response(0, body=b"welcome")

    handlers = [Handler(9403, sometimes), Handler(9404, lambda request: hold(held, request))]
    async with (
        serving(handlers) as server,
        Connector() as connector,
        trio.open_nursery() as nursery,
    ):
        address = address_of(server)

        async def wait_on_the_old_one() -> None:
            assert (await connector.invoke(address, Command(9404))).body == b"old"

        nursery.start_soon(wait_on_the_old_one)
        await until(lambda: bool(held))
        assert (await connector.invoke(address, Command(9403))).body == b"welcome"
        assert server.statistics().accepted == 2
        held[0].finish(lambda: Response(0, body=b"old"))  # an answer in flight still arrives
        await until(lambda: server.statistics().connections <= 1)
        twice = await connector.invoke(address, Command(9403, body=b"always"))
        assert (twice.code, twice.remark) == (1500, "please go away")
        assert server.statistics().accepted == 3


async def test_requests_on_a_connection_that_retires_still_time_out() -> None:
    """Also if the timer had another deadline in between; then the connection is closed and
    forgotten.
    """
    connections: list[Connection] = []

    def sometimes(request: Request) -> Response:
        if request.connection not in connections:
            connections.append(request.connection)
        if request.connection is connections[-1] and len(connections) % 2:
            raise Rejected(1500, "please go away")
        return Response(0, body=b"welcome")

    async with (
        serving(
            [Handler(9403, sometimes), Handler(9404, lambda request: Deferred((request,)))]
        ) as server,
        Connector() as connector,
    ):
        address = address_of(server)
        for turn in (1, 2):
            ended: list[float] = []
            out = trio.Event()

            async def wait_in_vain(ended: list[float] = ended, out: trio.Event = out) -> None:
                began = trio.current_time()
                with pytest.raises(RequestTimeout):
                    await connector.invoke(address, Command(9404), timeout=0.3)
                ended.append(trio.current_time() - began)
                out.set()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait_in_vain)
                await until(lambda: connector.statistics().pending == 1)
                assert (await connector.invoke(address, Command(9403))).body == b"welcome"
                assert (connector.statistics().open, connector.statistics().pending) == (2, 1)
                with pytest.raises(RequestTimeout):
                    await connector.invoke(address, Command(9404), timeout=0.02)
                assert ended == []
                with trio.fail_after(10):
                    await out.wait()
            assert ended[0] >= 0.3
            await until(lambda: server.statistics().connections <= 1)
            assert (connector.statistics().open, connector.statistics().pending) == (1, 0)
            assert server.statistics().accepted == 2 * turn
            connector.close_address(address)
            await until(lambda: server.statistics().connections == 0)


async def test_requests_of_the_server(caplog: pytest.LogCaptureFixture) -> None:
    gate = trio.Event()
    received: list[Command] = []
    connections: list[Connection] = []

    async def notice(address: str, command: Command) -> Command | None:
        received.append(command)
        return Command(0)  # not sent: the notice was one-way

    async def status(address: str, command: Command) -> Command | None:
        if command.body == b"refuse":
            raise Rejected(17, "no")
        if command.body == b"fail":
            raise RuntimeError("broken")
        if command.body == b"wait":
            await gate.wait()
        if command.body == b"nothing":
            return None
        return response_to(command, 0, body=b"status of " + address.encode())

    def keep(request: Request) -> Response:
        connections.append(request.connection)
        return Response(0)

    async with (
        serving([Handler(9405, keep)]) as server,
        Connector(
            ConnectorConfig(peer_requests_max=2), handlers={40: notice, 307: status}
        ) as connector,
    ):
        address = address_of(server)
        await connector.invoke(address, Command(9405))
        connections[0].oneway(Command(40, ext={"consumerGroup": "G"}))
        for form in BOTH_FORMS:
            answer = await connections[0].invoke(Command(307, serialize=form), 10)
            assert (answer.body, answer.serialize) == (b"status of " + address.encode(), form)
        assert [(command.code, command.ext) for command in received] == [
            (40, {"consumerGroup": "G"})
        ]
        refused = await connections[0].invoke(Command(307, body=b"refuse"), 10)
        assert (refused.code, refused.remark) == (17, "no")
        failed = await connections[0].invoke(Command(307, body=b"fail"), 10)
        assert (failed.code, failed.remark) == (1, "RuntimeError: broken")
        unknown = await connections[0].invoke(Command(309), 10)
        assert (unknown.code, unknown.remark) == (3, " request type 309 not supported")
        with pytest.raises(RequestTimeout):
            await connections[0].invoke(Command(307, body=b"nothing"), 0.02)
        answers: list[int] = []

        async def ask() -> None:
            answers.append((await connections[0].invoke(Command(307, body=b"wait"), 10)).code)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask)
            await until(lambda: answers == [2])
            gate.set()
        assert sorted(answers) == [0, 0, 2]
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [
        f"request 307 from {address} failed in its handler"
    ]


async def test_idle_connections_are_closed_and_opened_again() -> None:
    lost: list[str] = []
    config = ConnectorConfig(idle_seconds=0.05)
    async with (
        serving() as server,
        Connector(config, on_lost=lambda address, reason: lost.append(reason)) as connector,
    ):
        address = address_of(server)
        await connector.invoke(address, Command(ECHO))
        await until(lambda: not connector.connected(address))
        assert lost == ["idle"]
        assert (await connector.invoke(address, Command(ECHO, body=b"x"))).body == b"x"


async def test_a_connection_that_waits_for_an_answer_is_not_idle() -> None:
    async def slow(request: Request) -> Response:
        await trio.sleep(0.2)
        return Response(0, body=b"at last")

    async with (
        serving([Handler(9406, slow)]) as server,
        Connector(ConnectorConfig(idle_seconds=0.02)) as connector,
    ):
        assert (
            await connector.invoke(address_of(server), Command(9406), timeout=10)
        ).body == b"at last"


@pytest.mark.feature("19a")
async def test_each_request_keeps_its_own_deadline() -> None:
    async with listening(silence) as address, Connector() as connector:
        waited: dict[float, float] = {}

        async def ask(timeout: float) -> None:
            began = trio.current_time()
            with pytest.raises(RequestTimeout):
                await connector.invoke(address, Command(ECHO), timeout=timeout)
            waited[timeout] = trio.current_time() - began

        async with trio.open_nursery() as nursery:
            for timeout in (30.0, 0.06, 0.02, 0.04):
                nursery.start_soon(ask, timeout)
            await until(lambda: len(waited) == 3)
            nursery.cancel_scope.cancel()
        assert sorted(waited) == [0.02, 0.04, 0.06]
        assert all(seconds >= timeout for timeout, seconds in waited.items())
        assert connector.statistics().pending == 0


async def test_a_server_that_does_not_read() -> None:
    """Callers wait for room in the outbox, each to its own deadline."""

    async def stare(stream: trio.SocketStream) -> None:
        await trio.sleep_forever()

    async with (
        listening(stare) as address,
        Connector(ConnectorConfig(outbox_high_bytes=100_000)) as connector,
    ):
        body = b"x" * 1_000_000
        refused = 0
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                nonlocal refused
                with pytest.raises(RequestTimeout):
                    await connector.invoke(address, Command(ECHO, body=body), timeout=0.1)
                refused += 1

            for _ in range(30):
                nursery.start_soon(ask)
        assert refused == 30
        assert connector._connections[address]._outbox_bytes < 5_000_000
        with pytest.raises(RequestTimeout):
            await connector.oneway(address, Command(ECHO), timeout=0.02)


@pytest.mark.parametrize(
    "garbage",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", encode_command(Command(0, 0, 1))[:-5] + b"?????"],
)
async def test_a_server_that_sends_nonsense(
    garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def nonsense(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(garbage)
        await silence(stream)

    async with listening(nonsense) as address, Connector() as connector:
        with pytest.raises(ConnectionLost):
            await connector.invoke(address, Command(ECHO))
        assert not connector.connected(address)
    assert [record.levelname for record in caplog.records if record.name.startswith("triomq")] == [
        "WARNING"
    ]


async def test_oneway_is_sent_even_if_the_connector_closes_at_once() -> None:
    seen: list[Deferred] = []

    async with serving([Handler(9407, lambda request: hold(seen, request))]) as server:
        async with Connector() as connector:
            address = address_of(server)
            await connector.invoke(address, Command(ECHO))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(connector.invoke, address, Command(ECHO))
                for number in range(3):
                    await connector.oneway(address, Command(9407, body=b"%d" % number))
        await until(lambda: len(seen) >= 3)
    assert [deferred.requests[0].body for deferred in seen] == [b"0", b"1", b"2"]


async def test_an_error_of_the_body_is_raised_without_a_group() -> None:
    async with serving() as server:
        with pytest.raises(KeyError):  # noqa: PT012
            async with Connector() as connector:
                await connector.invoke(address_of(server), Command(ECHO))
                raise KeyError("the user's")
        with trio.CancelScope() as scope:
            async with Connector() as connector:
                await connector.invoke(address_of(server), Command(ECHO))
                scope.cancel()
                await trio.lowlevel.checkpoint()
        assert scope.cancelled_caught


async def test_callbacks_that_fail_affect_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    def broken(*facts: str) -> None:
        raise RuntimeError("the callback's own fault")

    async with serving() as server, Connector(on_connected=broken, on_lost=broken) as connector:
        assert (await connector.invoke(address_of(server), Command(ECHO, body=b"x"))).body == b"x"
    assert (
        len(
            [
                record
                for record in caplog.records
                if "a callback about the connection" in record.getMessage()
            ]
        )
        == 2
    )


async def test_a_connection_that_is_lost_while_a_request_is_written_wakes_no_task_twice() -> None:
    """The send itself fails: the caller gets its error, and its task is not woken a second time
    later.
    """
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    lost: list[str] = []
    connection = ClientConnection(
        "127.0.0.1:1",
        ours,
        ClientPeer(),
        1 << 20,
        lambda *_: None,
        lambda ended: lost.append(ended.reason),
        lambda _: None,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run)
        await trio.testing.wait_all_tasks_blocked()
        theirs.close()
        now = trio.current_time()
        with pytest.raises(ConnectionLost, match="sending failed"):
            await connection.invoke(Command(ECHO), deadline=now + 5, timeout=5)
        event = trio.Event()
        with trio.move_on_after(0.05) as scope:
            await event.wait()
        assert scope.cancelled_caught  # it waited
    assert len(lost) == 1
