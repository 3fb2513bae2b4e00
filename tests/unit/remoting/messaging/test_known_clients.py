"""To whom a client belongs, and how many clients one peer may bring; with fake brokers."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from triomq.remoting.grpc.apache_rocketmq import definition_pb2 as pb
from triomq.remoting.grpc.apache_rocketmq import service_pb2 as rpc
from triomq.remoting.grpc.status import CallFailed
from triomq.remoting.messaging.messaging_settings import MessagingSettings
from triomq.remoting.messaging.service import GrpcMessaging
from triomq.remoting.messaging.status_codes import Refused

OWNER, SAME_HOST, STRANGER = ("10.0.0.1", 5000), ("10.0.0.1", 5001), ("10.0.0.2", 5000)
TERMINATION = rpc.NotifyClientTerminationRequest()


@attrs.define(eq=False)
class QuietLink:
    """Notes who left; refuses to unregister without these credentials, if there are some."""

    peer: Any
    needs: Any = None
    credentials: Any = None
    left: list[str] = attrs.field(factory=list)

    async def register(self, data: Any, language: int) -> None: ...

    async def unregister(self, client_id: str, producers: Any, consumers: Any) -> None:
        self.left.append(client_id)
        if self.needs:
            raise Refused(pb.Code.UNAUTHORIZED, "check signature failed")

    def close(self) -> None: ...


@attrs.define(eq=False)
class QuietCluster:
    """A cluster without settings of groups."""

    verifies_signatures: bool = False
    refuses: bool = False

    def link(self, peer: Any, take_request: Any, spawn: Any) -> QuietLink:
        return QuietLink(peer, self.refuses)

    async def group(self, group: str) -> None:
        return None


@attrs.define(eq=False)
class PeerCall:
    """A call, or a Telemetry stream that has one settings command."""

    peer: tuple[str, int]
    client_id: str = "c"
    key: str = ""
    answers: list[rpc.TelemetryCommand] = attrs.field(factory=list)
    draining: trio.Event = attrs.field(factory=trio.Event)
    ended: trio.Event = attrs.field(factory=trio.Event)
    asked: bool = False

    @property
    def metadata(self) -> dict[str, str]:
        made = {"x-mq-client-id": self.client_id}
        if self.key:
            made["authorization"] = f"MQv2-HMAC-SHA1 Credential={self.key}, Signature=ab"
        return made

    def __aiter__(self) -> PeerCall:
        return self

    async def __anext__(self) -> rpc.TelemetryCommand:
        if self.asked:
            await self.ended.wait()
            raise StopAsyncIteration
        self.asked = True
        settings = pb.Settings(client_type=pb.ClientType.PRODUCER)
        settings.publishing.topics.add(name="T")
        return rpc.TelemetryCommand(settings=settings)

    async def send(self, answer: rpc.TelemetryCommand) -> None:
        self.answers.append(answer)


@contextlib.asynccontextmanager
async def service_of(cluster: QuietCluster, **settings: int) -> AsyncIterator[GrpcMessaging]:
    made: Any = cluster
    service = GrpcMessaging(made, MessagingSettings(**settings))
    async with trio.open_nursery() as nursery:
        await nursery.start(service.run)
        yield service
        nursery.cancel_scope.cancel()


@contextlib.asynccontextmanager
async def streaming(service: GrpcMessaging, call: PeerCall) -> AsyncIterator[None]:
    """Have a Telemetry stream open for the block."""
    made: Any = call
    async with trio.open_nursery() as nursery:
        nursery.start_soon(service.telemetry.telemetry, made, made, made)
        await trio.testing.wait_all_tasks_blocked()
        yield
        call.ended.set()


async def code_of(service: GrpcMessaging, handler: Any, request: Any, call: PeerCall) -> int:
    try:
        return int((await handler(request, call)).status.code)
    except Refused as error:
        return error.code


async def end(service: GrpcMessaging, peer: tuple[str, int], key: str = "") -> int:
    return await code_of(service, service.client_termination, TERMINATION, PeerCall(peer, key=key))


async def test_only_the_address_of_a_client_may_end_it() -> None:
    async with service_of(QuietCluster()) as service:
        async with streaming(service, PeerCall(OWNER, key="shop")):
            client = service.clients.by_id["c"]
            assert await end(service, STRANGER) == pb.Code.FORBIDDEN
            # A key that nobody verifies says nothing.
            assert await end(service, STRANGER, "shop") == pb.Code.FORBIDDEN
            assert service.clients.by_id["c"] is client
            assert service.clients.strangers == 2
        assert await end(service, SAME_HOST) == pb.Code.OK
        assert not service.clients.by_id


@pytest.mark.parametrize("refuses", [False, True])
async def test_the_same_user_may_end_a_client_where_signatures_are_verified(refuses: bool) -> None:
    async with (
        service_of(QuietCluster(verifies_signatures=True, refuses=refuses)) as service,
        streaming(service, PeerCall(OWNER, key="shop")),
    ):
        assert await end(service, STRANGER, "thief") == pb.Code.FORBIDDEN
        expected = pb.Code.UNAUTHORIZED if refuses else pb.Code.OK
        assert await end(service, STRANGER, "shop") == expected
        assert ("c" in service.clients.by_id) is refuses


async def test_a_stranger_neither_takes_the_stream_nor_keeps_a_client_registered() -> None:
    async with service_of(QuietCluster()) as service, streaming(service, PeerCall(OWNER)):
        client = service.clients.by_id["c"]
        commands = client.commands
        stranger = PeerCall(STRANGER, key="thief")
        async with streaming(service, stranger):
            pass
        assert [answer.status.code for answer in stranger.answers] == [pb.Code.FORBIDDEN]
        beat = await code_of(service, service.heartbeat, rpc.HeartbeatRequest(), stranger)
        assert beat == pb.Code.FORBIDDEN
        assert client.commands is commands
        assert client.link.credentials == {}, "the service signs with those of the owner"


async def test_a_client_moves_with_its_stream() -> None:
    """As after a laptop has changed its network: the next stream comes from elsewhere."""
    async with service_of(QuietCluster()) as service:
        async with streaming(service, PeerCall(OWNER)):
            pass
        async with streaming(service, PeerCall(STRANGER)):
            client = service.clients.by_id["c"]
            assert (client.peer, client.link.peer) == (STRANGER, STRANGER)
            assert await end(service, OWNER) == pb.Code.FORBIDDEN
            assert await end(service, STRANGER) == pb.Code.OK
            assert not service.clients.by_id


@pytest.mark.parametrize(
    ("limit", "setting", "peers"),
    [
        ("clients_per_connection_max", "grpcClientsPerConnectionMax", [OWNER, OWNER, OWNER]),
        ("clients_per_address_max", "grpcClientsPerAddressMax", [OWNER, SAME_HOST, SAME_HOST]),
        ("clients_max", "grpcClientsMax", [OWNER, STRANGER, STRANGER]),
    ],
)
async def test_one_peer_does_not_take_all_places(
    limit: str, setting: str, peers: list[tuple[str, int]]
) -> None:
    async with service_of(QuietCluster(), **{limit: 2}) as service:
        calls: list[Any] = [PeerCall(peer, f"c{index}") for index, peer in enumerate(peers)]
        first, second = (service.clients.of_call(call) for call in calls[:2])
        with pytest.raises(Refused, match=setting) as caught:
            service.clients.of_call(calls[2])
        assert caught.value.code == pb.Code.TOO_MANY_REQUESTS
        assert service.limits.refused[setting] == 1
        assert service.clients.of_call(calls[1]) is second, "who is known stays so"
        if limit != "clients_max":
            elsewhere: Any = PeerCall(STRANGER, "c9")
            service.clients.forget(service.clients.of_call(elsewhere))
        service.clients.forget(first)
        service.clients.of_call(calls[2])


async def test_a_settings_command_of_an_older_stream_does_not_return_a_client_that_moved() -> None:
    async with service_of(QuietCluster()) as service, streaming(service, PeerCall(OWNER)):
        client = service.clients.by_id["c"]
        late: Any = PeerCall(STRANGER)
        with pytest.raises(CallFailed, match="another address"):
            await service.telemetry._read_commands(late, late, late)
        assert client.peer == OWNER
