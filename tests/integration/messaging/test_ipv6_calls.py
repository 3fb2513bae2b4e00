"""gRPC clients that come by IPv6, to a broker and to a proxy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from brokers import BrokerPeer
from grpc_broker import TOPIC, GrpcClient, grpc_broker, listening, telemetry
from ipv6_cluster import has_ipv6, ipv6_cluster
from processes import free_port
from proxied_cluster import proxied_cluster

from triomq.remoting.client.connector import Connector
from triomq.remoting.grpc.apache_rocketmq import definition_pb2 as pb
from triomq.remoting.grpc.apache_rocketmq import service_pb2 as rpc
from triomq.remoting.protocol.bodies.groups import ConsumerConnection
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.client import ConsumerGroupHeader
from triomq.remoting.server.requests import Request

pytestmark = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
Code = pb.Code


@contextmanager
def client_at(address: str, client_id: str) -> Iterator[GrpcClient]:
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(address, options=options) as channel:
        yield GrpcClient(channel, client_id)


async def work(client: GrpcClient) -> pb.MessageQueue:
    """Send, receive and acknowledge a message; return a queue of the route."""
    asked = rpc.QueryRouteRequest(topic=pb.Resource(name=TOPIC))
    asked.endpoints.scheme = pb.AddressScheme.IPv6
    asked.endpoints.addresses.add(host="::1", port=1)
    route = await client.call("QueryRoute", asked)
    assert route.status.code == Code.OK, route
    assert (await client.send(client.message(b"six"))).status.code == Code.OK
    found: list[pb.Message] = []
    while not found:
        status, found = await client.receive()
        assert status.code in (Code.OK, Code.MESSAGE_NOT_FOUND), status
    assert [message.body for message in found] == [b"six"]
    assert (await client.acknowledge(*found)).status.code == Code.OK
    return route.message_queues[0]


async def test_a_broker_with_ipv6_only(tmp_path: Path) -> None:
    port = free_port()
    async with ipv6_cluster(tmp_path, grpcServerPort=port) as cluster, Connector() as connector:
        peer = BrokerPeer(connector, cluster.broker.address)
        await peer.create_topic(TOPIC, 2)
        await listening(port, "::1")
        with client_at(f"ipv6:[::1]:{port}", "six") as client:
            queue = await work(client)
            endpoints = queue.broker.endpoints
            assert endpoints.scheme == pb.AddressScheme.IPv6
            assert [(one.host, one.port) for one in endpoints.addresses] == [("::1", port)]
            async with telemetry(client) as stream:
                stream.put(rpc.TelemetryCommand(settings=client.settings()))
                assert (await stream.take()).status.code == Code.OK
                answer = await peer.call(
                    RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerGroupHeader(client.group)
                )
                (member,) = ConsumerConnection.decode(bytes(answer.body)).connections
                assert member.client_addr.startswith("[::1]:"), member


async def test_one_port_for_ipv6_and_ipv4(tmp_path: Path) -> None:
    """An IPv4 client at a port of both has its own address, so limits by address count it."""
    seen: list[str] = []

    def note(request: Request) -> None:
        if request.code == RequestCode.SEND_MESSAGE_V2:
            seen.append(request.connection.peer[0])

    async with grpc_broker(tmp_path, hooks=(note,), bindAddress="::") as broker:
        with (
            client_at(f"ipv6:[::1]:{broker.port}", "six") as six,
            client_at(f"ipv4:127.0.0.1:{broker.port}", "four") as four,
        ):
            await work(six)
            await work(four)
    assert seen == ["::1", "127.0.0.1"]


async def test_a_proxy_with_ipv6(tmp_path: Path) -> None:
    async with proxied_cluster(tmp_path) as cluster, cluster.proxy(bindAddress="::") as proxy:
        assert proxy.ready.banner() == f"proxy ready on [::]:{proxy.ready.port}"
        with client_at(f"ipv6:[::1]:{proxy.ready.port}", "six") as client:
            endpoints = (await work(client)).broker.endpoints
            assert endpoints.scheme == pb.AddressScheme.IPv6
            address = ("::1", proxy.ready.port)
            assert [(one.host, one.port) for one in endpoints.addresses] == [address]
