"""``mqproxy`` before a cluster of Java: RocketMQ 5 clients reach Java's brokers through it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, suppress
from functools import partial
from pathlib import Path

import attrs
import grpc
import processes
import pytest
import trio
from brokers import BrokerPeer
from grpc_broker import GROUP, TOPIC, GrpcClient, telemetry
from proxied_cluster import proxy_config

from triomq.client.proxy.app import ProxyReady, run_proxy
from triomq.remoting.client.connector import Connector
from triomq.remoting.core.errors import RequestTimeout
from triomq.remoting.grpc.apache_rocketmq import definition_pb2 as pb
from triomq.remoting.grpc.apache_rocketmq import service_pb2 as rpc
from triomq.remoting.protocol.bodies.groups import ConsumerConnection, ProducerConnection
from triomq.remoting.protocol.bodies.running import ConsumeDirectlyResult, ConsumerRunning
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.headers.client import (
    ConsumeDirectlyHeader,
    ConsumerGroupHeader,
    ConsumerRunningHeader,
    ProducerConnectionHeader,
)

pytestmark = [pytest.mark.compat, pytest.mark.timeout(240)]
JAVA = "5.5.0"
NAMES = "broker-java-a", "broker-java-b"
PAY = "Pay"
Code = pb.Code


@attrs.frozen
class JavaCluster:
    """A name server and two brokers of Java; ``brokers``: address by name."""

    namesrv: str
    brokers: dict[str, str]


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaCluster]:
    if processes.java_home(JAVA) is None:
        pytest.skip("Java's brokers are not installed: run `make peers`")
    folder: Path = tmp_path_factory.mktemp("java")
    with ExitStack() as stack:
        namesrv = stack.enter_context(processes.java_name_server(JAVA, folder / "namesrv"))
        brokers = {
            name: stack.enter_context(
                processes.java_broker(
                    JAVA,
                    folder / name,
                    name,
                    namesrv,
                    heap="512m",
                    transactionTimeOut=1000,
                    transactionCheckInterval=1000,
                )
            )
            for name in NAMES
        }
        yield JavaCluster(namesrv, brokers)


@attrs.define(eq=False)
class Proxies:
    """Proxies before the cluster, and a peer of each broker."""

    ports: list[int]
    peers: dict[str, BrokerPeer]
    channels: ExitStack

    def client(self, number: int, topic: str = TOPIC, group: str = GROUP) -> GrpcClient:
        channel = self.channels.enter_context(
            grpc.insecure_channel(
                f"127.0.0.1:{self.ports[number]}", options=[("grpc.use_local_subchannel_pool", 1)]
            )
        )
        return GrpcClient(channel, f"{topic}-{group}-{id(channel)}", topic, group)

    async def create_topic(self, topic: str, kind: str = "NORMAL") -> None:
        for peer in self.peers.values():
            answer = await peer.create_topic(topic, 2, attributes=f"+message.type={kind}")
            assert answer.code == 0, answer.remark


async def open_proxies(stack: AsyncExitStack, java: JavaCluster, count: int) -> Proxies:
    """Run proxies until the stack ends."""
    nursery = await stack.enter_async_context(trio.open_nursery())
    connector = await stack.enter_async_context(Connector())
    proxies = Proxies(
        [],
        {name: BrokerPeer(connector, address) for name, address in java.brokers.items()},
        stack.enter_context(ExitStack()),
    )
    for _ in range(count):
        ready: ProxyReady = await nursery.start(run_proxy, proxy_config(namesrvAddr=java.namesrv))
        proxies.ports.append(ready.port)
        stack.callback(ready.stop)
    return proxies


async def received(client: GrpcClient, count: int) -> dict[bytes, pb.Message]:
    """Receive until so many messages came."""
    found: dict[bytes, pb.Message] = {}
    with trio.fail_after(90):
        while len(found) < count:
            status, messages = await client.receive()
            assert status.code in (Code.OK, Code.MESSAGE_NOT_FOUND), status
            found |= {message.body: message for message in messages}
    return found


async def sent_when_known(client: GrpcClient, *messages: pb.Message) -> rpc.SendMessageResponse:
    """Send; a new topic reaches Java's name server a moment later."""
    with trio.fail_after(60):
        while True:
            answer = await client.send(*messages)
            if answer.status.code != Code.TOPIC_NOT_FOUND:
                assert answer.status.code == Code.OK, answer
                return answer
            await trio.sleep(0.1)


async def both_brokers(client: GrpcClient) -> None:
    """Wait until the route of the client's topic has both brokers."""
    asked = rpc.QueryRouteRequest(topic=pb.Resource(name=client.topic))
    with trio.fail_after(60):
        while True:
            route = await client.call("QueryRoute", asked)
            if {queue.broker.name for queue in route.message_queues} == set(NAMES):
                return
            await trio.sleep(0.1)


@pytest.mark.loss
async def test_messages_of_both_brokers_come_once(java: JavaCluster) -> None:
    async with AsyncExitStack() as stack:
        proxies = await open_proxies(stack, java, 1)
        await proxies.create_topic(TOPIC)
        client = proxies.client(0)
        await both_brokers(client)
        bodies = {f"m{number}".encode() for number in range(8)}
        for body in bodies:
            await sent_when_known(client, client.message(body, tag="a", keys=["k"]))
        messages = await received(client, len(bodies))
        assert messages.keys() == bodies
        brokers = {
            message.system_properties.receipt_handle.split(" ")[5] for message in messages.values()
        }
        assert brokers == set(NAMES)
        acknowledged = await client.acknowledge(*messages.values())
        assert acknowledged.status.code == Code.OK, acknowledged
        # Java's brokers have them: each queue holds what was sent there.
        stored = {
            body
            for peer in proxies.peers.values()
            for queue_id in range(2)
            for body in (await peer.pull(TOPIC, queue_id, 0, group="readers")).bodies
        }
        assert stored == bodies


