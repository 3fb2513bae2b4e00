"""The session: golden bytes, calls in memory with h2's client as the peer, limits."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib

import pytest
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

from triomq.remoting.grpc.frame_budgets import AddressResets, FrameBudgets
from triomq.remoting.grpc.frames import SessionRefused
from triomq.remoting.grpc.grpc_settings import GrpcSettings
from triomq.remoting.grpc.http2_session import (
    OUTPUT_BYTES_MAX,
    CallEnded,
    CallReadable,
    CallStarted,
    CallWritable,
)
from triomq.remoting.grpc.status import CallFailed, GrpcStatus
from triomq.remoting.protocol.limits import Limits

INITIAL_WINDOW = 4
ANSWER_BLOCK = b"\x88" + b"\x0f\x10\x10application/grpc"
OK_BLOCK = b"\x00\x0bgrpc-status\x010"
MIB = 1024 * 1024


def test_a_unary_call_is_these_bytes() -> None:
    """By hand, in HPACK: an index of the static table, and literals without indexing."""
    session = new_session()
    hello = session.take_output()
    assert hello == (
        frame(
            SETTINGS,
            0,
            0,
            bytes.fromhex(
                "0003 000007d0"  # MAX_CONCURRENT_STREAMS 2000
                "0004 00400000"  # INITIAL_WINDOW_SIZE 4 MiB
                "0005 00040000"  # MAX_FRAME_SIZE 256 KiB
                "0006 00004000"  # MAX_HEADER_LIST_SIZE 16 KiB
            ),
        )
        + frame(WINDOW_UPDATE, 0, 0, (32 * 1024 * 1024 - 65_535).to_bytes(4))
    )
    session.receive(HELLO + call_frames(1, b"hi"), 1.0)
    started, *others = session.take_events()
    assert isinstance(started, CallStarted)
    assert (started.call, started.head.path) == (1, "/t.E/Echo")
    assert {type(other) for other in others} == {CallReadable}
    assert session.take_message(1) == b"hi"
    assert session.requests_ended(1)
    assert session.send_message(1, b"hi")
    session.finish(1, None)
    assert session.take_output() == (
        frame(SETTINGS, ACK, 0)
        + frame(HEADERS, END_HEADERS, 1, ANSWER_BLOCK)
        + frame(DATA, 0, 1, bytes.fromhex("00 00000002 6869"))
        + frame(HEADERS, END_HEADERS | END_STREAM, 1, OK_BLOCK)
    )
    assert session.calls == 0


def test_an_error_without_a_message_is_trailers_only() -> None:
    pair = Pair()
    stream = pair.call(b"x")
    pair.session.finish(stream, CallFailed(GrpcStatus.NOT_FOUND, "no “T”, 100%", (("x-why", "y"),)))
    pair.exchange()
    answer = pair.answers[stream]
    assert answer.ended
    assert answer.trailers == {}
    assert answer.headers == {
        b":status": b"200",
        b"content-type": b"application/grpc",
        b"grpc-status": b"5",
        b"grpc-message": b"no %E2%80%9CT%E2%80%9D, 100%25",
        b"x-why": b"y",
    }


def test_an_early_end_stops_the_client() -> None:
    """The answer is complete before the request: the client is told to send no more."""
    pair = Pair()
    stream = pair.start()
    pair.send(stream, message(b"x" * 100)[:50])
    pair.exchange()
    pair.session.finish(stream, CallFailed(GrpcStatus.ABORTED, "enough"))
    pair.exchange()
    assert (pair.answers[stream].status, pair.answers[stream].reset) == (10, 0)
    assert pair.session.calls == 0
    assert pair.session.buffers.kept_bytes == 0


def test_what_is_no_call_gets_an_answer_of_http() -> None:
    pair = Pair()
    for headers, status in (
        ({":method": "GET"}, b"405"),
        ({"content-type": "text/plain"}, b"415"),
        ({"content-type": "application/grpc-web"}, b"415"),
    ):
        stream = pair.client.get_next_available_stream_id()
        base = {
            ":method": "POST",
            ":scheme": "http",
            ":path": "/x/y",
            ":authority": "h",
            "content-type": "application/grpc",
        }
        pair.client.send_headers(stream, list({**base, **headers}.items()), end_stream=True)
        pair.exchange()
        answer = pair.answers[stream]
        assert (answer.headers[b":status"], answer.ended) == (status, True)
    assert pair.started() == []


@pytest.mark.parametrize("encoding", ["deflate", "snappy", "br, gzip"])
def test_other_compressions_are_refused_with_those_that_work(encoding: str) -> None:
    pair = Pair()
    stream = pair.start(("grpc-encoding", encoding))
    pair.exchange()
    answer = pair.answers[stream]
    assert answer.status == GrpcStatus.UNIMPLEMENTED
    assert answer.headers[b"grpc-accept-encoding"] == b"identity,gzip"
    assert pair.started() == []


def test_gzip_messages_beside_plain_ones() -> None:
    pair = Pair()
    stream = pair.start(("grpc-encoding", "gzip"))
    packed = message(gzip.compress(b"packed" * 50), flag=1)
    pair.send(stream, packed + message(b"plain") + packed, end=True)
    pair.exchange()
    assert pair.taken(stream) == [b"packed" * 50, b"plain", b"packed" * 50]


@pytest.mark.parametrize(
    ("data", "settings", "status", "word"),
    [
        (message(bytes(2000)), {"message_bytes_max": 1999}, GrpcStatus.RESOURCE_EXHAUSTED, "1999"),
        (
            message(gzip.compress(bytes(5000)), flag=1),
            {"inflated_bytes_max": 4999},
            GrpcStatus.RESOURCE_EXHAUSTED,
            "grpcInflatedMessageSize",
        ),
        (
            message(gzip.compress(bytes(5000)), flag=1),
            {"fields_bytes_max": 4999},
            GrpcStatus.RESOURCE_EXHAUSTED,
            "grpcFieldsMaxBytes",
        ),
        (message(b"no gzip", flag=1), {}, GrpcStatus.INTERNAL, "gzip"),
        (message(gzip.compress(b"cut")[:-3], flag=1), {}, GrpcStatus.INTERNAL, "gzip"),
        (message(gzip.compress(b"1") * 2, flag=1), {}, GrpcStatus.INTERNAL, "gzip"),
        (message(b"?", flag=2), {}, GrpcStatus.INTERNAL, "begins with 2"),
        (message(b"cut off")[:-1], {}, GrpcStatus.INTERNAL, "inside a message"),
        (b"\0\0", {}, GrpcStatus.INTERNAL, "inside a message"),
    ],
    ids=[
        "size",
        "gzip size",
        "fields",
        "no gzip",
        "gzip cut",
        "two gzips",
        "flag",
        "cut",
        "prefix cut",
    ],
)
def test_messages_that_cannot_be_taken(
    data: bytes, settings: dict[str, int], status: GrpcStatus, word: str
) -> None:
    pair = Pair(**settings)
    stream = pair.start(("grpc-encoding", "gzip"))
    pair.send(stream, data, end=True)
    pair.exchange()
    try:
        assert pair.session.take_message(stream) is None
    except CallFailed as error:
        pair.session.finish(stream, error)
        pair.exchange()
    answer = pair.answers[stream]
    assert answer.status == status
    assert word in answer.text
    assert len(pair.session.limits.refused) == (status is GrpcStatus.RESOURCE_EXHAUSTED)
    assert all(setting in answer.text for setting in pair.session.limits.refused)
    assert pair.session.buffers.kept_bytes == 0


def test_a_bomb_of_gzip_is_not_unpacked() -> None:
    """20 MB of zeros in 20 KB: no more is unpacked than the limit."""
    pair = Pair(inflated_bytes_max=100_000)
    stream = pair.start(("grpc-encoding", "gzip"))
    packer = zlib.compressobj(wbits=31)
    bomb = b"".join(packer.compress(bytes(MIB)) for _ in range(20)) + packer.flush()
    pair.send(stream, message(bomb, flag=1), end=True)
    pair.exchange()
    tracemalloc.start()
    try:
        with pytest.raises(CallFailed, match="grpcInflatedMessageSize"):
            pair.session.take_message(stream)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * MIB


def test_a_compressed_message_needs_an_encoding() -> None:
    pair = Pair()
    stream = pair.start()
    pair.send(stream, message(gzip.compress(b"x"), flag=1))
    pair.exchange()
    assert pair.answers[stream].status == GrpcStatus.INTERNAL
    assert pair.ended() == [stream]


# Flow control


def test_a_client_may_send_no_more_than_a_window_until_messages_are_taken() -> None:
    pair = Pair(stream_window_bytes=65_535, connection_window_bytes=1_000_000)
    stream = pair.start()
    with pytest.raises(AssertionError, match="stays closed"):
        pair.send(stream, message(bytes(1000)) * 100)
    assert 60_000 < pair.session.buffers.kept_bytes <= 65_535
    assert len(pair.taken(stream)) >= 60
    pair.exchange()
    assert pair.client.local_flow_control_window(stream) > 30_000


def test_a_message_larger_than_all_windows_arrives() -> None:
    windows = {"stream_window_bytes": 65_535, "connection_window_bytes": 65_535}
    pair = Pair(**windows, fields_bytes_max=2 << 20)
    data = bytes(range(256)) * 4000
    stream = pair.start()
    pair.send(stream, message(data), end=True)
    pair.exchange()
    assert pair.taken(stream) == [data]
    assert pair.session.buffers.kept_bytes == 0


def test_a_call_that_nobody_takes_leaves_the_window_to_others() -> None:
    """Data of calls that ended is granted again, or the connection would starve."""
    pair = Pair(stream_window_bytes=65_535, connection_window_bytes=65_535)
    for _ in range(20):
        stream = pair.start()
        pair.send(stream, message(bytes(20_000)))
        pair.exchange()
        pair.session.finish(stream, CallFailed(GrpcStatus.ABORTED, "not wanted"))
        pair.exchange()
    assert pair.taken(pair.call(bytes(30_000))) == [bytes(30_000)]


def test_answers_wait_for_the_window_of_the_client() -> None:
    pair = Pair({INITIAL_WINDOW: 1000})
    pair.acknowledges = False
    stream = pair.call(b"x")
    assert not pair.session.send_message(stream, bytes(1500))
    pair.session.finish(stream, None)
    pair.exchange()
    assert (len(pair.answers[stream].data), pair.answers[stream].ended) == (1000, False)
    assert pair.session.has_waiting(stream)
    pair.client.increment_flow_control_window(1000, stream)
    pair.exchange()
    assert pair.answers[stream].messages == [bytes(1500)]
    assert pair.answers[stream].status == 0
    assert pair.session.calls == 0


def test_several_messages_share_a_frame() -> None:
    pair = Pair()
    stream = pair.call(b"x")
    pair.exchange()
    assert pair.session.send_message(stream, b"one", b"", b"two")
    framed = pair.session.take_output()
    assert framed.endswith(frame(DATA, 0, stream, b"\0\0\0\0\x03one\0\0\0\0\0\0\0\0\0\x03two"))


def test_an_error_does_not_wait_for_the_window() -> None:
    pair = Pair({INITIAL_WINDOW: 10})
    pair.acknowledges = False
    stream = pair.call(b"x")
    pair.session.send_message(stream, bytes(100))
    pair.exchange()
    pair.session.finish(stream, CallFailed(GrpcStatus.DEADLINE_EXCEEDED, "late"))
    pair.exchange()
    assert (pair.answers[stream].status, pair.answers[stream].ended) == (4, True)
    assert pair.session.calls == 0


def test_a_widened_setting_of_the_client_lets_answers_go() -> None:
    pair = Pair({INITIAL_WINDOW: 0})
    stream = pair.call(b"x")
    assert not pair.session.send_message(stream, b"answer")
    pair.exchange()
    assert pair.answers[stream].data == b""
    pair.client.update_settings({INITIAL_WINDOW: 100})
    pair.exchange()
    assert pair.answers[stream].messages == [b"answer"]
    assert CallWritable(stream) in pair.events


def test_output_is_bounded_although_the_windows_are_wide() -> None:
    """A client that gives the widest windows and reads nothing costs no more memory than this."""
    pair = Pair({INITIAL_WINDOW: 2**31 - 1})
    pair.client.increment_flow_control_window(2**31 - 1 - 65_535)
    streams = [pair.call(b"x") for _ in range(10)]
    for stream in streams:
        pair.session.send_message(stream, bytes(OUTPUT_BYTES_MAX))
        pair.session.finish(stream, None)
    assert pair.session.output_bytes < 2 * OUTPUT_BYTES_MAX
    pair.exchange()
    assert [len(pair.answers[stream].messages[0]) for stream in streams] == [OUTPUT_BYTES_MAX] * 10


def test_long_answers_take_turns() -> None:
    pair = Pair({INITIAL_WINDOW: 2**31 - 1})
    pair.client.increment_flow_control_window(2**31 - 1 - 65_535)
    streams = [pair.call(b"x") for _ in range(3)]
    for stream in streams:
        for _ in range(9):
            pair.session.send_message(stream, bytes(OUTPUT_BYTES_MAX))
    for _ in range(15):
        pair.take(pair.client.receive_data(pair.session.take_output()))
    had = [len(pair.answers[stream].data) for stream in streams]
    assert min(had) > max(had) // 2, had


# The end of calls and connections


def test_a_reset_ends_a_call_even_in_the_bytes_that_begin_it() -> None:
    session = new_session()
    reset = frame(RST_STREAM, 0, 1, (8).to_bytes(4))
    session.receive(HELLO + call_frames(1, b"x") + reset, 1.0)
    assert [type(event) for event in session.take_events()] == []
    session.receive(call_frames(3, b"x"), 1.0)
    session.take_events()
    session.receive(frame(RST_STREAM, 0, 3, (8).to_bytes(4)), 1.0)
    assert session.take_events() == [CallEnded(3, "cancelled by the client")]
    session.finish(3, None)
    session.send_message(3, b"late")
    assert session.calls == session.buffers.kept_bytes == 0


def test_the_client_s_goaway_leaves_its_open_calls() -> None:
    """Node's client sends it while its telemetry call still waits for trailers."""
    pair = Pair()
    stream = pair.call(b"x")
    goaway = frame(GOAWAY, 0, 0, bytes(8) + b"bye")
    for byte in goaway:
        pair.session.receive(bytes((byte,)), 1.0)
    assert pair.session.peer_leaves
    pair.session.send_message(stream, b"answer")
    pair.session.finish(stream, None)
    pair.exchange()
    assert pair.answers[stream].messages == [b"answer"]
    assert pair.answers[stream].status == 0


