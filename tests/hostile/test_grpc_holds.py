"""No gRPC call holds a broker's loop for long, with the worst input of each method.

Run as a program, this file writes what it measures to ``docs/grpc_holds.json``, from which
``docs/limits.md`` has its table.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import grpc
import pytest
import trio
from grpc_broker import GrpcBroker, GrpcClient, grpc_broker, telemetry
from loop_holds import GARBAGE, LoopHolds

from triomq.remoting.grpc.apache_rocketmq import definition_pb2 as pb
from triomq.remoting.grpc.apache_rocketmq import service_pb2 as rpc
from triomq.remoting.protocol.bodies.groups import SubscriptionGroupConfig
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.sys_flags import COMPRESSED

STEP_SECONDS_MAX = 0.020
RESULTS = Path(__file__).resolve().parents[2] / "docs" / "grpc_holds.json"
QUEUES = 65_535
"""The most that a topic may have."""
MESSAGES = 1024
"""The most that one call sends or acknowledges."""
TINY = 20_000
"""More messages than a call may send."""
HANDLE = "x" * 100_000
TELEMETRY = (
    (3_000, "settings with 3,000 topics"),
    (20_000, "settings with 20,000 topics, 400 KiB, refused"),
    (60_000, "settings with 60,000 topics, 1.2 MiB, refused"),
)
EMPTY = 8 * 1024 * 1024 - 16
"""fields of two bytes that a message of 16 MiB has"""
LONG = [("grpc.max_receive_message_length", 64 << 20), ("grpc.use_local_subchannel_pool", 1)]
HEX = os.urandom((1 << 20) - 200).hex().encode()
"""digits, which take zlib longest to unpack"""
FOLDED = zlib.compress(bytes((16 << 20) - 1))
WIDE, ORDERLY = pb.Resource(name="Wide"), pb.Resource(name="InOrder")


class Raw(bytes):
    """A request that no client makes, on the wire."""

    def SerializeToString(self) -> bytes:
        return bytes(self)


def field(number: int, value: bytes) -> bytes:
    """Return a field with a length."""
    tag = number << 3 | 2
    size, left = b"", len(value)
    while left > 127:
        size, left = size + bytes([left & 127 | 128]), left >> 7
    return bytes([tag]) + size + bytes([left]) + value


class Worst(NamedTuple):
    """A call, and what makes it the worst of its method."""

    method: str
    what: str
    request: Any
    rows: int = 0
    """how many rows a right answer has"""
    refused: str = ""
    """the setting in the refusal of a request that is not parsed"""
    gzip: bool = False


def worst_calls(client: GrpcClient, acknowledged: list[pb.Message]) -> list[Worst]:
    group = pb.Resource(name=client.group)
    entries = [
        rpc.AckMessageEntry(
            message_id=message.system_properties.message_id,
            receipt_handle=message.system_properties.receipt_handle,
        )
        for message in acknowledged
    ]
    entries += [rpc.AckMessageEntry(message_id="A", receipt_handle="x" * 200)] * (
        MESSAGES - len(entries)
    )
    wrong = {"group": group, "topic": WIDE, "receipt_handle": HANDLE, "message_id": "A"}
    tiny = [client.message(b"x")] * TINY
    entry = field(3, b"")
    keys = field(1, field(3, field(2, b"") * 250_000))
    many = [client.message(b"x", keys=["k"] * 20) for _ in range(MESSAGES)]
    return [
        Worst("QueryRoute", "65,535 queues", rpc.QueryRouteRequest(topic=WIDE), QUEUES),
        Worst(
            "QueryAssignment",
            "65,535 queues, a group in order",
            rpc.QueryAssignmentRequest(topic=WIDE, group=ORDERLY),
            QUEUES,
        ),
        Worst(
            "QueryRoute",
            "8 million fields of two bytes, refused",
            Raw(field(1, b"") * EMPTY),
            refused="grpcFieldsMaxBytes",
        ),
        Worst("Heartbeat", "any", rpc.HeartbeatRequest(group=group)),
        Worst(
            "SendMessage",
            "a body of 4 MiB",
            rpc.SendMessageRequest(messages=[client.message(b"x" * (1 << 22))]),
        ),
        Worst("SendMessage", "1,024 messages of 20 keys", rpc.SendMessageRequest(messages=many)),
        Worst(
            "SendMessage",
            "20,000 messages of a byte, refused",
            rpc.SendMessageRequest(messages=tiny),
            refused="grpcFieldsMaxBytes",
        ),
        Worst(
            "SendMessage",
            "2 MiB, compressed by gzip",
            rpc.SendMessageRequest(messages=[client.message(HEX)]),
            gzip=True,
        ),
        Worst("SendMessage", "7,000 empty messages, refused", Raw(field(1, b"") * 7_000)),
        Worst("SendMessage", "a message with 250,000 empty keys, refused", Raw(keys)),
        Worst(
            "SendMessage",
            "8 million empty messages, refused",
            Raw(field(1, b"") * EMPTY),
            refused="grpcFieldsMaxBytes",
        ),
        Worst(
            "SendMessage",
            "three bodies of 4 MiB",
            rpc.SendMessageRequest(messages=[client.message(b"x" * (1 << 22))] * 3),
        ),
        Worst(
            "AckMessage",
            "1,024 handles",
            rpc.AckMessageRequest(group=group, topic=WIDE, entries=entries),
        ),
        Worst("AckMessage", "260,000 empty entries, refused", Raw(entry * 260_000)),
        Worst(
            "ForwardMessageToDeadLetterQueue",
            "a handle of 100,000 characters",
            rpc.ForwardMessageToDeadLetterQueueRequest(**wrong),
        ),
        Worst(
            "ChangeInvisibleDuration",
            "a handle of 100,000 characters",
            rpc.ChangeInvisibleDurationRequest(**wrong),
        ),
        Worst(
            "EndTransaction",
            "an id of 100,000 characters",
            rpc.EndTransactionRequest(
                topic=WIDE, message_id="A", transaction_id=HANDLE, resolution=1
            ),
        ),
        Worst(
            "RecallMessage",
            "a handle of 100,000 characters",
            rpc.RecallMessageRequest(topic=pb.Resource(name="DELAY"), recall_handle=HANDLE),
        ),
        Worst("NotifyClientTermination", "any", rpc.NotifyClientTerminationRequest(group=group)),
    ]


def wide_settings(client: GrpcClient, count: int) -> pb.Settings:
    """Return the settings of a client that subscribes to that many topics beside its own."""
    made = client.settings()
    for number in range(count):
        entry = made.subscription.subscriptions.add()
        entry.topic.name, entry.expression.expression = f"t{number}", "*"
    return made


def longest(holds: LoopHolds) -> float:
    """Return the longest step of the server's tasks (ms), without the program's own."""
    taken = holds.take()
    server = [taken[name] for name in taken if name != GARBAGE and not {*".<"} & {*name}]
    return round(max(server, default=0.0) * 1000, 1)


async def measured(broker: GrpcBroker) -> list[tuple[str, str, float]]:
    """Return method, input, and the longest step of the loop (ms)."""
    channel = grpc.insecure_channel(f"127.0.0.1:{broker.port}", options=LONG)
    client = GrpcClient(broker.channels.enter_context(channel), "worst", topic="Wide")
    holds, found = LoopHolds(), []
    with holds.watching():
        async with telemetry(client) as stream:
            stream.put(rpc.TelemetryCommand(settings=client.settings()))
            await stream.take()
            await client.send(client.message(b"one"))
            holds.take()
            _, received = await client.receive()
            found.append(("ReceiveMessage", "65,535 queues, a new group", longest(holds)))
            assert [message.body for message in received] == [b"one"]
            for worst in worst_calls(client, received):
                holds.take()
                gzip = grpc.Compression.Gzip if worst.gzip else None
                call = client.call(worst.method, worst.request, timeout=60, compression=gzip)
                if worst.refused:
                    with pytest.raises(grpc.RpcError, match=worst.refused) as caught:
                        await call
                    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
                else:
                    answer = await call
                found.append((worst.method, worst.what, longest(holds)))
                if worst.rows:
                    (rows,) = (value for field, value in answer.ListFields() if field.number == 2)
                    assert answer.status.code == pb.Code.OK
                    queues = [getattr(row, "message_queue", row).id for row in rows]
                    assert queues == list(range(worst.rows))
        folded = attrs.evolve(client, client_id="folded", topic="Folded", group="H")
        async with telemetry(folded) as stream:
            stream.put(rpc.TelemetryCommand(settings=folded.settings()))
            await stream.take()
            holds.take()
            _, received = await folded.receive()
            what = f"{len(received)} bodies of 16 KiB that unfold to 16 MiB"
            found.append(("ReceiveMessage", what, longest(holds)))
            assert len(received) > 8
        for count, what in TELEMETRY:
            settings = wide_settings(client, count - 1)
            async with telemetry(client) as stream:
                holds.take()
                stream.put(rpc.TelemetryCommand(settings=settings))
                with contextlib.suppress(grpc.RpcError):
                    answer = await stream.take()
                found.append(("Telemetry", what, longest(holds)))
        assert len(answer.settings.subscription.subscriptions) == TELEMETRY[0][0]
    return found


async def measure(folder: Path) -> list[tuple[str, str, float]]:
    async with grpc_broker(folder) as broker:
        await broker.peer.create_topic("Wide", QUEUES)
        await broker.peer.create_topic("Folded", 1)
        for _ in range(16):
            await broker.peer.send("Folded", FOLDED, sys_flag=COMPRESSED)
        orderly = SubscriptionGroupConfig(group_name="InOrder", consume_message_orderly=True)
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        assert (await broker.peer.call(code, body=orderly.encode())).code == 0
        return await measured(broker)


@pytest.mark.hostile
async def test_no_call_holds_the_loop(tmp_path: Path) -> None:
    found = await measure(tmp_path)
    assert [each for each in found if each[2] > STEP_SECONDS_MAX * 1000] == []


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        RESULTS.write_text(json.dumps(sorted(trio.run(measure, Path(folder))), indent=1) + "\n")
