"""Repeated events of a connector: several servers that stop, for several callers; a dial that is
cut short.
"""

from __future__ import annotations

import socket
from functools import partial

import pytest
import trio
import trio.testing
from serving import ECHO, hold, serving, until

from triomq.remoting.client.connector import Connector, ConnectorConfig
from triomq.remoting.core.errors import ConnectFailed
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.command import Command
from triomq.remoting.server.connection import Connection
from triomq.remoting.server.handlers import Handler
from triomq.remoting.server.requests import Deferred, Request, Response

ASK = 9403


def has(answers: list[bytes], count: int) -> bool:
    return len(answers) == count


async def test_callers_that_are_sent_away_together_share_the_new_connection() -> None:
    held: list[Deferred] = []
    old: list[Connection] = []

    def answer(request: Request) -> Response | Deferred:
        if not old or request.connection is old[-1]:
            old.append(request.connection)
            return hold(held, request)
        return Response(0, body=request.body)

    async with serving([Handler(ASK, answer)]) as server, Connector() as connector:
        address = f"127.0.0.1:{server.port}"
        for turn in (1, 2):
            answers: list[bytes] = []

            async def ask(number: int, answers: list[bytes] = answers) -> None:
                answers.append(
                    bytes(
                        (
                            await connector.invoke(
                                address, Command(ASK, body=b"%d" % number), timeout=20
                            )
                        ).body
                    )
                )

            async with trio.open_nursery() as nursery:
                for number in range(3):
                    nursery.start_soon(ask, number)
                await until(lambda: len(held) == 3)
                # Each after the one before has its answer over the new connection.
                for count, deferred in enumerate(held, 1):
                    deferred.finish(
                        partial(Response, int(ResponseCode.GO_AWAY), remark="please go away")
                    )
                    await until(partial(has, answers, count))
            assert sorted(answers) == [b"0", b"1", b"2"]
            assert server.statistics().accepted == turn + 1
            await until(lambda: server.statistics().connections == 1)
            held.clear()
            (current,) = server.connections()
            old.append(current)


async def test_hooks_see_the_last_answer_only() -> None:
    answered: list[int] = []
    asked: list[int] = []

    class Watch:
        def before_request(self, address: str, command: Command) -> None:
            asked.append(int(command.code))

        def after_response(self, address: str, command: Command, answer: Command) -> None:
            answered.append(int(answer.code))

    away: list[Connection] = []

    def answer(request: Request) -> Response:
        if not away:
            away.append(request.connection)
        return Response(int(ResponseCode.GO_AWAY) if request.connection is away[-1] else 0)

    async with (
        serving([Handler(ASK, answer)]) as server,
        Connector(ConnectorConfig(hooks=[Watch()])) as connector,
    ):
        for _ in range(2):
            assert (await connector.invoke(f"127.0.0.1:{server.port}", Command(ASK))).code == 0
            away.append(next(each for each in server.connections() if each is not away[-1]))
        assert answered == [0, 0]
        assert asked == [ASK] * 4, "hooks see each try"


async def test_callers_that_wait_for_a_connection_learn_that_the_connector_was_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def dial(host: str, port: int) -> socket.socket:
        await trio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr("triomq.remoting.client.connector.dial", dial)
    reasons: list[str] = []
    async with trio.open_nursery() as nursery:
        async with Connector() as connector:

            async def ask() -> None:
                with pytest.raises(ConnectFailed) as caught:
                    await connector.invoke("192.0.2.1:1", Command(ECHO), timeout=60)
                reasons.append(caught.value.reason)

            nursery.start_soon(ask)
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
    assert reasons == ["the connector was closed"] * 2
