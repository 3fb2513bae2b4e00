"""Values of our classes are the same after encoding and decoding, on the fast and the slow path."""

from __future__ import annotations

import importlib
import os
import pkgutil
from typing import Any

import attrs
import pytest
from header_catalogue import HEADERS
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_records import encoded_record

from tests.support.protocol_strategies import NAMES, TEXT, bodies, headers
from triomq.remoting.core.errors import HeaderFieldError, RemoteProtocolError
from triomq.remoting.protocol import bodies as bodies_package
from triomq.remoting.protocol.batch import decode_batch, encode_batch
from triomq.remoting.protocol.bodies.auth import Acl
from triomq.remoting.protocol.bodies.pop import BatchAck, offset_bits
from triomq.remoting.protocol.bodies.route import QUEUES_MAX, TopicRoute
from triomq.remoting.protocol.bodies.schema import JsonBody, decode_array, encode_array
from triomq.remoting.protocol.bodies.timer import TimerCheckPoint
from triomq.remoting.protocol.bodies.topics import DataVersion
from triomq.remoting.protocol.codes import SerializeType
from triomq.remoting.protocol.command import (
    Command,
    decode_frame,
    encode_command,
    encode_response_head,
    request,
    response_to,
)
from triomq.remoting.protocol.fields import codec_of
from triomq.remoting.protocol.header_rocketmq_fast import (
    FIXED_BYTES_MAX,
    LEARN_EVERY,
    SHAPES_MAX,
    RepeatedHeaders,
)
from triomq.remoting.protocol.java_hash import concat_hash, hash_batch, java_hash
from triomq.remoting.protocol.message_properties import (
    decode_properties,
    encode_properties,
    property_value,
)
from triomq.remoting.protocol.record import StoredMessage
from triomq.remoting.protocol.record_reader import decode_records, read_record
from triomq.remoting.protocol.request_decoder import RequestDecoder

I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
FIELDS = ("code", "opaque", "flag", "language", "version", "remark", "ext", "body", "serialize")

HEADER_CLASSES = sorted(
    {cls for pair in HEADERS.values() for cls in (pair.request, pair.response) if cls is not None},
    key=lambda cls: cls.__name__,
)
EXAMPLES = int(os.environ.get("EXAMPLES", "100"))
"""``make nightly`` tries more."""
REQUESTS = [
    (code, pair.request, pair.short)
    for code, pair in sorted(HEADERS.items())
    if pair.request is not None
]
VARYING = [
    (code, cls, short)
    for code, cls, short in REQUESTS
    if any(field.varies for field in codec_of(cls).fields)
]
DECODER = RequestDecoder({code: (cls, short) for code, cls, short in REQUESTS})


def body_classes() -> list[type[JsonBody]]:
    found: list[type[JsonBody]] = []
    for module in pkgutil.iter_modules(bodies_package.__path__):
        names = vars(importlib.import_module(f"{bodies_package.__name__}.{module.name}"))
        found += [
            value
            for value in names.values()
            if isinstance(value, type)
            and issubclass(value, JsonBody)
            and attrs.has(value)
            and value.__module__.endswith("." + module.name)
        ]
    return found


COMMANDS = st.builds(
    Command,
    code=st.integers(-(2**15), 2**15 - 1),
    opaque=I32,
    flag=I32,
    language=st.integers(0, 13),
    version=st.integers(-(2**15), 2**15 - 1),
    remark=st.none() | TEXT,
    ext=st.none() | st.dictionaries(TEXT, TEXT, max_size=4),
    body=st.binary(max_size=20),
    serialize=st.sampled_from(SerializeType),
)


@given(COMMANDS)
def test_commands(command: Command) -> None:
    decoded = decode_frame(encode_command(command)[4:])
    if (
        command.serialize is SerializeType.ROCKETMQ
    ):  # has no way to tell nothing from an empty text or table
        command.remark = command.remark or None
        command.ext = command.ext or None
    for name in FIELDS:
        assert getattr(decoded, name) == getattr(command, name), name


@pytest.mark.parametrize("cls", HEADER_CLASSES, ids=lambda cls: cls.__name__)
@settings(max_examples=25)
@given(data=st.data())
def test_header_classes(cls: type, data: st.DataObject) -> None:
    header = data.draw(headers(cls))
    codec = codec_of(cls)
    for short in (False, True):
        assert codec.from_ext(codec.to_ext(header, short=short), short=short) == header
    for serialize in SerializeType:
        command = response_to(Command(0, opaque=5, serialize=serialize), 3, header)
        decoded = decode_frame(encode_command(command)[4:])
        assert decoded.serialize is serialize
        assert decoded.header(cls) == header
    remark = data.draw(st.none() | TEXT)
    expected = decode_frame(
        encode_command(response_to(Command(0, opaque=5), 3, header, b"x", remark))[4:]
    )
    got = decode_frame((encode_response_head(header, 3, 5, remark, 1) + b"x")[4:])
    for name in FIELDS:
        assert getattr(got, name) == getattr(expected, name), name


