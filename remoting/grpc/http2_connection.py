"""The server's side of one HTTP/2 connection: frames become events of streams, and answers become
frames. No I/O, no clock: ``now`` is given.

::

    receive(bytes) ──▶ FrameReader ──▶ FrameBudgets ──▶ HeadersReceived, DataReceived,
                                                        StreamReset, WindowsWidened
    send_headers, send_data, end, reset, grant … ──▶ take_output(): bytes for the socket

What gRPC needs of RFC 9113, and no more: no push, no priorities, no upgrade.
Each frame's events are taken before the next frame is read, so an event and the state of its stream
belong together. Frames for a stream that has ended are dropped: the client may have sent them
before it knew.

Source: RFC 9113, sections 4 to 6.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from triomq.remoting.grpc.frame_budgets import FrameBudgets
from triomq.remoting.grpc.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEAD_BYTES,
    HEADERS,
    NUMBER_MAX,
    PADDED,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    ErrorCode,
    FrameReader,
    frame,
    frame_head,
    violation,
)
from triomq.remoting.grpc.header_decoder import HeaderBlockError, HeaderDecoder, HeadersTooLong
from triomq.remoting.grpc.header_encoder import HeaderEncoder
from triomq.remoting.grpc.header_entry import HeaderEntry
from triomq.remoting.grpc.message_reader import PREFIX_BYTES, message_prefix

DEFAULT_WINDOW = 65_535
FRAME_BYTES_MIN = 16_384
"""the largest frame that every side takes"""
_FRAME_BYTES_LIMIT = 2**24 - 1
_HEADER_TABLE_SIZE, _ENABLE_PUSH, _MAX_CONCURRENT_STREAMS = 0x1, 0x2, 0x3
_INITIAL_WINDOW_SIZE, _MAX_FRAME_SIZE, _MAX_HEADER_LIST_SIZE = 0x4, 0x5, 0x6
_SETTING_BYTES = 6
_OPAQUE = b"triomq::"

Headers = Sequence[tuple[bytes, bytes]]


@attrs.define(eq=False)
class Http2Stream:
    """A stream that is open on both sides, or only on this one."""

    number: int
    window: int
    """bytes that the client takes"""
    credit: int
    """bytes that the client may send"""
    owed: int = 0
    """bytes that it may send again, and does not know of yet"""
    ended: bool = False
    """whether the client has sent its last frame"""


@attrs.define
class HeadersReceived:
    """A client has opened a stream. ``size``: of its headers, as RFC 9113 counts it."""

    stream: Http2Stream
    headers: Sequence[HeaderEntry]
    size: int


@attrs.define
class DataReceived:
    """Data, or the end of a stream without any; ``flow_bytes`` of the windows are used."""

    stream: Http2Stream
    data: memoryview
    flow_bytes: int


@attrs.define
class StreamReset:
    """A stream is gone: the client cancels it, or it has violated HTTP/2 there."""

    stream: Http2Stream
    by_client: bool


@attrs.define
class WindowsWidened:
    """The client takes more data, of some or of all streams."""


StreamEvent = HeadersReceived | DataReceived | StreamReset | WindowsWidened


@attrs.define
class Announced:
    """What the server tells its clients at the start."""

    streams_max: int
    header_bytes_max: int
    stream_window_bytes: int
    connection_window_bytes: int
    frame_bytes_max: int


@attrs.define(eq=False)
class Http2Connection:
    """One connection. ``window``: bytes that the client takes on all streams together;
    ``frame_bytes_max``: those of the largest frame that it takes.
    """

    announced: Announced
    budgets: FrameBudgets
    encoder: HeaderEncoder
    window: int = attrs.field(default=DEFAULT_WINDOW, init=False)
    frame_bytes_max: int = attrs.field(default=FRAME_BYTES_MIN, init=False)
    output_bytes: int = attrs.field(default=0, init=False)
    """bytes that ``take_output`` returns"""
    peer_leaves: bool = attrs.field(default=False, init=False)
    """whether a GOAWAY has come; open streams go on"""
    last_stream: int = attrs.field(default=0, init=False)
    """the latest stream that the client has opened"""
    _reader: FrameReader = attrs.field(init=False)
    _decoder: HeaderDecoder = attrs.field(init=False)
    _streams: dict[int, Http2Stream] = attrs.field(factory=dict, init=False)
    _stream_window: int = attrs.field(default=DEFAULT_WINDOW, init=False)
    _window_bytes: int = attrs.field(init=False)
    _credit: int = attrs.field(init=False)
    _owed: int = attrs.field(default=0, init=False)
    _block: bytearray | None = attrs.field(default=None, init=False)
    """the begun headers of ``_block_stream``, to be continued"""
    _block_stream: int = attrs.field(default=0, init=False)
    _block_ends: bool = attrs.field(default=False, init=False)
    _output: list[bytes] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        announced = self.announced
        self._reader = FrameReader(announced.frame_bytes_max)
        self._decoder = HeaderDecoder(self.budgets.header_list_bytes_max)
        self._window_bytes = max(announced.connection_window_bytes, DEFAULT_WINDOW)
        self._credit = self._window_bytes
        self._put(SETTINGS, 0, 0, _settings(announced))
        if self._credit > DEFAULT_WINDOW:
            self._put(WINDOW_UPDATE, 0, 0, (self._credit - DEFAULT_WINDOW).to_bytes(4))

    @property
    def began(self) -> bool:
        """Whether a frame of the client has come."""
        return self._reader.began

    # Input

    def receive(self, data: bytes, now: float) -> Iterator[StreamEvent]:
        """Return the events of *data*, one frame after the other.

        Raises: SessionRefused, after which the connection must end.
        """
        for kind, flags, number, payload in self._reader.feed(data):
            self.budgets.note(kind, flags, len(payload), now)
            if self._block is not None and (kind != CONTINUATION or number != self._block_stream):
                raise violation("headers are interrupted by another frame")
            event: StreamEvent | None = None
            if kind == DATA:
                event = self._data(flags, number, payload)
            elif kind == HEADERS:
                event = self._headers(flags, number, payload, now)
            elif kind == WINDOW_UPDATE:
                event = self._window_update(number, payload, now)
            elif kind == RST_STREAM:
                event = self._reset_by_client(number, payload)
            elif kind == CONTINUATION:
                event = self._continuation(flags, payload, now)
            elif kind == SETTINGS:
                event = self._client_settings(flags, number, payload)
            elif kind == PING:
                self._ping(flags, number, payload)
            elif kind == GOAWAY:
                self.peer_leaves = True
            elif kind == PUSH_PROMISE:
                raise violation("a client pushes")
            elif kind == PRIORITY and not number:
                raise violation("PRIORITY without a stream")
            if event is not None:
                yield event

    def _data(self, flags: int, number: int, payload: memoryview) -> StreamEvent | None:
        flow_bytes = len(payload)
        self._credit -= flow_bytes
        if self._credit < 0:
            raise violation("data beyond the connection's window", ErrorCode.FLOW_CONTROL_ERROR)
        if flags & PADDED:
            payload = _without_padding(payload)
        stream = self._streams.get(number)
        if stream is None:
            self._require_known(number, "DATA")
            self._grant_connection(flow_bytes)
            return None
        if stream.ended:
            self._grant_connection(flow_bytes)
            return self._refuse(stream, ErrorCode.STREAM_CLOSED)
        stream.credit -= flow_bytes
        if stream.credit < 0:
            raise violation("data beyond a stream's window", ErrorCode.FLOW_CONTROL_ERROR)
        stream.ended = bool(flags & END_STREAM)
        return DataReceived(stream, payload, flow_bytes)

    def _headers(
        self, flags: int, number: int, payload: memoryview, now: float
    ) -> StreamEvent | None:
        if not number & 1:
            raise violation(f"headers for stream {number}, which is none of a client")
        if flags & PADDED:
            payload = _without_padding(payload)
        if flags & WITH_PRIORITY:
            if len(payload) < 5:
                raise violation("HEADERS without their priority", ErrorCode.FRAME_SIZE_ERROR)
            payload = payload[5:]
        ends = bool(flags & END_STREAM)
        if flags & END_HEADERS:
            return self._whole_block(number, payload, ends, now)
        self._block, self._block_stream, self._block_ends = bytearray(payload), number, ends
        return None

    def _continuation(self, flags: int, payload: memoryview, now: float) -> StreamEvent | None:
        block = self._block
        if block is None:
            raise violation("CONTINUATION of nothing")
        block += payload
        if not flags & END_HEADERS:
            return None
        self._block = None
        return self._whole_block(self._block_stream, memoryview(block), self._block_ends, now)

    def _whole_block(
        self, number: int, block: memoryview, ends: bool, now: float
    ) -> StreamEvent | None:
        # Read in every case: the table of the decoder must follow that of the client.
        try:
            headers, size = self._decoder.decode(bytes(block))
        except HeadersTooLong:
            raise self.budgets.headers_too_long() from None
        except HeaderBlockError as error:
            raise violation(str(error), ErrorCode.COMPRESSION_ERROR) from None
        if number > self.last_stream:
            self.last_stream = number
            stream = Http2Stream(
                number, self._stream_window, self.announced.stream_window_bytes, ended=ends
            )
            self._streams[number] = stream
            return HeadersReceived(stream, headers, size)
        known = self._streams.get(number)
        if known is None:
            self.budgets.was_reset(now)
            return None
        if known.ended or not ends:
            return self._refuse(known, ErrorCode.STREAM_CLOSED)
        known.ended = True  # trailers of a request, in which gRPC has nothing
        return DataReceived(known, memoryview(b""), 0)

    def _window_update(self, number: int, payload: memoryview, now: float) -> StreamEvent | None:
        if len(payload) != 4:
            raise violation("WINDOW_UPDATE has 4 bytes", ErrorCode.FRAME_SIZE_ERROR)
        more = int.from_bytes(payload) & NUMBER_MAX
        if not number:
            self.window += more
            if not more or self.window > NUMBER_MAX:
                raise violation(
                    f"WINDOW_UPDATE by {more} for the connection",
                    ErrorCode.FLOW_CONTROL_ERROR if more else ErrorCode.PROTOCOL_ERROR,
                )
            return WindowsWidened()
        stream = self._streams.get(number)
        if stream is None:
            self._require_known(number, "WINDOW_UPDATE")
            return None
        stream.window += more
        if not more:
            return self._refuse(stream, ErrorCode.PROTOCOL_ERROR)
        if stream.window > NUMBER_MAX:
            return self._refuse(stream, ErrorCode.FLOW_CONTROL_ERROR)
        return WindowsWidened()

    def _reset_by_client(self, number: int, payload: memoryview) -> StreamEvent | None:
        if len(payload) != 4:
            raise violation("RST_STREAM has 4 bytes", ErrorCode.FRAME_SIZE_ERROR)
        self._require_known(number, "RST_STREAM")
        stream = self._streams.pop(number, None)
        return None if stream is None else StreamReset(stream, by_client=True)

    def _client_settings(self, flags: int, number: int, payload: memoryview) -> StreamEvent | None:
        if number:
            raise violation("SETTINGS of one stream")
        if len(payload) % _SETTING_BYTES or (flags & ACK and payload):
            raise violation("SETTINGS with half a setting", ErrorCode.FRAME_SIZE_ERROR)
        if flags & ACK:
            return None
        for at in range(0, len(payload), _SETTING_BYTES):
            self._client_setting(
                int.from_bytes(payload[at : at + 2]), int.from_bytes(payload[at + 2 : at + 6])
            )
        self._put(SETTINGS, ACK, 0)
        return WindowsWidened()

    def _client_setting(self, name: int, value: int) -> None:
        if name == _INITIAL_WINDOW_SIZE:
            if value > NUMBER_MAX:
                raise violation(f"a window of {value} bytes", ErrorCode.FLOW_CONTROL_ERROR)
            more, self._stream_window = value - self._stream_window, value
            for stream in self._streams.values():
                stream.window += more
                if stream.window > NUMBER_MAX:
                    raise violation(
                        f"a window of {stream.window} bytes", ErrorCode.FLOW_CONTROL_ERROR
                    )
        elif name == _MAX_FRAME_SIZE:
            if not FRAME_BYTES_MIN <= value <= _FRAME_BYTES_LIMIT:
                raise violation(f"frames of {value} bytes")
            self.frame_bytes_max = value
        elif name == _HEADER_TABLE_SIZE:
            self.encoder.header_table_size = value
        elif name == _ENABLE_PUSH and value > 1:
            raise violation(f"ENABLE_PUSH is {value}")

    def _ping(self, flags: int, number: int, payload: memoryview) -> None:
        if number:
            raise violation("PING of one stream")
        if len(payload) != len(_OPAQUE):
            raise violation("PING has 8 bytes", ErrorCode.FRAME_SIZE_ERROR)
        if not flags & ACK:
            self._put(PING, ACK, 0, bytes(payload))

    def _require_known(self, number: int, what: str) -> None:
        if not number & 1 or number > self.last_stream:
            raise violation(f"{what} for stream {number}, which the client has not opened")

    def _refuse(self, stream: Http2Stream, code: ErrorCode) -> StreamReset:
        self.reset(stream, code)
        return StreamReset(stream, by_client=False)

    # Output

    def room(self, stream: Http2Stream) -> int:
        """Return how many bytes of data the next frame of a stream may have."""
        return min(stream.window, self.window, self.frame_bytes_max)

    def send_headers(self, stream: Http2Stream, headers: Headers) -> None:
        """Send the headers of an answer."""
        self._put_headers(stream, headers, 0)

    def send_data(self, stream: Http2Stream, data: bytes | memoryview) -> None:
        """Send data, no more than ``room``."""
        size = len(data)
        stream.window -= size
        self.window -= size
        self._output += (frame_head(size, DATA, 0, stream.number), bytes(data))
        self.output_bytes += 9 + size
        self.budgets.sent_data()

    def answer(
        self, stream: Http2Stream, headers: Headers, message: bytes, trailers: Headers
    ) -> None:
        """Send a whole answer on a stream whose client has ended: no more than ``room``."""
        number, size = stream.number, PREFIX_BYTES + len(message)
        head, tail = self.encoder.encode(headers), self.encoder.encode(trailers)
        stream.window -= size
        self.window -= size
        self._output += (
            frame_head(len(head), HEADERS, END_HEADERS, number),
            head,
            frame_head(size, DATA, 0, number),
            message_prefix(len(message)),
            message,
            frame_head(len(tail), HEADERS, END_HEADERS | END_STREAM, number),
            tail,
        )
        self.output_bytes += 3 * HEAD_BYTES + len(head) + size + len(tail)
        self.budgets.sent_data()
        self._streams.pop(number, None)

    def end(self, stream: Http2Stream, headers: Headers) -> None:
        """Send the last headers, or the only ones. The client need not send the rest of its data,
        and is told so.
        """
        self._put_headers(stream, headers, END_STREAM)
        if stream.ended:
            self._streams.pop(stream.number, None)
        else:
            self.reset(stream, ErrorCode.NO_ERROR)

    def reset(self, stream: Http2Stream, code: ErrorCode) -> None:
        """End a stream at once."""
        if self._streams.pop(stream.number, None) is not None:
            self._put(RST_STREAM, 0, stream.number, code.to_bytes(4))

    def grant(self, stream: Http2Stream, size: int) -> None:
        """Let the client send *size* bytes again: it is told when they are half a window."""
        self._grant_connection(size)
        stream.owed += size
        if (
            stream.owed * 2 >= self.announced.stream_window_bytes
            and not stream.ended
            and stream.number in self._streams
        ):
            self._put(WINDOW_UPDATE, 0, stream.number, stream.owed.to_bytes(4))
            stream.credit += stream.owed
            stream.owed = 0

    def _grant_connection(self, size: int) -> None:
        self._owed += size
        if self._owed * 2 >= self._window_bytes:
            self._put(WINDOW_UPDATE, 0, 0, self._owed.to_bytes(4))
            self._credit += self._owed
            self._owed = 0

    def ping(self) -> None:
        """Ask the client for a sign of life."""
        self._put(PING, 0, 0, _OPAQUE)

    def go_away(self, last: int, code: ErrorCode) -> None:
        """Tell the client that streams above *last* are not served."""
        self._put(GOAWAY, 0, 0, last.to_bytes(4) + code.to_bytes(4))

    def forget_streams(self) -> None:
        """Drop all streams: the connection ends."""
        self._streams.clear()

    def take_output(self) -> bytes:
        """Return the bytes for the socket."""
        output = b"".join(self._output)
        self._output.clear()
        self.output_bytes = 0
        return output

    def _put_headers(self, stream: Http2Stream, headers: Headers, flags: int) -> None:
        block, most = self.encoder.encode(headers), self.frame_bytes_max
        kind = HEADERS
        while len(block) > most:
            self._put(kind, flags, stream.number, block[:most])
            kind, flags, block = CONTINUATION, 0, block[most:]
        self._put(kind, flags | END_HEADERS, stream.number, block)

    def _put(self, kind: int, flags: int, number: int, payload: bytes = b"") -> None:
        data = frame(kind, flags, number, payload)
        self._output.append(data)
        self.output_bytes += len(data)


def _settings(announced: Announced) -> bytes:
    values = (
        (_MAX_CONCURRENT_STREAMS, announced.streams_max),
        (_INITIAL_WINDOW_SIZE, announced.stream_window_bytes),
        (_MAX_FRAME_SIZE, announced.frame_bytes_max),
        (_MAX_HEADER_LIST_SIZE, announced.header_bytes_max),
    )
    return b"".join(name.to_bytes(2) + value.to_bytes(4) for name, value in values)


def _without_padding(payload: memoryview) -> memoryview:
    if not payload or payload[0] >= len(payload):
        raise violation("more padding than payload")
    return payload[1 : len(payload) - payload[0]]
