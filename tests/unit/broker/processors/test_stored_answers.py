"""The template writes the same bytes as the ordinary encoder of responses."""

from __future__ import annotations

from typing import cast

import attrs
import pytest

from triomq.broker.processors.send.admission import Target
from triomq.broker.processors.send.stored_answers import PendingAnswer, SendBatch, StoredAnswers
from triomq.broker.services.statistics import Item
from triomq.broker.store.core.draft import Appended
from triomq.remoting.protocol.codes import SerializeType
from triomq.remoting.protocol.command import Command, decode_frame, encode_response_head
from triomq.remoting.server.connection import Connection
from triomq.remoting.server.requests import Request, Response

HOST = bytes([10, 1, 2, 3]) + (10911).to_bytes(4, "big")


@attrs.define(eq=False)
class Wire:
    """Stands for a connection; keeps the bytes of each write."""

    writes: list[bytes] = attrs.field(factory=list)

    def write(self, pieces: list[bytes]) -> None:
        self.writes.append(b"".join(pieces))

    def commands(self) -> list[Command]:
        data, found = b"".join(self.writes), []
        while data:
            size = 4 + int.from_bytes(data[:4], "big")
            found.append(decode_frame(data[4:size]))
            data = data[size:]
        return found


def request(
    wire: Wire, opaque: int, *, oneway: bool = False, serialize: SerializeType = SerializeType.JSON
) -> Request:
    connection = cast("Connection", wire)
    return Request(connection, 310, opaque, oneway, 479, 12, serialize, None, b"", 0.0, b"")


def target() -> Target:
    return Target("T", 8, 8, Item(), Item())


def sent(requests: list[Request], places: list[Appended]) -> SendBatch:
    return SendBatch(requests, [None] * len(requests), places=places)


@pytest.mark.parametrize("serialize", SerializeType)
@pytest.mark.parametrize("region", ["DefaultRegion", '100% "sure" ä', "", "%" * 0x25])
def test_the_template_and_the_encoder_write_the_same(region: str, serialize: SerializeType) -> None:
    answers = StoredAnswers(HOST, region, True)
    wire, goal = Wire(), target()
    entry = PendingAnswer(0, 0, goal, 3, "A" * 32, True)
    batch = sent([request(wire, 4711, serialize=serialize)], [Appended(0x1234ABCD, 300, 77, 0)])
    answers.send(batch, [entry])
    assert batch.answers == [None]
    ordinary = answers.response(batch, entry)
    assert wire.writes == [
        encode_response_head(ordinary.header, ordinary.code, 4711, None, 0, serialize)
    ]
    (command,) = wire.commands()
    assert command.ext == {
        "msgId": "0A01020300002A9F000000001234ABCD", "queueId": "3", "queueOffset": "77",
        "transactionId": "A" * 32,
        "MSG_REGION": region, "TRACE_ON": "true",
    }  # fmt: skip
    assert (goal.puts.value, goal.put_bytes.value) == (2, 600), "both ways count"


def test_one_write_for_each_connection_and_none_for_one_way_requests() -> None:
    answers = StoredAnswers(HOST, "R", False)
    wires = [Wire(), Wire(), Wire()]
    order = [0, 1, 0, 2, 1, 0]
    requests = [
        request(wires[number], index, oneway=number == 2) for index, number in enumerate(order)
    ]
    goal = target()
    entries = [PendingAnswer(index, index, goal, 0, "k", True) for index in range(len(order))]
    answers.send(
        sent(requests, [Appended(index, 10, index, 0) for index in range(len(order))]), entries
    )
    assert [len(wire.writes) for wire in wires] == [1, 1, 0]
    assert [command.opaque for command in wires[0].commands()] == [0, 2, 5]
    assert [command.opaque for command in wires[1].commands()] == [1, 4]
    assert goal.puts.value == 6


def test_messages_that_the_template_cannot_answer_get_a_response() -> None:
    answers = StoredAnswers(HOST, "R", True)
    wire, goal = Wire(), target()
    requests = [request(wire, 0), request(wire, 1), request(wire, 2), request(wire, 3)]
    entries = [
        PendingAnswer(0, 0, goal, 0, 'a"b', True),
        PendingAnswer(1, 1, goal, 0, "k", True, records=3, messages=3),
        PendingAnswer(2, 4, goal, 0, "", True),
        PendingAnswer(3, 5, goal, 5, "k", True),
    ]
    batch = sent(requests, [Appended(100 * index, 100, index, 0) for index in range(6)])
    answers.send(batch, entries)
    assert [isinstance(answer, Response) for answer in batch.answers] == [True, True, True, False]
    quoted, joined = batch.answers[0], batch.answers[1]
    assert isinstance(quoted, Response)
    assert isinstance(joined, Response)
    assert quoted.header.transaction_id == 'a"b'
    assert joined.header.message_id.count(",") == 2
    assert joined.header.queue_offset == 1
    (command,) = wire.commands()
    assert command.opaque == 3
    assert (command.ext or {})["queueId"] == "5"
    assert (command.ext or {})["msgId"].endswith(f"{500:016X}")
    assert (goal.puts.value, goal.put_bytes.value) == (6, 600)
