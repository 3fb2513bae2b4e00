"""Name servers and brokers as processes: the routes when a process starts or stops."""

from __future__ import annotations

import contextlib
import os
import signal
from functools import partial
from pathlib import Path

import attrs
import psutil
import pytest
import trio
from frames import FrameClient
from processes import free_port, our_broker, our_name_server

from triomq import Producer, SendStatus
from triomq.broker.config import BrokerConfig
from triomq.remoting.protocol.bodies.cluster import ClusterTable
from triomq.remoting.protocol.bodies.registration import RegisterBrokerBody
from triomq.remoting.protocol.bodies.route import BrokerData, TopicRoute
from triomq.remoting.protocol.bodies.topics import TopicNames
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.command import decode_frame, encode_command, response_to
from triomq.remoting.protocol.framing import FrameBuffer
from triomq.remoting.protocol.headers.registration import RegisterBrokerHeader
from triomq.remoting.protocol.headers.route import GetRouteHeader


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


async def brokers(port: int) -> dict[str, BrokerData]:
    async with FrameClient(port) as client:
        return ClusterTable.decode(
            (await client.call(Code.GET_BROKER_CLUSTER_INFO)).body
        ).broker_addr_table


async def topics(port: int) -> set[str]:
    async with FrameClient(port) as client:
        return set(
            TopicNames.decode(
                (await client.call(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).body
            ).topic_list
        )


async def until_known(port: int, names: set[str], seconds: float) -> None:
    with trio.fail_after(seconds):
        while set(await brokers(port)) != names:
            await trio.sleep(0.05)


@pytest.mark.feature("3a")
async def test_a_killed_broker_leaves_the_routes_at_once(tmp_path: Path) -> None:
    with (
        our_name_server(tmp_path / "n1") as one,
        our_name_server(tmp_path / "n2") as two,
        our_broker(tmp_path, "broker-a", f"{one};{two}") as (address, process),
    ):
        for name_server in (one, two):
            await until_known(port_of(name_server), {"broker-a"}, 20)
            async with FrameClient(port_of(name_server)) as client:
                route = TopicRoute.decode(
                    (
                        await client.call(Code.GET_ROUTEINFO_BY_TOPIC, GetRouteHeader("broker-a"))
                    ).body
                )
                assert route.broker_datas == [BrokerData("TestCluster", "broker-a", {0: address})]
        process.kill()
        for name_server in (one, two):
            await until_known(port_of(name_server), set(), 60)
            async with FrameClient(port_of(name_server)) as client:
                assert (
                    await client.call(Code.GET_ROUTEINFO_BY_TOPIC, GetRouteHeader("broker-a"))
                ).code == 17


@pytest.mark.feature("4a", "5a", "5b")
async def test_name_servers_are_replaced_during_traffic(tmp_path: Path) -> None:
    """One of two name servers is stopped, a new one is started: clients notice nothing, and the new
    one learns all routes.
    """
    fresh_port = free_port()
    with our_name_server(tmp_path / "n1") as one, contextlib.ExitStack() as later:
        second = later.enter_context(contextlib.ExitStack())
        two = second.enter_context(our_name_server(tmp_path / "n2"))
        servers = (
            f"{one};{two};127.0.0.1:{fresh_port}"  # no name server listens on the third port yet
        )
        later.enter_context(
            our_broker(tmp_path / "a", "broker-a", servers, registerNameServerPeriod=10_000)
        )
        _, other = later.enter_context(
            our_broker(tmp_path / "b", "broker-b", servers, registerNameServerPeriod=10_000)
        )
        for name_server in (one, two):
            await until_known(port_of(name_server), {"broker-a", "broker-b"}, 20)
        known = await topics(port_of(one))
        assert known >= {"TBW102", "broker-a", "broker-b", "TestCluster"}
        assert await topics(port_of(two)) == known
        async with Producer(f"{two};{one}", group="traffic") as producer:
            assert (await producer.send("broker-a", b"before")).status is SendStatus.STORED
            second.close()
            assert (await producer.send("broker-a", b"known route")).status is SendStatus.STORED
            assert (await producer.send("broker-b", b"new route")).status is SendStatus.STORED
            later.enter_context(our_name_server(tmp_path / "n3", fresh_port))
            await until_known(fresh_port, {"broker-a", "broker-b"}, 20)
            assert await topics(fresh_port) == await topics(port_of(one)) >= known
        other.send_signal(signal.SIGTERM)
        await until_known(port_of(one), {"broker-a"}, 10)
        await until_known(fresh_port, {"broker-a"}, 10)


@pytest.mark.feature("5c")
async def test_name_servers_open_no_connection_and_no_second_socket(tmp_path: Path) -> None:
    """A name server has only its listening port and the connections accepted there: name servers do
    not know each other.
    """
    with (
        our_name_server(tmp_path / "n1") as one,
        our_name_server(tmp_path / "n2") as two,
        our_broker(tmp_path, "broker-a", f"{one};{two}"),
    ):
        for name_server in (one, two):
            await until_known(port_of(name_server), {"broker-a"}, 20)
        sockets = {
            name_server: process.net_connections()
            for process in psutil.Process(os.getpid()).children()
            for name_server in (one, two)
            if any(
                socket.status == psutil.CONN_LISTEN and socket.laddr.port == port_of(name_server)
                for socket in process.net_connections()
            )
        }
        assert set(sockets) == {one, two}
        for name_server, found in sockets.items():
            assert {socket.laddr.port for socket in found} == {port_of(name_server)}
            assert any(socket.status == psutil.CONN_ESTABLISHED for socket in found), "the broker's"


@attrs.define(eq=False)
class Recorder:
    """A name server that accepts and records every registration."""

    address: str = ""
    registrations: list[tuple[float, RegisterBrokerHeader, RegisterBrokerBody]] = attrs.field(
        factory=list
    )

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(
                partial(trio.serve_tcp, self.serve, 0, host="127.0.0.1")
            )
            self.address = f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
            task_status.started()

    async def serve(self, stream: trio.SocketStream) -> None:
        buffer = FrameBuffer()
        async with stream:
            async for data in stream:
                for frame in buffer.feed(data):
                    command = decode_frame(bytes(frame))
                    if command.code == Code.REGISTER_BROKER:
                        body = RegisterBrokerBody.decode(command.body)
                        self.registrations.append(
                            (trio.current_time(), command.header(RegisterBrokerHeader), body)
                        )
                    await stream.send_all(encode_command(response_to(command)))


@pytest.mark.slow
@pytest.mark.feature("4a", "4b")
async def test_a_broker_registers_all_its_topics_at_every_name_server_each_period(
    tmp_path: Path,
) -> None:
    """This test waits for the shortest period, 10 s."""
    assert BrokerConfig().register_period_ms == 30_000
    async with trio.open_nursery() as nursery:
        recorders = [Recorder() for _ in range(3)]
        for recorder in recorders:
            await nursery.start(recorder.run)
        with our_broker(
            tmp_path,
            "broker-a",
            ";".join(recorder.address for recorder in recorders),
            registerNameServerPeriod=1,
        ) as (address, _):
            with trio.fail_after(30):
                while any(len(recorder.registrations) < 2 for recorder in recorders):
                    await trio.sleep(0.05)
        for recorder in recorders:
            (first_at, first, first_body), (again_at, again, again_body) = recorder.registrations[
                :2
            ]
            assert (first.cluster_name, first.broker_name, first.broker_id, first.broker_addr) == (
                "TestCluster",
                "broker-a",
                0,
                address,
            )
            assert {"TBW102", "broker-a", "TestCluster", "SELF_TEST_TOPIC"} <= set(
                first_body.table.topic_config_table
            )
            assert again == first
            assert again_body == first_body
            assert again_at - first_at > 9
        nursery.cancel_scope.cancel()
