"""A user with rights on one topic tries to reach others: by the place of a message in the log, by
properties, by topics of the broker itself, and by a second reading of a signed header.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import trio
from access_callers import PASSWORD, ROOT, SETTINGS, Caller
from brokers import running_broker
from grpc_broker import TOPIC, grpc_broker

from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.grpc.apache_rocketmq import definition_pb2 as pb
from triomq.remoting.grpc.apache_rocketmq import service_pb2 as rpc
from triomq.remoting.messaging.transaction_place import TransactionPlace
from triomq.remoting.protocol.bodies.heartbeat import HeartbeatData, ProducerData
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.command import Command, request
from triomq.remoting.protocol.header_rocketmq import decode_header
from triomq.remoting.protocol.headers.pull import PullMessageHeader
from triomq.remoting.protocol.headers.send import SendMessageHeader, SendMessageResponseHeader
from triomq.remoting.protocol.headers.topic import CreateTopicHeader
from triomq.remoting.protocol.headers.transaction import (
    COMMIT,
    ROLLBACK,
    EndTransactionHeader,
    ResumeCheckHeader,
)
from triomq.remoting.protocol.ids import decode_offset_message_id
from triomq.remoting.protocol.message_properties import PRODUCER_GROUP, REAL_TOPIC, TRAN_MSG
from triomq.remoting.protocol.names import CHECK_MAX_TIME_TOPIC, TIMER_TOPIC
from triomq.remoting.protocol.record_reader import decode_records
from triomq.remoting.protocol.signing import Credentials

REFUSED = int(ResponseCode.NO_PERMISSION)
HALF_FLAG = 4


def header_of(topic: str, properties: dict[str, str] | None = None, flag: int = 0) -> Any:
    text = "".join(f"{name}\x01{value}\x02" for name, value in (properties or {}).items())
    return SendMessageHeader(
        producer_group="P",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_count=1,
        queue_id=0,
        sys_flag=flag,
        born_timestamp=1_700_000_000_000,
        flag=0,
        properties=text,
    )


def prepared(caller: Caller, rights: list[Any]) -> None:
    """Make the topics ``mine`` and ``secret``, and a user with these rights."""
    for topic in "mine", "secret":
        header = CreateTopicHeader(topic, "TBW102", 1, 1, 6)
        assert caller.ask_root(Code.UPDATE_AND_CREATE_TOPIC, header).code == 0
    caller.create_user("mallory")
    caller.grant("mallory", rights, None)


def bodies(caller: Caller, topic: str) -> bytes:
    """Return what the administrator reads from the start of a topic."""
    pull = PullMessageHeader(
        consumer_group="G",
        topic=topic,
        queue_id=0,
        queue_offset=0,
        message_count_max=32,
        sys_flag=4,
        commit_offset=0,
        suspend_timeout_ms=0,
        subscription="*",
        sub_version=1,
    )
    return bytes(caller.ask_root(Code.PULL_MESSAGE, pull).body)


async def attacking(
    folder: Path, work: Callable[[Caller], None], rights: list[Any], **settings: Any
) -> None:
    async with running_broker(folder, **SETTINGS, **settings) as broker:

        def run() -> None:
            with BlockingConnection(broker.address) as connection:
                caller = Caller(connection)
                prepared(caller, rights)
                work(caller)

        await trio.to_thread.run_sync(run)


MINE = [["Topic:mine", ["Pub"]]]


async def test_no_user_ends_a_transaction_of_another_topic(tmp_path: Path) -> None:
    """The producer group and the place are no secret: they are counted, and guessed."""

    def work(caller: Caller) -> None:
        half = {TRAN_MSG: "true", PRODUCER_GROUP: "P"}
        sent = caller.ask_root(
            Code.SEND_MESSAGE, header_of("secret", half, HALF_FLAG), b"half"
        ).header(SendMessageResponseHeader)
        _, _, place = decode_offset_message_id(sent.message_id)

        def end(topic: str | None, verdict: int) -> Any:
            fields = EndTransactionHeader("P", sent.queue_offset, place, verdict, "m", topic=topic)
            return request(Code.END_TRANSACTION, fields)

        for topic in (None, "mine"):
            for verdict in (ROLLBACK, COMMIT):
                assert caller.ask(end(topic, verdict), "mallory").code == REFUSED, topic
        other = EndTransactionHeader("Q", sent.queue_offset, place, COMMIT, "m")
        told = caller.ask(request(Code.END_TRANSACTION, other), "mallory")
        assert told.code == REFUSED
        assert "'P'" not in (told.remark or ""), "the producer group is told to nobody"
        assert not bodies(caller, "secret")
        assert caller.ask(end("secret", COMMIT), *ROOT).code == 0
        assert b"half" in bodies(caller, "secret")

    await attacking(tmp_path, work, MINE)


async def test_no_user_ends_a_transaction_of_another_topic_over_grpc(tmp_path: Path) -> None:
    """The transaction id names a place, and the call a topic of the user's own."""
    settings = {key: value for key, value in SETTINGS.items() if key != "grpcServerPort"}
    root = Credentials(access_key=ROOT[0], secret_key=ROOT[1])
    async with grpc_broker(tmp_path, credentials=root, **settings) as broker:
        await broker.peer.create_topic("secret", 1)
        await broker.peer.create_topic(TOPIC, 1)

        def prepare() -> SendMessageResponseHeader:
            with BlockingConnection(broker.ready.address) as connection:
                caller = Caller(connection)
                caller.create_user("mallory")
                caller.grant("mallory", [[f"Topic:{TOPIC}", ["Pub"]]], None)
                # The group that the gRPC service gives to a transaction is its topic.
                half = {TRAN_MSG: "true", PRODUCER_GROUP: TOPIC}
                fields = header_of("secret", half, HALF_FLAG)
                sent = caller.ask_root(Code.SEND_MESSAGE, fields, b"half")
                return sent.header(SendMessageResponseHeader)

        sent = await trio.to_thread.run_sync(prepare)
        _, _, offset = decode_offset_message_id(sent.message_id)
        client = broker.client(credentials=("mallory", PASSWORD))
        place = TransactionPlace(broker.ready.name, sent.queue_offset, offset, "m")
        for resolution in (pb.TransactionResolution.ROLLBACK, pb.TransactionResolution.COMMIT):
            ending = rpc.EndTransactionRequest(
                topic=pb.Resource(name=TOPIC),
                message_id="m",
                transaction_id=place.encode(),
                resolution=resolution,
            )
            answer = await client.call("EndTransaction", ending)
            assert answer.status.code not in (pb.Code.OK, pb.Code.INVALID_TRANSACTION_ID), answer
            assert "none of topic" in answer.status.message