def test_a_drain_finishes_open_calls_and_refuses_new_ones() -> None:
    pair = Pair()
    first = pair.call(b"x")
    pair.session.announce_end()
    goaway = pair.session.take_output()
    assert goaway == frame(GOAWAY, 0, 0, (2**31 - 1).to_bytes(4) + bytes(4))
    second = pair.call(b"on its way")
    assert pair.started() == [first, second]
    pair.session.begin_drain()
    assert pair.session.take_output() == frame(GOAWAY, 0, 0, second.to_bytes(4) + bytes(4))
    third = pair.call(b"too late")
    assert pair.answers[third].reset == 7  # REFUSED_STREAM: the client may try again elsewhere
    assert pair.started() == [first, second]
    for stream in (first, second):
        pair.session.send_message(stream, b"answer")
        pair.session.finish(stream, None)
    pair.exchange()
    assert [pair.answers[stream].status for stream in (first, second)] == [0, 0]


def test_pings_are_answered() -> None:
    session = new_session()
    session.receive(HELLO, 1.0)
    session.take_output()
    session.receive(frame(PING, 0, 0, b"12345678"), 1.0)
    assert session.take_output() == frame(PING, ACK, 0, b"12345678")
    session.ping()
    assert session.take_output() == frame(PING, 0, 0, b"triomq::")
    session.receive(frame(PING, ACK, 0, b"triomq::"), 1.0)
    assert session.take_output() == b""


