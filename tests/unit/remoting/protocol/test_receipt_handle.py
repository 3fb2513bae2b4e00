"""Receipt handles and the lists of offsets of a pop, against frames of a Java broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq.remoting.core.errors import RemoteProtocolError
from triomq.remoting.protocol.bodies.check_point import Ack, CheckPoint
from triomq.remoting.protocol.receipt_handle import (
    ReceiptHandle,
    decode_offsets,
    decode_starts,
    encode_counts,
    encode_offsets,
    encode_starts,
)

GOLDEN = Path(__file__).parents[3] / "golden" / "wire" / "r550-POP.jsonl"
numbers = st.integers(0, 2**63 - 1)
places = st.tuples(st.integers(0, 2), st.integers(0, 999))


def ext_fields(code: int, side: str) -> list[dict[str, str]]:
    found = []
    for line in GOLDEN.read_text().splitlines():
        exchange = json.loads(line)
        if exchange["code"] == code and exchange[side]:
            frame = bytes.fromhex(exchange[side])
            length = int.from_bytes(frame[4:8], "big") & 0xFFFFFF
            found.append(json.loads(frame[8 : 8 + length])["extFields"])
    return found


def test_handles_of_java_s_client_are_read_and_written() -> None:
    acks = [fields["extraInfo"] for fields in ext_fields(200051, "request")]
    changes = [fields["extraInfo"] for fields in ext_fields(200053, "request")]
    assert len(acks + changes) == 3
    for text in acks + changes:
        handle = ReceiptHandle.decode(text)
        assert handle.encode() == text
        assert ReceiptHandle.decode(text + " 5") == handle  # a handle of gRPC
    assert ReceiptHandle.decode(changes[0]) == (0, 1795295025900, 60000, 0, 0, "broker-a", 3, 2)


def test_offsets_of_java_s_answers_are_read_and_written() -> None:
    answers = [fields for fields in ext_fields(200050, "response") if fields["startOffsetInfo"]]
    assert len(answers) == 2
    for fields in answers:
        starts = decode_starts(fields["startOffsetInfo"])
        offsets = decode_offsets(fields["msgOffsetInfo"])
        assert starts.keys() == offsets.keys()
        assert all(listed[0] == starts[place] for place, listed in offsets.items())
        assert encode_starts(starts) == fields["startOffsetInfo"]
        assert encode_offsets(offsets) == fields["msgOffsetInfo"]
    assert decode_starts("") == {}
    assert encode_counts([((0, 3), 17, 2), ((1, 0), 4, 1)]) == "0 qo3%17 2;1 qo0%4 1"


@given(st.tuples(numbers, numbers, numbers, st.integers(0, 999), st.integers(0, 2), numbers))
def test_any_handle_comes_back(values: tuple[int, int, int, int, int, int]) -> None:
    start, pop_time, invisible, revive, retry, queue_id = values
    handle = ReceiptHandle(start, pop_time, invisible, revive, retry, "b-1", queue_id, start)
    assert ReceiptHandle.decode(handle.encode()) == handle


@given(st.dictionaries(places, st.lists(numbers, min_size=1, max_size=5), max_size=5))
def test_any_offsets_come_back(offsets: dict[tuple[int, int], list[int]]) -> None:
    assert decode_offsets(encode_offsets(offsets)) == offsets
    starts = {place: listed[0] for place, listed in offsets.items()}
    assert decode_starts(encode_starts(starts)) == starts


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1 2 3 4 0 broker-a 1",
        "1 2 3 4 5 broker-a 1 1",
        "1 2 3 4 0  1 1",
        "5 2 3 4 0 broker-a 1 4",
        "1 2 3 4 0 broker-a 1 -1",
        "1 2 3 4 0 broker-a 1 ٣",
        "1 2 3 4 0 broker-a 1 99999999999999999999",
        "1 2 3 4 0 broker-a 1 1 1 1",
    ],
)
def test_what_is_not_a_handle_is_refused(text: str) -> None:
    with pytest.raises(RemoteProtocolError, match="give back the handle"):
        ReceiptHandle.decode(text)


@pytest.mark.parametrize("text", ["0 1", "0 1 x", "0 1 1;0 1 2", "a 1 1", "0 1 1;", ";"])
def test_what_is_not_a_list_of_offsets_is_refused(text: str) -> None:
    for decode in (decode_starts, decode_offsets):
        with pytest.raises(RemoteProtocolError):
            decode(text)


def test_records_of_the_revive_topic_have_java_s_members() -> None:
    text = (
        b'{"bm":0,"bn":"broker-a","c":"GroupA","d":[0,1],"it":60000,"n":2,"pt":1700000000000,'
        b'"q":3,"reviveTime":1700000060000,"ro":0,"so":100,"sp":false,"t":"TopicTest"}'
    )
    point = CheckPoint.decode(text)
    assert point.encode() == text.replace(b'"reviveTime":1700000060000,', b"")
    assert (point.offsets, point.visible_at) == ([100, 101], 1700000060000)
    assert point.unique_key == "TopicTest@3@100@GroupA@1700000000000@broker-a@ck"
    old = CheckPoint.decode(b'{"so":5,"pt":1,"it":2,"n":3,"q":0,"t":"T","c":"G"}')
    assert old.offsets == [5, 6, 7]
    ack = Ack(
        offset=101,
        start_offset=100,
        group="GroupA",
        topic="TopicTest",
        queue_id=3,
        pop_time=1700000000000,
        broker_name="broker-a",
    )
    assert ack.encode() == (
        b'{"ao":101,"bn":"broker-a","c":"GroupA","pt":1700000000000,"q":3,"so":100,"t":"TopicTest"}'
    )
    assert (ack.key, ack.tag, ack.offsets) == (point.key, "ack", [101])
    several = Ack.decode(
        b'{"ao":-1,"aol":[100,101],"bn":"broker-a","c":"GroupA","pt":1700000000000,"q":3,"so":100,'
        b'"t":"TopicTest"}'
    )
    assert (several.offsets, several.tag) == ([100, 101], "bAck")