async def test_a_check_of_a_transaction_goes_to_users_with_the_right(tmp_path: Path) -> None:
    """A check shows the message; anybody can name a producer group in a heartbeat. What is given up
    after two checks is asked about again for nobody without a right on its topic either.
    """
    soon = {"transactionTimeOut": 20, "transactionCheckInterval": 20, "transactionCheckMax": 2}
    async with running_broker(tmp_path, **SETTINGS, **soon) as broker:

        def joined(stack: ExitStack, who: tuple[str, str]) -> socket.socket:
            connection = stack.enter_context(BlockingConnection(broker.address))
            data = HeartbeatData(client_id=who[0], producers=[ProducerData("P")])
            beat = Command(Code.HEART_BEAT, body=data.encode())
            assert Caller(connection).ask(beat, *who).code == 0
            connection._sock.settimeout(60)
            return connection._sock

        def work() -> None:
            with ExitStack() as stack:
                caller = Caller(stack.enter_context(BlockingConnection(broker.address)))
                prepared(caller, [["Topic:mine", ["Update"]]])
                thief = joined(stack, ("mallory", PASSWORD))
                owner = joined(stack, ROOT)
                half = {TRAN_MSG: "true", PRODUCER_GROUP: "P"}
                for _ in range(8):
                    fields = header_of("secret", half, HALF_FLAG)
                    assert caller.ask_root(Code.SEND_MESSAGE, fields, b"half").code == 0
                for _ in range(16):  # each is asked twice, or one of them more often
                    shown = receive(owner, struct.unpack(">I", receive(owner, 4))[0])
                    assert b"half" in shown
                thief.setblocking(False)
                with pytest.raises(BlockingIOError):
                    thief.recv(1)
                deadline = time.monotonic() + 60
                while not (given_up := decode_records(bodies(caller, CHECK_MAX_TIME_TOPIC))):
                    assert time.monotonic() < deadline
                    time.sleep(0.02)
                place = given_up[0].offset_message_id
                for topic in (None, "mine"):
                    header = ResumeCheckHeader(topic, place)
                    resumed = caller.ask(request(Code.RESUME_CHECK_HALF_MESSAGE, header), "mallory")
                    assert resumed.code == REFUSED
                header = ResumeCheckHeader("secret", place)
                assert caller.ask_root(Code.RESUME_CHECK_HALF_MESSAGE, header).code == 0

        await trio.to_thread.run_sync(work)