@pytest.mark.parametrize("began", [0.0, 1_000.0])
@pytest.mark.parametrize("window", [0, 10])
def test_stalled_calls_are_found(began: float, window: int) -> None:
    pair = Pair({INITIAL_WINDOW: window})
    pair.acknowledges = False
    pair.now = began
    waits = pair.call(b"x")
    pair.session.send_message(waits, bytes(100))
    sends = pair.start()
    pair.send(sends, message(bytes(100))[:50])
    held = pair.call(b"held: it owes nothing")
    silent, expected = pair.start(), pair.start()
    pair.exchange()
    pair.session.expect_request(expected)
    assert pair.session.stalled(began + 59, 60) == []
    assert pair.session.stalled(began + 60, 60) == [waits, sends, expected]
    pair.now = began + 70
    pair.client.increment_flow_control_window(10, waits)
    pair.send(sends, bytes(10))
    pair.exchange()
    assert pair.session.stalled(began + 120, 60) == [expected]
    assert pair.session.stalled(began + 130, 60) == [waits, sends, expected]
    pair.session.reset(expected)
    pair.exchange()
    assert pair.answers[expected].reset == 8
    assert set(pair.started()) == {waits, sends, held, silent, expected}


# Limits: each has its setting and its counter


def test_calls_beyond_the_limit_are_refused_one_by_one() -> None:
    session = new_session(calls_max=2)
    session.receive(HELLO + b"".join(call_frames(number, b"x") for number in (1, 3, 5)), 1.0)
    assert session.calls == 2
    assert frame(RST_STREAM, 0, 5, (7).to_bytes(4)) in session.take_output()
    assert session.limits.refused == {"grpcConnectionCallsMax": 1}
    session.finish(1, None)
    session.receive(call_frames(7, b"x"), 1.0)
    assert session.calls == 2


