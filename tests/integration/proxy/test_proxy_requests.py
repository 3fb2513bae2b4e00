"""What brokers ask a proxy goes to its clients; what one proxy began, another one ends."""

from __future__ import annotations

from pathlib import Path

import trio
from grpc_broker import GROUP, GrpcClient, telemetry
from proxied_cluster import BROKERS, ProxiedCluster, proxied_cluster

from triomq.remoting.grpc.apache_rocketmq import definition_pb2 as pb
from triomq.remoting.grpc.apache_rocketmq import service_pb2 as rpc
from triomq.remoting.protocol.bodies.groups import ConsumerConnection
from triomq.remoting.protocol.bodies.running import ConsumeDirectlyResult, ConsumerRunning
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.headers.client import (
    ConsumeDirectlyHeader,
    ConsumerGroupHeader,
    ConsumerRunningHeader,
)

Code = pb.Code
PAY = "Pay"
CHECKS = {"transactionTimeOut": 300, "transactionCheckInterval": 300}
"""Times in ms after which a broker asks about a transaction."""


async def begin(client: GrpcClient, body: bytes) -> tuple[str, str]:
    """Send a half message; return its id and that of its transaction."""
    sent = await client.send(client.message(body, message_type=pb.MessageType.TRANSACTION))
    assert sent.status.code == Code.OK, sent
    return sent.entries[0].message_id, sent.entries[0].transaction_id


async def end(
    client: GrpcClient, message_id: str, transaction_id: str, **more: object
) -> pb.Status:
    answer = await client.call(
        "EndTransaction",
        rpc.EndTransactionRequest(
            topic=pb.Resource(name=PAY),
            message_id=message_id,
            transaction_id=transaction_id,
            **{"resolution": pb.TransactionResolution.COMMIT, **more},  # type: ignore[arg-type]
        ),
    )
    status: pb.Status = answer.status
    return status


async def received(client: GrpcClient) -> pb.Message:
    with trio.fail_after(60):
        while True:
            _, messages = await client.receive()
            if messages:
                (message,) = messages
                return message


async def test_a_transaction_begun_at_one_proxy_ends_at_another(tmp_path: Path) -> None:
    async with (
        proxied_cluster(tmp_path) as cluster,
        cluster.proxy() as first,
        cluster.proxy() as second,
    ):
        await cluster.create_topic(PAY, attributes="+message.type=TRANSACTION")
        message_id, transaction_id = await begin(first.client(topic=PAY), b"paid")
        ended = await end(second.client(topic=PAY), message_id, transaction_id)
        assert ended.code == Code.OK, ended
        message = await received(second.client(topic=PAY))
        assert message.body == b"paid"
        assert message.system_properties.message_id == message_id


async def test_a_check_comes_to_a_producer_and_its_answer_by_another_proxy(tmp_path: Path) -> None:
    async with (
        proxied_cluster(tmp_path, **CHECKS) as cluster,
        cluster.proxy() as first,
        cluster.proxy() as second,
    ):
        await cluster.create_topic(PAY, attributes="+message.type=TRANSACTION")
        producer = first.client(topic=PAY)
        async with telemetry(producer) as stream:
            stream.put(rpc.TelemetryCommand(settings=producer.settings(publishing=True)))
            assert (await stream.take()).status.code == Code.OK
            # A client of the group without a stream is not asked.
            assert (
                await second.client(topic=PAY).call(
                    "QueryRoute", rpc.QueryRouteRequest(topic=pb.Resource(name=PAY))
                )
            ).status.code == Code.OK
            message_id, _ = await begin(producer, b"paid")
            with trio.fail_after(60):
                command = await stream.take()
            asked = command.recover_orphaned_transaction_command
            assert asked.message.body == b"paid"
            assert asked.message.system_properties.message_id == message_id
            ended = await end(
                second.client(topic=PAY),
                message_id,
                asked.transaction_id,
                source=pb.TransactionSource.SOURCE_SERVER_CHECK,
            )
            assert ended.code == Code.OK, ended
        assert (await received(first.client(topic=PAY))).body == b"paid"


async def proxy_id(cluster: ProxiedCluster, broker: str) -> str:
    answer = await cluster.peer(broker).call(
        RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerGroupHeader(GROUP)
    )
    (connection,) = ConsumerConnection.decode(bytes(answer.body)).connections
    return connection.client_id


async def test_questions_to_a_consumer_reach_one_with_a_stream(tmp_path: Path) -> None:
    async with proxied_cluster(tmp_path) as cluster, cluster.proxy() as proxy:
        silent, consumer = proxy.client(), proxy.client()
        async with telemetry(silent) as stream:
            stream.put(rpc.TelemetryCommand(settings=silent.settings()))
            assert (await stream.take()).status.code == Code.OK
            name = await proxy_id(cluster, "broker-a")
        header = ConsumerRunningHeader(GROUP, name, jstack=True)
        with trio.fail_after(30):
            while True:  # until its stream has ended at the proxy
                answer = await cluster.peer("broker-a").call(
                    RequestCode.GET_CONSUMER_RUNNING_INFO, header
                )
                if answer.code == ResponseCode.CONSUMER_NOT_ONLINE:
                    break
                await trio.sleep(0.05)
        async with telemetry(consumer) as stream, trio.open_nursery() as nursery:
            stream.put(rpc.TelemetryCommand(settings=consumer.settings()))
            assert (await stream.take()).status.code == Code.OK

            async def answer_commands() -> None:
                for _ in range(2 * len(BROKERS)):
                    command = await stream.take()
                    reply = rpc.TelemetryCommand()
                    if command.HasField("print_thread_stack_trace_command"):
                        nonce = command.print_thread_stack_trace_command.nonce
                        reply.thread_stack_trace.nonce = nonce
                        reply.thread_stack_trace.thread_stack_trace = "main: waits"
                    else:
                        assert command.verify_message_command.message.body == b"try"
                        reply.status.code = Code.OK
                        reply.verify_message_result.nonce = command.verify_message_command.nonce
                    stream.put(reply)

            nursery.start_soon(answer_commands)
            for broker in BROKERS:
                peer = cluster.peer(broker)
                assert await proxy_id(cluster, broker) == name
                answer = await peer.call(RequestCode.GET_CONSUMER_RUNNING_INFO, header)
                assert answer.code == 0, answer.remark
                running = ConsumerRunning.decode(bytes(answer.body))
                assert running.jstack == "main: waits"
                assert [one.topic for one in running.subscriptions] == [consumer.topic]
                sent = await peer.send(consumer.topic, b"try")
                answer = await peer.call(
                    RequestCode.CONSUME_MESSAGE_DIRECTLY,
                    ConsumeDirectlyHeader(GROUP, name, sent.message_id),
                )
                assert answer.code == 0, answer.remark
                result = ConsumeDirectlyResult.decode(bytes(answer.body))
                assert result.consume_result == "CR_SUCCESS"