@settings(max_examples=EXAMPLES)
@given(
    data=st.data(), opaque=I32, serialize=st.sampled_from(SerializeType), remark=st.none() | TEXT
)
def test_requests_by_the_typed_decoder(
    data: st.DataObject, opaque: int, serialize: SerializeType, remark: str | None
) -> None:
    code, cls, _ = data.draw(st.sampled_from(REQUESTS))
    header = data.draw(headers(cls))
    command = request(code, header, b"body")
    command.opaque, command.serialize, command.remark = opaque, serialize, remark
    decoded = DECODER.decode(encode_command(command)[4:])
    assert (decoded[0], decoded[1], decoded[6], decoded[9]) == (code, opaque, header, b"body")


def differing(header: Any, data: st.DataObject) -> Any:
    """Return the next header of the same client: other values of the fields that vary, and now and
    then of others.
    """
    other = data.draw(headers(type(header)))
    anything = data.draw(st.integers(0, 5)) == 0
    return attrs.evolve(
        header,
        **{
            field.attribute: getattr(other, field.attribute)
            for field in codec_of(type(header)).fields
            if field.varies or (anything and data.draw(st.booleans()))
        },
    )


def entries(header: bytes) -> list[tuple[bytes, bytes]]:
    """Return name and value of each entry of a binary header."""
    found, position = [], 21
    while position < len(header):
        name_end = position + 2 + int.from_bytes(header[position : position + 2], "big")
        value_end = name_end + 4 + int.from_bytes(header[name_end : name_end + 4], "big")
        found.append((header[position + 2 : name_end], header[name_end + 4 : value_end]))
        position = value_end
    return found


def written(start: bytes, pairs: list[tuple[bytes, bytes]]) -> bytes:
    """Return a frame with these entries, body included."""
    ext = b"".join(
        len(name).to_bytes(2, "big") + name + len(value).to_bytes(4, "big") + value
        for name, value in pairs
    )
    header = start[:17] + len(ext).to_bytes(4, "big") + ext
    return (1 << 24 | len(header)).to_bytes(4, "big") + header + b"body"


ODD_VALUES = [
    b"",
    b"-1",
    b"+1",
    b"0",
    b"00",
    b"007",
    b"0" * 18,
    b" 7",
    b"7 ",
    b"1_0",
    b"1.0",
    b"1e2",
    b"\xd9\xa3",
    b"9" * 10,
    b"2147483648",
    b"9" * 19,
    b"9" * 40,
    b"\xff\xfe",
    b"null",
    b"true",
    "ä\x01".encode(),
]


@st.composite
def changed(draw: st.DrawFn, frame: bytes) -> bytes:
    """Return a similar frame: an entry is odd, missing, repeated, moved or new, or bytes are wrong
    or cut off.
    """
    header = frame[4 : 4 + (int.from_bytes(frame[:4], "big") & 0xFFFFFF)]
    pairs = entries(header)
    place = draw(st.integers(0, len(pairs) - 1))
    way = draw(
        st.sampled_from(
            [
                "odd",
                "odd",
                "odd",
                "missing",
                "repeated",
                "moved",
                "new",
                "byte",
                "byte",
                "cut",
                "longer",
                "size",
            ]
        )
    )
    if way == "odd":
        pairs[place] = pairs[place][0], draw(st.sampled_from(ODD_VALUES))
    elif way == "missing":
        del pairs[place]
    elif way == "repeated":
        pairs.insert(
            draw(st.integers(0, len(pairs))),
            (pairs[place][0], draw(st.sampled_from([*ODD_VALUES, b"5"]))),
        )
    elif way == "moved":
        pairs.append(pairs.pop(place))
    elif way == "new":
        pairs.insert(
            place, (draw(st.sampled_from([b"e", b"z", b"queueId", b"Signature", b""])), b"3")
        )
    elif way in ("byte", "size"):
        where = (
            draw(st.integers(0, len(header) - 1)) if way == "byte" else draw(st.integers(13, 20))
        )
        value = draw(st.integers(0, 255))
        header = header[:where] + bytes([value]) + header[where + 1 :]
        return frame[:4] + header + b"body"
    elif way in ("cut", "longer"):
        header = (
            header[: draw(st.integers(0, len(header) - 1))]
            if way == "cut"
            else header + draw(st.binary(min_size=1, max_size=6))
        )
        return (1 << 24 | len(header)).to_bytes(4, "big") + header + b"body"
    return written(header, pairs)


