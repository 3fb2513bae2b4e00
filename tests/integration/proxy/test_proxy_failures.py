"""``mqproxy`` while brokers restart, move and fail, and while it stops itself."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from grpc_broker import GROUP, TOPIC, GrpcClient, telemetry
from processes import free_port
from proxied_cluster import ProxiedCluster, proxied_cluster

from triomq.remoting.client.connector import Connector
from triomq.remoting.grpc.apache_rocketmq import definition_pb2 as pb
from triomq.remoting.grpc.apache_rocketmq import service_pb2 as rpc
from triomq.remoting.protocol.bodies.groups import ConsumerConnection
from triomq.remoting.protocol.bodies.registration import RegisterBrokerBody
from triomq.remoting.protocol.bodies.topics import DataVersion, TopicConfig, TopicTable
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.client import ConsumerGroupHeader
from triomq.remoting.protocol.headers.registration import RegisterBrokerHeader

Code = pb.Code


async def members(cluster: ProxiedCluster, broker: str, group: str = GROUP) -> set[str]:
    """Return the ids of the members of a consumer group at a broker."""
    answer = await cluster.peer(broker).call(
        RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerGroupHeader(group)
    )
    if answer.code:
        return set()
    found = ConsumerConnection.decode(bytes(answer.body))
    return {connection.client_id for connection in found.connections}


async def until_received(client: GrpcClient, wanted: set[bytes]) -> None:
    """Receive and acknowledge until all these bodies came."""
    found: set[bytes] = set()
    with trio.fail_after(60):
        while not wanted <= found:
            status, messages = await client.receive()
            assert status.code in (Code.OK, Code.MESSAGE_NOT_FOUND), status
            if messages:
                found |= {message.body for message in messages}
                assert (await client.acknowledge(*messages)).status.code == Code.OK


async def test_sends_go_on_at_the_other_broker(tmp_path: Path) -> None:
    async with proxied_cluster(tmp_path) as cluster, cluster.proxy() as proxy:
        client = proxy.client()
        assert (await client.send(client.message(b"before"))).status.code == Code.OK
        await cluster.stop_broker("broker-a")
        bodies = {f"m{number}".encode() for number in range(6)}
        for body in bodies:
            sent = await client.send(client.message(body))
            assert sent.status.code == Code.OK, sent
        await until_received(client, bodies)
        await cluster.start_broker("broker-a")
        await cluster.wait_route(TOPIC, 2)
        await until_received(client, {b"before"} - bodies)


async def test_sends_go_on_while_routes_have_a_broker_that_is_gone(tmp_path: Path) -> None:
    """As with a name server of Java, which shows a broker that failed for two minutes."""
    async with (
        proxied_cluster(tmp_path) as cluster,
        cluster.proxy() as proxy,
        gone_broker(cluster.namesrv) as name,
    ):
        await cluster.wait_route(TOPIC, 3)
        client = proxy.client()
        named = rpc.QueryRouteRequest(topic=pb.Resource(name=TOPIC))
        route = await client.call("QueryRoute", named)
        assert name in {queue.broker.name for queue in route.message_queues}
        bodies = {f"m{number}".encode() for number in range(2 * len(route.message_queues))}
        for body in bodies:
            sent = await client.send(client.message(body))
            assert sent.status.code == Code.OK, sent


async def test_a_send_waits_for_a_master(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No broker is there for longer than three attempts of a client take."""
    monkeypatch.setattr("triomq.remoting.messaging.sending.SEND_SECONDS", 60.0)
    async with proxied_cluster(tmp_path) as cluster, cluster.proxy() as proxy:
        client = proxy.client()
        assert (await client.send(client.message(b"before"))).status.code == Code.OK
        await cluster.stop_broker("broker-b")
        await cluster.stop_broker("broker-a")
        answers = []

        async def send() -> None:
            waiting = rpc.SendMessageRequest(messages=[client.message(b"waits")])
            answers.append(await client.call("SendMessage", waiting, timeout=60))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            await trio.sleep(0.2)
            assert answers == []
            await cluster.start_broker("broker-a")
        assert answers[0].status.code == Code.OK