PROPERTIES: dict[str, dict[str, str]] = {
    "a delay": {"DELAY": "1"},
    "a time of delivery": {"TIMER_DELAY_MS": "1"},
    "a half": {TRAN_MSG: "true", PRODUCER_GROUP: "P"},
    "nothing else": {},
}


@pytest.mark.parametrize("way", PROPERTIES)
async def test_no_property_leads_a_message_to_another_topic(tmp_path: Path, way: str) -> None:
    """Each names the topic where the broker would look for it."""

    def work(caller: Caller) -> None:
        stolen = {**PROPERTIES[way], REAL_TOPIC: "secret", "REAL_QID": "0"}
        flag = HALF_FLAG if TRAN_MSG in stolen else 0
        sent = caller.ask(
            request(Code.SEND_MESSAGE, header_of("mine", stolen, flag), b"forged"), "mallory"
        )
        assert sent.code == 0, sent
        if flag:
            made = sent.header(SendMessageResponseHeader)
            _, _, place = decode_offset_message_id(made.message_id)
            fields = EndTransactionHeader("P", made.queue_offset, place, COMMIT, "m")
            assert caller.ask(request(Code.END_TRANSACTION, fields), "mallory").code == 0
        deadline = time.monotonic() + 60
        while b"forged" not in bodies(caller, "mine"):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert not bodies(caller, "secret")

    levels = {"messageDelayLevel": "1s"}
    await attacking(tmp_path, work, MINE, timerWheelEnable=True, **levels)


async def test_a_reply_goes_to_no_other_topic(tmp_path: Path) -> None:
    """Replies need no right, and are stored in the topic that their header names."""

    def work(caller: Caller) -> None:
        for code in (Code.SEND_REPLY_MESSAGE, Code.SEND_REPLY_MESSAGE_V2):
            command = Command(code, body=b"forged", ext=fields_of(code, "secret"))
            assert caller.ask(command, "mallory").code == REFUSED, code
            reply = Command(code, body=b"reply", ext=fields_of(code, "TestCluster_REPLY_TOPIC"))
            answer = caller.ask(reply, "mallory")
            assert answer.code != REFUSED, answer.remark
        assert not bodies(caller, "secret")

    await attacking(tmp_path, work, MINE, brokerClusterName="TestCluster")


def fields_of(code: Code, topic: str) -> dict[str, str]:
    names = dict(request(Code.SEND_MESSAGE, header_of(topic)).ext or {})
    if code == Code.SEND_REPLY_MESSAGE:
        return names
    order = (
        *("producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag"),
        *("bornTimestamp", "flag", "properties"),
    )
    return {short: names[name] for short, name in zip("abcdefghi", order, strict=True)}


async def test_no_topic_of_the_broker_moves_messages(tmp_path: Path) -> None:
    """Who may send to all topics but one still sends nothing to that one."""

    def work(caller: Caller) -> None:
        due = {"TIMER_OUT_MS": "1", REAL_TOPIC: "secret", "REAL_QID": "0"}
        for topic in (TIMER_TOPIC, "rmq_sys_REVIVE_LOG_TestCluster", "SCHEDULE_TOPIC_XXXX"):
            forged = request(Code.SEND_MESSAGE, header_of(topic, due), b"forged")
            assert caller.ask(forged, "mallory").code == REFUSED, topic

    await attacking(tmp_path, work, [["Topic:*", ["Pub"]]], timerWheelEnable=True)


EVIL = 'x"}\n{"user":"root","allowed":true}\r\x1b[2J\x9b2J\u2028\u2029\u202e\x00y'