def test_long_headers_are_refused() -> None:
    pair = Pair(header_bytes_max=2000)
    stream = pair.start(("x-long", "y" * 2000))
    pair.exchange()
    answer = pair.answers[stream]
    assert answer.status == GrpcStatus.RESOURCE_EXHAUSTED
    assert "grpcHeadersMaxBytes" in answer.text
    assert pair.session.limits.refused == {"grpcHeadersMaxBytes": 1}
    assert pair.taken(pair.call(b"next")) == [b"next"]


def test_headers_of_no_call_are_answered() -> None:
    """Only ``:method POST``; a name in capitals."""
    session = new_session()
    session.receive(HELLO + frame(HEADERS, END_HEADERS, 1, b"\x83"), 1.0)
    session.receive(frame(HEADERS, END_HEADERS, 3, BLOCK + b"\x00\x01X\x01y"), 1.0)
    answers = session.take_output()
    kinds = [answers[at + 3] for at in starts(answers)]
    assert kinds.count(HEADERS) == 2
    assert session.take_events() == []


def starts(data: bytes) -> list[int]:
    """Where frames begin."""
    found, at = [], 0
    while at < len(data):
        found.append(at)
        at += 9 + int.from_bytes(data[at : at + 3])
    return found


def test_many_small_answers_are_bounded_too() -> None:
    pair = Pair({INITIAL_WINDOW: 2**31 - 1})
    pair.client.increment_flow_control_window(2**31 - 1 - 65_535)
    stream = pair.call(b"x")
    framed = [pair.session.send_message(stream, bytes(1000)) for _ in range(1000)]
    assert framed.count(True) < 300
    assert framed[0]
    assert pair.session.output_bytes < 2 * OUTPUT_BYTES_MAX
    pair.session.finish(stream, None)
    pair.exchange()
    assert pair.answers[stream].messages == [bytes(1000)] * 1000


