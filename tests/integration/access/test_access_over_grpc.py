"""The gRPC door of a broker with access control, against the answers of Java's proxy 5.5.0."""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trio
from access_callers import PASSWORD, ROOT, SETTINGS, Caller
from access_requests import recorded
from grpc_broker import GrpcBroker, GrpcClient, grpc_broker, telemetry

from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.grpc.apache_rocketmq import definition_pb2 as pb
from triomq.remoting.grpc.apache_rocketmq import service_pb2 as rpc
from triomq.remoting.messaging.call_credentials import SCHEME, call_credentials
from triomq.remoting.protocol.command import Command
from triomq.remoting.protocol.signing import SIGNATURE, Credentials, signed

TOPIC, GROUP = pb.Resource(name="TA"), pb.Resource(name="GA")
RIGHTS: Mapping[str, list[Any]] = {
    "gpub": [["Topic:TA", ["Pub"]]],
    "gsubt": [["Topic:TA", ["Sub"]]],
    "gsubg": [["Group:GA", ["Sub"]]],
    "gsub": [["Topic:TA", ["Sub"]], ["Group:GA", ["Sub"]]],
    "gget": [["Topic:TA", ["Get"]], ["Group:GA", ["Get"]]],
    "noright": [],
}
CALLS: Mapping[str, Any] = {
    "QueryRoute": rpc.QueryRouteRequest(topic=TOPIC),
    "QueryAssignment": rpc.QueryAssignmentRequest(topic=TOPIC, group=GROUP),
    "Heartbeat consumer": rpc.HeartbeatRequest(group=GROUP),
    "Heartbeat producer": rpc.HeartbeatRequest(),
    "EndTransaction": rpc.EndTransactionRequest(
        topic=TOPIC, message_id="x", transaction_id="x", resolution=pb.TransactionResolution.COMMIT
    ),
    "RecallMessage": rpc.RecallMessageRequest(topic=TOPIC, recall_handle="x"),
    "AckMessage": rpc.AckMessageRequest(
        topic=TOPIC, group=GROUP, entries=[rpc.AckMessageEntry(message_id="x", receipt_handle="x")]
    ),
    "ChangeInvisibleDuration": rpc.ChangeInvisibleDurationRequest(
        topic=TOPIC, group=GROUP, receipt_handle="x"
    ),
    "ForwardMessageToDeadLetterQueue": rpc.ForwardMessageToDeadLetterQueueRequest(
        topic=TOPIC, group=GROUP, receipt_handle="x"
    ),
    "NotifyClientTermination group": rpc.NotifyClientTerminationRequest(group=GROUP),
    "NotifyClientTermination no group": rpc.NotifyClientTerminationRequest(),
}


def client_of(broker: GrpcBroker, condition: str) -> GrpcClient:
    credentials: tuple[str, str] | None = {
        "none": None,
        "super": ROOT,
        "unknown": ("ghost", PASSWORD),
        "wrongsig": ("noright", "wrong"),
    }.get(condition, (condition, PASSWORD))
    return broker.client(credentials=credentials, topic="TA", group="GA")


async def status_of(client: GrpcClient, call: str) -> pb.Status:
    if call == "SendMessage":
        return (await client.send(client.message(b"x"))).status
    if call == "ReceiveMessage":
        method = client.channel.unary_stream(
            "/apache.rocketmq.v2.MessagingService/ReceiveMessage",
            request_serializer=rpc.ReceiveMessageRequest.SerializeToString,
            response_deserializer=rpc.ReceiveMessageResponse.FromString,
        )
        answers = method(client.receive_request(), timeout=10, metadata=client.metadata)
        return (await trio.to_thread.run_sync(next, answers)).status
    if call.startswith("Telemetry"):
        async with telemetry(client) as stream:
            settings = client.settings(publishing=call.endswith("producer"))
            stream.put(rpc.TelemetryCommand(settings=settings))
            answer = await stream.take()
            return answer.status
    return (await client.call(call.partition(" ")[0], CALLS[call])).status


