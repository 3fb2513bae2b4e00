"""Telemetry streams of clients that send much, read little, or share an id; with fake brokers."""

from __future__ import annotations

import contextlib
import gzip
import threading
import zlib
from collections.abc import AsyncIterator
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from triomq.remoting.grpc.apache_rocketmq import definition_pb2 as pb
from triomq.remoting.grpc.apache_rocketmq import service_pb2 as rpc
from triomq.remoting.grpc.status import CallFailed, GrpcStatus
from triomq.remoting.messaging import telemetry
from triomq.remoting.messaging.delivered_message import delivered_message
from triomq.remoting.messaging.messaging_settings import MessagingSettings
from triomq.remoting.messaging.service import EXPIRY_SECONDS, GrpcMessaging
from triomq.remoting.messaging.telemetry import TOPICS_MAX
from triomq.remoting.messaging.waiting_commands import (
    COMMANDS_BYTES_MAX,
    COMMANDS_MAX,
    WaitingCommands,
)
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.client import ConsumeDirectlyHeader
from triomq.remoting.protocol.headers.transaction import CheckTransactionHeader
from triomq.remoting.protocol.message_properties import encode_properties
from triomq.remoting.protocol.record import encode_host, encode_record
from triomq.remoting.protocol.sys_flags import COMPRESSED

HOST = encode_host(bytes([127, 0, 0, 1]), 10911)
IDLE_SECONDS = MessagingSettings().client_idle_ms / 1000


@attrs.define(eq=False)
class FakeLink:
    """Notes what it is told."""

    credentials: Any = None
    peer: Any = None
    registered: list[Any] = attrs.field(factory=list)
    closed: bool = False

    async def register(self, data: Any, language: int) -> None:
        self.registered.append(data)

    async def unregister(self, client_id: str, producers: Any, consumers: Any) -> None: ...

    def close(self) -> None:
        self.closed = True


class NoTopics:
    """A cluster without settings of groups."""

    def link(self, peer: Any, take_request: Any, spawn: Any) -> FakeLink:
        return FakeLink()

    async def group(self, group: str) -> None:
        return None


@attrs.define(eq=False)
class FakeStream:
    """One call with its requests and its answers."""

    to_server: trio.MemorySendChannel[rpc.TelemetryCommand]
    requests: trio.MemoryReceiveChannel[rpc.TelemetryCommand]
    answers: list[rpc.TelemetryCommand] = attrs.field(factory=list)
    reads: trio.Event = attrs.field(factory=trio.Event)
    metadata: dict[str, str] = attrs.field(factory=lambda: {"x-mq-client-id": "c"})
    peer: tuple[str, int] = ("127.0.0.1", 1)
    draining: trio.Event = attrs.field(factory=trio.Event)

    async def send(self, answer: rpc.TelemetryCommand) -> None:
        await self.reads.wait()
        self.answers.append(answer)


@contextlib.asynccontextmanager
async def running_service() -> AsyncIterator[GrpcMessaging]:
    cluster: Any = NoTopics()
    service = GrpcMessaging(cluster)
    async with trio.open_nursery() as nursery:
        await nursery.start(service.run)
        yield service
        nursery.cancel_scope.cancel()


@contextlib.asynccontextmanager
async def opened(service: GrpcMessaging, *, reads: bool = True) -> AsyncIterator[FakeStream]:
    """Open a stream for the block."""
    stream: Any = FakeStream(*trio.open_memory_channel[rpc.TelemetryCommand](0))
    if reads:
        stream.reads.set()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(service.telemetry.telemetry, stream.requests, stream, stream)
        yield stream
        nursery.cancel_scope.cancel()


def publishing(*topics: str) -> rpc.TelemetryCommand:
    settings = pb.Settings(client_type=pb.ClientType.PRODUCER)
    for topic in topics:
        settings.publishing.topics.add(name=topic)
    return rpc.TelemetryCommand(settings=settings)