def test_all_clients_together_keep_a_bounded_number_of_bytes() -> None:
    pair = Pair(buffers_bytes_max=1024 * 1024)
    streams = [pair.start() for _ in range(3)]
    for stream in streams:
        pair.send(stream, message(bytes(400_000)))
        pair.exchange()
    assert pair.ended() == [streams[2]]
    assert pair.answers[streams[2]].status == GrpcStatus.RESOURCE_EXHAUSTED
    assert "grpcBuffersMaxBytes" in pair.answers[streams[2]].text
    assert pair.session.buffers.kept_bytes == 2 * 400_005
    assert pair.session.limits.refused == {"grpcBuffersMaxBytes": 1}
    pair.session.abandon()
    assert pair.session.buffers.kept_bytes == 0


FLOODS = {
    "resets": (
        b"".join(
            frame(HEADERS, END_HEADERS, number, BLOCK) + frame(RST_STREAM, 0, number, bytes(4))
            for number in range(1, 301, 2)
        ),
        {"resets_per_second": 10},
        "grpcResetsPerSecond",
    ),
    "resets that the server is made to send": (
        b"".join(
            frame(HEADERS, END_HEADERS, number, BLOCK)
            + frame(WINDOW_UPDATE, 0, number, (2**31 - 1).to_bytes(4))
            for number in range(1, 301, 2)
        ),
        {"resets_per_second": 10},
        "grpcResetsPerSecond",
    ),
    "settings": (frame(SETTINGS, 0, 0) * 101, {}, "grpcSettingsPerSecond"),
    "pings": (frame(PING, 0, 0, bytes(8)) * 101, {"pings_per_second": 10}, "grpcPingsPerSecond"),
    "window updates": (
        frame(WINDOW_UPDATE, 0, 0, (1).to_bytes(4)) * 110,
        {"controls_per_second": 10},
        "grpcControlsPerSecond",
    ),
    "empty data": (
        frame(HEADERS, END_HEADERS, 1, BLOCK) + frame(DATA, 0, 1) * 110,
        {"controls_per_second": 10},
        "grpcControlsPerSecond",
    ),
    "priorities": (
        b"".join(frame(2, 0, 1, (3).to_bytes(4) + b"\1") for _ in range(110)),
        {"controls_per_second": 10},
        "grpcControlsPerSecond",
    ),
    "headers of calls that have ended": (
        frame(HEADERS, END_HEADERS, 1, BLOCK)
        + frame(RST_STREAM, 0, 1, bytes(4))
        + frame(HEADERS, END_HEADERS, 1, BLOCK) * 150,
        {"resets_per_second": 10},
        "grpcResetsPerSecond",
    ),
    "continuations": (frame(HEADERS, 0, 1, BLOCK) + frame(9, 0, 1) * 33, {}, "grpcHeadersMaxBytes"),
    "endless headers": (
        frame(HEADERS, 0, 1, BLOCK) + frame(9, 0, 1, bytes(3000)) * 10,
        {"header_bytes_max": 2000},
        "grpcHeadersMaxBytes",
    ),
    "unpacked headers": (  # one long value in the table, then its place 100 times
        frame(HEADERS, END_HEADERS, 1, BLOCK + b"\x40\x01x\x7f\x69" + b"y" * 232 + b"\xbe" * 100),
        {"header_bytes_max": 2000},
        "grpcHeadersMaxBytes",
    ),
    "calls": (
        b"".join(frame(HEADERS, END_HEADERS, number, BLOCK) for number in range(1, 301, 2)),
        {"calls_max": 2, "resets_per_second": 10},
        "grpcResetsPerSecond",
    ),
}


