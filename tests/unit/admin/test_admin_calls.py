"""Time limits of administration: of one command, of a server that hangs, and of a client behind a broker."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio
import trio.testing

from triomq.client.admin.calls import Calls
from triomq.client.errors import RequestTimeout
from triomq.remoting import errors
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.command import Command


@attrs.define
class Connector:
    """Answers at once, but for the requests of `silent`: (address, code)."""

    silent: set[tuple[str, int]]
    asked: list[tuple[str, int]] = attrs.field(factory=list)

    async def invoke(self, address: str, command: Command, *, timeout: float) -> Command:
        self.asked.append((address, command.code))
        if (address, command.code) in self.silent:
            await trio.sleep(timeout)
            raise errors.RequestTimeout(address, command.code, timeout)
        await trio.lowlevel.checkpoint()
        return Command(0)


def calls_of(*silent: tuple[str, int]) -> tuple[Calls, Connector]:
    connector = Connector(set(silent))
    fake: Any = connector
    return Calls(fake, ["n:1"], 5.0), connector


async def test_a_server_that_hangs_is_asked_once_and_named_again(autojump_clock: trio.testing.MockClock) -> None:
    calls, connector = calls_of(("a:1", Code.GET_BROKER_CONFIG))
    calls.limit_to(30)
    for code in (Code.GET_BROKER_CONFIG, Code.GET_BROKER_RUNTIME_INFO):
        with pytest.raises(RequestTimeout, match="a:1 did not answer GET_BROKER_CONFIG within 5 s"):
            await calls.server("a:1", code)
    await calls.server("b:1", Code.GET_BROKER_RUNTIME_INFO)
    assert connector.asked == [("a:1", Code.GET_BROKER_CONFIG), ("b:1", Code.GET_BROKER_RUNTIME_INFO)]
    calls.limit_to(30)
    await calls.server("a:1", Code.GET_BROKER_RUNTIME_INFO)


async def test_a_client_that_hangs_behind_a_broker_says_nothing_of_the_broker(autojump_clock: trio.testing.MockClock) -> None:
    calls, connector = calls_of(("a:1", Code.GET_CONSUMER_RUNNING_INFO))
    calls.limit_to(30)
    for _ in range(2):
        with pytest.raises(RequestTimeout):
            await calls.server("a:1", Code.GET_CONSUMER_RUNNING_INFO)
    await calls.server("a:1", Code.GET_BROKER_RUNTIME_INFO)
    assert len(connector.asked) == 3


async def test_without_a_limit_for_the_whole_every_request_is_sent(autojump_clock: trio.testing.MockClock) -> None:
    calls, connector = calls_of(("a:1", Code.GET_BROKER_CONFIG))
    for _ in range(2):
        with pytest.raises(RequestTimeout):
            await calls.server("a:1", Code.GET_BROKER_CONFIG)
    assert len(connector.asked) == 2


async def test_a_fan_out_inside_another_ends_and_keeps_the_time_for_the_whole(autojump_clock: trio.testing.MockClock) -> None:
    """500 groups, each asks every broker; one of the brokers hangs."""
    calls, _ = calls_of(("a:1", Code.GET_CONSUME_STATS))

    async def group(name: str) -> int:
        answers = await calls.fan_out({"a": "a:1", "b": "b:1"}, lambda address: calls.server(address, Code.GET_CONSUME_STATS))
        return len(answers.values)

    calls.limit_to(30)
    with trio.fail_after(6):
        answers = await calls.fan_out({f"G{number}": f"G{number}" for number in range(500)}, group)
    assert set(answers.values.values()) == {1}


async def test_the_time_for_the_whole_ends_a_request(autojump_clock: trio.testing.MockClock) -> None:
    calls, _ = calls_of(("a:1", Code.GET_CONSUMER_RUNNING_INFO))
    calls.limit_to(2)
    with pytest.raises(RequestTimeout), trio.fail_after(3):
        await calls.server("a:1", Code.GET_CONSUMER_RUNNING_INFO)