def large() -> rpc.TelemetryCommand:
    message = pb.Message(body=bytes(COMMANDS_BYTES_MAX // 2))
    made = rpc.RecoverOrphanedTransactionCommand(message=message)
    return rpc.TelemetryCommand(recover_orphaned_transaction_command=made)


async def test_a_client_that_does_not_read_is_not_told_for_ever(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running_service() as service, opened(service, reads=False) as stream:
        await stream.to_server.send(publishing("T"))
        await trio.testing.wait_all_tasks_blocked()
        client = service.clients.by_id["c"]
        told = 0
        while client.tell(large()):
            told += 1
            assert told < 10
        accepted = 0
        with trio.move_on_after(1):
            while True:
                await stream.to_server.send(publishing("T"))
                accepted += 1
        assert accepted <= 2
        stream.reads.set()
        await trio.testing.wait_all_tasks_blocked()
        assert len(stream.answers) == 1 + told + accepted
        assert client.tell(large())


async def test_settings_of_many_topics(autojump_clock: trio.testing.MockClock) -> None:
    async with running_service() as service:
        async with opened(service) as stream:
            await stream.to_server.send(publishing(*(f"T{n:0126}" for n in range(2000))))
            await trio.testing.wait_all_tasks_blocked()
            assert len(stream.answers[0].settings.publishing.topics) == 2000

        async def send_more() -> None:
            async with opened(service) as stream:
                await stream.to_server.send(publishing(*(f"T{n}" for n in range(TOPICS_MAX + 1))))
                await trio.sleep(1)

        with pytest.raises(BaseExceptionGroup) as caught:
            await send_more()
        (failed,) = leaves(caught.value)
        assert isinstance(failed, CallFailed)
        assert failed.status is GrpcStatus.INVALID_ARGUMENT
        assert f"the limit is {TOPICS_MAX}: use several clients" in str(failed)


def leaves(error: BaseException) -> list[BaseException]:
    """Return the errors inside groups."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in leaves(each)]
    return [error]


async def test_a_client_is_known_while_it_makes_calls(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running_service() as service:
        call: Any = FakeStream(*trio.open_memory_channel[rpc.TelemetryCommand](0))
        client = service.clients.of_call(call)
        for _ in range(5):
            await trio.sleep(IDLE_SECONDS / 2)
            assert service.clients.of_call(call) is client
        await trio.sleep(IDLE_SECONDS + 2 * EXPIRY_SECONDS)
        assert not service.clients.by_id
        assert client.gone


async def test_one_of_two_clients_with_the_same_id_leaves(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running_service() as service, opened(service) as second:
        await second.to_server.send(publishing("T"))
        await trio.testing.wait_all_tasks_blocked()
        call: Any = second
        gone = service.clients.by_id["c"]
        await service.client_termination(rpc.NotifyClientTerminationRequest(), call)
        assert not service.clients.by_id
        await second.to_server.send(publishing("T"))
        await trio.testing.wait_all_tasks_blocked()
        client = service.clients.by_id["c"]
        assert client is not gone
        beat = await service.heartbeat(rpc.HeartbeatRequest(), call)
        assert beat.status.code == pb.Code.OK
        count = len(second.answers)
        assert client.tell(rpc.TelemetryCommand())
        await trio.testing.wait_all_tasks_blocked()
        assert len(second.answers) == count + 1
        await trio.sleep(2 * IDLE_SECONDS)
        assert service.clients.by_id["c"] is client  # it has a stream
    assert client.commands is None


@pytest.mark.parametrize("packed", [False, True])
async def test_bodies_that_clients_are_asked_about_are_unpacked_in_a_thread(
    packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some KiB of a body may unfold to 16 MiB, which takes 50 ms."""
    threads: list[int] = []

    def noted(*arguments: Any, **options: Any) -> Any:
        threads.append(threading.get_ident())
        return delivered_message(*arguments, **options)

    monkeypatch.setattr(telemetry, "delivered_message", noted)
    record = encode_record(
        topic="Pay",
        queue_id=0,
        queue_offset=1,
        log_offset=2,
        body=zlib.compress(b"half") if packed else b"half",
        properties=encode_properties({"PGROUP": "Pay", "UNIQ_KEY": "01"}),
        born_timestamp=3,
        born_host=HOST,
        store_timestamp=4,
        store_host=HOST,
        sys_flag=COMPRESSED if packed else 0,
    )
    code = RequestCode.CHECK_TRANSACTION_STATE
    check = request(code, CheckTransactionHeader(1, 2, "01", "01", broker_name="b"), record)
    consume = request(
        RequestCode.CONSUME_MESSAGE_DIRECTLY, ConsumeDirectlyHeader(consumer_group="G"), record
    )
    async with running_service() as service, opened(service) as stream, trio.open_nursery() as own:
        await stream.to_server.send(publishing("T"))
        await trio.testing.wait_all_tasks_blocked()
        client = service.clients.by_id["c"]
        assert service.telemetry.take_request(client, check) is None
        answering = service.telemetry.take_request(client, consume)
        assert answering is not None

        async def ask() -> None:
            await answering

        own.start_soon(ask)
        with trio.fail_after(10):
            while len(stream.answers) < 3:
                await trio.sleep(0.01)
        own.cancel_scope.cancel()
    asked = stream.answers[1:]
    bodies = {
        one.recover_orphaned_transaction_command.message.body
        or one.verify_message_command.message.body
        for one in asked
    }
    assert {gzip.decompress(body) if packed else body for body in bodies} == {b"half"}
    assert len(threads) == 2
    assert [one == threading.get_ident() for one in threads] == [not packed] * 2


async def test_commands_wait_in_their_order_up_to_a_limit() -> None:
    commands = WaitingCommands()
    for _ in range(COMMANDS_MAX):
        assert commands.put(rpc.TelemetryCommand(status=pb.Status(message="old")))
    assert not commands.put(rpc.TelemetryCommand())
    assert (await commands.take()).status.message == "old"
    assert commands.put(rpc.TelemetryCommand(status=pb.Status(message="new")))
    found = [await commands.take() for _ in range(len(commands))]
    assert found[-1].status.message == "new"
    huge = rpc.TelemetryCommand(status=pb.Status(message="x" * (COMMANDS_BYTES_MAX + 1)))
    assert commands.put(huge)
    assert not commands.put(rpc.TelemetryCommand())
