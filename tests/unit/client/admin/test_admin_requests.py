"""Time limits of administration: for a command, for a server that hangs, and for a client behind a
broker.
"""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio
import trio.testing

from triomq.client.admin.errors import ChangeUnanswered, ClientSilent
from triomq.client.admin.requests import AdminRequests
from triomq.client.core.errors import RequestTimeout
from triomq.remoting.core import errors
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.command import Command


@attrs.define
class Connector:
    """A connector that answers at once, except for the requests in ``silent``: (address, code)."""

    silent: set[tuple[str, int]]
    asked: list[tuple[str, int]] = attrs.field(factory=list)

    async def invoke(self, address: str, command: Command, *, timeout: float) -> Command:
        self.asked.append((address, command.code))
        if (address, command.code) in self.silent:
            await trio.sleep(timeout)
            raise errors.RequestTimeout(address, command.code, timeout)
        await trio.lowlevel.checkpoint()
        return Command(0)


def calls_of(*silent: tuple[str, int]) -> tuple[AdminRequests, Connector]:
    connector = Connector(set(silent))
    fake: Any = connector
    return AdminRequests(fake, ["n:1"], 5.0), connector


async def test_a_server_that_hangs_is_asked_once_and_named_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    requests, connector = calls_of(("a:1", Code.GET_BROKER_CONFIG))
    requests.limit_to(30)
    for code in (Code.GET_BROKER_CONFIG, Code.GET_BROKER_RUNTIME_INFO):
        with pytest.raises(RequestTimeout, match="a:1 did not answer GET_BROKER_CONFIG within 5 s"):
            await requests.server("a:1", code)
    await requests.server("b:1", Code.GET_BROKER_RUNTIME_INFO)
    assert connector.asked == [
        ("a:1", Code.GET_BROKER_CONFIG),
        ("b:1", Code.GET_BROKER_RUNTIME_INFO),
    ]
    requests.limit_to(30)
    await requests.server("a:1", Code.GET_BROKER_RUNTIME_INFO)


async def test_a_client_that_hangs_does_not_mark_its_broker_as_silent(
    autojump_clock: trio.testing.MockClock,
) -> None:
    requests, connector = calls_of(("a:1", Code.GET_CONSUMER_RUNNING_INFO))
    requests.limit_to(30)
    for _ in range(2):
        with pytest.raises(RequestTimeout):
            await requests.server("a:1", Code.GET_CONSUMER_RUNNING_INFO)
    await requests.server("a:1", Code.GET_BROKER_RUNTIME_INFO)
    assert len(connector.asked) == 3


async def test_a_client_that_hangs_is_blamed_and_not_its_broker(
    autojump_clock: trio.testing.MockClock,
) -> None:
    requests, _ = calls_of(("a:1", Code.GET_CONSUMER_RUNNING_INFO))
    requests.limit_to(30)
    with pytest.raises(ClientSilent) as raised:
        await requests.server("a:1", Code.GET_CONSUMER_RUNNING_INFO)
    assert str(raised.value).startswith("the client behind a:1 did not answer")
    assert "overloaded" not in str(raised.value)


@pytest.mark.parametrize("total", [30, 2])
async def test_a_change_that_timed_out_may_still_take_effect(
    autojump_clock: trio.testing.MockClock, total: int
) -> None:
    requests, _ = calls_of(("a:1", Code.UPDATE_BROKER_CONFIG), ("a:1", Code.GET_BROKER_CONFIG))
    requests.limit_to(total)
    with pytest.raises(ChangeUnanswered, match="may still take effect: look before"):
        await requests.server("a:1", Code.UPDATE_BROKER_CONFIG)
    requests.limit_to(total)
    with pytest.raises(RequestTimeout) as reading:
        await requests.server("a:1", Code.GET_BROKER_CONFIG)
    assert "take effect" not in str(reading.value)


async def test_a_change_that_was_not_sent_says_so(autojump_clock: trio.testing.MockClock) -> None:
    """The server was silent a moment ago, so the change is not sent: it cannot take effect."""
    requests, connector = calls_of(("a:1", Code.GET_BROKER_CONFIG))
    requests.limit_to(30)
    with pytest.raises(RequestTimeout):
        await requests.server("a:1", Code.GET_BROKER_CONFIG)
    with pytest.raises(RequestTimeout) as raised:
        await requests.server("a:1", Code.UPDATE_BROKER_CONFIG)
    assert "take effect" not in str(raised.value)
    assert len(connector.asked) == 1


async def test_without_a_total_limit_every_request_is_sent(
    autojump_clock: trio.testing.MockClock,
) -> None:
    requests, connector = calls_of(("a:1", Code.GET_BROKER_CONFIG))
    for _ in range(2):
        with pytest.raises(RequestTimeout):
            await requests.server("a:1", Code.GET_BROKER_CONFIG)
    assert len(connector.asked) == 2


async def test_a_fan_out_inside_another_ends_within_the_total_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Each of 500 groups asks every broker; one broker hangs."""
    requests, _ = calls_of(("a:1", Code.GET_CONSUME_STATS))

    async def group(name: str) -> int:
        answers = await requests.fan_out(
            {"a": "a:1", "b": "b:1"},
            lambda address: requests.server(address, Code.GET_CONSUME_STATS),
        )
        return len(answers.values)

    requests.limit_to(30)
    with trio.fail_after(6):
        answers = await requests.fan_out(
            {f"G{number}": f"G{number}" for number in range(500)}, group
        )
    assert set(answers.values.values()) == {1}


async def test_the_total_time_ends_a_request(autojump_clock: trio.testing.MockClock) -> None:
    requests, _ = calls_of(("a:1", Code.GET_CONSUMER_RUNNING_INFO))
    requests.limit_to(2)
    with pytest.raises(RequestTimeout), trio.fail_after(3):
        await requests.server("a:1", Code.GET_CONSUMER_RUNNING_INFO)
