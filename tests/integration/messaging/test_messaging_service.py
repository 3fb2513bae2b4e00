"""The service for RocketMQ 5 clients, with grpcio as the client and a broker behind it."""

from __future__ import annotations

from pathlib import Path

import trio
import trio.lowlevel
from grpc_broker import GROUP, TOPIC, grpc_broker, telemetry

from triomq.remoting.grpc.apache_rocketmq import definition_pb2 as pb
from triomq.remoting.grpc.apache_rocketmq import service_pb2 as rpc

Code = pb.Code


async def test_a_message_goes_through_all_calls(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path) as broker:
        client = broker.client()
        route = await client.call(
            "QueryRoute", rpc.QueryRouteRequest(topic=pb.Resource(name=TOPIC))
        )
        assert route.status.code == Code.OK
        assert [queue.id for queue in route.message_queues] == [0, 1]
        address = route.message_queues[0].broker.endpoints.addresses[0]
        assert (address.host, address.port) == ("127.0.0.1", broker.port)

        sent = await client.send(client.message(b"one", tag="a", keys=["k1", "k2"]))
        assert sent.status.code == Code.OK, sent
        (entry,) = sent.entries
        status, (message,) = await client.receive()
        assert status.code == Code.OK
        assert message.body == b"one"
        system = message.system_properties
        assert system.message_id == entry.message_id
        assert (system.tag, list(system.keys)) == ("a", ["k1", "k2"])
        assert system.delivery_attempt == 1
        acknowledged = await client.acknowledge(message)
        assert acknowledged.status.code == Code.OK, acknowledged
        assert [entry.status.code for entry in acknowledged.entries] == [Code.OK]


async def test_a_long_route_is_the_same_as_a_short_one(tmp_path: Path) -> None:
    """Its answer is made in parts, in a thread."""
    async with grpc_broker(tmp_path) as broker:
        await broker.peer.create_topic("Wide", 1500)
        client = broker.client()
        found = {}
        for topic in (TOPIC, "Wide"):
            request = rpc.QueryRouteRequest(topic=pb.Resource(name=topic))
            found[topic] = await client.call("QueryRoute", request)
        short, long = found[TOPIC], found["Wide"]
        assert long.status == short.status
        assert [queue.id for queue in long.message_queues] == list(range(1500))
        for queue in long.message_queues:
            queue.id, queue.topic.name = 0, TOPIC
            assert queue == short.message_queues[0]


async def test_many_messages_of_one_send_are_stored_in_their_order(tmp_path: Path) -> None:
    """Others have their turn in between."""
    async with grpc_broker(tmp_path) as broker:
        client = broker.client()
        bodies = [b"%d" % number for number in range(200)]
        messages = [client.message(body) for body in bodies]
        sent = await client.send(*messages)
        assert {entry.status.code for entry in sent.entries} == {Code.OK}
        assert [entry.offset for entry in sent.entries] == [number // 2 for number in range(200)]
        wrong = [*messages[:150], client.message(b"")]
        refused = await client.send(*wrong)
        assert refused.status.code == Code.MESSAGE_BODY_EMPTY
        assert not refused.entries


async def test_settings_are_answered_and_register_the_client(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path) as broker:
        consumer = broker.client("consumer-1")
        async with telemetry(consumer) as stream:
            stream.put(rpc.TelemetryCommand(settings=consumer.settings()))
            answer = await stream.take()
            assert answer.status.code == Code.OK
            assert answer.settings.subscription.receive_batch_size == 32
            assert answer.settings.backoff_policy.max_attempts == 17
            beat = await consumer.call("Heartbeat", rpc.HeartbeatRequest())
            assert beat.status.code == Code.OK
        stranger = broker.client("stranger")
        beat = await stranger.call("Heartbeat", rpc.HeartbeatRequest())
        assert beat.status.code == Code.UNRECOGNIZED_CLIENT_TYPE
        gone = await consumer.call(
            "NotifyClientTermination",
            rpc.NotifyClientTerminationRequest(group=pb.Resource(name=GROUP)),
        )
        assert gone.status.code == Code.OK
    await trio.lowlevel.checkpoint()
