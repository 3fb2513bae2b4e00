"""A proxy whose clients have more groups than a broker takes over one connection."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import trio
from grpc_broker import GROUP, TOPIC, telemetry
from proxied_cluster import proxied_cluster

from triomq.broker.services.table_limits import BrokerTableLimits
from triomq.remoting.grpc.apache_rocketmq import definition_pb2 as pb
from triomq.remoting.grpc.apache_rocketmq import service_pb2 as rpc
from triomq.remoting.protocol.bodies.groups import ConsumerConnection
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.client import ConsumerGroupHeader, ProducerConnectionHeader

OF_ONE_CLIENT = 2_499


async def test_5000_groups_through_one_proxy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert BrokerTableLimits().groups_per_connection_max == 1_000
    caplog.set_level(logging.WARNING)
    async with proxied_cluster(tmp_path) as cluster, cluster.proxy() as proxy:
        consumer = proxy.client("consumer")
        first, second = proxy.client("first"), proxy.client("second")
        async with telemetry(consumer) as one, telemetry(first) as two, telemetry(second) as three:
            for name, stream in (("a", two), ("b", three)):
                settings = pb.Settings(client_type=pb.ClientType.PRODUCER)
                for number in range(OF_ONE_CLIENT):
                    settings.publishing.topics.add(name=f"{name}{number}")
                settings.publishing.topics.add(name=TOPIC)
                stream.put(rpc.TelemetryCommand(settings=settings))
                assert (await stream.take()).status.code == pb.Code.OK
            one.put(rpc.TelemetryCommand(settings=consumer.settings()))
            assert (await one.take()).status.code == pb.Code.OK
            wanted = [f"{name}{number}" for name in "ab" for number in range(0, OF_ONE_CLIENT, 99)]
            for broker in cluster.brokers:
                peer = cluster.peer(broker)
                with trio.fail_after(60):
                    for group in wanted:
                        header = ProducerConnectionHeader(group)
                        while (
                            await peer.call(RequestCode.GET_PRODUCER_CONNECTION_LIST, header)
                        ).code:
                            await trio.sleep(0.1)
                    while True:
                        answer = await peer.call(
                            RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerGroupHeader(GROUP)
                        )
                        if answer.code == 0:
                            break
                        await trio.sleep(0.1)
                (member,) = ConsumerConnection.decode(bytes(answer.body)).connections
                assert "@mqproxy#" in member.client_id
    refusals = (record for record in caplog.records if not record.name.endswith("slow_requests"))
    assert not [record for record in refusals if "heartbeat" in record.getMessage()]
