"""Readers give the same result for any pieces, and for any bytes raise only RemoteProtocolError."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

from header_catalogue import HEADERS
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.golden_data import exchanges
from triomq.remoting.core.errors import FrameError, RemoteProtocolError
from triomq.remoting.protocol import header_json, header_rocketmq
from triomq.remoting.protocol.batch import decode_batch
from triomq.remoting.protocol.bodies.heartbeat import HeartbeatData
from triomq.remoting.protocol.bodies.offsets import ConsumeStats
from triomq.remoting.protocol.bodies.registration import decode_registration
from triomq.remoting.protocol.bodies.route import TopicRoute
from triomq.remoting.protocol.command import decode_frame
from triomq.remoting.protocol.fastjson import loads
from triomq.remoting.protocol.framing import FrameBuffer
from triomq.remoting.protocol.message_properties import decode_properties
from triomq.remoting.protocol.peer import ClientPeer
from triomq.remoting.protocol.record import encode_record
from triomq.remoting.protocol.record_reader import decode_records, read_record
from triomq.remoting.protocol.request_decoder import RequestDecoder

GOLDEN_FRAMES = [
    frame for exchange in exchanges() for frame in (exchange.request, exchange.response) if frame
]
DECODER = RequestDecoder({code: (pair.request, pair.short) for code, pair in HEADERS.items()})
LIMIT = 4096

GOOD = st.builds(
    lambda header, body: (
        (4 + len(header) + len(body)).to_bytes(4, "big")
        + len(header).to_bytes(4, "big")
        + header
        + body
    ),
    st.binary(max_size=20),
    st.binary(max_size=20),
)
RECORD = encode_record(
    topic="T",
    queue_id=1,
    queue_offset=2,
    log_offset=3,
    body=b"body",
    properties=b"TAGS\x01A\x02",
    born_timestamp=4,
    born_host=bytes(8),
    store_timestamp=5,
    store_host=bytes(20),
)


def pieces(data: bytes, cuts: list[int]) -> Iterator[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for start, end in itertools.pairwise(places):
        yield data[start:end]


def outcome(stream: Iterator[bytes]) -> tuple[list[bytes], str | None]:
    """Return all frames of a stream, and the reason why it is refused after them."""
    buffer = FrameBuffer(LIMIT)
    frames: list[bytes] = []
    for piece in stream:
        try:
            frames += buffer.feed(piece)
        except FrameError as error:
            return frames + error.frames, error.reason
    return frames, None


@given(st.lists(GOOD, max_size=6), st.lists(st.integers(0, 1000), max_size=10))
def test_any_split_gives_the_same_frames(whole: list[bytes], cuts: list[int]) -> None:
    data = b"".join(whole)
    assert outcome(pieces(data, cuts)) == ([frame[4:] for frame in whole], None)


@given(
    st.lists(GOOD, max_size=3), st.binary(max_size=60), st.lists(st.integers(0, 1000), max_size=10)
)
def test_any_split_of_any_bytes_ends_the_same_way(
    whole: list[bytes], rest: bytes, cuts: list[int]
) -> None:
    data = b"".join(whole) + rest
    expected = outcome(iter([data]))
    assert outcome(pieces(data, cuts)) == expected
    assert outcome(data[place : place + 1] for place in range(len(data))) == expected


@settings(max_examples=50)
@given(
    st.lists(st.sampled_from(GOLDEN_FRAMES), min_size=1, max_size=5),
    st.lists(st.integers(0, 20_000), max_size=8),
)
def test_golden_frames_in_any_pieces_are_the_same_commands(
    whole: list[bytes], cuts: list[int]
) -> None:
    buffer = FrameBuffer()
    commands = [
        decode_frame(frame)
        for piece in pieces(b"".join(whole), cuts)
        for frame in buffer.feed(piece)
    ]
    for command, frame in zip(commands, whole, strict=True):
        alone = decode_frame(frame[4:])
        assert (command.code, command.opaque, command.ext) == (alone.code, alone.opaque, alone.ext)
        assert (command.flag, command.remark, command.body) == (
            alone.flag,
            alone.remark,
            alone.body,
        )


@settings(max_examples=300)
@given(
    st.sampled_from(GOLDEN_FRAMES),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=6),
    st.integers(0, 3),
)
def test_damaged_golden_frames_are_read_or_refused(
    frame: bytes, changes: list[tuple[int, int]], cut: int
) -> None:
    data = bytearray(frame[: len(frame) - cut])
    for place, value in changes:
        data[place % len(data)] = value
    read_or_refuse(bytes(data))


@given(st.integers(0, 2), st.binary(max_size=80), st.binary(max_size=8))
@example(0, b'{"code":310,"extFields":{"a":1}}', b"")
@example(0, b'{"code":310,"flag":1}', b"")
@example(0, b'{"code":34,"extFields":null,"language":{}}', b"")
@example(0, b'{"code":1e1,"opaque":1e-1}', b"")
@example(0, b'{"remark":["\\ud800"],"extFields":{"\\udc00":1}}', b"")
@example(1, bytes(21), b"")
def test_arbitrary_headers_are_read_or_refused(kind: int, header: bytes, body: bytes) -> None:
    inside = (kind << 24 | len(header)).to_bytes(4, "big") + header + body
    read_or_refuse(len(inside).to_bytes(4, "big") + inside)


def read_or_refuse(data: bytes) -> None:
    """Both decoders read the frame, or both raise RemoteProtocolError."""
    try:
        frames = FrameBuffer().feed(data)
    except RemoteProtocolError:
        return
    for frame in frames:
        try:
            command = decode_frame(frame)
        except RemoteProtocolError:
            command = None
        try:
            decoded = DECODER.decode(frame)
        except RemoteProtocolError:
            continue
        assert command is not None
        assert decoded[:6] == (
            command.code,
            command.opaque,
            command.flag,
            command.version,
            command.language,
            command.remark,
        )
        cls = (
            HEADERS[command.code].request
            if command.code in HEADERS and not command.is_response
            else None
        )
        if cls is not None:
            assert decoded[6] == command.header(cls)


@given(st.binary(max_size=200))
@example(b"{a:{b:{}}}")
@example(b"x\x9c")
def test_arbitrary_bytes_are_read_or_refused(data: bytes) -> None:
    for read in (
        loads,
        header_json.decode_header,
        header_rocketmq.decode_header,
        decode_batch,
        decode_records,
        TopicRoute.decode,
        HeartbeatData.decode,
        ConsumeStats.decode,
        decode_properties,
        lambda data: decode_registration(data, 479),
        lambda data: ClientPeer[None]().receive(data),
    ):
        with contextlib.suppress(RemoteProtocolError):
            read(data)


JSONISH = st.recursive(
    st.sampled_from(
        ["1", "-2.5", "true", "null", '"x"', "'y'", "bare", '{"$ref":"$.a"}', "9" * 25]
    ),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{','.join(items)}]")
        | st.lists(
            st.tuples(
                st.sampled_from(['"a"', "0", "topic", '{"topic":"T"}', "offsetTable"]), inner
            ),
            max_size=3,
        ).map(lambda items: f"{{{','.join(f'{key}:{value}' for key, value in items)}}}")
    ),
    max_leaves=8,
)


@given(JSONISH)
def test_jsonish_text_is_read_or_refused(text: str) -> None:
    for read in (loads, TopicRoute.decode, HeartbeatData.decode, ConsumeStats.decode):
        with contextlib.suppress(RemoteProtocolError):
            read(text.encode())


@given(
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=4),
    st.integers(0, 120),
)
def test_damaged_records_are_read_or_refused(changes: list[tuple[int, int]], cut: int) -> None:
    data = bytearray(RECORD + RECORD)
    for place, value in changes:
        data[place % len(data)] = value
    shown = bytes(data[: len(data) - cut])
    found = read_record(shown, 0, len(shown))
    assert isinstance(found, str) or found.size <= len(shown)
    with contextlib.suppress(RemoteProtocolError):
        decode_records(shown, check_crc=True)
