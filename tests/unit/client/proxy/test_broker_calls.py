"""Requests by broker name: brokers that move, are silent, or are not there."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio
import trio.testing

from triomq.client.core.calls import Calls
from triomq.client.core.config import ClientSettings
from triomq.client.core.failure_log import FailureLog
from triomq.client.core.route_finder import RouteFinder
from triomq.client.proxy import broker_calls
from triomq.client.proxy.broker_calls import LIST_RETRY_SECONDS, SPARED_SECONDS, BrokerCalls
from triomq.client.proxy.broker_directory import BrokerDirectory
from triomq.remoting.client.name_servers import FIRST_SECONDS, NameServers
from triomq.remoting.core.errors import ConnectFailed, ConnectionLost
from triomq.remoting.grpc.apache_rocketmq.definition_pb2 import Code
from triomq.remoting.messaging.status_codes import Refused
from triomq.remoting.protocol.bodies.cluster import ClusterTable
from triomq.remoting.protocol.bodies.route import BrokerData
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import Command
from triomq.remoting.protocol.command import request as new_request

NAMESRV = "ns:9876"


@attrs.define(eq=False)
class Network:
    """In place of a connector. ``masters``: what the name server lists; ``up``: who answers."""

    masters: dict[str, str] = attrs.field(factory=dict)
    up: set[str] = attrs.field(factory=lambda: {NAMESRV})
    silent: set[str] = attrs.field(factory=set)
    lost: set[str] = attrs.field(factory=set)
    sent: list[str] = attrs.field(factory=list)
    """Addresses of requests, without those for the list."""
    listed: int = 0

    async def invoke(
        self, address: str, command: Command, *, timeout: float = 3, deadline: float | None = None
    ) -> Command:
        await trio.lowlevel.checkpoint()
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            self.listed += 1
        else:
            self.sent.append(address)
        if address in self.silent:
            await trio.sleep(timeout)
            raise ConnectFailed(address, "no connection")
        if address in self.lost:
            raise ConnectionLost(address, "reset")
        if address not in self.up:
            raise ConnectFailed(address, "refused")
        table = {
            name: BrokerData("Cluster", name, {0: place}) for name, place in self.masters.items()
        }
        return Command(0, body=ClusterTable(table).encode())


def calls_over(network: Network, failed: list[str] | None = None) -> BrokerCalls:
    connector: Any = network
    finder = RouteFinder(
        ClientSettings(),
        NameServers([NAMESRV], 0),
        lambda gone, added: None,
        lambda topic: True,
        Calls(connector),
        FailureLog(broker_calls.logger),
    )
    return BrokerCalls(connector, finder, (failed if failed is not None else []).append)


def send() -> Command:
    return new_request(RequestCode.HEART_BEAT)


async def test_a_broker_is_found_by_its_name_and_again_where_it_moved(
    autojump_clock: trio.testing.MockClock,
) -> None:
    network = Network({"a": "old:1"}, {NAMESRV, "old:1"})
    failed: list[str] = []
    calls = calls_over(network, failed)
    await calls.invoke("a", send(), 3)
    await calls.invoke("a", send(), 3)
    assert (network.sent, network.listed) == (["old:1"] * 2, 1)
    network.masters["a"] = "new:1"
    network.up = {NAMESRV, "new:1"}
    await trio.sleep(LIST_RETRY_SECONDS)
    await calls.invoke("a", send(), 3)
    assert (network.sent[2:], network.listed) == (["old:1", "new:1"], 2)
    assert failed == ["old:1"]
    # A request that may have arrived is not sent twice.
    network.lost, network.masters["a"] = {"new:1"}, "third:1"
    with pytest.raises(ConnectionLost):
        await calls.invoke("a", send(), 3)
    assert network.sent[4:] == ["new:1"]


async def test_a_name_server_that_hangs_costs_the_list_less_than_its_time_out(
    autojump_clock: trio.testing.MockClock,
) -> None:
    network = Network({"a": "a:1"}, {NAMESRV, "a:1"}, silent={"hung:1"})
    calls = calls_over(network)
    calls.finder.names.replace(["hung:1", NAMESRV])
    calls.finder.names.answered("hung:1")
    began = trio.current_time()
    await calls.list_brokers()
    assert (calls.unreached, network.listed) == (None, 2)
    assert trio.current_time() - began < 2 * FIRST_SECONDS


async def test_a_silent_address_is_spared_for_a_while(
    autojump_clock: trio.testing.MockClock,
) -> None:
    network = Network({"a": "a:1"}, silent={"a:1"})
    calls = calls_over(network)
    with pytest.raises(ConnectFailed):
        await calls.invoke("a", send(), 3)
    began = trio.current_time()
    with pytest.raises(ConnectFailed, match="silent a moment ago"):
        await calls.invoke("a", send(), 3)
    assert trio.current_time() == began
    assert network.sent == ["a:1"]
    await trio.sleep(SPARED_SECONDS)
    network.silent, network.up = set(), {NAMESRV, "a:1"}
    await calls.invoke("a", send(), 3)


async def test_a_refusing_address_is_asked_every_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    network = Network({"a": "a:1"})
    calls = calls_over(network)
    for _ in range(3):
        with pytest.raises(ConnectFailed, match="refused"):
            await calls.invoke("a", send(), 3)
    assert network.sent == ["a:1"] * 3
    assert network.listed == 1  # the list is asked for once a second at most


async def test_names_that_are_not_there(autojump_clock: trio.testing.MockClock) -> None:
    network = Network({"a": "a:1"})
    calls = calls_over(network)
    for _ in range(100):
        with pytest.raises(Refused, match="no broker has the name 'b'") as caught:
            await calls.invoke("b", send(), 3)
        assert caught.value.code == Code.BAD_REQUEST
    assert network.listed == 1
    assert calls.unreached is None
    await trio.sleep(LIST_RETRY_SECONDS)
    network.up = set()
    with pytest.raises(Refused, match="no name server answered") as caught:
        await calls.invoke("b", send(), 3)
    assert caught.value.code == Code.INTERNAL_SERVER_ERROR
    assert calls.unreached is not None
    assert calls.directory.master("a") == "a:1"


def test_a_slave_that_acts_stays_master_while_the_list_has_it() -> None:
    directory = BrokerDirectory()
    directory.note_route([BrokerData("C", "a", {0: "slave:1"}), BrokerData("C", "b", {0: "b:1"})])
    listed = BrokerData("C", "a", {1: "slave:1"})
    directory.note_all(ClusterTable({"a": listed}))
    assert directory.master("a") == "slave:1"
    assert "b" not in directory
    directory.note_all(ClusterTable({"a": BrokerData("C", "a", {0: "a:1", 1: "slave:1"})}))
    assert directory.master("a") == "a:1"
    directory.note_all(ClusterTable({"a": listed}))
    assert directory.master("a") is None
    assert directory.name_at("slave:1") == "a"
    assert directory.name_at("a:1") is None


def test_masters_of_the_cluster_come_first() -> None:
    directory = BrokerDirectory()
    directory.note_route(
        [
            BrokerData("Other", "a", {0: "a:1"}),
            BrokerData("Mine", "c", {0: "c:1"}),
            BrokerData("Mine", "b", {1: "b:1"}),
        ]
    )
    assert directory.masters("Mine") == ["c:1", "a:1"]
