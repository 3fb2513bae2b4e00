"""Replay what real clients sent to a real 5.5.0 and 4.9.4 cluster; ours must answer with the same
code and extFields, and with the same body where it is determined.

A value of extFields may differ only where it tells how much the captured cluster held
(``TELLS_STATE``). A body is determined where the request alone decides it (``DETERMINED``: equal
members); any other JSON body must have the members of Java's.

The requests go out as they were captured; only a commit-log offset is replaced, since ours lies
elsewhere, and the time that a pull waits for a message, since the capture waited it out. Most
answers depend on state, so ``Stage`` builds the state that the capture had: topics, messages up to
the wanted offset, a subscription of the wanted version, a stored offset. The wire is spoken here
with ``json`` and ``socket`` only, not with our own codec. What is not replayed stands in
``LEFT_OUT`` or in the broker's own table of unsupported codes, with its reason.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import select
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import processes
import pytest
from unsupported_codes import UNSUPPORTED

from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.protocol.command import decode_frame

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "wire"
Frame = dict[str, Any]

# What 5.x answers in addition to 4.9.4; our broker answers every client as 5.5.0 does.
ADDED_BY_5 = {
    11: {"topicSysFlag", "groupSysFlag"},
    34: {"IS_SUB_CHANGE", "IS_SUPPORT_HEART_BEAT_V2"},
    310: {"transactionId"},
    320: {"transactionId"},
}
# (code, response code) -> why this shape is not replayed
LEFT_OUT = {
    (14, 22): (
        "5.5.0 answers 22 for a new group on an empty queue and then loses what is stored between"
        " two requests; ours answers 0, as 4.9.4 does"
    )
}
# The same for what RocketMQ's mqadmin asked.
ADMIN_LEFT_OUT = {(315, 0): "it asks for counts of the half topic, which transactions will bring"}
# (code, field): it tells how much a cluster holds, where, or since when.
TELLS_STATE = {
    *((code, field) for code in (11, 361) for field in ("maxOffset", "nextBeginOffset")),
    (12, "indexLastUpdatePhyoffset"),
    (12, "indexLastUpdateTimestamp"),
    (29, "offset"),
    (30, "offset"),
    (201, "totalGroupNum"),
    (205, "wipeTopicCount"),
    (310, "msgId"),
    (310, "queueOffset"),
    (320, "msgId"),
    (320, "queueOffset"),
    (325, "msgId"),
    (325, "queueOffset"),
    (327, "addTopicCount"),
}
PUSH_TELLS_STATE = {"bornHost", "storeHost", "storeTimestamp"}
"""Fields of a reply that is pushed to its requester."""
DETERMINED = {38, 41, 105, 106, 222, 351}
"""Codes whose JSON body the request decides, but for a slave that the replay does not have and the
replay's own member of a group.
"""
RECORDS = {11, 12, 361, 60}
"""Codes whose body is binary: records, which the store's golden tests compare, and statistics."""
REPLAYED = {"r550-JSON": {"namesrv": 12, "broker": 64}, "r494-JSON": {"namesrv": 12, "broker": 72}}


def decode(frame: bytes) -> Frame:
    length = int.from_bytes(frame[5:8])
    header: Frame = json.loads(frame[8 : 8 + length])
    header["body"] = frame[8 + length :]
    return header


def encode(header: Frame, body: bytes = b"") -> bytes:
    text = json.dumps(
        {key: value for key, value in header.items() if key != "body"}, separators=(",", ":")
    ).encode()
    return (4 + len(text) + len(body)).to_bytes(4) + len(text).to_bytes(4) + text + body


class Wire:
    """One blocking connection; answers are matched by opaque, requests of the server are left
    aside.
    """

    numbers = itertools.count(1_000_000)

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=10)
        self.buffer = b""

    def close(self) -> None:
        self.socket.close()

    def receive(self, opaque: int, seconds: float) -> Frame | None:
        while True:
            while len(self.buffer) >= 4 and len(self.buffer) >= (
                size := 4 + int.from_bytes(self.buffer[:4])
            ):
                frame, self.buffer = decode(self.buffer[:size]), self.buffer[size:]
                if frame["flag"] & 1 and frame["opaque"] == opaque:
                    return frame
            if not select.select([self.socket], [], [], seconds)[0]:
                return None
            data = self.socket.recv(65536)
            assert data, "the server closed the connection"
            self.buffer += data

    def exchange(self, frame: bytes, opaque: int, *, seconds: float = 10) -> Frame | None:
        self.socket.sendall(frame)
        return self.receive(opaque, seconds)

    def call(self, code: int, ext: dict[str, Any] | None = None, body: Any = None) -> Frame:
        opaque = next(self.numbers)
        header = {
            "code": code,
            "flag": 0,
            "language": "JAVA",
            "opaque": opaque,
            "version": 513,
            "extFields": {k: str(v) for k, v in (ext or {}).items()},
        }
        payload = (
            body
            if isinstance(body, bytes)
            else json.dumps(body).encode()
            if body is not None
            else b""
        )
        answer = self.exchange(encode(header, payload), opaque)
        assert answer is not None, f"code {code} was never answered"
        return answer