def said(decoder: RequestDecoder, frame: bytes) -> Any:
    try:
        return decoder.decode(frame)
    except (HeaderFieldError, RemoteProtocolError) as error:
        return type(error), str(error)


@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_repeated_binary_headers_are_read_as_by_the_slow_path(data: st.DataObject) -> None:
    """A decoder with learned headers and a new one agree on any header, well-formed or not."""
    code, cls, short = data.draw(st.sampled_from(VARYING))
    table = {code: (cls, short)}
    experienced = RequestDecoder(table)
    header = data.draw(headers(cls))
    for _ in range(data.draw(st.integers(2, 5))):
        command = request(code, header)
        command.opaque, command.serialize = data.draw(I32), SerializeType.ROCKETMQ
        frame = encode_command(command)[4:] + b"body"
        if data.draw(st.booleans()):
            frame = data.draw(changed(frame))
        assert said(experienced, frame) == said(RequestDecoder(table), frame)
        header = differing(header, data)


def binary(code: int, cls: type, number: int, **fixed: Any) -> tuple[bytes, Any]:
    """Return a header and its object; all values that vary are ``number``."""
    values: dict[str, Any] = {
        field.attribute: {str: "x", int: 7, bool: True, float: 1.0}[field.kind]
        for field in codec_of(cls).fields
    }
    varied = {
        field.attribute: number if field.kind is int else str(number)
        for field in codec_of(cls).fields
        if field.varies
    }
    header = cls(**{**values, **varied, **fixed})
    command = request(code, header)
    command.opaque, command.serialize = number, SerializeType.ROCKETMQ
    return encode_command(command)[8:], header


@pytest.mark.parametrize(("code", "cls", "short"), VARYING, ids=str)
def test_binary_headers_are_learned(code: int, cls: type, short: bool) -> None:
    """Otherwise the test before this one shows nothing."""
    repeated = RepeatedHeaders()
    for number in (7, 8, 123456):
        data, header = binary(code, cls, number)
        read = repeated.read(data)
        if number == 7:
            assert read is None
            repeated.learn(data, cls, short, header)
        else:
            assert read is not None
            assert (read[:3], read[5]) == ((code, number, 0), header)


@pytest.mark.parametrize("text", ODD_VALUES, ids=str)
@pytest.mark.parametrize(("code", "cls", "short"), VARYING, ids=str)
def test_odd_values_are_read_as_by_the_slow_path(
    code: int, cls: type, short: bool, text: bytes
) -> None:
    table = {code: (cls, short)}
    experienced = RequestDecoder(table)
    data, _ = binary(code, cls, 7)
    experienced.decode(written(data, entries(data)))
    for place, (name, _) in enumerate(entries(data)):
        pairs = entries(data)
        pairs[place] = name, text
        frame = written(data, pairs)
        assert said(experienced, frame) == said(RequestDecoder(table), frame), name


def test_what_is_learned_is_bounded() -> None:
    """A client whose headers are all different or long does not fill the memory."""
    code, cls, short = next(row for row in VARYING if row[0] == 310)
    repeated = RepeatedHeaders()

    def learned(data: bytes, header: Any) -> bool:
        for _ in range(LEARN_EVERY):
            repeated.learn(data, cls, short, header)
        return repeated.read(data) is not None

    assert not learned(*binary(code, cls, 7, producer_group="g" * FIXED_BYTES_MAX)), "too long"
    assert learned(*binary(code, cls, 7, properties="p" * 60_000)), "what varies may be long"
    repeated = RepeatedHeaders()
    for number in range(3 * LEARN_EVERY):
        data, header = binary(code, cls, 7, producer_group=f"group {number}")
        repeated.learn(data, cls, short, header)
    assert len(repeated) == 3
    for number in range(SHAPES_MAX + 10):
        assert learned(*binary(code, cls, 7, producer_group=f"group {number}"))
        assert len(repeated) <= SHAPES_MAX


@pytest.mark.parametrize("cls", body_classes(), ids=lambda cls: cls.__name__)
@settings(max_examples=20)
@given(data=st.data())
def test_body_classes(cls: type[JsonBody], data: st.DataObject) -> None:
    body = data.draw(bodies(cls))
    if isinstance(body, TopicRoute):  # what a reader refuses is another test's
        counts = QUEUES_MAX // max(1, len(body.queue_datas))
        queues = [
            attrs.evolve(
                queue,
                read_queue_count=min(queue.read_queue_count, counts),
                write_queue_count=min(queue.write_queue_count, counts),
            )
            for queue in body.queue_datas
        ]
        body = attrs.evolve(body, queue_datas=queues)
    assert cls.decode(body.encode()) == body
    assert cls.decode(body.encode(bare_keys=True)) == body


