"""The gRPC endpoint of a broker: TLS without a certificate, a taken port, what admins see."""

from __future__ import annotations

import logging
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
import trio
from brokers import broker_config, running_broker
from grpc_broker import GROUP, TOPIC, grpc_broker, telemetry
from processes import free_port

from triomq.broker import grpc_endpoint
from triomq.broker.app import run_broker
from triomq.remoting.core.settings import ConfigError
from triomq.remoting.grpc.apache_rocketmq import definition_pb2 as pb
from triomq.remoting.grpc.apache_rocketmq import service_pb2 as rpc
from triomq.remoting.protocol.bodies.groups import ConsumerConnection
from triomq.remoting.protocol.bodies.running import ConsumeDirectlyResult, ConsumerRunning
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.client import (
    ConsumeDirectlyHeader,
    ConsumerGroupHeader,
    ConsumerRunningHeader,
)
from triomq.remoting.server.listen import AddressInUse

Code = pb.Code


def handshake(port: int) -> str | None:
    """Begin TLS as official clients do, which verify nothing; return the protocol."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", port), timeout=20) as sock,
        context.wrap_socket(sock, server_hostname="broker") as secure,
    ):
        return secure.selected_alpn_protocol()


async def test_tls_needs_no_certificate_of_the_operator(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path) as broker:
        assert await trio.to_thread.run_sync(handshake, broker.port) == "h2"
        client = broker.client()
        assert (await client.send(client.message(b"plain"))).status.code == Code.OK


async def test_that_certificate_can_be_switched_off(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path, tlsTestModeEnable=False) as broker:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await trio.to_thread.run_sync(handshake, broker.port)
        client = broker.client()
        assert (await client.send(client.message(b"plain"))).status.code == Code.OK


async def test_a_taken_default_port_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    monkeypatch.setattr(grpc_endpoint, "DEFAULT_GRPC_PORT", port)
    with socket.create_server(("127.0.0.1", port)), caplog.at_level(logging.WARNING):
        async with running_broker(tmp_path, listenPort=free_port()):
            with trio.fail_after(20):
                while not caplog.records:
                    await trio.sleep(0.01)
    (record,) = caplog.records
    assert f"port {port} is taken" in record.message
    assert "grpcServerPort" in record.message


@pytest.mark.parametrize("named", [False, True])
async def test_missing_packages_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    def missing(_name: str) -> None:
        raise ModuleNotFoundError("No module named 'hpack'", name="hpack")

    monkeypatch.setattr(grpc_endpoint, "import_module", missing)
    if named:
        with pytest.raises(BaseExceptionGroup) as caught:
            await run_broker(broker_config(tmp_path, grpcServerPort=free_port()))
        (found,) = leaves(caught.value)
        assert isinstance(found, ConfigError)
        assert "triomq[grpc]" in str(found)
        return
    async with running_broker(tmp_path, listenPort=free_port()):
        with trio.fail_after(20):
            while not caplog.records:
                await trio.sleep(0.01)
    assert "the package hpack is missing" in caplog.records[0].message
    assert "pip install 'triomq[grpc]'" in caplog.records[0].message


def leaves(error: BaseException) -> list[BaseException]:
    """Return the errors inside groups."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in leaves(each)]
    return [error]


async def test_a_taken_port_of_the_settings_ends_the_broker(tmp_path: Path) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        with pytest.raises(BaseExceptionGroup) as caught:
            await run_broker(broker_config(tmp_path, grpcServerPort=port))
    (found,) = leaves(caught.value)
    assert isinstance(found, AddressInUse)
    assert "grpcServerPort" in str(found)


async def test_admins_see_the_client_and_can_ask_it(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path) as broker, trio.open_nursery() as nursery:
        client = broker.client("consumer-1")
        async with telemetry(client) as stream:
            stream.put(rpc.TelemetryCommand(settings=client.settings()))
            await stream.take()
            answer = await broker.peer.call(
                RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerGroupHeader(GROUP)
            )
            shown = ConsumerConnection.decode(bytes(answer.body))
            (connection,) = shown.connections
            assert connection.client_id == "consumer-1"
            assert connection.language == "PYTHON"
            assert list(shown.subscriptions) == [TOPIC]
            sent = await client.send(client.message(b"to be verified"))

            async def answer_commands() -> None:
                while (command := await stream.take()) is not None:
                    if command.WhichOneof("command") == "print_thread_stack_trace_command":
                        nonce = command.print_thread_stack_trace_command.nonce
                        trace = rpc.ThreadStackTrace(nonce=nonce, thread_stack_trace="main: here")
                        stream.put(rpc.TelemetryCommand(thread_stack_trace=trace))
                    else:
                        asked = command.verify_message_command
                        assert asked.message.body == b"to be verified"
                        result = rpc.VerifyMessageResult(nonce=asked.nonce)
                        status = pb.Status(code=Code.OK)
                        stream.put(
                            rpc.TelemetryCommand(status=status, verify_message_result=result)
                        )

            nursery.start_soon(answer_commands)
            answer = await broker.peer.call(
                RequestCode.GET_CONSUMER_RUNNING_INFO,
                ConsumerRunningHeader(GROUP, "consumer-1", jstack=True),
            )
            assert answer.code == 0, answer.remark
            assert ConsumerRunning.decode(bytes(answer.body)).jstack == "main: here"
            answer = await broker.peer.call(
                RequestCode.CONSUME_MESSAGE_DIRECTLY,
                ConsumeDirectlyHeader(
                    GROUP, "consumer-1", await offset_id(broker, sent.entries[0].offset)
                ),
            )
            assert answer.code == 0, answer.remark
            result = ConsumeDirectlyResult.decode(bytes(answer.body))
            assert result.consume_result == "CR_SUCCESS"


async def offset_id(broker: Any, offset: int) -> str:
    """Return the offset id of a message of the topic ``Orders``."""
    for queue_id in (0, 1):
        pulled = await broker.peer.pull(TOPIC, queue_id, offset)
        if pulled.messages:
            return str(pulled.messages[0].offset_message_id)
    raise AssertionError("the message is in no queue")
