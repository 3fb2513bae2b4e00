"""A broker inside this loop with its gRPC endpoint, and grpcio's client in threads as its peer."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import itertools
import time
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import grpc
import trio
from brokers import BrokerPeer, broker_config
from processes import free_port

from triomq.broker.app import BrokerReady, run_broker
from triomq.remoting.client.access import Access
from triomq.remoting.client.connector import Connector, ConnectorConfig
from triomq.remoting.grpc.apache_rocketmq import definition_pb2 as pb
from triomq.remoting.grpc.apache_rocketmq import service_pb2 as rpc
from triomq.remoting.messaging.service import PATH
from triomq.remoting.protocol.signing import Credentials
from triomq.remoting.server.request_hooks import RequestHook

TOPIC, GROUP = "Orders", "G"
_ids = itertools.count(1)


@attrs.define(eq=False)
class GrpcClient:
    """One client of the service: its id, and calls through grpcio."""

    channel: grpc.Channel
    client_id: str
    topic: str = TOPIC
    group: str = GROUP
    credentials: tuple[str, str] | None = None
    """Access key and secret key."""
    more: list[tuple[str, str]] = attrs.field(factory=list)
    """Further metadata of each call."""

    @property
    def metadata(self) -> list[tuple[str, str]]:
        made = [
            ("x-mq-client-id", self.client_id),
            ("x-mq-language", "PYTHON"),
            ("x-mq-client-version", "5.0.6"),
        ]
        if self.credentials is not None:
            key, secret = self.credentials
            date = time.strftime("%Y%m%dT%H%M%SZ")
            signature = hmac.digest(secret.encode(), date.encode(), hashlib.sha1).hex()
            authorization = (
                f"MQv2-HMAC-SHA1 Credential={key}, SignedHeaders=x-mq-date-time,"
                f" Signature={signature}"
            )
            made += [("x-mq-date-time", date), ("authorization", authorization)]
        return made + self.more

    async def call(self, name: str, request: Any, *, timeout: float = 10, **more: Any) -> Any:
        """Make a unary call."""
        method = self.channel.unary_unary(
            PATH + name,
            request_serializer=type(request).SerializeToString,
            response_deserializer=getattr(rpc, f"{name}Response").FromString,
        )
        return await trio.to_thread.run_sync(
            partial(method, request, timeout=timeout, metadata=self.metadata, **more),
            abandon_on_cancel=True,
        )

    # Producers

    def message(self, body: bytes, **system: Any) -> pb.Message:
        values = {"message_id": f"{next(_ids):032X}", "born_host": "peer", **system}
        return pb.Message(
            topic=pb.Resource(name=self.topic),
            body=body,
            system_properties=pb.SystemProperties(**values),
        )

    async def send(self, *messages: pb.Message) -> rpc.SendMessageResponse:
        return await self.call("SendMessage", rpc.SendMessageRequest(messages=messages))

    # Consumers

    def receive_request(self, **more: Any) -> rpc.ReceiveMessageRequest:
        made = rpc.ReceiveMessageRequest(
            group=pb.Resource(name=self.group),
            message_queue=pb.MessageQueue(topic=pb.Resource(name=self.topic), id=-1),
            **{"batch_size": 32, **more},
        )
        if not made.auto_renew and not made.HasField("invisible_duration"):
            made.invisible_duration.FromMilliseconds(10_000)
        return made

    async def receive(
        self, *, timeout: float = 30, **more: Any
    ) -> tuple[pb.Status, list[pb.Message]]:
        """Receive until the stream ends; check its order."""
        method = self.channel.unary_stream(
            PATH + "ReceiveMessage",
            request_serializer=rpc.ReceiveMessageRequest.SerializeToString,
            response_deserializer=rpc.ReceiveMessageResponse.FromString,
        )

        def read() -> list[rpc.ReceiveMessageResponse]:
            return list(
                method(self.receive_request(**more), timeout=timeout, metadata=self.metadata)
            )

        answers = await trio.to_thread.run_sync(read, abandon_on_cancel=True)
        kinds = [answer.WhichOneof("content") for answer in answers]
        assert kinds == ["status", *["message"] * (len(kinds) - 2), "delivery_timestamp"], kinds
        return answers[0].status, [answer.message for answer in answers[1:-1]]

    async def acknowledge(self, *messages: pb.Message) -> rpc.AckMessageResponse:
        entries = [
            rpc.AckMessageEntry(
                message_id=message.system_properties.message_id,
                receipt_handle=message.system_properties.receipt_handle,
            )
            for message in messages
        ]
        return await self.call(
            "AckMessage",
            rpc.AckMessageRequest(
                group=pb.Resource(name=self.group),
                topic=pb.Resource(name=self.topic),
                entries=entries,
            ),
        )

    # Settings

    def settings(self, *, publishing: bool = False) -> pb.Settings:
        made = pb.Settings()
        if publishing:
            made.client_type = pb.ClientType.PRODUCER
            made.publishing.topics.add(name=self.topic)
        else:
            made.client_type = pb.ClientType.SIMPLE_CONSUMER
            made.subscription.group.name = self.group
            entry = made.subscription.subscriptions.add()
            entry.topic.name = self.topic
            entry.expression.expression = "*"
            entry.expression.type = pb.FilterType.TAG
        return made


@attrs.define(eq=False)
class Stream:
    """An open Telemetry stream."""

    to_server: Any
    answers: Any

    def put(self, command: rpc.TelemetryCommand) -> None:
        self.to_server.put(command)

    async def take(self) -> Any:
        """Return the next command of the server, None at the end of the stream."""
        return await trio.to_thread.run_sync(
            partial(next, self.answers, None), abandon_on_cancel=True
        )


@contextlib.asynccontextmanager
async def telemetry(client: GrpcClient) -> AsyncIterator[Stream]:
    """Open the stream of a client for the block; half-close it at the end."""
    import queue

    requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
    method = client.channel.stream_stream(
        PATH + "Telemetry",
        request_serializer=rpc.TelemetryCommand.SerializeToString,
        response_deserializer=rpc.TelemetryCommand.FromString,
    )
    answers = method(iter(requests.get, None), metadata=client.metadata)
    try:
        yield Stream(requests, answers)
    finally:
        requests.put(None)


@attrs.define(eq=False)
class GrpcBroker:
    """A running broker: a peer of its remoting port, and clients of its gRPC port."""

    ready: BrokerReady
    peer: BrokerPeer
    port: int
    channels: contextlib.ExitStack

    def client(self, client_id: str = "", **values: Any) -> GrpcClient:
        """Return a client with a connection of its own."""
        channel = self.channels.enter_context(
            grpc.insecure_channel(
                f"127.0.0.1:{self.port}", options=[("grpc.use_local_subchannel_pool", 1)]
            )
        )
        return GrpcClient(channel, client_id or f"client-{next(_ids)}", **values)


@contextlib.asynccontextmanager
async def grpc_broker(
    folder: Path,
    *,
    hooks: Sequence[RequestHook] = (),
    credentials: Credentials | None = None,
    **settings: object,
) -> AsyncIterator[GrpcBroker]:
    """Run a broker for the block; its peer signs with ``credentials``.

    It has the topic ``Orders``, and one for each other type of messages, named after it.
    """
    port = free_port()
    config = broker_config(folder, **{"grpcServerPort": port, **settings})
    async with trio.open_nursery() as nursery:
        ready: BrokerReady = await nursery.start(partial(run_broker, config, request_hooks=hooks))
        own = ConnectorConfig(**Access(credentials=credentials).options())
        async with Connector(own) as connector:
            peer = BrokerPeer(connector, ready.address)
            await peer.create_topic(TOPIC, 2)
            for topic in ("FIFO", "DELAY", "TRANSACTION"):
                await peer.create_topic(topic, 2, attributes=f"+message.type={topic}")
            await listening(port)
            with contextlib.ExitStack() as channels:
                yield GrpcBroker(ready, peer, port, channels)
        ready.stop()


async def listening(port: int, host: str = "127.0.0.1") -> None:
    """Wait until a port of this machine is open: the endpoint starts behind the broker."""
    with trio.fail_after(60):
        while True:
            with contextlib.suppress(OSError):
                await (await trio.open_tcp_stream(host, port)).aclose()
                return
            await trio.sleep(0.01)