async def test_no_name_forges_a_line_of_the_audit_log(tmp_path: Path) -> None:
    """Names of users, topics and groups come from peers; a line is one line for every reader."""

    def work(caller: Caller) -> None:
        deletion = Command(Code.DELETE_TOPIC_IN_BROKER, ext={"topic": EVIL})
        for who in (None, "mallory", EVIL):
            assert caller.ask(deletion, who).code == REFUSED
        caller.ask(deletion, *ROOT)
        caller.ask(Command(Code.DELETE_SUBSCRIPTIONGROUP, ext={"groupName": EVIL}), *ROOT)
        caller.ask(Command(Code.AUTH_DELETE_USER, ext={"username": EVIL}), *ROOT)

    audited = {"auditLogPath": tmp_path / "audit.log"}
    await attacking(tmp_path, work, MINE, **audited)
    for name, fewest in (("audit.log", 3), ("audit-refused.log", 3)):
        data = (tmp_path / name).read_bytes()
        lines = data.decode().splitlines()  # as strict as readers get: U+2028 ends a line, too
        assert len(lines) >= fewest
        assert all(isinstance(json.loads(line), dict) for line in lines)
        assert not [line for line in lines if json.loads(line).get("user") == EVIL]
        assert not set(data) & (set(range(32)) - {10})
        assert not set(data.decode()) & set("\x9b\u2028\u2029\u202e")


# A second reading of a signed header


def frame(header: bytes, body: bytes = b"", kind: int = 0) -> bytes:
    head = struct.pack(">I", len(header) | kind << 24)
    return struct.pack(">I", 4 + len(header) + len(body)) + head + header + body


def doubled(place: str) -> Callable[[dict[str, str]], bytes]:
    """A captured request of the administrator, with a second topic for another reader."""

    def make(fields: dict[str, str]) -> bytes:
        own = json.dumps(fields)
        forged = json.dumps({**fields, "topic": "secret"})
        escaped = '{"\\u0074opic":"secret",' + own[1:]
        texts = {
            "behind": own[:-1] + ',"topic":"secret"}',
            "before": '{"topic":"secret",' + own[1:],
            "escaped before": escaped,
            "escaped behind": own[:-1] + ',"\\u0074opic":"secret"}',
        }
        tail = '"flag":0,"language":"JAVA","opaque":7,"version":513}'
        if place == "fields twice":
            return f'{{"code":215,"extFields":{own},"extFields":{forged},{tail}'.encode()
        if place == "fields twice, the other way":
            return f'{{"code":215,"extFields":{forged},"extFields":{own},{tail}'.encode()
        return f'{{"code":215,"extFields":{texts[place]},{tail}'.encode()

    return make


def binary(fields: dict[str, str], *, last: bool) -> bytes:
    one, other = [("topic", "secret")], list(fields.items())
    pairs = other + one if last else one + other
    ext = b"".join(
        struct.pack(">H", len(name)) + name.encode() + struct.pack(">I", len(text)) + text.encode()
        for name, text in pairs
    )
    return struct.pack(">hBhiiI", 215, 0, 513, 7, 0, 0) + struct.pack(">I", len(ext)) + ext


SECOND_READINGS: dict[str, Callable[[dict[str, str]], tuple[bytes, int]]] = {
    **{
        place: (lambda fields, place=place: (doubled(place)(fields), 0))  # type: ignore[misc]
        for place in (
            *("behind", "before", "escaped before", "escaped behind"),
            *("fields twice", "fields twice, the other way"),
        )
    },
    "binary, behind": lambda fields: (binary(fields, last=True), 1),
    "binary, before": lambda fields: (binary(fields, last=False), 1),
}


@pytest.mark.parametrize("place", SECOND_READINGS)
async def test_the_signature_covers_what_the_handler_reads(tmp_path: Path, place: str) -> None:
    """A captured request that deletes the topic ``mine`` never deletes the topic ``secret``."""

    def work(caller: Caller) -> None:
        fields = {"AccessKey": ROOT[0], "topic": "mine"}
        content = "".join(fields[name] for name in sorted(fields)).encode()
        digest = hmac.new(ROOT[1].encode(), content, hashlib.sha1).digest()
        fields["Signature"] = base64.b64encode(digest).decode()
        header, kind = SECOND_READINGS[place](fields)
        if kind:
            assert decode_header(header)[0] == 215
        sock = caller.connection._sock
        sock.settimeout(30)
        for _ in range(20):  # readers that learn from repeated headers are asked, too
            sock.sendall(frame(header, kind=kind))
            receive(sock, struct.unpack(">I", receive(sock, 4))[0])
        found = caller.ask(Command(Code.GET_TOPIC_CONFIG, ext={"topic": "secret"}), *ROOT)
        assert found.code == 0, found

    await attacking(tmp_path, work, MINE)


def receive(sock: Any, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = sock.recv(size - len(data))
        assert more
        data += more
    return data
