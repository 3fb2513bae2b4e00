"""A client inside the process: its frames go through codec, hooks and pools like any others."""

from __future__ import annotations

import pytest
import trio
from serving import ECHO, ECHO_LATER, FAIL, hold, make_server

from triomq.broker.processors.clients import notify_members_changed
from triomq.remoting.core.errors import ConnectionLost, Rejected, RequestTimeout
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import Command, request, response_to
from triomq.remoting.server.handlers import Handler
from triomq.remoting.server.requests import Deferred, Request, Response

PEER = "192.0.2.7", 4711
HOLD, ASK = 9010, 9011


async def test_requests_get_their_answers_at_once_or_later(nursery: trio.Nursery) -> None:
    server = make_server()
    await nursery.start(server.run)
    local = server.open_local(PEER, lambda command: None)
    for code in (ECHO, ECHO_LATER):
        answer = await local.invoke(request(code, body=b"x" * 100_000), 5)
        assert answer.code == 0
        assert bytes(answer.body) == b"x" * 100_000
    answer = await local.invoke(request(FAIL, body=b"this"), 5)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "no such thing: this" in (answer.remark or "")
    assert (await local.invoke(request(1234), 5)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    figures = server.statistics()
    assert figures.connections == 1
    assert figures.codes[ECHO].requests == 1


async def test_the_server_sees_the_given_address_and_its_hooks_the_request(
    nursery: trio.Nursery,
) -> None:
    seen: list[str] = []

    def refuse(asked: Request) -> None:
        seen.append(asked.connection.peer_text)
        raise Rejected(ResponseCode.NO_PERMISSION, "not you")

    server = make_server(request_hooks=(refuse,))
    await nursery.start(server.run)
    local = server.open_local(PEER, lambda command: None)
    answer = await local.invoke(request(ECHO), 5)
    assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, "not you")
    assert seen == ["192.0.2.7:4711"]


async def test_a_request_times_out_and_its_late_answer_is_dropped(nursery: trio.Nursery) -> None:
    held: list[Deferred] = []
    server = make_server([Handler(HOLD, lambda asked: hold(held, asked), "echo")])
    await nursery.start(server.run)
    local = server.open_local(PEER, lambda command: None)
    with pytest.raises(RequestTimeout):
        await local.invoke(request(HOLD), 0.01)
    with trio.move_on_after(0.01):
        await local.invoke(request(HOLD), 5)
    for deferred in held:
        deferred.finish(lambda: Response(0))
    assert (await local.invoke(request(ECHO), 5)).code == 0


async def test_a_closed_connection_is_reported_to_both_sides(nursery: trio.Nursery) -> None:
    held: list[Deferred] = []
    closed: list[str] = []
    server = make_server(
        [Handler(HOLD, lambda asked: hold(held, asked), "echo")],
        on_close=lambda connection: closed.append(connection.peer_text),
    )
    await nursery.start(server.run)
    local = server.open_local(PEER, lambda command: None)

    async def close_soon() -> None:
        await trio.testing.wait_all_tasks_blocked()
        server.drop_connections()

    nursery.start_soon(close_soon)
    with pytest.raises(ConnectionLost, match="dropped"):
        await local.invoke(request(HOLD), 5)
    assert local.closed
    assert closed == ["192.0.2.7:4711"]
    assert server.statistics().connections == 0
    with pytest.raises(ConnectionLost):
        await local.invoke(request(ECHO), 5)


async def test_requests_of_the_server_are_answered(nursery: trio.Nursery) -> None:
    asked_by_server: list[Command] = []

    async def ask(asked: Request) -> Response:
        answer = await asked.connection.invoke(request(77, body=b"who?"), 5)
        return Response(0, body=bytes(answer.body))

    server = make_server([Handler(ASK, ask, "later")])
    await nursery.start(server.run)
    local = server.open_local(PEER, asked_by_server.append)

    async def answer_it() -> None:
        await trio.testing.wait_all_tasks_blocked()
        (command,) = asked_by_server
        assert bytes(command.body) == b"who?"
        await local.answer(response_to(command, body=b"me"))

    nursery.start_soon(answer_it)
    assert bytes((await local.invoke(request(ASK), 5)).body) == b"me"


async def test_requests_are_sent_away_when_the_server_stops(nursery: trio.Nursery) -> None:
    held: list[Deferred] = []
    server = make_server([Handler(HOLD, lambda asked: hold(held, asked), "echo")])
    async with trio.open_nursery() as serving:
        await serving.start(server.run)
        local = server.open_local(PEER, lambda command: None)
        serving.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await trio.testing.wait_all_tasks_blocked()
            answer = await local.invoke(request(ECHO), 5)
            assert answer.code == ResponseCode.GO_AWAY
    assert local.closed


async def test_a_client_that_divides_no_queues_is_not_told_of_members(
    nursery: trio.Nursery,
) -> None:
    """A notice for each member at each join costs the square of a group's size."""
    server = make_server()
    await nursery.start(server.run)
    notices: list[Command] = []
    local = server.open_local(PEER, notices.append)
    notify_members_changed(local.server_side, "G")
    assert notices == []
    local.server_side.local = False
    notify_members_changed(local.server_side, "G")
    assert [notice.code for notice in notices] == [RequestCode.NOTIFY_CONSUMER_IDS_CHANGED]