class Requester:
    """A client that has sent a request message: it answers one reply that is pushed to it."""

    def __init__(self, address: str, client_id: str) -> None:
        self.wire = Wire(address)
        group = {"groupName": "requesters"}
        body = {"clientID": client_id, "consumerDataSet": [], "producerDataSet": [group]}
        assert self.wire.call(34, body=body)["code"] == 0
        self.pushed: Frame = {}
        self.thread = threading.Thread(target=self.answer)
        self.thread.start()

    def answer(self) -> None:
        wire = self.wire
        while len(wire.buffer) < 4 or len(wire.buffer) < 4 + int.from_bytes(wire.buffer[:4]):
            wire.buffer += wire.socket.recv(65536)
        self.pushed = decode(wire.buffer)
        answer = {"code": 0, "flag": 1, "opaque": self.pushed["opaque"], "language": "JAVA"}
        wire.socket.sendall(encode({**answer, "version": 513}))

    def close(self) -> None:
        self.thread.join()
        self.wire.close()


class Stage:
    """Builds the state that one captured exchange had."""

    def __init__(self, address: str) -> None:
        self.wire = Wire(address)
        self.members: list[Wire] = []
        self.requesters: list[Requester] = []
        self.address = address

    def close(self) -> None:
        for wire in (self.wire, *self.members, *self.requesters):
            wire.close()

    def topic(self, name: str) -> None:
        ext = {
            "topic": name,
            "defaultTopic": "TBW102",
            "readQueueNums": 4,
            "writeQueueNums": 4,
            "perm": 6,
            "topicFilterType": "SINGLE_TAG",
            "order": "false",
        }
        assert self.wire.call(17, ext)["code"] == 0

    def empty_topic(self, name: str) -> None:
        self.wire.call(215, {"topic": name})
        self.topic(name)

    def messages(
        self, topic: str, queue_id: int, count: int, tag: str = "TagA", key: str = "k"
    ) -> int:
        """Store ``count`` messages; return the log offset of the last one."""
        offset = -1
        for number in range(count):
            ext = {
                "a": "golden", "b": topic, "c": "TBW102", "d": 4, "e": queue_id, "f": 0,
                "g": 1_700_000_000_000, "h": 0,
                "i": f"KEYS\x01{key}{number}\x02TAGS\x01{tag}\x02", "j": 0, "k": "false",
                "m": "false",
            }  # fmt: skip
            answer = self.wire.call(310, ext, b"golden")
            assert answer["code"] == 0, answer
            offset = int(answer["extFields"]["msgId"][16:], 16)
        return offset

    def member(
        self, group: str, topic: str, version: int, expression: str = "*", kind: str = "TAG"
    ) -> None:
        """A consumer with this subscription, on a connection of its own."""
        tags = [expression] if kind == "TAG" and expression != "*" else []
        subscription = {
            "classFilterMode": False, "codeSet": [], "expressionType": kind,
            "subString": expression, "subVersion": version, "tagsSet": tags, "topic": topic,
        }  # fmt: skip
        consumer = {
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "consumeType": "CONSUME_PASSIVELY",
            "groupName": group, "messageModel": "CLUSTERING",
            "subscriptionDataSet": [subscription], "unitMode": False,
        }  # fmt: skip
        for old in self.members:
            old.close()
        self.members = [Wire(self.address)]
        body = {
            "clientID": f"golden@{version}",
            "consumerDataSet": [consumer],
            "producerDataSet": [],
            "heartbeatFingerprint": 0,
            "withoutSub": False,
        }
        assert self.members[0].call(34, body=body)["code"] == 0

    def prepare(self, request: Frame, expected: Frame | None) -> None:
        code, ext = request["code"], request.get("extFields") or {}
        topic = ext.get("topic") or ext.get("b")
        if code in (11, 361):
            self.prepare_pull(code, ext, expected)
        elif code == 36:
            self.topic(ext["originTopic"])
            self.member(ext["group"], ext["originTopic"], 1)
            ext["offset"] = str(self.messages(ext["originTopic"], 0, 1))
        elif code == 38:
            self.member(ext["consumerGroup"], "GoldTopic", 1)
        elif (
            topic
            and code != 17
            and not topic.endswith("_REPLY_TOPIC")
            and not topic.startswith("RMQ_SYS_")
        ):
            self.topic(topic)
        if code == 325:
            client_id = properties(ext["i"])["REPLY_TO_CLIENT"]
            self.requesters.append(Requester(self.address, client_id))
        if code == 14 and expected and expected["code"] == 0:
            self.wire.call(
                15,
                {
                    "consumerGroup": ext["consumerGroup"],
                    "topic": topic,
                    "queueId": ext["queueId"],
                    "commitOffset": 0,
                },
            )

    def prepare_pull(self, code: int, ext: dict[str, str], expected: Frame | None) -> None:
        topic, offset, queue_id = ext["topic"], int(ext["queueOffset"]), int(ext["queueId"])
        self.empty_topic(topic)
        answer = expected["code"] if expected else None
        if answer == 19:
            ext["suspendTimeoutMillis"] = "100"
        self.messages(topic, queue_id, offset + (answer in (0, 20)))
        if not int(ext["sysFlag"]) & 4:
            version = int(ext["subVersion"])
            # By tags ours serves a pull that is ahead of its heartbeat; see
            # test_outdated_subscriptions.py.
            if answer == 25:
                self.member(ext["consumerGroup"], topic, version - 1, "price > 3", "SQL92")
            else:
                self.member(
                    ext["consumerGroup"], topic, version, "OtherTag" if answer == 20 else "*"
                )


