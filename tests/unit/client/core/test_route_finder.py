"""Which routes a client keeps: those in use, and not those of every topic that it was asked for."""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf
from typing import Any

import pytest
import trio
import trio.testing

from triomq.client.core.config import ClientSettings
from triomq.client.core.errors import NoBrokerRegistered, RouteNotFound, TopicNotFound
from triomq.client.core.failure_log import FailureLog
from triomq.client.core.route_finder import RouteFinder
from triomq.remoting.client.name_servers import NameServers
from triomq.remoting.protocol.bodies.cluster import ClusterTable
from triomq.remoting.protocol.bodies.route import BrokerData, QueueData, TopicRoute
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import Command

TOPICS = 100


class NameServer:
    """Knows topics T…, each on a broker of its own, and no others."""

    def __init__(self, registered_at: float = 0.0, first_seen_at: float | None = None) -> None:
        self.asked: list[str] = []
        self.port = 1
        self.registered_at = registered_at
        """when the brokers register, in seconds of the test's clock"""
        self.first_seen_at = registered_at if first_seen_at is None else first_seen_at
        """when a request about the cluster finds them: it may come right after the registration
        that the request about the topic missed
        """

    async def call(self, address: str, command: Command, timeout: float) -> Command:
        registered = trio.current_time() >= self.registered_at
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            await trio.sleep(0.001)
            seen = trio.current_time() >= self.first_seen_at
            brokers = {"b": BrokerData("c", "b", {0: "b:1"})} if seen else {}
            return Command(0, body=ClusterTable(brokers).encode())
        topic = (command.ext or {})["topic"]
        self.asked.append(topic)
        await trio.sleep(0.001)
        if not (registered and topic[1:].isdigit()):
            raise TopicNotFound(17, "unknown", address, "GET_ROUTEINFO_BY_TOPIC")
        name = f"broker-{topic}"
        return Command(
            0,
            body=TopicRoute(
                [QueueData(name, 1, 1)], [BrokerData("c", name, {0: f"{topic}:{self.port}"})]
            ).encode(),
        )


def finder(
    server: NameServer, gone: set[str], in_use: Callable[[str], bool] = lambda topic: True
) -> RouteFinder:
    calls: Any = server
    return RouteFinder(
        ClientSettings(),
        NameServers(["ns:1"], 0),
        lambda left, came: gone.update(left),
        in_use,
        calls,
        FailureLog(logging.getLogger(__name__)),
    )


async def test_unused_topics_are_forgotten_and_found_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    server, gone = NameServer(), set[str]()
    used = {f"T{number}" for number in range(TOPICS - 10)}
    routes = finder(server, gone, used.__contains__)
    async with trio.open_nursery() as nursery:
        for number in range(TOPICS):
            assert await routes.publish_queues(f"T{number}", "TBW102", 4)
        nursery.start_soon(routes.refresh_watched)
        await trio.sleep(290)
        assert gone == set()
        await trio.sleep(120)
        unused = {f"T{number}" for number in range(TOPICS - 10, TOPICS)}
        assert gone == {f"{topic}:1" for topic in unused}
        assert all(not routes.routes.publish(topic) for topic in unused)
        assert all(routes.routes.publish(topic) for topic in used)
        assert routes.routes.master("broker-T95") is None
        server.asked.clear()
        await trio.sleep(40)
        assert set(server.asked) == used
        assert await routes.publish_queues("T95", "TBW102", 4)
        nursery.cancel_scope.cancel()


async def test_a_few_topics_are_kept_whether_used_or_not(
    autojump_clock: trio.testing.MockClock,
) -> None:
    server, gone = NameServer(), set[str]()
    routes = finder(server, gone, lambda topic: False)
    async with trio.open_nursery() as nursery:
        for number in range(5):
            await routes.refresh(f"T{number}")
        nursery.start_soon(routes.refresh_watched)
        await trio.sleep(3600)
        assert gone == set()
        nursery.cancel_scope.cancel()


