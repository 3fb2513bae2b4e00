"""What a Java consumer in POP mode asked a 5.5.0 broker, asked of ours: the answers have the same
code, remark and fields, and say the same of the same messages.

The requests go out as they were captured, but for times: a request that is a year old is refused.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from brokers import BrokerPeer, peer_of, running_broker

from triomq.remoting.client.connector import Connector, ConnectorConfig
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.record_reader import decode_records
from triomq.testing import local_cluster

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "wire" / "r550-POP.jsonl"
STORED = {0: 7, 1: 4, 2: 4, 3: 3}
"""Messages of GoldTopic by queue, when the capture began."""
Frame = dict[str, Any]


def decoded(frame: str) -> Frame:
    data = bytes.fromhex(frame)
    length = int.from_bytes(data[5:8])
    return {**json.loads(data[8 : 8 + length]), "body": data[8 + length :]}


def captured(code: Code) -> list[tuple[Frame, Frame]]:
    """Return the requests of a code that the broker answered, with the answers."""
    rows = [json.loads(line) for line in GOLDEN.read_text().splitlines()]
    found = [
        (decoded(row["request"]), decoded(row["response"]))
        for row in rows
        if row["code"] == code and row["server"] == "broker" and row["response"]
    ]
    assert found, code
    return found


@attrs.define(eq=False)
class Wire:
    """A connection that speaks without our codec."""

    stream: trio.SocketStream
    opaque: int = 0

    async def ask(self, request: Frame, **changes: object) -> Frame:
        self.opaque += 1
        header = {key: value for key, value in request.items() if key != "body"}
        header["opaque"] = self.opaque
        if "extFields" in header:
            changed = {name: str(value) for name, value in changes.items()}
            header["extFields"] = {**header["extFields"], **changed}
        text, body = json.dumps(header).encode(), request["body"]
        size = 4 + len(text) + len(body)
        await self.stream.send_all(
            size.to_bytes(4) + len(text).to_bytes(4) + text + body  # 0 as the type: JSON
        )
        while True:
            answer = decoded((await self._frame()).hex())
            if answer["opaque"] == self.opaque and answer["flag"] & 1:
                return answer

    async def _frame(self) -> bytes:
        data = b""
        with trio.fail_after(20):
            while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4]):
                wanted = 4 if len(data) < 4 else 4 + int.from_bytes(data[:4])
                more = await self.stream.receive_some(wanted - len(data))
                assert more, "the broker closed the connection"
                data += more
        return data


@asynccontextmanager
async def stage(folder: Path) -> AsyncIterator[tuple[Wire, BrokerPeer]]:
    """A broker with what the captured one had, and the consumer as a member of its group."""
    async with local_cluster(dir=folder) as cluster, Connector(ConnectorConfig()) as connector:
        address = cluster.broker("broker-a").address
        peer = BrokerPeer(connector, address)
        await peer.create_topic("GoldTopic", 4)
        await peer.create_topic("%RETRY%gpop", 1)
        for queue_id, count in STORED.items():
            for number in range(count):
                await peer.send("GoldTopic", b"%d" % number, queue_id=queue_id)
        host, _, port = address.rpartition(":")
        stream = await trio.open_tcp_stream(host, int(port))
        async with stream:
            wire = Wire(stream)
            request, wanted = captured(Code.HEART_BEAT)[0]
            assert (await wire.ask(request))["code"] == wanted["code"] == 0
            yield wire, peer


def places(text: str) -> set[str]:
    return set(text.split(";"))


def now_ms() -> int:
    return int(time.time() * 1000)


async def popped(wire: Wire) -> tuple[Frame, Frame]:
    request, wanted = captured(Code.POP_MESSAGE)[0]
    return await wire.ask(request, bornTime=now_ms()), wanted


async def test_a_pop_finds_what_it_found_there(tmp_path: Path) -> None:
    async with stage(tmp_path) as (wire, _):
        got, wanted = await popped(wire)
        assert (got["code"], got["remark"]) == (wanted["code"], wanted["remark"])
        mine, theirs = got["extFields"], wanted["extFields"]
        assert mine.keys() == theirs.keys()
        for name in ("startOffsetInfo", "msgOffsetInfo"):
            assert places(mine[name]) == places(theirs[name])
        for name in ("invisibleTime", "restNum"):
            assert mine[name] == theirs[name]
        found, there = decode_records(got["body"]), decode_records(wanted["body"])
        assert {(each.queue_id, each.queue_offset) for each in found} == {
            (each.queue_id, each.queue_offset) for each in there
        }
        assert all("POP_CK" not in each.properties for each in (*found, *there))


async def test_an_empty_pop_is_answered_as_there(tmp_path: Path) -> None:
    async with stage(tmp_path) as (wire, _):
        await popped(wire)
        request, wanted = captured(Code.POP_MESSAGE)[2]
        assert wanted["code"] == ResponseCode.POLLING_TIMEOUT
        got = await wire.ask(request, bornTime=now_ms(), pollTime=200)
        assert (got["code"], got["remark"]) == (wanted["code"], wanted["remark"])
        fields = wanted["extFields"]
        assert got["extFields"].keys() == fields.keys()
        for name in ("startOffsetInfo", "msgOffsetInfo", "invisibleTime", "restNum"):
            assert got["extFields"][name] == fields[name]


async def test_acknowledgements_and_another_time_are_answered_as_there(tmp_path: Path) -> None:
    async with stage(tmp_path) as (wire, _):
        answer, theirs = await popped(wire)
        fields, captured_fields = answer["extFields"], theirs["extFields"]

        def receipt(request: Frame) -> str:
            """The captured handle, with the time and the revive queue of our pop."""
            parts = request["extFields"]["extraInfo"].split()
            assert (parts[1], parts[3]) == (
                captured_fields["popTime"],
                captured_fields["reviveQid"],
            )
            parts[1], parts[3] = fields["popTime"], fields["reviveQid"]
            return " ".join(parts)

        for request, wanted in captured(Code.ACK_MESSAGE):
            got = await wire.ask(request, extraInfo=receipt(request))
            assert (got["code"], got.get("remark"), got["body"]) == (0, wanted.get("remark"), b"")
        ((request, wanted),) = captured(Code.CHANGE_MESSAGE_INVISIBLETIME)
        got = await wire.ask(request, extraInfo=receipt(request))
        assert got["code"] == wanted["code"] == 0
        assert got["extFields"].keys() == wanted["extFields"].keys()
        assert got["extFields"]["invisibleTime"] == wanted["extFields"]["invisibleTime"]
        assert got["extFields"]["reviveQid"] == fields["reviveQid"]


async def test_assignments_are_those_of_there(tmp_path: Path) -> None:
    """The retry topic is pulled, whatever the mode of the group."""
    async with stage(tmp_path) as (wire, peer):
        mode = {"consumerGroup": "gpop", "mode": "POP", "popShareQueueNum": 8, "topic": "GoldTopic"}
        answer = await peer.call(Code.SET_MESSAGE_REQUEST_MODE, None, json.dumps(mode).encode())
        assert answer.code == 0, answer.remark
        assert len(captured(Code.QUERY_ASSIGNMENT)) == 2
        for request, wanted in captured(Code.QUERY_ASSIGNMENT):
            got = await wire.ask(request)
            assert (got["code"], json.loads(got["body"])) == (0, json.loads(wanted["body"]))


@pytest.mark.parametrize("left", [False, True])
async def test_state_of_a_key_value_store_is_not_forgotten(tmp_path: Path, left: bool) -> None:
    """POP_ROLLBACK has nothing to do, unless a Java broker has left messages in flight."""
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        if left:
            (tmp_path / "kvStore").mkdir()
            (tmp_path / "kvStore" / "CURRENT").write_bytes(b"MANIFEST-000004\n")
        answer = await peer.call(Code.POP_ROLLBACK)
        assert answer.code == (ResponseCode.SYSTEM_ERROR if left else 0)
        assert ("start the Java broker" in (answer.remark or "")) == left
