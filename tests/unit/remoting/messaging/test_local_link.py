"""The way of a gRPC client to its own broker: whose credentials requests have, and refusals."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio
import trio.testing

from triomq.broker.local_cluster import CONNECTIONS_KEPT, LocalLink
from triomq.remoting.messaging.known_clients import KnownClients
from triomq.remoting.messaging.messaging_settings import MessagingSettings
from triomq.remoting.messaging.status_codes import Refused
from triomq.remoting.protocol.bodies.heartbeat import HeartbeatData, ProducerData
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import Command, response_to
from triomq.remoting.protocol.command import request as new_request
from triomq.remoting.protocol.limits import Limits
from triomq.remoting.protocol.signing import ACCESS_KEY


@attrs.define(eq=False)
class FakeServer:
    """A server whose connections note the access keys of requests, and refuse heartbeats."""

    closed: bool = False
    on_request: Any = None
    keys: list[str | None] = attrs.field(factory=list)

    def open_local(self, peer: Any, on_request: Any) -> FakeServer:
        self.on_request = on_request
        return self

    async def invoke(self, command: Command, timeout: float) -> Command:
        self.keys.append((command.ext or {}).get(ACCESS_KEY))
        if command.code == RequestCode.HEART_BEAT:
            return response_to(command, ResponseCode.INVALID_PARAMETER, remark="too many groups")
        return response_to(command)


@attrs.define(eq=False)
class FakeCall:
    """What is read of a call."""

    metadata: dict[str, str]
    peer: tuple[str, int] = ("127.0.0.1", 1)


def call_of(key: str | None) -> Any:
    """Return a call of client ``c`` that this key signed."""
    metadata = {"x-mq-client-id": "c", "x-mq-date-time": "20240101T000000Z"}
    if key is not None:
        signed = f"Credential={key}, SignedHeaders=x-mq-date-time, Signature=ab"
        metadata["authorization"] = f"MQv2-HMAC-SHA1 {signed}"
    return FakeCall(metadata)


def made() -> tuple[Any, KnownClients]:
    server: Any = FakeServer()
    take: Any = None
    limits = Limits(MessagingSettings(), "gRPC service")
    return server, KnownClients(
        limits, lambda client: LocalLink(server, client.peer, take, take), 120
    )


async def test_a_call_has_no_credentials_of_another_one_with_its_client_id() -> None:
    server, clients = made()
    between = trio.Event()

    async def stranger() -> None:
        client = clients.of_call(call_of(None))
        await between.wait()  # as a call waits between two of its requests

        async def in_a_task_of_the_service() -> None:
            await client.link.invoke("b", new_request(RequestCode.POP_MESSAGE), 1)

        await client.link.invoke("b", new_request(RequestCode.SEND_MESSAGE_V2), 1)
        nursery.start_soon(in_a_task_of_the_service)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stranger)
        await trio.testing.wait_all_tasks_blocked()

        async def owner() -> None:
            clients.of_call(call_of("owner"))
            between.set()

        nursery.start_soon(owner)
    assert server.keys == [None, None]
    # What the service asks by itself, for example a renewal, has those of the newest call.
    await clients.by_id["c"].link.invoke("b", new_request(RequestCode.POP_MESSAGE), 1)
    assert server.keys[-1] == "owner"


async def test_a_refused_heartbeat_is_told() -> None:
    _, clients = made()
    client = clients.of_call(call_of(None))
    with pytest.raises(Refused, match="too many groups"):
        await client.link.register(HeartbeatData(client_id="c"), 0)


async def test_a_request_of_the_broker_is_dropped_while_the_service_stops() -> None:
    """The broker asks deep in a handler, which must not fail for it."""
    server: Any = FakeServer()
    begun: list[str] = []

    async def answer() -> Command:
        begun.append("answer")
        return Command(0)

    def spawn(*arguments: Any, name: str) -> None:
        raise Refused(50001, "the server stops")

    link = LocalLink(server, ("127.0.0.1", 1), lambda command: answer(), spawn)
    await link.invoke("b", new_request(RequestCode.HEART_BEAT), 1)
    server.on_request(new_request(RequestCode.GET_CONSUMER_RUNNING_INFO))
    assert begun == []


@attrs.define(eq=False)
class PeerServer:
    """A server with one connection for each address. ``asked``: address and code of requests."""

    opened: list[PeerConnection] = attrs.field(factory=list)
    asked: list[tuple[Any, int]] = attrs.field(factory=list)

    def open_local(self, peer: Any, on_request: Any) -> PeerConnection:
        self.opened.append(PeerConnection(self, peer))
        return self.opened[-1]


@attrs.define(eq=False)
class PeerConnection:
    """One connection. It answers at once, unless it is told to wait."""

    server: PeerServer
    peer: Any
    closed: bool = False
    pending: int = 0

    async def invoke(self, command: Command, timeout: float) -> Command:
        self.server.asked.append((self.peer, command.code))
        return response_to(command)

    def close(self, reason: str) -> None:
        self.closed = True


async def test_each_call_has_the_address_that_it_came_from() -> None:
    server: Any = PeerServer()
    take: Any = None
    limits = Limits(MessagingSettings(), "gRPC service")
    clients = KnownClients(limits, lambda client: LocalLink(server, client.peer, take, take), 120)

    async def ask(port: int) -> None:
        call: Any = FakeCall({"x-mq-client-id": "c"}, ("127.0.0.1", port))
        await clients.of_call(call).link.invoke("b", new_request(RequestCode.POP_MESSAGE), 1)

    async with trio.open_nursery() as nursery:
        for port in (1, 2, 1):
            nursery.start_soon(ask, port)
            await trio.testing.wait_all_tasks_blocked()
    # What the service asks by itself comes from where the client belongs.
    await clients.by_id["c"].link.invoke("b", new_request(RequestCode.ACK_MESSAGE), 1)
    assert [peer[1] for peer, _ in server.asked] == [1, 2, 1, 1]
    assert len(server.opened) == 2


async def test_a_client_that_moved_is_a_member_by_one_connection() -> None:
    server: Any = PeerServer()
    take: Any = None
    link = LocalLink(server, ("127.0.0.1", 1), take, take)
    data = HeartbeatData(client_id="c", producers=[ProducerData("T")])
    await link.register(data, 0)
    await link.register(data, 0)
    link.peer = ("127.0.0.1", 2)
    await link.register(data, 0)
    await link.unregister("c", ["T"], [])
    beat, leave = RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT
    assert [(peer[1], code) for peer, code in server.asked] == [
        *[(1, beat), (1, beat), (2, beat)],
        *[(1, leave), (2, leave)],
    ]


async def test_calls_from_ever_new_addresses_leave_few_connections() -> None:
    server: Any = PeerServer()
    take: Any = None
    link = LocalLink(server, ("127.0.0.1", 1), take, take)
    await link.register(HeartbeatData(client_id="c"), 0)
    link.peer = ("127.0.0.1", 2)
    await link.invoke("b", new_request(RequestCode.POP_MESSAGE), 1)
    server.opened[1].pending = 1
    for port in range(3, 100):
        link.peer = ("127.0.0.1", port)
        await link.invoke("b", new_request(RequestCode.POP_MESSAGE), 1)
    open_ones = [connection for connection in server.opened if not connection.closed]
    assert server.opened[:2] == open_ones[:2], "the member, and the one with a request, stay"
    assert len(open_ones) <= CONNECTIONS_KEPT
    link.close()
    assert all(connection.closed for connection in server.opened)