@pytest.mark.parametrize("name", FLOODS)
def test_floods_end_the_connection(name: str) -> None:
    """With a GOAWAY that says ENHANCE_YOUR_CALM, an error that names the setting, and a count."""
    data, settings, setting = FLOODS[name]
    session = new_session(**settings)
    session.receive(HELLO, 1.0)
    session.take_output()
    with pytest.raises(SessionRefused, match=setting):
        session.receive(data, 1.0)
    assert session.limits.refused[setting] >= 1
    assert session.calls == 0
    last = session.take_output()
    goaway = last[-17:]
    assert goaway[:9] == frame(GOAWAY, 0, 0, bytes(8))[:9]
    assert goaway[-4:] == (11).to_bytes(4)


def test_a_session_that_was_refused_takes_no_more_calls() -> None:
    session = new_session()
    session.receive(HELLO + call_frames(1, b"x"), 1.0)
    session.take_events()
    with pytest.raises(SessionRefused):
        session.receive(frame(SETTINGS, 0, 0) * 101, 1.0)
    assert session.take_events() == [CallEnded(1, "the connection is lost")]
    session.send_message(1, b"late")
    session.finish(1, None)
    assert session.calls == 0


def test_budgets_fill_again() -> None:
    """What is too much at once is not too much over time."""
    session = new_session(pings_per_second=10)
    session.receive(HELLO, 1.0)
    for second in range(100):
        session.receive(frame(PING, 0, 0, bytes(8)) * 10, 10.0 + second)
    assert session.limits.refused == {}


def test_pings_of_a_client_that_gets_data_are_no_flood() -> None:
    """Java's client measures the line with a ping for each piece of data that it reads."""
    pair = Pair(pings_per_second=10)
    stream = pair.call(b"x")
    for number in range(500):
        pair.session.send_message(stream, bytes(10))
        pair.client.ping(b"%08d" % number)
        pair.exchange()
    assert pair.session.limits.refused == {}