async def test_each_call_is_refused_and_served_as_java_does(tmp_path: Path) -> None:
    def prepare(address: str) -> None:
        with BlockingConnection(address) as connection:
            caller = Caller(connection)
            for name, rights in RIGHTS.items():
                caller.create_user(name)
                caller.grant(name, rights, None)

    root = Credentials(access_key=ROOT[0], secret_key=ROOT[1])
    settings = {key: value for key, value in SETTINGS.items() if key != "grpcServerPort"}
    found, count = [], 0
    async with grpc_broker(tmp_path, credentials=root, **settings) as broker:
        await broker.peer.create_topic("TA", 2)
        await trio.to_thread.run_sync(prepare, broker.ready.address)
        for row in recorded("grpc proxy cluster mode, one broker"):
            call, condition = row["rpc"], row["cond"]
            if condition not in (*RIGHTS, "none", "super", "unknown", "wrongsig"):
                continue
            answer = await status_of(client_of(broker, condition), call)
            refused = answer.code == pb.Code.UNAUTHORIZED
            count += 1
            text = re.sub(r".*DESC: (User:)?", "", answer.message)
            if refused != ("UNAUTHORIZED" in row["result"]):
                found.append(f"{call} as {condition}: {answer}, not {row['result']}")
            elif refused and condition.startswith(("g", "none")) and text not in row["result"]:
                found.append(f"{call} as {condition}: {text!r}, not {row['result']}")
    assert not found, "\n".join(found)
    assert count > 120


async def test_a_signature_of_a_call_is_none_for_requests_of_the_remoting_protocol(
    tmp_path: Path,
) -> None:
    """A captured call would otherwise be good for every request, with any body."""
    root = Credentials(access_key=ROOT[0], secret_key=ROOT[1])
    settings = {key: value for key, value in SETTINGS.items() if key != "grpcServerPort"}
    async with grpc_broker(tmp_path, credentials=root, **settings) as broker:
        stolen = dict(broker.client(credentials=ROOT).metadata)

        def replay() -> int:
            with BlockingConnection(broker.ready.address) as connection:
                command = Command(26, ext=dict(call_credentials(stolen)))
                return connection.invoke(command, timeout=10).code

        assert await trio.to_thread.run_sync(replay) == 16


async def test_a_signature_of_a_request_without_fields_is_none_for_calls(tmp_path: Path) -> None:
    """It covers the name of the user only, as would that of a call without a date."""
    root = Credentials(access_key=ROOT[0], secret_key=ROOT[1])
    settings = {key: value for key, value in SETTINGS.items() if key != "grpcServerPort"}
    stolen = signed({}, b"", root)[SIGNATURE]
    settings["grpcSignatureWindowSeconds"] = 0  # it would refuse that, too
    async with grpc_broker(tmp_path, credentials=root, **settings) as broker:
        await broker.peer.create_topic("TA", 1)
        client = broker.client(credentials=None, topic="TA", group="GA")
        client.more = [("authorization", f"{SCHEME} Credential=root, Signature={stolen}")]
        answer = await client.send(client.message(b"x"))
        assert answer.status.code == pb.Code.UNAUTHORIZED
        assert answer.status.message.endswith("datetime is null.")


async def test_old_signatures_are_refused_and_all_time_zones_are_taken(tmp_path: Path) -> None:
    root = Credentials(access_key=ROOT[0], secret_key=ROOT[1])
    settings = {key: value for key, value in SETTINGS.items() if key != "grpcServerPort"}
    async with grpc_broker(tmp_path, credentials=root, **settings) as broker:
        await broker.peer.create_topic("TA", 1)

        async def answer(date: str, older: tuple[str, str] | None = None) -> tuple[int, str]:
            signature = hmac.digest(ROOT[1].encode(), date.encode(), hashlib.sha1).hex()
            client = broker.client(credentials=older, topic="TA", group="GA")
            client.more = [
                ("x-mq-date-time", date),
                ("authorization", f"{SCHEME} Credential=root, Signature={signature}"),
            ]
            status = (await client.send(client.message(b"x"))).status
            return status.code, status.message

        for hours in (-12, 0, 14):
            assert (await answer(hours_from_now(hours)))[0] == pb.Code.OK, hours
        for hours in (-16, 16, 24 * 365):
            code, message = await answer(hours_from_now(hours))
            assert code == pb.Code.UNAUTHORIZED
            assert "grpcSignatureWindowSeconds is 54000" in message
        assert (await answer("yesterday"))[0] == pb.Code.UNAUTHORIZED
        # Go's producers sign a repeated send again, beside the older signature and date.
        repeated = await answer(hours_from_now(1), older=(ROOT[0], "of the first try"))
        assert repeated[0] == pb.Code.OK, repeated


def hours_from_now(hours: int) -> str:
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(time.time() + hours * 3600))