def properties(text: str) -> dict[str, str]:
    return dict(part.split("\x01") for part in text.split("\x02") if part)


def exchanges(name: str, servers: set[str]) -> Iterator[tuple[dict[str, Any], Frame, Frame | None]]:
    for line in (GOLDEN / f"{name}.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record["from"] == "client" and record["server"] in servers:
            response = decode(bytes.fromhex(record["response"])) if record["response"] else None
            yield record, decode(bytes.fromhex(record["request"])), response


def differences(
    name: str, record: dict[str, Any], request: Frame, expected: Frame | None, answer: Frame | None
) -> str | None:
    what = f"{record['server']} {request['code']} {request.get('extFields')}"
    if expected is None or answer is None:
        return None if expected is answer else f"{what}: expected {expected}, got {answer}"
    if expected["code"] != answer["code"]:
        return (
            f"{what}: code {answer['code']} ({answer.get('remark')}) instead of {expected['code']}"
            f" ({expected.get('remark')})"
        )
    wanted, got = expected.get("extFields") or {}, answer.get("extFields") or {}
    added = ADDED_BY_5.get(request["code"], set()) if name.startswith("r494") else set()
    if not set(wanted) <= set(got) <= set(wanted) | added:
        return f"{what}: extFields {sorted(got)} instead of {sorted(wanted)}"
    for field, value in wanted.items():
        if got[field] != value and (
            (request["code"], field) not in TELLS_STATE
            or not re.fullmatch(r"-?\d+|[0-9A-F,]+", got[field])
        ):
            return f"{what}: {field} is {got[field]} instead of {value}"
    return body_difference(
        request["code"], what, expected.get("body", b""), answer.get("body", b"")
    )


def push_difference(name: str, got: Frame) -> str | None:
    """Compare a reply that was pushed to its requester (326) with the captured one."""
    (line,) = (
        line
        for line in (GOLDEN / f"{name}.jsonl").read_text().splitlines()
        if json.loads(line)["code"] == 326
    )
    wanted = decode(bytes.fromhex(json.loads(line)["request"]))
    fields, pushed = dict(wanted["extFields"]), dict(got["extFields"])
    for each in (fields, pushed):
        for field in PUSH_TELLS_STATE:
            assert each.pop(field)
        each["properties"] = properties(each["properties"])
        assert int(each["properties"].pop("PUSH_REPLY_TIME"))
    if name.startswith("r494"):  # 5.5.0 adds them to every message
        fields["properties"] |= {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    frames = [{key: each[key] for key in ("code", "flag", "body")} for each in (wanted, got)]
    if fields != pushed or frames[0] != frames[1]:
        return f"pushed {got} instead of {wanted}"
    return None


def members(body: bytes) -> list[str]:
    """Return the members of a JSON body in alphabetical order, each as name and value; of values
    that are no text or number only the name.

    Java's numbers as keys and objects as keys are no JSON, so this reads words.
    """
    text = re.sub(r',"?1"?:"127.0.0.1:10921"|,"golden@1"', "", body.decode())
    text = text.replace(',"enableActingMaster":false', "")  # 4.9.4 does not have it
    text = re.sub(r"127\.0\.0\.1:\d+", "ADDRESS", text)
    return sorted(re.findall(r'"?\w+"?:(?:"[^"]*"|-?[\w.]+|\[(?:"[^"]*",?)*\])?', text))


def body_difference(code: int, what: str, wanted: bytes, got: bytes) -> str | None:
    if bool(wanted) != bool(got):
        return f"{what}: body {got[:200]!r} instead of {wanted[:200]!r}"
    if code in RECORDS:
        return None
    if code in DETERMINED:
        return (
            None
            if members(got) == members(wanted)
            else f"{what}: body {got!r} instead of {wanted!r}"
        )
    missing = sorted(set(top_names(wanted)) - set(top_names(got)))
    return f"{what}: the body lacks {missing}" if missing else None


def top_names(body: bytes) -> list[str]:
    """Return the names of the outermost members."""
    names, depth = [], 0
    for token in re.findall(r'"(?:[^"\\]|\\.)*":?|[{}\[\]]', body.decode()):
        if token in "{[":
            depth += 1
        elif token in "}]":
            depth -= 1
        elif depth == 1 and token.endswith(":"):
            names.append(token.strip('":'))
    return names


def replay(
    name: str,
    wire: Wire,
    servers: set[str],
    stage: Stage | None,
    excused: dict[tuple[int, int], str] = LEFT_OUT,
) -> tuple[int, list[str], list[str]]:
    """(how many were replayed, differences, what was left out and why)"""
    count, wrong, left_out = 0, [], []
    for record, request, expected in exchanges(name, servers):
        code = request["code"]
        reason = excused.get((code, expected["code"] if expected else -1)) or (
            UNSUPPORTED.get(code) if stage else None
        )
        if reason:
            left_out.append(f"{code}: {reason}")
            continue
        if stage:
            stage.prepare(request, expected)
        frame = encode(request, request["body"])
        answer = wire.exchange(frame, request["opaque"], seconds=10 if expected else 0.3)
        count += 1
        if error := differences(name, record, request, expected, answer):
            wrong.append(error)
    return count, wrong, left_out


@pytest.mark.feature("2a", "2b", "16a")
@pytest.mark.parametrize("name", list(REPLAYED))
def test_name_server_answers_as_java_s(name: str, tmp_path: Path) -> None:
    with processes.our_name_server(tmp_path) as address, contextlib.closing(Wire(address)) as wire:
        count, wrong, left_out = replay(name, wire, {"namesrv"}, None)
    assert wrong == []
    assert (count, left_out) == (REPLAYED[name]["namesrv"], [])


@pytest.mark.feature("16a")
@pytest.mark.parametrize("name", list(REPLAYED))
def test_broker_answers_as_java_s(name: str, tmp_path: Path) -> None:
    with (
        processes.our_name_server(tmp_path) as namesrv,
        processes.our_broker(
            tmp_path,
            "broker-a",
            namesrv,
            brokerClusterName="DefaultCluster",
            enablePropertyFilter="true",
        ) as (address, _process),
        contextlib.closing(Stage(address)) as stage,
        contextlib.closing(Wire(address)) as wire,
    ):
        count, wrong, left_out = replay(name, wire, {"broker", "slave", "broker-vip"}, stage)
        (requester,) = stage.requesters
        assert push_difference(name, requester.pushed) is None
    print(f"{name}: {count} replayed; left out:", *sorted(set(left_out)), sep="\n  ")
    assert wrong == []
    assert count == REPLAYED[name]["broker"]


@pytest.mark.feature("16a", "169a")
def test_rocketmq_s_administration_is_answered_as_java_s(tmp_path: Path) -> None:
    """What about forty commands of RocketMQ's mqadmin sent to name server, master and slave."""
    with (
        processes.our_name_server(tmp_path) as namesrv,
        processes.our_broker(tmp_path, "broker-a", namesrv, brokerClusterName="DefaultCluster") as (
            address,
            _process,
        ),
        contextlib.closing(Stage(address)) as stage,
        contextlib.closing(Wire(address)) as wire,
        contextlib.closing(Wire(namesrv)) as routes,
    ):
        processes.wait_registered(namesrv, "broker-a")
        stage.topic("GoldTopic")
        stage.messages("GoldTopic", 0, 2, key="key")
        asked, wrong, left_out = replay("r550-ADMIN", routes, {"namesrv"}, None)
        assert (asked, wrong, left_out) == (20, [], [])
        count, wrong, left_out = replay(
            "r550-ADMIN", wire, {"broker", "slave", "broker-vip"}, stage, ADMIN_LEFT_OUT
        )
    print(f"r550-ADMIN: {count} replayed; left out:", *sorted(set(left_out)), sep="\n  ")
    assert wrong == []
    assert count + len(left_out) == 62
    assert len(left_out) <= 4


def test_a_difference_is_seen() -> None:
    record = {"server": "broker"}
    request = {"code": 11, "extFields": {}}
    right = {"code": 0, "extFields": {"maxOffset": "1", "minOffset": "0"}, "body": b""}

    def differs(**changes: Any) -> bool:
        return differences("r550-JSON", record, request, right, {**right, **changes}) is not None

    assert not differs()
    assert not differs(extFields={"maxOffset": "2", "minOffset": "0"})
    assert differs(extFields={"maxOffset": "two", "minOffset": "0"})
    assert differs(extFields={"maxOffset": "1", "minOffset": "1"})
    assert differences("r550-JSON", record, request, right, {**right, "code": 19})
    assert differs(extFields={"maxOffset": "2", "minOffset": "0", "more": ""})
    assert differs(body=b"more")
    assert differences("r550-JSON", record, request, right, None)
    assert differences("r550-JSON", record, request, None, right)


def test_a_difference_of_a_pushed_reply_is_seen() -> None:
    (line,) = (
        line
        for line in (GOLDEN / "r550-JSON.jsonl").read_text().splitlines()
        if json.loads(line)["code"] == 326
    )
    pushed = decode(bytes.fromhex(json.loads(line)["request"]))
    assert push_difference("r550-JSON", pushed) is None
    assert push_difference("r550-JSON", {**pushed, "body": b"other"})
    fields = {**pushed["extFields"], "sysFlag": "1"}
    assert push_difference("r550-JSON", {**pushed, "extFields": fields})
    assert push_difference("r494-JSON", pushed)


def test_a_difference_of_bodies_is_seen() -> None:
    route = (
        b'{"brokerDatas":[{"brokerAddrs":{0:"127.0.0.1:10911",1:"127.0.0.1:10921"},"cluster":"C"}],'
        b'"queueDatas":[{"perm":6,"readQueueNums":8}]}'
    )
    ours = route.replace(b',1:"127.0.0.1:10921"', b"")
    assert body_difference(105, "", route, ours) is None
    assert body_difference(105, "", route, ours.replace(b'"perm":6', b'"perm":2'))
    assert body_difference(105, "", route, ours.replace(b'0:"127', b'2:"127'))
    assert body_difference(105, "", route, route.replace(b"10921", b"10922"))
    assert (
        body_difference(38, "", b'{"consumerIdList":["a"]}', b'{"consumerIdList":["a","golden@1"]}')
        is None
    )
    assert body_difference(
        38, "", b'{"consumerIdList":["a"]}', b'{"consumerIdList":["b","golden@1"]}'
    )
    assert (
        body_difference(
            202, "", b'{"offsetTable":{{"topic":"T"}:{"maxOffset":1}}}', b'{"offsetTable":{}}'
        )
        is None
    )
    assert body_difference(202, "", b'{"offsetTable":{}}', b'{"table":{}}')


@pytest.mark.feature("16b")
@pytest.mark.parametrize("name", ["r550-ROCKETMQ", "r494-ROCKETMQ"])
def test_requests_on_the_wire_are_java_s_bytes(name: str) -> None:
    """Each request of Java's clients with binary headers, sent by our client: the same bytes but
    for its number.
    """
    frames = [
        bytes.fromhex(json.loads(line)["request"])
        for line in (GOLDEN / f"{name}.jsonl").read_text().splitlines()
    ]
    frames = [frame for frame in frames if frame[4] == 1]
    assert len(frames) > 20
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        BlockingConnection(f"127.0.0.1:{listener.getsockname()[1]}") as connection,
    ):
        connection.send(decode_frame(frames[0][4:]))
        server, _ = listener.accept()
        with server:
            for number, frame in enumerate(frames):
                if number:
                    connection.send(decode_frame(frame[4:]))
                got = server.recv(len(frame), socket.MSG_WAITALL)
                assert got[:13] + got[17:] == frame[:13] + frame[17:], number