def test_data_beyond_the_windows_ends_the_connection() -> None:
    for windows, words in (
        ({"stream_window_bytes": 65_535, "connection_window_bytes": MIB}, "a stream's window"),
        ({"stream_window_bytes": MIB, "connection_window_bytes": 65_535}, "connection's window"),
    ):
        session = new_session(message_bytes_max=MIB, **windows)
        begun = frame(HEADERS, END_HEADERS, 1, BLOCK)
        whole = message(bytes(65_530))
        session.receive(HELLO + begun + frame(DATA, 0, 1, whole), 1.0)
        with pytest.raises(SessionRefused, match=words):
            session.receive(frame(DATA, 0, 1, b"x"), 1.0)
        assert session.take_output()[-4:] == (3).to_bytes(4)  # FLOW_CONTROL_ERROR


def test_data_for_calls_that_have_ended_is_dropped_and_granted_again() -> None:
    """The client may have sent it before it knew; the connection's window stays open."""
    session = new_session(stream_window_bytes=65_535, connection_window_bytes=65_535)
    session.receive(HELLO + frame(HEADERS, END_HEADERS, 1, BLOCK), 1.0)
    session.reset(1)
    session.take_output()
    granted = 0
    for _ in range(20):
        session.receive(frame(DATA, 0, 1, bytes(16_000)), 1.0)
        output = session.take_output()
        for at in starts(output):
            assert output[at + 3] == WINDOW_UPDATE
            assert output[at + 5 : at + 9] == bytes(4)
            granted += int.from_bytes(output[at + 9 : at + 13])
    assert 20 * 16_000 - 65_535 // 2 <= granted <= 20 * 16_000


def test_data_after_the_end_of_a_request_ends_the_call() -> None:
    session = new_session()
    session.receive(HELLO + call_frames(1, b"x"), 1.0)
    session.take_events()
    session.take_output()
    session.receive(frame(DATA, 0, 1, b"more"), 1.0)
    assert session.take_events() == [CallEnded(1, "refused by HTTP/2")]
    assert session.take_output() == frame(RST_STREAM, 0, 1, (5).to_bytes(4))  # STREAM_CLOSED


def test_trailers_of_a_request_are_its_end() -> None:
    session = new_session()
    data = frame(DATA, 0, 1, message(b"x"))
    trailers = frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x00\x02te\x08trailers")
    session.receive(HELLO + frame(HEADERS, END_HEADERS, 1, BLOCK) + data + trailers, 1.0)
    assert session.take_message(1) == b"x"
    assert session.requests_ended(1)
    session.receive(frame(HEADERS, END_HEADERS, 3, BLOCK) + frame(HEADERS, 4, 3, BLOCK), 1.0)
    assert session.calls == 1  # the second headers of a call must be its end


def test_padding_and_priorities_are_left_out() -> None:
    session = new_session()
    block = b"\3" + bytes(5) + BLOCK + bytes(3)
    data = b"\2" + message(b"x") + bytes(2)
    session.receive(
        HELLO
        + frame(HEADERS, END_HEADERS | 0x28, 1, block)
        + frame(DATA, END_STREAM | 8, 1, data)
        + frame(77, 0, 1, b"a kind that is not known"),
        1.0,
    )
    assert session.take_message(1) == b"x"


def test_headers_in_three_frames() -> None:
    session = new_session()
    session.receive(
        HELLO
        + frame(HEADERS, END_STREAM, 1, BLOCK[:10])
        + frame(9, 0, 1, BLOCK[10:20])
        + frame(9, END_HEADERS, 1, BLOCK[20:]),
        1.0,
    )
    (started,) = session.take_events()
    assert isinstance(started, CallStarted)
    assert started.head.path == "/t.E/Echo"
    assert session.requests_ended(1)


def test_frames_of_headers_are_counted_for_each_call() -> None:
    session = new_session()
    session.receive(HELLO, 1.0)
    for number in (1, 3, 5):
        head = frame(HEADERS, END_STREAM, number, BLOCK) + frame(9, 0, number) * 30
        session.receive(head + frame(9, END_HEADERS, number), 1.0)
    assert session.calls == 3