async def test_while_no_broker_is_registered_a_look_up_waits(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The only broker restarts: its topics are unknown until it registers again."""
    begun = trio.current_time()
    routes = finder(NameServer(registered_at=begun + 2), set())
    assert await routes.publish_queues("T1", "TBW102", 4, 5.0)
    assert 2 <= trio.current_time() - begun < 3
    assert await finder(NameServer(), set()).require("T1")
    assert await finder(NameServer(trio.current_time() + 1), set()).require("T1")


async def test_a_broker_that_registers_between_two_questions_has_its_topics(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The topic was unknown a moment before, the cluster has its broker now."""
    begun = trio.current_time()
    routes = finder(NameServer(registered_at=begun + 2, first_seen_at=begun + 1), set())
    assert await routes.publish_queues("T1", "TBW102", 4, 5.0)
    assert 2 <= trio.current_time() - begun < 3


async def test_no_broker_is_not_an_unknown_topic(autojump_clock: trio.testing.MockClock) -> None:
    nobody, begun = finder(NameServer(registered_at=inf), set()), trio.current_time()
    with pytest.raises(NoBrokerRegistered, match=r"no broker is registered.*mqbroker -n"):
        await nobody.publish_queues("T1", "TBW102", 4, 5.0)
    assert 4 < trio.current_time() - begun < 5.1
    with pytest.raises(NoBrokerRegistered):
        await nobody.require("T1")
    assert await nobody.refresh("T1") is None, "a consumer of a topic to come starts at once"
    begun, known = trio.current_time(), finder(NameServer(), set())
    for ask in (known.publish_queues("missing", "TBW102", 4, 5.0), known.require("missing")):
        with pytest.raises(RouteNotFound, match="no broker offers topic 'missing'"):
            await ask
    assert trio.current_time() - begun < 0.1, "an unknown topic is an error at once"


async def test_topics_that_do_not_exist_leave_nothing_behind(
    autojump_clock: trio.testing.MockClock,
) -> None:
    server = NameServer()
    routes = finder(server, set())
    failures: list[RouteNotFound] = []

    async def send(topic: str) -> None:
        with pytest.raises(RouteNotFound) as caught:
            await routes.publish_queues(topic, "TBW102", 4)
        failures.append(caught.value)

    async with trio.open_nursery() as nursery:
        for number in range(30):
            nursery.start_soon(send, f"missing-{number % 3}")
    assert len(set(failures)) == 30, "each has an error of its own"
    assert sorted(server.asked) == sorted(
        ["TBW102"] * 3 + [f"missing-{number}" for number in range(3)]
    ), "asked once for all"
    assert routes._look_ups == {}
    assert routes._watched == {}


async def test_an_unknown_topic_is_looked_up_at_growing_intervals_until_a_success(
    autojump_clock: trio.testing.MockClock,
) -> None:
    server = NameServer()
    routes = finder(server, set())
    waits: list[float] = []
    for _ in range(7):
        await routes.refresh("unknown")
        watched = routes._watched["unknown"]
        waits.append(round(watched.due - trio.current_time()))
    assert waits == [1, 2, 4, 8, 16, 30, 30]
    routes._watched["T1"] = routes._watched.pop("unknown")
    await routes.refresh("T1")
    assert routes._watched["T1"].wait == 1


async def test_a_failed_request_has_its_route_looked_up_at_once_and_then_less_often(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Another master registers within tenths of a second; without one there is no flood."""
    server = NameServer()
    routes = finder(server, set())
    async with trio.open_nursery() as nursery:
        await routes.refresh("T1")
        nursery.start_soon(routes.refresh_watched)
        await trio.sleep(10)
        server.asked.clear()
        times: list[float] = []
        begun = trio.current_time()
        while trio.current_time() < begun + 5:
            if len(times) == 7:
                server.port = 2
            routes.invalidate("T1")
            await trio.sleep(0.01)
            if len(server.asked) > len(times):
                times.append(round(trio.current_time() - begun, 1))
        assert times == [0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 2.6, 3.6, 3.6, 3.7, 3.9, 4.3]
        nursery.cancel_scope.cancel()