@pytest.mark.loss
async def test_a_check_of_java_is_answered_by_another_proxy(java: JavaCluster) -> None:
    async with AsyncExitStack() as stack:
        proxies = await open_proxies(stack, java, 2)
        await proxies.create_topic(PAY, "TRANSACTION")
        await proxies.create_topic(TOPIC)
        # The groups of this client fill the first connection; the check comes over the second.
        filler = proxies.client(0)
        await both_brokers(filler)
        settings = filler.settings(publishing=True)
        for number in range(999):
            settings.publishing.topics.add(name=f"Filler{number}")
        of_filler = await stack.enter_async_context(telemetry(filler))
        of_filler.put(rpc.TelemetryCommand(settings=settings))
        assert (await of_filler.take()).status.code == Code.OK
        producer, other = proxies.client(0, PAY), proxies.client(1, PAY)
        await both_brokers(producer)
        stream = await stack.enter_async_context(telemetry(producer))
        stream.put(rpc.TelemetryCommand(settings=producer.settings(publishing=True)))
        assert (await stream.take()).status.code == Code.OK
        begun = {}
        for number in range(3):
            message = producer.message(b"%d" % number, message_type=pb.MessageType.TRANSACTION)
            sent = await sent_when_known(producer, message)
            begun[sent.entries[0].message_id] = sent.entries[0].transaction_id
        first = next(iter(begun))
        end = partial(_end, other)
        assert await end(first, begun[first]) == Code.OK
        asked: dict[str, str] = {}
        with trio.fail_after(90):
            while not begun.keys() - {first} <= asked.keys():
                command = (await stream.take()).recover_orphaned_transaction_command
                asked[command.message.system_properties.message_id] = command.transaction_id
        asked.pop(first, None)  # asked before its end
        assert asked.keys() == begun.keys() - {first}
        for message_id, transaction_id in asked.items():
            assert await end(message_id, transaction_id) == Code.OK
        assert (await received(other, 3)).keys() == {b"0", b"1", b"2"}
        for peer in proxies.peers.values():
            assert await _client_id(peer, PAY) == f"{await _client_id(peer, 'Filler7')}#1"


async def _client_id(peer: BrokerPeer, producer_group: str) -> str:
    """Return the client id by which a broker knows the proxy in a group."""
    answer = await peer.call(
        RequestCode.GET_PRODUCER_CONNECTION_LIST, ProducerConnectionHeader(producer_group)
    )
    assert answer.code == 0, answer.remark
    (one,) = ProducerConnection.decode(bytes(answer.body)).connections
    return one.client_id


async def _end(client: GrpcClient, message_id: str, transaction_id: str) -> int:
    answer = await client.call(
        "EndTransaction",
        rpc.EndTransactionRequest(
            topic=pb.Resource(name=client.topic),
            message_id=message_id,
            transaction_id=transaction_id,
            resolution=pb.TransactionResolution.COMMIT,
            source=pb.TransactionSource.SOURCE_SERVER_CHECK,
        ),
    )
    return int(answer.status.code)


async def test_java_asks_a_consumer_through_the_proxy(java: JavaCluster) -> None:
    topic, group = "Asked", "asked"
    async with AsyncExitStack() as stack:
        proxies = await open_proxies(stack, java, 1)
        await proxies.create_topic(topic)
        consumer = proxies.client(0, topic, group)
        await both_brokers(consumer)
        stream = await stack.enter_async_context(telemetry(consumer))
        stream.put(rpc.TelemetryCommand(settings=consumer.settings()))
        assert (await stream.take()).settings.backoff_policy.max_attempts == 17
        for peer in proxies.peers.values():
            # The client waits a second until brokers know it; a busy Java broker takes longer.
            answer = None
            with trio.fail_after(60):
                while answer is None or answer.code == ResponseCode.CONSUMER_NOT_ONLINE:
                    with suppress(RequestTimeout):
                        answer = await peer.call(
                            RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerGroupHeader(group)
                        )
            assert answer.code == 0, answer.remark
            found = ConsumerConnection.decode(bytes(answer.body))
            (member,) = found.connections
            assert topic in found.subscriptions
            answer = await peer.call(
                RequestCode.GET_CONSUMER_RUNNING_INFO,
                ConsumerRunningHeader(group, member.client_id),
            )
            assert answer.code == 0, answer.remark
            running = ConsumerRunning.decode(bytes(answer.body))
            assert [one.topic for one in running.subscriptions] == [topic]
            sent = await peer.send(topic, b"try")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_consume, stream)
                answer = await peer.call(
                    RequestCode.CONSUME_MESSAGE_DIRECTLY,
                    ConsumeDirectlyHeader(group, member.client_id, sent.message_id),
                )
            assert answer.code == 0, answer.remark
            result = ConsumeDirectlyResult.decode(bytes(answer.body))
            assert result.consume_result == "CR_SUCCESS"
        left = await consumer.call(
            "NotifyClientTermination",
            rpc.NotifyClientTerminationRequest(group=pb.Resource(name=group)),
        )
        assert left.status.code == Code.OK
        for peer in proxies.peers.values():
            answer = await peer.call(
                RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerGroupHeader(group)
            )
            assert answer.code != 0  # the group has no member


async def _consume(stream: object) -> None:
    command = (await stream.take()).verify_message_command  # type: ignore[attr-defined]
    assert command.message.body == b"try"
    reply = rpc.TelemetryCommand()
    reply.status.code = Code.OK
    reply.verify_message_result.nonce = command.nonce
    stream.put(reply)  # type: ignore[attr-defined]
