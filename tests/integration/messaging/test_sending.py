"""SendMessage, EndTransaction, RecallMessage: every type of message, and what is refused."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import trio
from grpc_broker import TOPIC, GrpcClient, grpc_broker, telemetry

from triomq.remoting.grpc.apache_rocketmq import definition_pb2 as pb
from triomq.remoting.grpc.apache_rocketmq import service_pb2 as rpc
from triomq.remoting.messaging.sending import MESSAGES_MAX
from triomq.remoting.messaging.transaction_place import TransactionPlace

Code = pb.Code
FAST = {
    "grpcClientConsumerMinLongPollingTimeoutMillis": 0,
    "transactionTimeOut": 500,
    "transactionCheckInterval": 500,
}


async def bodies(client: GrpcClient, seconds: float = 1.0) -> list[bytes]:
    """Receive and acknowledge what comes within a time."""
    found = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        _, messages = await client.receive(long_polling_timeout={"nanos": 100_000_000})
        found += [message.body for message in messages]
        if messages:
            await client.acknowledge(*messages)
    return found


async def end(client: GrpcClient, entry: Any, resolution: Any, *, check: bool = False) -> Any:
    source = (
        pb.TransactionSource.SOURCE_SERVER_CHECK if check else pb.TransactionSource.SOURCE_CLIENT
    )
    request = rpc.EndTransactionRequest(
        topic=pb.Resource(name=client.topic),
        message_id=entry.message_id,
        transaction_id=entry.transaction_id,
        resolution=resolution,
        source=source,
    )
    return await client.call("EndTransaction", request)


async def test_messages_of_a_group_lie_in_one_queue_in_order(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path, **FAST) as broker:
        client = broker.client(topic="FIFO")
        sent = await client.send(
            *[client.message(b"%d" % number, message_group="g") for number in range(5)]
        )
        assert sent.status.code == Code.OK, sent
        assert [entry.offset for entry in sent.entries] == [0, 1, 2, 3, 4]
        _, messages = await client.receive()
        assert [message.body for message in messages] == [b"0", b"1", b"2", b"3", b"4"]
        assert {message.system_properties.message_group for message in messages} == {"g"}
        assert {message.system_properties.message_type for message in messages} == {
            pb.MessageType.FIFO
        }


async def test_messages_without_a_group_use_all_queues(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path, **FAST) as broker:
        client = broker.client()
        sent = await client.send(*[client.message(b"x") for _ in range(4)])
        assert sorted(entry.offset for entry in sent.entries) == [0, 0, 1, 1]


async def test_a_delayed_message_comes_when_it_is_due_or_is_recalled(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path, recallMessageEnable=True, **FAST) as broker:
        client = broker.client(topic="DELAY")
        due = pb.Message().system_properties.delivery_timestamp
        due.FromMilliseconds(int(time.time() * 1000) + 4000)
        kept = await client.send(client.message(b"kept", delivery_timestamp=due))
        gone = await client.send(client.message(b"gone", delivery_timestamp=due))
        assert kept.status.code == gone.status.code == Code.OK
        request = rpc.RecallMessageRequest(
            topic=pb.Resource(name="DELAY"), recall_handle=gone.entries[0].recall_handle
        )
        recalled = await client.call("RecallMessage", request)
        assert recalled.status.code == Code.OK, recalled
        assert recalled.message_id == gone.entries[0].message_id
        assert await bodies(client, 0.5) == []
        found: list[bytes] = []
        with trio.fail_after(30):
            while not found:
                found = await bodies(client, 0.2)
        assert found + await bodies(client) == [b"kept"]
        request.recall_handle = "nonsense"
        refused = await client.call("RecallMessage", request)
        assert refused.status.code == Code.INTERNAL_SERVER_ERROR
        request.topic.name = TOPIC
        refused = await client.call("RecallMessage", request)
        assert refused.status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE


@pytest.mark.parametrize("commit", [True, False])
async def test_a_transaction_is_ended_by_its_producer(tmp_path: Path, commit: bool) -> None:
    async with grpc_broker(tmp_path, **FAST) as broker:
        client = broker.client(topic="TRANSACTION")
        made = client.message(b"half", message_type=pb.MessageType.TRANSACTION)
        sent = await client.send(made)
        assert sent.status.code == Code.OK, sent
        assert await bodies(client, 0.3) == []
        resolution = (
            pb.TransactionResolution.COMMIT if commit else pb.TransactionResolution.ROLLBACK
        )
        ended = await end(client, sent.entries[0], resolution)
        assert ended.status.code == Code.OK, ended
        assert await bodies(client) == ([b"half"] if commit else [])


async def test_an_open_transaction_is_checked_over_the_telemetry_stream(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path, **FAST) as broker:
        producer = broker.client("producer", topic="TRANSACTION")
        async with telemetry(producer) as stream:
            stream.put(rpc.TelemetryCommand(settings=producer.settings(publishing=True)))
            assert (await stream.take()).status.code == Code.OK
            made = producer.message(b"half", message_type=pb.MessageType.TRANSACTION, tag="t")
            sent = await producer.send(made)
            command = (await stream.take()).recover_orphaned_transaction_command
            assert command.message.body == b"half"
            assert command.message.topic.name == "TRANSACTION"
            assert command.message.system_properties.message_id == sent.entries[0].message_id
            entry = rpc.SendResultEntry(
                message_id=command.message.system_properties.message_id,
                transaction_id=command.transaction_id,
            )
            other = broker.client("another-instance", topic="TRANSACTION")
            ended = await end(other, entry, pb.TransactionResolution.COMMIT, check=True)
            assert ended.status.code == Code.OK, ended
            assert await bodies(other) == [b"half"]


async def test_a_transaction_that_is_not_there_is_refused(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path, **FAST) as broker:
        client = broker.client(topic="TRANSACTION")
        for transaction_id in ("", "nonsense"):
            entry = rpc.SendResultEntry(message_id="m", transaction_id=transaction_id)
            ended = await end(client, entry, pb.TransactionResolution.COMMIT)
            assert ended.status.code == Code.INVALID_TRANSACTION_ID
        place = TransactionPlace("broker-a", 5, 1 << 40, "m").encode()
        entry = rpc.SendResultEntry(message_id="m", transaction_id=place)
        ended = await end(client, entry, pb.TransactionResolution.COMMIT)
        assert ended.status.code == Code.INTERNAL_SERVER_ERROR


async def test_refused_messages(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path, **FAST) as broker:
        client = broker.client()
        cases = [
            ([], Code.MESSAGE_CORRUPTED),
            ([client.message(b"")], Code.MESSAGE_BODY_EMPTY),
            ([client.message(b"x", tag="a|b")], Code.ILLEGAL_MESSAGE_TAG),
            ([client.message(b"x", message_id=" ")], Code.ILLEGAL_MESSAGE_ID),
            ([client.message(b"x", message_group="g")], Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
            ([broker.client(topic="Nowhere").message(b"x")], Code.TOPIC_NOT_FOUND),
            ([client.message(b"x")] * (MESSAGES_MAX + 1), Code.BAD_REQUEST),
        ]
        for messages, code in cases:
            answer = await client.send(*messages)
            assert answer.status.code == code, (answer, code)
            assert answer.status.message
        nameless = broker.client(" ")
        answer = await nameless.send(nameless.message(b"x"))
        assert answer.status.code == Code.CLIENT_ID_REQUIRED


async def test_a_topic_that_may_only_be_read_takes_nothing(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path, **FAST) as broker:
        await broker.peer.create_topic("Archive", 1, 4)
        client = broker.client(topic="Archive")
        answer = await client.send(client.message(b"x"))
        assert answer.status.code == Code.FORBIDDEN, answer
        assert "permissions" in answer.status.message


async def test_what_the_broker_refuses_is_told(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path, maxMessageSize=1000, **FAST) as broker:
        client = broker.client()
        answer = await client.send(client.message(bytes(2000)))
        assert answer.status.code == Code.BAD_REQUEST, answer
        assert "maxMessageSize" in answer.entries[0].status.message


async def test_the_stored_message_names_the_client(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path, **FAST) as broker:
        client = broker.client()
        made = client.message(b"x", tag="t", keys=["k"])
        made.user_properties["color"] = "red"
        await client.send(made)
        with trio.fail_after(10):
            _, (message,) = await client.receive()
        assert dict(message.user_properties) == {"color": "red"}
        assert message.system_properties.born_host == "peer"


@pytest.mark.feature(141)
@pytest.mark.parametrize(
    ("topic", "system", "sent_type"),
    [
        (TOPIC, {"delivery_timestamp": {"seconds": 1}}, "DELAY"),
        (TOPIC, {"message_group": "g"}, "FIFO"),
        (TOPIC, {"message_type": pb.MessageType.TRANSACTION}, "TRANSACTION"),
        ("FIFO", {}, "NORMAL"),
        ("DELAY", {"message_group": "g"}, "FIFO"),
        ("TRANSACTION", {}, "NORMAL"),
    ],
)
async def test_a_message_of_another_type_than_its_topic_is_refused(
    tmp_path: Path, topic: str, system: dict[str, Any], sent_type: str
) -> None:
    async with grpc_broker(tmp_path, **FAST) as broker:
        client = broker.client(topic=topic)
        answer = await client.send(client.message(b"x", **system))
        assert answer.status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, answer
        for name in (topic, sent_type, "NORMAL" if topic == TOPIC else topic):
            assert name in answer.status.message
        route = await client.call("QueryRoute", rpc.QueryRouteRequest(topic={"name": topic}))
        taken = {
            pb.MessageType.Name(kind)
            for queue in route.message_queues
            for kind in queue.accept_message_types
        }
        assert taken == {"NORMAL" if topic == TOPIC else topic}


async def test_nothing_of_a_refused_request_is_stored(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path, **FAST) as broker:
        client = broker.client(topic="FIFO")
        right, wrong = client.message(b"1", message_group="g"), client.message(b"2")
        answer = await client.send(right, wrong)
        assert answer.status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
        assert await bodies(client, 0.3) == []