def test_all_body_classes_were_found() -> None:
    assert len(body_classes()) > 80
    assert len(HEADER_CLASSES) > 80


@given(st.lists(bodies(Acl), max_size=3))
def test_arrays_of_bodies(acls: list[Acl]) -> None:
    assert decode_array(Acl, encode_array(acls)) == acls


@given(
    st.builds(
        TimerCheckPoint,
        last_read_ms=I64,
        last_flushed_position=I64,
        last_queue_offset=I64,
        master_queue_offset=I64,
        data_version=st.none() | st.builds(DataVersion, I64, I64, I64),
    )
)
def test_timer_check_points(point: TimerCheckPoint) -> None:
    assert TimerCheckPoint.decode(point.encode()) == point


@given(st.sets(st.integers(0, 300)), st.integers(-(2**40), 2**40))
def test_bit_sets_of_offsets(places: set[int], start: int) -> None:
    offsets = sorted(start + place for place in places)
    ack = BatchAck(
        consumer_group="g",
        topic="t",
        start_offset=start,
        queue_id=1,
        revive_queue_id=2,
        pop_time=3,
        invisible_ms=4,
        bits=offset_bits(start, offsets),
    )
    assert ack.offsets() == offsets


PROPERTIES = st.dictionaries(
    st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=6),
    st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=6),
    max_size=5,
)


@given(PROPERTIES, st.text("abA", min_size=1, max_size=3))
def test_properties(properties: dict[str, str], name: str) -> None:
    data = encode_properties(properties)
    assert decode_properties(data) == decode_properties(data[:-1]) == properties
    value = properties.get(name)
    assert property_value(data, name.encode()) == (value.encode() if value else None)


@given(st.text("AB\x01\x02", max_size=12), st.sampled_from(["A", "B", "AB"]))
def test_one_property_of_any_text_is_what_the_whole_says(text: str, name: str) -> None:
    expected = decode_properties(text.encode()).get(name)
    assert property_value(text.encode(), name.encode()) == (expected.encode() if expected else None)


@given(st.lists(st.tuples(I32, st.binary(max_size=9), st.binary(max_size=9)), max_size=5))
def test_batches(elements: list[tuple[int, bytes, bytes]]) -> None:
    assert decode_batch(encode_batch(elements)) == elements


RECORDS = st.fixed_dictionaries(
    {
        "topic": NAMES | st.just("T" * 200) | st.just("中" * 50),
        "queue_id": I32,
        "queue_offset": I64,
        "log_offset": I64,
        "body": st.binary(max_size=30),
        "properties": st.builds(encode_properties, PROPERTIES),
        "born_timestamp": I64,
        "born_host": st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20),
        "store_timestamp": I64,
        "store_host": st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20),
        "flag": I32,
        "sys_flag": I32,
        "reconsume_times": I32,
        "prepared_transaction_offset": I64,
        "append_crc": st.booleans(),
    }
)


@given(st.lists(RECORDS, min_size=1, max_size=3))
def test_records(rows: list[dict[str, Any]]) -> None:
    data = b"".join(encoded_record(**row) for row in rows)
    messages = decode_records(data, check_crc=True)
    position = 0
    for row, message in zip(rows, messages, strict=True):
        for name in (
            "topic",
            "queue_id",
            "queue_offset",
            "log_offset",
            "body",
            "born_timestamp",
            "flag",
            "reconsume_times",
        ):
            assert getattr(message, name) == row[name]
        assert (message.born_host_bytes, message.store_host_bytes) == (
            row["born_host"],
            row["store_host"],
        )
        assert message.sys_flag & ~0x30 == row["sys_flag"] & ~0x30
        stored = dict(message.properties)
        assert (stored.pop("__CRC32#", None) is not None) == row["append_crc"]
        assert stored == decode_properties(row["properties"])
        found = read_record(data, position, len(data))
        assert isinstance(found, StoredMessage)
        assert (found.size, found.topic) == (message.size, message.topic)
        position += message.size
    assert position == len(data)


@given(st.text(max_size=200), st.text(max_size=20), st.lists(TEXT, max_size=10))
def test_hashes(text: str, other: str, keys: list[str]) -> None:
    assert concat_hash(
        java_hash(text), java_hash(other), len(other.encode("utf-16-be")) // 2
    ) == java_hash(text + other)
    assert hash_batch(other, keys) == [java_hash(other + key) for key in keys]
