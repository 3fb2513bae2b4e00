"""h2's client against our session, in memory; and hand-made frames for what no client sends."""

from __future__ import annotations

from typing import Any

import attrs
import h2.config
import h2.connection
import h2.events

from triomq.remoting.grpc.grpc_settings import GrpcSettings
from triomq.remoting.grpc.http2_session import (
    Buffers,
    CallEnded,
    CallEvent,
    CallReadable,
    CallStarted,
    Http2Session,
)
from triomq.remoting.protocol.limits import Limits

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE = range(9)
CONTINUATION = 9
END_STREAM, END_HEADERS, ACK = 1, 4, 1
PATH = "/t.E/Echo"
CALL_HEADERS = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", PATH),
    (":authority", "localhost"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
)
BLOCK = (
    bytes((0x83, 0x86))  # :method POST, :scheme http, of the static table
    + b"\x04\x09/t.E/Echo"  # :path
    + b"\x01\x01h"  # :authority
    + b"\x0f\x10\x10application/grpc"  # content-type
    + b"\x00\x02te\x08trailers"
)
"""the headers of a call in HPACK, by hand: literals without indexing"""


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


def message(data: bytes, flag: int = 0) -> bytes:
    return bytes((flag,)) + len(data).to_bytes(4) + data


HELLO = PREFACE + frame(SETTINGS, 0, 0)


def call_frames(stream: int, data: bytes) -> bytes:
    """A unary call with one message."""
    return frame(HEADERS, END_HEADERS, stream, BLOCK) + frame(
        DATA, END_STREAM, stream, message(data)
    )


def new_session(**settings: Any) -> Http2Session:
    values = GrpcSettings(**settings)
    return Http2Session(Limits(values, "grpc"), Buffers(values.buffers_bytes_max))


@attrs.define(eq=False)
class Answer:
    """What a client got of a call."""

    headers: dict[bytes, bytes] = attrs.field(factory=dict)
    trailers: dict[bytes, bytes] = attrs.field(factory=dict)
    data: bytes = b""
    ended: bool = False
    reset: int | None = None

    @property
    def status(self) -> int:
        return int((self.trailers or self.headers)[b"grpc-status"])

    @property
    def text(self) -> str:
        return (self.trailers or self.headers).get(b"grpc-message", b"").decode()

    @property
    def messages(self) -> list[bytes]:
        found, data = [], self.data
        while data:
            size = int.from_bytes(data[1:5])
            assert data[0] == 0
            assert len(data) >= 5 + size, "cut off"
            found.append(data[5 : 5 + size])
            data = data[5 + size :]
        return found


class Pair:
    """A client and a session; ``exchange`` moves bytes until both are silent."""

    def __init__(self, client_settings: dict[int, int] | None = None, **settings: Any) -> None:
        self.session = new_session(**settings)
        self.client = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=True, header_encoding=None)
        )
        if client_settings:
            self.client.local_settings = h2.settings.Settings(
                client=True, initial_values=client_settings
            )
        self.client.initiate_connection()
        self.events: list[CallEvent] = []
        self.answers: dict[int, Answer] = {}
        self.acknowledges = True
        """whether the client grants its windows again"""
        self.now = 0.0
        self.exchange()

    def exchange(self) -> None:
        while True:
            up, down = self.client.data_to_send(), self.session.take_output()
            self.events += self.session.take_events()
            if not up and not down:
                return
            if down:
                self.take(self.client.receive_data(down))
            if up:
                self.session.receive(up, self.now)
                self.events += self.session.take_events()

    def take(self, events: list[h2.events.Event]) -> None:
        for event in events:
            stream = getattr(event, "stream_id", None)
            answer = self.answers.setdefault(stream, Answer()) if stream else Answer()
            match event:
                case h2.events.ResponseReceived():
                    answer.headers = dict(event.headers)
                case h2.events.TrailersReceived():
                    answer.trailers = dict(event.headers)
                case h2.events.DataReceived():
                    answer.data += event.data
                    if self.acknowledges and event.flow_controlled_length:
                        self.client.acknowledge_received_data(
                            event.flow_controlled_length, event.stream_id
                        )
                case h2.events.StreamEnded():
                    answer.ended = True
                case h2.events.StreamReset():
                    answer.reset = int(event.error_code)

    def start(self, *more: tuple[str, str], path: str = PATH, end: bool = False) -> int:
        """Begin a call; return its stream."""
        stream = self.client.get_next_available_stream_id()
        headers = [(name, path if name == ":path" else value) for name, value in CALL_HEADERS]
        self.client.send_headers(stream, [*headers, *more], end_stream=end)
        return stream

    def send(self, stream: int, data: bytes, *, end: bool = False) -> None:
        """Send data of a call, as the windows allow."""
        while data:
            room = min(
                self.client.local_flow_control_window(stream), self.client.max_outbound_frame_size
            )
            if room <= 0:
                left = len(data)
                self.exchange()
                if self.client.local_flow_control_window(stream) <= 0:
                    raise AssertionError(f"the window stays closed, {left} bytes are left")
                continue
            piece, data = data[:room], data[room:]
            self.client.send_data(stream, piece, end_stream=end and not data)

    def call(self, *messages: bytes, **more: Any) -> int:
        """Begin a call, and send all its messages."""
        stream = self.start(**more)
        data = b"".join(message(one) for one in messages)
        if data:
            self.send(stream, data, end=True)
        else:
            self.client.end_stream(stream)
        self.exchange()
        return stream

    def taken(self, stream: int) -> list[bytes]:
        """Take all messages of a call that are there."""
        found = []
        while (one := self.session.take_message(stream)) is not None:
            found.append(one)
        return found

    def started(self) -> list[int]:
        return [event.call for event in self.events if isinstance(event, CallStarted)]

    def ended(self) -> list[int]:
        return [event.call for event in self.events if isinstance(event, CallEnded)]

    def readable(self) -> list[int]:
        return [event.call for event in self.events if isinstance(event, CallReadable)]
