"""Requests that a broker relays to a client, over real sockets: the response is the client's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from brokers import BrokerPeer, peer_of, running_broker

from triomq.broker.app import BrokerReady
from triomq.broker.processors import relays
from triomq.remoting.client.connector import Connector, ConnectorConfig
from triomq.remoting.protocol.bodies.offsets import ConsumerStatus
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.bodies.running import ConsumeDirectlyResult, ConsumerRunning
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.command import Command, response_to
from triomq.remoting.protocol.headers.client import (
    ConsumeDirectlyHeader,
    ConsumerRunningHeader,
    ConsumerStatusHeader,
)
from triomq.remoting.protocol.record_reader import decode_records

QUEUE = MessageQueue("T", "broker-a", 0)


@asynccontextmanager
async def client_of(
    ready: BrokerReady, client_id: str, *, silent: bool = False
) -> AsyncIterator[list[Command]]:
    """Run a member of group G that answers the broker's requests, or never does; yield those
    requests.
    """
    asked: list[Command] = []

    async def answer(address: str, command: Command) -> Command:
        asked.append(command)
        if silent:
            await trio.sleep_forever()
        bodies = {
            Code.GET_CONSUMER_RUNNING_INFO: ConsumerRunning(
                properties={"PROP_CONSUME_TYPE": client_id}
            ).encode(),
            Code.CONSUME_MESSAGE_DIRECTLY: ConsumeDirectlyResult(
                consume_result="CR_LATER", spent_ms=5
            ).encode(),
            Code.GET_CONSUMER_STATUS_FROM_CLIENT: ConsumerStatus({QUEUE: 42}).encode(),
        }
        return response_to(command, 0, body=bodies[Code(command.code)])

    codes = (
        Code.GET_CONSUMER_RUNNING_INFO,
        Code.CONSUME_MESSAGE_DIRECTLY,
        Code.GET_CONSUMER_STATUS_FROM_CLIENT,
    )
    async with Connector(ConnectorConfig(), handlers=dict.fromkeys(codes, answer)) as connector:
        await BrokerPeer(connector, f"127.0.0.1:{ready.port}").heartbeat(
            client_id, group="G", subscriptions={"T": "*"}
        )
        yield asked


async def test_the_client_s_answer_comes_back(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path) as ready,
        peer_of(ready) as admin,
        client_of(ready, "one") as one,
        client_of(ready, "two") as two,
    ):
        await admin.create_topic("T", queues=1)
        sent = await admin.send("T", b"the body")
        running = await admin.call(
            Code.GET_CONSUMER_RUNNING_INFO, ConsumerRunningHeader("G", "two", True)
        )
        assert ConsumerRunning.decode(bytes(running.body)).properties == {
            "PROP_CONSUME_TYPE": "two"
        }
        assert (one, [(command.code, command.ext) for command in two]) == (
            [],
            [(307, {"consumerGroup": "G", "clientId": "two", "jstackEnable": "true"})],
        )
        directly = await admin.call(
            Code.CONSUME_MESSAGE_DIRECTLY, ConsumeDirectlyHeader("G", "one", sent.message_id)
        )
        result = ConsumeDirectlyResult.decode(bytes(directly.body))
        assert (result.consume_result, result.spent_ms) == ("CR_LATER", 5)
        assert [message.body for message in decode_records(bytes(one[0].body))] == [b"the body"]
        assert (one[0].ext or {})["brokerName"] == "broker-a"
        status = await admin.call(
            Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, ConsumerStatusHeader("T", "G")
        )
        assert ConsumerStatus.decode(bytes(status.body)).consumer_table == {
            "one": {QUEUE: 42},
            "two": {QUEUE: 42},
        }
        status = await admin.call(
            Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, ConsumerStatusHeader("T", "G", "two")
        )
        assert list(ConsumerStatus.decode(bytes(status.body)).consumer_table) == ["two"]


async def test_clients_that_are_not_there_or_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relays, "CLIENT_SECONDS", 0.05)
    monkeypatch.setattr(relays, "STATUS_SECONDS", 0.05)
    async with running_broker(tmp_path) as ready, peer_of(ready) as admin:
        gone = await admin.call(Code.GET_CONSUMER_RUNNING_INFO, ConsumerRunningHeader("G", "one"))
        assert (gone.code, gone.remark) == (1, "The Consumer <G> <one> not online")
        absent = await admin.call(
            Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, ConsumerStatusHeader("T", "G")
        )
        assert (absent.code, absent.remark) == (
            1,
            "No Any Consumer online in the consumer group: [G]",
        )
        async with client_of(ready, "one", silent=True):
            late = await admin.call(
                Code.GET_CONSUMER_RUNNING_INFO, ConsumerRunningHeader("G", "one")
            )
            assert late.code == ResponseCode.CONSUME_MSG_TIMEOUT
            assert "consumer <G> <one> Timeout" in (late.remark or "")
            status = await admin.call(
                Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, ConsumerStatusHeader("T", "G")
            )
            assert ConsumerStatus.decode(bytes(status.body)).consumer_table == {}
            unreadable = await admin.call(
                Code.CONSUME_MESSAGE_DIRECTLY, ConsumeDirectlyHeader("G", "one", "nonsense")
            )
            assert unreadable.code == ResponseCode.INVALID_PARAMETER
