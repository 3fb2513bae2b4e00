"""``mqproxy`` before two brokers: every call, with grpcio as the client."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from grpc_broker import GROUP, TOPIC, telemetry
from proxied_cluster import BROKERS, proxied_cluster

from triomq.remoting.grpc.apache_rocketmq import definition_pb2 as pb
from triomq.remoting.grpc.apache_rocketmq import service_pb2 as rpc

Code = pb.Code


async def test_messages_go_to_both_brokers_and_come_back(tmp_path: Path) -> None:
    async with proxied_cluster(tmp_path) as cluster, cluster.proxy() as proxy:
        client = proxy.client()
        bodies = {f"m{number}".encode() for number in range(8)}
        for body in bodies:
            sent = await client.send(client.message(body, tag="a", keys=["k"]))
            assert sent.status.code == Code.OK, sent
        received: dict[bytes, pb.Message] = {}
        while len(received) < len(bodies):
            status, messages = await client.receive()
            assert status.code == Code.OK, status
            for message in messages:
                received[message.body] = message
        assert received.keys() == bodies
        acknowledged = await client.acknowledge(*received.values())
        assert acknowledged.status.code == Code.OK, acknowledged
        # The handles name the brokers that have the messages.
        brokers = Counter(
            message.system_properties.receipt_handle.split(" ")[5] for message in received.values()
        )
        assert set(brokers) == set(BROKERS), brokers


async def test_routes_name_the_way_by_which_the_client_came(tmp_path: Path) -> None:
    async with proxied_cluster(tmp_path) as cluster:
        asked = rpc.QueryRouteRequest(topic=pb.Resource(name=TOPIC))
        named = rpc.QueryRouteRequest(topic=pb.Resource(name=TOPIC))
        named.endpoints.scheme = pb.AddressScheme.DOMAIN_NAME
        named.endpoints.addresses.add(host="balancer.example", port=443)
        async with cluster.proxy(localServeAddr="proxy.example") as proxy:
            client = proxy.client()
            route = await client.call("QueryRoute", asked)
            assert route.status.code == Code.OK, route
            queues = Counter((queue.broker.name, queue.id) for queue in route.message_queues)
            assert queues == {(name, number): 1 for name in BROKERS for number in range(2)}
            endpoints = route.message_queues[0].broker.endpoints
            assert endpoints.scheme == pb.AddressScheme.DOMAIN_NAME
            (address,) = endpoints.addresses
            assert (address.host, address.port) == ("proxy.example", proxy.ready.port)
            route = await client.call("QueryRoute", named)
            (address,) = route.message_queues[0].broker.endpoints.addresses
            assert (address.host, address.port) == ("balancer.example", proxy.ready.port)
            named.endpoints.addresses.add(host="", port=1)
            route = await client.call("QueryRoute", named)
            assert route.status.code == Code.ILLEGAL_ACCESS_POINT
            unknown = rpc.QueryRouteRequest(topic=pb.Resource(name="Unknown"))
            route = await client.call("QueryRoute", unknown)
            assert route.status.code == Code.TOPIC_NOT_FOUND
        del named.endpoints.addresses[1]
        async with cluster.proxy(useEndpointPortFromRequest="true") as proxy:
            route = await proxy.client().call("QueryRoute", named)
            (address,) = route.message_queues[0].broker.endpoints.addresses
            assert (address.host, address.port) == ("balancer.example", 443)


async def test_assignments_have_the_brokers_of_the_topic(tmp_path: Path) -> None:
    async with proxied_cluster(tmp_path) as cluster, cluster.proxy() as proxy:
        answer = await proxy.client().call(
            "QueryAssignment",
            rpc.QueryAssignmentRequest(
                topic=pb.Resource(name=TOPIC), group=pb.Resource(name=GROUP)
            ),
        )
        assert answer.status.code == Code.OK, answer
        names = sorted(one.message_queue.broker.name for one in answer.assignments)
        assert names == sorted(BROKERS)


async def test_invisible_times_and_dead_letters(tmp_path: Path) -> None:
    async with proxied_cluster(tmp_path) as cluster, cluster.proxy() as proxy:
        client = proxy.client()
        await client.send(client.message(b"one"))
        message = await _one(client)
        changed = await client.call("ChangeInvisibleDuration", _change(message, seconds=0))
        assert changed.status.code == Code.OK, changed
        again = await _one(client)
        assert again.body == b"one"
        assert again.system_properties.delivery_attempt == 2
        forwarded = await client.call(
            "ForwardMessageToDeadLetterQueue",
            rpc.ForwardMessageToDeadLetterQueueRequest(
                group=pb.Resource(name=GROUP),
                topic=pb.Resource(name=TOPIC),
                receipt_handle=again.system_properties.receipt_handle,
                message_id=again.system_properties.message_id,
                delivery_attempt=2,
                max_delivery_attempts=2,
            ),
        )
        assert forwarded.status.code == Code.OK, forwarded
        for name in BROKERS:
            if again.system_properties.receipt_handle.split(" ")[5] == name:
                dead = await cluster.peer(name).pull(f"%DLQ%{GROUP}", 0, 0)
                assert dead.bodies == [b"one"]


def _change(message: pb.Message, *, seconds: int) -> rpc.ChangeInvisibleDurationRequest:
    made = rpc.ChangeInvisibleDurationRequest(
        group=pb.Resource(name=GROUP),
        topic=pb.Resource(name=TOPIC),
        receipt_handle=message.system_properties.receipt_handle,
        message_id=message.system_properties.message_id,
    )
    made.invisible_duration.seconds = seconds
    return made


async def _one(client: object) -> pb.Message:
    while True:
        status, messages = await client.receive()  # type: ignore[attr-defined]
        if messages:
            assert status.code == Code.OK
            (message,) = messages
            return message


async def test_a_delayed_message_is_recalled(tmp_path: Path) -> None:
    settings = {"recallMessageEnable": True}
    async with proxied_cluster(tmp_path, **settings) as cluster, cluster.proxy() as proxy:
        await cluster.create_topic("Later", attributes="+message.type=DELAY")
        client = proxy.client(topic="Later")
        message = client.message(b"later", message_type=pb.MessageType.DELAY)
        message.system_properties.delivery_timestamp.GetCurrentTime()
        message.system_properties.delivery_timestamp.seconds += 3600
        sent = await client.send(message)
        assert sent.status.code == Code.OK, sent
        recalled = await client.call(
            "RecallMessage",
            rpc.RecallMessageRequest(
                topic=pb.Resource(name="Later"), recall_handle=sent.entries[0].recall_handle
            ),
        )
        assert recalled.status.code == Code.OK, recalled
        assert recalled.message_id == sent.entries[0].message_id


@pytest.mark.parametrize("kind", ["NORMAL", "FIFO"])
async def test_the_type_of_a_topic_is_that_of_its_brokers(tmp_path: Path, kind: str) -> None:
    async with proxied_cluster(tmp_path) as cluster, cluster.proxy() as proxy:
        await cluster.create_topic("Typed", attributes=f"+message.type={kind}")
        client = proxy.client(topic="Typed")
        message = client.message(b"one", message_type=pb.MessageType.FIFO, message_group="group-1")
        sent = await client.send(message)
        if kind == "FIFO":
            assert sent.status.code == Code.OK, sent
        else:
            assert sent.status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE


async def test_settings_are_those_of_the_group_on_the_brokers(tmp_path: Path) -> None:
    async with proxied_cluster(tmp_path) as cluster, cluster.proxy() as proxy:
        consumer = proxy.client()
        async with telemetry(consumer) as stream:
            stream.put(rpc.TelemetryCommand(settings=consumer.settings()))
            answer = await stream.take()
            assert answer.status.code == Code.OK
            assert answer.settings.backoff_policy.max_attempts == 17
            beat = await consumer.call("Heartbeat", rpc.HeartbeatRequest())
            assert beat.status.code == Code.OK