def test_long_trailers_are_sent_in_frames_that_the_client_takes() -> None:
    pair = Pair()
    stream = pair.call(b"x")
    pair.session.finish(stream, None, [(b"x-long", b"y" * 40_000)])
    output = pair.session.take_output()
    assert [output[at + 3] for at in starts(output)] == [HEADERS, 9, 9]
    pair.take(pair.client.receive_data(output))
    assert pair.answers[stream].headers[b"x-long"] == b"y" * 40_000


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "does not speak HTTP/2"),
        (HELLO + frame(SETTINGS, 0, 0, bytes(5)), "violates HTTP/2"),
        (HELLO + frame(SETTINGS, 0, 1), "violates HTTP/2"),
        (HELLO + frame(DATA, 0, 1, b"x"), "violates HTTP/2"),
        (HELLO + frame(HEADERS, END_HEADERS, 2, BLOCK), "violates HTTP/2"),
        (HELLO + frame(HEADERS, END_HEADERS, 1, b"\xff\xff"), "violates HTTP/2"),
        (HELLO + frame(WINDOW_UPDATE, 0, 0, bytes(4)), "violates HTTP/2"),
        (HELLO + bytes((255, 255, 255, 0, 0, 0, 0, 0, 1)), "a frame has 16777215 bytes"),
        (HELLO + frame(5, 4, 1, bytes(4)), "a client pushes"),
        (HELLO + frame(9, END_HEADERS, 1, BLOCK), "CONTINUATION of nothing"),
        (HELLO + frame(HEADERS, 0, 1, BLOCK) + frame(PING, 0, 0, bytes(8)), "interrupted"),
        (HELLO + frame(HEADERS, 0, 1, BLOCK) + frame(9, END_HEADERS, 3), "interrupted"),
        (HELLO + frame(HEADERS, 8 | END_HEADERS, 1, b"\xff" + BLOCK), "more padding"),
        (HELLO + frame(HEADERS, 0x20 | END_HEADERS, 1, b"1234"), "without their priority"),
        (HELLO + frame(RST_STREAM, 0, 1, bytes(4)), "has not opened"),
        (HELLO + frame(WINDOW_UPDATE, 0, 1, bytes(3) + b"\1"), "has not opened"),
        (HELLO + frame(WINDOW_UPDATE, 0, 0, (2**31 - 1).to_bytes(4)), "for the connection"),
        (HELLO + frame(SETTINGS, ACK, 0, bytes(6)), "half a setting"),
        (HELLO + frame(SETTINGS, 0, 0, bytes.fromhex("0004 80000000")), "a window of"),
        (HELLO + frame(SETTINGS, 0, 0, bytes.fromhex("0005 00000001")), "frames of 1 bytes"),
        (HELLO + frame(PING, 0, 0, b"short"), "PING has 8 bytes"),
        (HELLO + frame(PING, 0, 1, bytes(8)), "PING of one stream"),
    ],
)
def test_violations_end_the_connection(data: bytes, words: str) -> None:
    session = new_session()
    with pytest.raises(SessionRefused, match=words):
        session.receive(data, 1.0)
    assert session.take_output()[-17:-8] == frame(GOAWAY, 0, 0, bytes(8))[:9]


def test_resets_of_an_address_count_over_its_connections() -> None:
    """A client that connects again has no new budget; others, and who cancels little, go on."""
    limits = Limits(GrpcSettings(resets_per_second=10, address_resets_per_second=12), "grpc")
    resets = AddressResets(limits)

    def flood(address: str, count: int, now: float = 0.0) -> str:
        """Return the setting that ends a connection with so many resets, if one does."""
        budgets = FrameBudgets(limits, 1000, lambda now: resets.spend(address, now))
        try:
            for _ in range(count):
                budgets.note(RST_STREAM, 0, 4, now)
        except SessionRefused as error:
            return error.fix
        return ""

    assert flood("10.0.0.1", 90) == ""
    assert "grpcResetsPerAddressPerSecond" in flood("10.0.0.1", 90)
    assert flood("10.0.0.1", 10) == ""
    assert flood("10.0.0.2", 90) == ""
    assert "grpcResetsPerAddressPerSecond" in flood("10.0.0.1", 20), "it is not forgotten"
    assert limits.refused["grpcResetsPerAddressPerSecond"] == 2
    assert flood("10.0.0.1", 90, now=11.0) == ""
    for number in range(1000):
        flood(f"10.1.0.{number}", 11, now=100.0)
    assert flood("10.0.0.3", 11, now=200.0) == ""
    assert len(resets) < 1000
