"""Whose turn it is to be asked, while name servers answer, refuse or hang."""

from __future__ import annotations

from math import inf

import pytest
import trio.testing

from triomq.broker.services.routes import CALL_SECONDS, Routes
from triomq.remoting.client.name_servers import FIRST_SECONDS, NameServers
from triomq.remoting.core.errors import ConnectFailed, RequestTimeout
from triomq.remoting.protocol.bodies.route import TopicRoute
from triomq.remoting.protocol.command import Command

HANGS, REFUSES, UNKNOWN, ANSWERS = "hangs", "refuses", "unknown", "answers"


def asked(
    servers: NameServers, ways: dict[str, str], deadline: float = inf
) -> tuple[list[tuple[str, float]], dict[str, str]]:
    """Ask until one answers; return the turns (address, seconds) and the reasons."""
    clock = [0.0]
    turns: list[tuple[str, float]] = []
    reasons: dict[str, str] = {}
    for turn in servers.turns(lambda: clock[0], deadline, reasons):
        turns.append((turn.address, round(turn.seconds, 3)))
        way = ways[turn.address]
        if way == ANSWERS:
            servers.answered(turn.address)
            break
        turn.answered = way == UNKNOWN
        clock[0] += turn.seconds if way == HANGS else 0.01
    return turns, reasons


@pytest.mark.parametrize(
    ("ways", "expected"),
    [
        ({"a": ANSWERS, "b": ANSWERS}, [("a", FIRST_SECONDS)]),
        ({"a": HANGS, "b": ANSWERS}, [("a", FIRST_SECONDS), ("b", FIRST_SECONDS)]),
        ({"a": REFUSES, "b": REFUSES}, [("a", FIRST_SECONDS), ("b", FIRST_SECONDS)]),
        # Both hang: each gets half of the time that is left.
        ({"a": HANGS, "b": HANGS}, [("a", 0.4), ("b", 0.4), ("a", 1.1), ("b", 1.1)]),
        # An answer is enough: the silent one is not asked again for another.
        ({"a": HANGS, "b": UNKNOWN}, [("a", 0.4), ("b", 0.4)]),
        ({"a": REFUSES, "b": HANGS}, [("a", 0.4), ("b", 0.4), ("b", 2.59)]),
        ({"a": HANGS}, [("a", 3.0)]),
    ],
)
def test_turns(ways: dict[str, str], expected: list[tuple[str, float]]) -> None:
    turns, _ = asked(NameServers(list(ways)), ways, deadline=3.0)
    assert turns == expected


def test_one_that_hung_is_asked_last_and_one_without_time_left_has_a_reason() -> None:
    servers = NameServers(["a", "b", "c"])
    asked(servers, {"a": HANGS, "b": REFUSES, "c": ANSWERS})
    turns, _ = asked(servers, {"a": ANSWERS, "b": HANGS, "c": HANGS})
    assert [address for address, _ in turns] == ["c", "b", "a"]
    turns, reasons = asked(servers, dict.fromkeys("abc", HANGS), deadline=0.0)
    assert (turns, set(reasons)) == ([], {"a", "b", "c"})


class Network:
    """Name server ``hung`` never answers, the others have the route."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def invoke(self, address: str, command: Command, *, timeout: float) -> Command:
        self.asked.append(address)
        if address == "hung":
            await trio.sleep(timeout)
            raise RequestTimeout(address, 105, timeout)
        if address == "down":
            raise ConnectFailed(address, "refused")
        return Command(0, body=TopicRoute([], []).encode_standard())

    async def oneway(self, address: str, command: Command, *, timeout: float) -> None: ...


async def test_a_broker_that_looks_for_a_route_passes_a_name_server_that_hangs(
    autojump_clock: trio.testing.MockClock,
) -> None:
    network = Network()
    listed = ["hung", "down", "well"]
    routes = Routes(listed, network)
    began = trio.current_time()
    assert await routes.find("T") is not None
    assert trio.current_time() - began < CALL_SECONDS / 2
    assert network.asked == ["hung", "down", "well"]
    assert await routes.find("U") is not None
    assert network.asked[3:] == ["well"]
    listed[:] = ["hung"]
    assert await routes.find("V") is None
    listed.clear()
    assert await routes.find("W") is None
