"""The gRPC session: any split of bytes, any windows, any mixture of calls, any garbage."""

from __future__ import annotations

import attrs
from http2_pair import (
    ACK,
    BLOCK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    HELLO,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Pair,
    call_frames,
    frame,
    message,
    new_session,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from triomq.remoting.grpc.frames import SessionRefused
from triomq.remoting.grpc.grpc_settings import GrpcSettings
from triomq.remoting.grpc.http2_session import CallEnded, CallStarted, Http2Session
from triomq.remoting.grpc.message_reader import MessageReader
from triomq.remoting.grpc.status import CallFailed, GrpcStatus, decode_text, encode_text
from triomq.remoting.protocol.limits import Limits

INITIAL_WINDOW, MAX_FRAME = 4, 5

TALK = (
    HELLO
    + frame(SETTINGS, ACK, 0)
    + call_frames(1, b"one")
    + frame(HEADERS, 0, 3, BLOCK[:7])
    + frame(9, END_HEADERS, 3, BLOCK[7:])
    + frame(DATA, 0, 3, message(b"two")[:3])
    + frame(PING, 0, 0, b"12345678")
    + frame(DATA, 0, 3, message(b"two")[3:] + message(b""))
    + call_frames(5, bytes(70_000))
    + frame(GOAWAY, 0, 0, bytes(8) + b"debug data " * 20)
    + frame(WINDOW_UPDATE, 0, 0, (1000).to_bytes(4))
    + frame(0xFA, 0, 0, b"an extension")
    + frame(RST_STREAM, 0, 5, (8).to_bytes(4))
    + frame(DATA, END_STREAM, 3, message(b"three"))
    + frame(GOAWAY, 0, 0, bytes(8))
)


@attrs.define
class Heard:
    """What a session made of the bytes of a client."""

    events: set[tuple[str, int]] = attrs.field(factory=set)
    messages: dict[int, list[bytes]] = attrs.field(factory=dict)
    output: bytes = b""


def heard(session: Http2Session, pieces: list[bytes]) -> Heard:
    result = Heard()
    for piece in pieces:
        session.receive(piece, 1.0)
        for event in session.take_events():
            result.events.add((type(event).__name__, event.call))
        for call in (1, 3):
            while (one := session.take_message(call)) is not None:
                result.messages.setdefault(call, []).append(one)
        result.output += session.take_output()
    for call in (1, 3):
        assert session.requests_ended(call)
        session.finish(call, None)
    result.output += session.take_output()
    assert session.calls == 0
    assert session.buffers.kept_bytes == 0
    return result


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces = []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    return [piece for piece in (*pieces, data) if piece]


WHOLE = heard(new_session(), [TALK])


@given(sizes=st.lists(st.integers(1, 60), max_size=60))
def test_any_split_means_the_same(sizes: list[int]) -> None:
    found = heard(new_session(), cut(TALK, sizes))
    assert found.messages == WHOLE.messages == {1: [b"one"], 3: [b"two", b"", b"three"]}
    # A call that begins and is reset in one piece never was one.
    assert found.events - {("CallStarted", 5), ("CallReadable", 5), ("CallEnded", 5)} == {
        event for event in WHOLE.events if event[1] != 5
    }
    assert found.output == WHOLE.output


@given(
    messages=st.lists(st.binary(max_size=300), max_size=8),
    window=st.integers(0, 400),
    grants=st.integers(1, 300),
    streams=st.integers(1, 3),
)
def test_answers_come_whole_and_in_order_through_any_window(
    messages: list[bytes], window: int, grants: int, streams: int
) -> None:
    pair = Pair({INITIAL_WINDOW: window})
    pair.acknowledges = False
    calls = [pair.call(b"x") for _ in range(streams)]
    for one in messages:
        for call in calls:
            pair.session.send_message(call, one)
    for call in calls:
        pair.session.finish(call, None)
    pair.exchange()
    while not all(pair.answers[call].ended for call in calls):
        for call in calls:
            if not pair.answers[call].ended:
                pair.client.increment_flow_control_window(grants, call)
        pair.exchange()
    assert all(pair.answers[call].messages == messages for call in calls)
    assert all(pair.answers[call].status == 0 for call in calls)


@given(
    messages=st.lists(st.binary(max_size=40_000), max_size=6),
    order=st.randoms(use_true_random=False),
)
@settings(max_examples=30)
def test_requests_come_whole_and_in_order(messages: list[bytes], order: object) -> None:
    """Of two calls side by side, through windows that are smaller than all of it."""
    pair = Pair(stream_window_bytes=65_535, connection_window_bytes=65_535)
    first, second = pair.start(), pair.start()
    found: dict[int, list[bytes]] = {first: [], second: []}
    for one in messages:
        for call in (first, second):
            pair.send(call, message(one))
            pair.exchange()
            if order.random() < 0.5:  # type: ignore[attr-defined]
                for taken in (first, second):
                    found[taken] += pair.taken(taken)
                pair.exchange()
            else:
                found[call] += pair.taken(call)
                pair.exchange()
    for call in (first, second):
        pair.client.end_stream(call)
        pair.exchange()
        found[call] += pair.taken(call)
        assert pair.session.requests_ended(call)
    assert found == {first: messages, second: messages}
    assert pair.session.buffers.kept_bytes == 0


FRAMES = st.builds(
    frame,
    st.one_of(st.integers(0, 9), st.integers(0, 255)),
    st.integers(0, 255),
    st.integers(0, 9),
    st.one_of(
        st.binary(max_size=40),
        st.just(BLOCK),
        st.binary(max_size=20).map(message),
        st.integers(0, 2**31).map(lambda number: number.to_bytes(4)),
    ),
)


@given(frames=st.lists(FRAMES, max_size=12), garbage=st.binary(max_size=30))
@settings(max_examples=400)
def test_garbage_is_refused_and_nothing_else(frames: list[bytes], garbage: bytes) -> None:
    """Any frames are taken, or end the connection with the one error; what a handler does in
    between never fails.
    """
    session = new_session(calls_max=3)
    try:
        for piece in (HELLO, call_frames(1, b"x"), *frames, garbage):
            session.receive(piece, 1.0)
            for event in session.take_events():
                if isinstance(event, CallStarted):
                    try:
                        session.take_message(event.call)
                    except CallFailed as error:
                        session.finish(event.call, error)
                    session.send_message(event.call, b"answer")
                elif not isinstance(event, CallEnded):
                    session.finish(event.call, None)
            session.take_output()
    except SessionRefused:
        assert session.calls == 0
    session.abandon()
    assert session.buffers.kept_bytes == 0


SMALL = Limits(GrpcSettings(message_bytes_max=20, inflated_bytes_max=20), "grpc")


@given(data=st.binary(max_size=60), sizes=st.lists(st.integers(1, 10), max_size=30))
def test_any_data_is_messages_or_a_failed_call(data: bytes, sizes: list[int]) -> None:
    reader = MessageReader(SMALL, gzip=True)
    added = granted = 0
    status = None
    try:
        for piece in cut(data, sizes):
            added += len(piece)
            reader.add(piece, len(piece))
            while reader.take() is not None:
                pass
            granted += reader.granted()
        reader.ended = True
        assert reader.take() is None
        assert reader.exhausted
    except CallFailed as error:
        status = error.status
    assert status in {None, GrpcStatus.INTERNAL, GrpcStatus.RESOURCE_EXHAUSTED}
    assert granted + reader.release() == added


@given(text=st.text(max_size=200))
def test_texts_survive_the_wire(text: str) -> None:
    encoded = encode_text(text)
    assert all(0x20 <= byte <= 0x7E for byte in encoded)
    assert decode_text(encoded) == text.encode("utf-8", "replace").decode()


@given(value=st.binary(max_size=60))
def test_any_value_of_grpc_message_has_a_text(value: bytes) -> None:
    assert isinstance(decode_text(value), str)