@asynccontextmanager
async def gone_broker(namesrv: str) -> AsyncIterator[str]:
    """Register a broker with the topic at an address where nothing listens; yield its name."""
    topics = {topic: TopicConfig(topic_name=topic) for topic in ("gone", TOPIC)}
    table = TopicTable(topics, DataVersion(0, 1, 1))
    header = RegisterBrokerHeader("gone", f"127.0.0.1:{free_port()}", "TestCluster", "", 0)
    async with Connector() as connector:
        command = request(RequestCode.REGISTER_BROKER, header, RegisterBrokerBody(table).encode())
        assert (await connector.invoke(namesrv, command)).code == 0
        yield header.broker_name


async def test_a_broker_that_moved_is_found_and_told_again(tmp_path: Path) -> None:
    async with proxied_cluster(tmp_path) as cluster, cluster.proxy() as proxy:
        consumer = proxy.client()
        async with telemetry(consumer) as stream:
            stream.put(rpc.TelemetryCommand(settings=consumer.settings()))
            await stream.take()
            (name,) = await members(cluster, "broker-a")
            assert "@mqproxy#" in name
            await cluster.stop_broker("broker-b")
            await cluster.stop_broker("broker-a")
            await cluster.start_broker("broker-a", free_port())
            with trio.fail_after(30):
                while True:
                    sent = await consumer.send(consumer.message(b"after"))
                    if sent.status.code == Code.OK:
                        break
                    await trio.sleep(0.05)
            await until_received(consumer, {b"after"})
            with trio.fail_after(60):
                while await members(cluster, "broker-a") != {name}:
                    await trio.sleep(0.1)
            await cluster.start_broker("broker-b")


async def test_groups_without_clients_are_unregistered(tmp_path: Path) -> None:
    async with proxied_cluster(tmp_path) as cluster:
        async with cluster.proxy() as proxy:
            first, second = proxy.client("first"), proxy.client("second")
            for client in (first, second):
                async with telemetry(client) as stream:
                    stream.put(rpc.TelemetryCommand(settings=client.settings()))
                    assert (await stream.take()).status.code == Code.OK
            leave = rpc.NotifyClientTerminationRequest(group=pb.Resource(name=GROUP))
            assert (await first.call("NotifyClientTermination", leave)).status.code == Code.OK
            for broker in cluster.brokers:
                assert len(await members(cluster, broker)) == 1
            assert (await second.call("NotifyClientTermination", leave)).status.code == Code.OK
            for broker in cluster.brokers:
                assert await members(cluster, broker) == set()


@pytest.mark.parametrize("streams", [1, 4])
async def test_a_stop_ends_parked_receives_and_streams(tmp_path: Path, streams: int) -> None:
    settings = {
        "grpcClientConsumerMaxLongPollingTimeoutMillis": 60_000,
        "grpcShutdownTimeSeconds": 300,
    }
    async with proxied_cluster(tmp_path) as cluster:
        answers: list[int] = []

        async def park(client: GrpcClient) -> None:
            status, _ = await client.receive(timeout=100)
            answers.append(status.code)

        async with trio.open_nursery() as nursery:
            with trio.fail_after(40):  # far below the polls and the time of a drain
                async with cluster.proxy(**settings) as proxy:
                    clients = [proxy.client() for _ in range(streams)]
                    for client in clients:
                        nursery.start_soon(park, client)
                    async with telemetry(clients[0]) as stream:
                        stream.put(rpc.TelemetryCommand(settings=clients[0].settings()))
                        await stream.take()
                        for broker in cluster.brokers:
                            assert len(await members(cluster, broker)) == 1
                        await trio.sleep(0.5)
                        proxy.ready.stop()
                        assert await stream.take() is None
        assert answers == [Code.MESSAGE_NOT_FOUND] * streams
        for broker in cluster.brokers:
            assert await members(cluster, broker) == set()


async def test_a_proxy_starts_without_name_server_and_serves_when_one_comes(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        gone = f"127.0.0.1:{silent.getsockname()[1]}"
    async with proxied_cluster(tmp_path) as cluster:
        both = f"{gone};{cluster.namesrv}"
        async with cluster.proxy(namesrvAddr=both) as proxy:
            client = proxy.client()
            assert (await client.send(client.message(b"one"))).status.code == Code.OK
        async with cluster.proxy(namesrvAddr=gone) as proxy:
            client = proxy.client()
            sent = await client.send(client.message(b"two"))
            assert sent.status.code == Code.INTERNAL_SERVER_ERROR
            assert "no name server answered" in sent.status.message
