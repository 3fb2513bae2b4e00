"""One HTTP/2 connection as calls: bytes in, events of calls out; messages and ends in, bytes out.

This is the seam to h2, which nothing else imports. No I/O, no clock: ``now`` is given.

::

    receive(bytes) ──▶ FrameWatch ──▶ h2 ──▶ take_events(): CallStarted, CallReadable,
                                                            CallWritable, CallEnded
    take_message(call)    the next whole message; what it used of the windows is granted again
    send_message(call)    as far as the windows and the output reach; the rest waits here
    finish(call)          the trailers, behind what waits
    take_output()  ◀── bytes for the socket; makes room, so more of what waits follows

A call that a limit or the client ends is gone here at once, and ``CallEnded`` says so: methods for
a call that is gone do nothing.

Source: RFC 9113; grpc.io, "gRPC over HTTP2".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence, Set
from http import HTTPStatus
from typing import TYPE_CHECKING, cast

import attrs
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    Event,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import DenialOfServiceError, ProtocolError, TooManyStreamsError
from h2.settings import SettingCodes, Settings

from triomq.remoting.grpc.call_head import CallHead, NotGrpc, checked_size, read_head
from triomq.remoting.grpc.frame_watch import PROTOCOL_ERROR, FrameWatch, SessionRefused
from triomq.remoting.grpc.header_encoder import HeaderEncoder
from triomq.remoting.grpc.message_reader import MessageReader, MessageTooLarge, message_prefix
from triomq.remoting.grpc.status import CallFailed, GrpcStatus, encode_text
from triomq.remoting.limits import Limits

if TYPE_CHECKING:
    from hpack import Encoder

FRAME_BYTES_MAX = 256 * 1024
"""announced to clients: fewer frames for large messages than with HTTP/2's 16 KiB"""
OUTPUT_BYTES_MAX = 256 * 1024
"""bytes for the socket above which no more data of calls is framed"""
LAST_STREAM = 2**31 - 1
_HARD_HEADERS = 4
_HARD_CALLS = 2
_DEFAULT_WINDOW = 65_535
_GOAWAY_FRAME = bytes((0, 0, 8, 7, 0, 0, 0, 0, 0))
_PING_FRAME = bytes((0, 0, 8, 6, 0, 0, 0, 0, 0)) + b"triomq::"

_OK = (b":status", b"200")
_CONTENT_TYPE = (b"content-type", b"application/grpc")
_HEADERS = (_OK, _CONTENT_TYPE)
_OK_TRAILERS = ((b"grpc-status", b"0"),)

Headers = Sequence[tuple[bytes, bytes]]


@attrs.define
class CallStarted:
    """A client has begun a call."""

    call: int
    head: CallHead


@attrs.define
class CallReadable:
    """A whole message, or the end of the requests, can be taken."""

    call: int


@attrs.define
class CallWritable:
    """Everything that waited has been framed."""

    call: int


@attrs.define
class CallEnded:
    """The client, or a limit, has ended a call: its handler must stop."""

    call: int
    reason: str


CallEvent = CallStarted | CallReadable | CallWritable | CallEnded


@attrs.define(eq=False)
class Buffers:
    """The bytes of requests that no handler has taken, of all connections of a server."""

    bytes_max: int
    kept_bytes: int = attrs.field(default=0, init=False)


@attrs.define(eq=False)
class _Stream:
    reader: MessageReader
    kept_bytes: int = 0
    waiting: deque[memoryview] = attrs.field(factory=deque)
    trailers: Headers | None = None
    answers: bool = False  # response headers are sent
    expected: bool = False  # the handler does nothing before the whole request is here
    received_at: float = 0.0
    sent_at: float = 0.0

    def stalls(self, before: float) -> bool:
        """Return whether the client owes the next step since *before*."""
        reader = self.reader
        if self.waiting and self.sent_at <= before:
            return True
        owed = self.expected or reader.kept_bytes
        return bool(owed and not reader.ended and not reader.complete) and (
            self.received_at <= before
        )


@attrs.define(eq=False)
class Http2Session:
    """One connection. ``began``: a frame of the client has come."""

    limits: Limits
    buffers: Buffers
    watch: FrameWatch = attrs.field(init=False)
    draining: bool = attrs.field(default=False, init=False)
    output_bytes: int = attrs.field(default=0, init=False)
    """bytes that ``take_output`` returns"""
    _h2: H2Connection = attrs.field(init=False)
    _streams: dict[int, _Stream] = attrs.field(factory=dict, init=False)
    _waiting: dict[int, _Stream] = attrs.field(factory=dict, init=False)
    """calls with data or trailers that wait for a window or the output; the first is next"""
    _events: list[CallEvent] = attrs.field(factory=list, init=False)
    _output: list[bytes] = attrs.field(factory=list, init=False)
    _ended: set[int] = attrs.field(factory=set, init=False)
    """calls whose last message is among the events of this ``receive``"""
    _now: float = attrs.field(default=0.0, init=False)
    _header_bytes_max: int = attrs.field(init=False)
    _calls_max: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        most = self.limits.most
        self._header_bytes_max = most("header_bytes_max")
        self._calls_max = most("calls_max")
        self.watch = FrameWatch(
            self.limits, FRAME_BYTES_MAX, _HARD_HEADERS * self._header_bytes_max
        )
        self._h2 = H2Connection(
            H2Configuration(
                client_side=False,
                header_encoding=None,
                normalize_inbound_headers=False,  # joins cookies
                validate_inbound_headers=False,  # costs 20 µs a call; `checked_size` checks
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
            )
        )
        encoder = HeaderEncoder()
        for headers in (_HEADERS, _OK_TRAILERS):
            encoder.remember(headers)
        self._h2.encoder = cast("Encoder", encoder)
        self._announce(most("stream_window_bytes"), most("connection_window_bytes"))

    def _announce(self, stream_window: int, connection_window: int) -> None:
        h2 = self._h2
        h2.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: self._calls_max,
                SettingCodes.MAX_HEADER_LIST_SIZE: self._header_bytes_max,
                SettingCodes.INITIAL_WINDOW_SIZE: stream_window,
                SettingCodes.MAX_FRAME_SIZE: FRAME_BYTES_MAX,
            },
        )
        h2.max_inbound_frame_size = FRAME_BYTES_MAX
        h2.initiate_connection()
        if connection_window > _DEFAULT_WINDOW:
            h2.increment_flow_control_window(connection_window - _DEFAULT_WINDOW)
        # Beyond these two h2 gives up the connection. Between what was announced and that, one call
        # is refused: a client may not have read the announcement yet.
        h2.decoder.max_header_list_size = _HARD_HEADERS * self._header_bytes_max
        h2.local_settings.max_concurrent_streams = _HARD_CALLS * self._calls_max
        h2.local_settings.acknowledge()
        self._collect()

    @property
    def calls(self) -> int:
        """How many calls are open."""
        return len(self._streams)

    # Input

    def receive(self, data: bytes, now: float) -> None:
        """Take bytes of the client.

        Raises: SessionRefused; the output then ends with a GOAWAY, and the connection must end.
        """
        self._now = now
        try:
            self._receive(self.watch.feed(data, now))
        except SessionRefused as error:
            self.abandon()
            self._go_away(self._h2.highest_inbound_stream_id, error.code)
            raise
        finally:
            self._collect()

    def _receive(self, data: bytes) -> None:
        try:
            events = self._h2.receive_data(data)
        except TooManyStreamsError:
            self.limits.note("calls_max")
            raise SessionRefused(
                f"the client has more than {_HARD_CALLS * self._calls_max} calls at once",
                f"use more connections, or raise {self.limits.name('calls_max')}",
                ErrorCodes.ENHANCE_YOUR_CALM,
            ) from None
        except DenialOfServiceError:
            self.limits.note("header_bytes_max")
            raise SessionRefused(
                f"the headers of a call have more than {_HARD_HEADERS * self._header_bytes_max}"
                " bytes",
                f"send less metadata, or raise {self.limits.name('header_bytes_max')}",
                ErrorCodes.ENHANCE_YOUR_CALM,
            ) from None
        except ProtocolError as error:
            raise SessionRefused(
                f"the client violates HTTP/2: {error}",
                "check the client, and proxies between the two sides",
                int(error.error_code or PROTOCOL_ERROR),
            ) from None
        # h2 already is in the state behind all events: what is reset cannot be answered any more.
        gone = {event.stream_id for event in events if isinstance(event, StreamReset)}
        self._ended = {event.stream_id for event in events if isinstance(event, StreamEnded)}
        widened = False
        for event in events:
            kind = event.__class__
            if kind is DataReceived:
                self._data_received(event)
            elif kind is RequestReceived:
                self._call_started(event, gone)
            elif kind is StreamEnded:
                self._requests_ended(event)
            elif kind is WindowUpdated or kind is RemoteSettingsChanged:
                widened = True
            elif kind is StreamReset:
                self._was_reset(event)
        if widened:
            self._pump_all()

    def _call_started(self, event: Event, gone: Set[int]) -> None:
        assert isinstance(event, RequestReceived)
        call, headers = event.stream_id, event.headers
        if call in gone:
            return
        if self.draining:
            self._h2.reset_stream(call, ErrorCodes.REFUSED_STREAM)
            return
        if len(self._streams) >= self._calls_max:
            self.limits.note("calls_max")
            self.watch.was_reset(self._now)
            self._h2.reset_stream(call, ErrorCodes.REFUSED_STREAM)
            return
        try:
            if (size := checked_size(headers)) > self._header_bytes_max:
                self.limits.note("header_bytes_max")
                raise CallFailed(
                    GrpcStatus.RESOURCE_EXHAUSTED,
                    f"the headers of the call have {size} bytes, and the server takes"
                    f" {self._header_bytes_max}; send less metadata, or raise"
                    f" {self.limits.name('header_bytes_max')}",
                )
            head = read_head(headers)
        except CallFailed as error:
            self._answer_at_once(call, (_OK, _CONTENT_TYPE, *_trailers(error)))
        except NotGrpc as error:
            self._answer_at_once(call, _http_answer(error.status))
        else:
            reader = MessageReader(self.limits, head.gzip)
            self._streams[call] = _Stream(reader, received_at=self._now)
            self._events.append(CallStarted(call, head))

    def _answer_at_once(self, call: int, headers: Headers) -> None:
        self._h2.send_headers(call, headers, end_stream=True)
        if call not in self._ended:
            # The answer is complete: the client need not send the rest of its messages.
            self._h2.reset_stream(call, ErrorCodes.NO_ERROR)

    def _data_received(self, event: Event) -> None:
        assert isinstance(event, DataReceived)
        call, size = event.stream_id, event.flow_controlled_length
        stream = self._streams.get(call)
        if stream is None:
            if size:
                self._h2.acknowledge_received_data(size, call)
            return
        reader = stream.reader
        stream.received_at = self._now
        try:
            reader.add(event.data, size)
        except CallFailed as error:
            self._refuse(call, error)
            return
        self._grant(call, reader)
        self._keep(stream)
        if self.buffers.kept_bytes > self.buffers.bytes_max:
            self.limits.note("buffers_bytes_max")
            failure = CallFailed(
                GrpcStatus.RESOURCE_EXHAUSTED,
                f"the requests of all clients keep more than {self.buffers.bytes_max} bytes in"
                f" memory; send again later, or raise {self.limits.name('buffers_bytes_max')}",
            )
            self._refuse(call, failure)
        elif reader.complete:
            self._events.append(CallReadable(call))

    def _requests_ended(self, event: Event) -> None:
        assert isinstance(event, StreamEnded)
        stream = self._streams.get(event.stream_id)
        if stream is not None:
            stream.reader.ended = True
            self._events.append(CallReadable(event.stream_id))

    def _was_reset(self, event: Event) -> None:
        assert isinstance(event, StreamReset)
        if not event.remote_reset:
            self.watch.was_reset(self._now)  # h2 refused a frame of the client
        stream = self._streams.get(event.stream_id)
        if stream is not None:
            why = "cancelled by the client" if event.remote_reset else "refused by HTTP/2"
            self._forget(event.stream_id, stream)
            self._events.append(CallEnded(event.stream_id, why))

    def _refuse(self, call: int, failure: CallFailed) -> None:
        """End a call because of what the client sent."""
        self._note(failure)
        self.finish(call, failure)
        self._events.append(CallEnded(call, failure.text))

    def _note(self, failure: CallFailed) -> None:
        if isinstance(failure, MessageTooLarge):
            self.limits.note(failure.limit)

    def take_message(self, call: int) -> bytes | None:
        """Return the next whole message, None if there is none (yet, or because the call is gone).

        Raises: CallFailed for a message that cannot be used.
        """
        stream = self._streams.get(call)
        if stream is None:
            return None
        try:
            message = stream.reader.take()
        except CallFailed as error:
            self._note(error)
            raise
        if message is not None:
            self._grant(call, stream.reader)
            self._keep(stream)
            self._collect()
        return message

    def expect_request(self, call: int) -> None:
        """Let a call stall while no message comes: its handler waits for the only one."""
        stream = self._streams.get(call)
        if stream is not None:
            stream.expected = True

    def has_waiting(self, call: int) -> bool:
        """Return whether a message of a call waits for a window or for the output."""
        return call in self._waiting

    def requests_ended(self, call: int) -> bool:
        """Return whether no message of a call will come any more."""
        stream = self._streams.get(call)
        return stream is None or stream.reader.exhausted

    def _grant(self, call: int, reader: MessageReader) -> None:
        granted = reader.granted()
        if granted:
            self._h2.acknowledge_received_data(granted, call)

    def _keep(self, stream: _Stream) -> None:
        """Bring the count of kept bytes up to date."""
        kept = stream.reader.kept_bytes
        self.buffers.kept_bytes += kept - stream.kept_bytes
        stream.kept_bytes = kept

    # Output

    def send_message(self, call: int, message: bytes) -> bool:
        """Send a message behind all earlier ones; return whether all of it could be framed.

        If not, ``CallWritable`` comes when it is.
        """
        stream = self._streams.get(call)
        if stream is None:
            return True
        if not stream.answers:
            stream.answers = True
            self._h2.send_headers(call, _HEADERS)
        data = message_prefix(len(message)) + message
        if not stream.waiting and self._has_room(call, len(data)):
            self._h2.send_data(call, data)
            self.watch.sent_data()
            self._collect()
            return True
        stream.waiting.append(memoryview(data))
        stream.sent_at = self._now
        self._waiting[call] = stream
        self._pump(call, stream)
        self._collect()
        return call not in self._waiting

    def finish(self, call: int, failure: CallFailed | None, more: Headers = ()) -> None:
        """End a call: with OK, or with the status of *failure*. *more*: trailing metadata."""
        stream = self._streams.get(call)
        if stream is None:
            return
        trailers: Headers = _OK_TRAILERS if failure is None else _trailers(failure)
        stream.trailers = (*trailers, *more) if more else trailers
        if failure is not None:
            stream.waiting.clear()  # the rest of a message that is cut off is of no use
        if stream.waiting:
            self._waiting[call] = stream
        else:
            self._send_trailers(call, stream)
        self._collect()

    def reset(self, call: int, code: ErrorCodes = ErrorCodes.CANCEL) -> None:
        """End a call without a status: what waits is dropped."""
        stream = self._streams.get(call)
        if stream is not None:
            self._forget(call, stream)
            self._h2.reset_stream(call, code)
            self._collect()

    def _send_trailers(self, call: int, stream: _Stream) -> None:
        headers = stream.trailers or _OK_TRAILERS
        if not stream.answers:
            headers = (*_HEADERS, *headers)
        ended = stream.reader.ended or call in self._ended
        self._forget(call, stream)
        self._h2.send_headers(call, headers, end_stream=True)
        if not ended:
            self._h2.reset_stream(call, ErrorCodes.NO_ERROR)

    def _forget(self, call: int, stream: _Stream) -> None:
        del self._streams[call]
        self._waiting.pop(call, None)
        held = stream.reader.release()
        if held:
            self._h2.acknowledge_received_data(held, call)
        self._keep(stream)

    def _has_room(self, call: int, size: int) -> bool:
        h2 = self._h2
        return (
            self.output_bytes <= OUTPUT_BYTES_MAX
            and size <= h2.max_outbound_frame_size
            and size <= h2.local_flow_control_window(call)
        )

    def _pump_all(self) -> None:
        for call, stream in list(self._waiting.items()):
            if self._h2.outbound_flow_control_window <= 0 or self.output_bytes > OUTPUT_BYTES_MAX:
                return
            # To the end of the queue: the next time, another call is first.
            self._waiting[call] = self._waiting.pop(call)
            self._pump(call, stream)

    def _pump(self, call: int, stream: _Stream) -> None:
        h2, waiting = self._h2, stream.waiting
        while waiting:
            room = min(h2.local_flow_control_window(call), h2.max_outbound_frame_size)
            if room <= 0 or self.output_bytes > OUTPUT_BYTES_MAX:
                return
            piece = waiting[0]
            if len(piece) > room:
                waiting[0] = piece[room:]
                piece = piece[:room]
            else:
                waiting.popleft()
            h2.send_data(call, piece)
            self.watch.sent_data()
            self._collect()
            stream.sent_at = self._now
        del self._waiting[call]
        if stream.trailers is not None:
            self._send_trailers(call, stream)
        else:
            self._events.append(CallWritable(call))

    def take_output(self) -> bytes:
        """Return the bytes for the socket, and frame more of what waits."""
        output = self._output[0] if len(self._output) == 1 else b"".join(self._output)
        self._output.clear()
        self.output_bytes = 0
        if self._waiting:
            self._pump_all()
            self._collect()
        return output

    def take_events(self) -> list[CallEvent]:
        """Return what has happened since the last time."""
        events, self._events = self._events, []
        return events

    def _collect(self) -> None:
        data = self._h2.data_to_send()
        if data:
            self._output.append(data)
            self.output_bytes += len(data)

    # Time, and the end

    def stalled(self, now: float, seconds: float) -> list[int]:
        """Return the calls that have waited for their client for *seconds*: to take a byte of the
        answer, or to send one of a request.

        *now* also is the time of what is sent until the next ``receive``.
        """
        self._now = now
        before = now - seconds
        return [call for call, stream in self._streams.items() if stream.stalls(before)]

    def ping(self) -> None:
        """Ask the client for a sign of life."""
        self._put(_PING_FRAME)

    def announce_end(self) -> None:
        """Tell the client that the server will stop; calls that are on their way still count."""
        self._go_away(LAST_STREAM, ErrorCodes.NO_ERROR)

    def begin_drain(self) -> None:
        """Refuse new calls from now on; open calls go on."""
        if not self.draining:
            self.draining = True
            self._go_away(self._h2.highest_inbound_stream_id, ErrorCodes.NO_ERROR)

    def abandon(self) -> None:
        """Forget all calls: the connection is lost."""
        for call, stream in self._streams.items():
            self._events.append(CallEnded(call, "the connection is lost"))
            stream.reader.release()
            self._keep(stream)
        self._streams.clear()
        self._waiting.clear()

    def _go_away(self, last: int, code: int) -> None:
        # Not by h2, for which its own GOAWAY is the end of the connection.
        self._put(_GOAWAY_FRAME + last.to_bytes(4) + int(code).to_bytes(4))

    def _put(self, frame: bytes) -> None:
        self._collect()
        self._output.append(frame)
        self.output_bytes += len(frame)


def _trailers(failure: CallFailed) -> Headers:
    text = encode_text(failure.text)
    trailers: list[tuple[bytes, bytes]] = [(b"grpc-status", b"%d" % failure.status)]
    if text:
        trailers.append((b"grpc-message", text))
    trailers += [(name.encode(), value.encode()) for name, value in failure.trailers]
    return trailers


def _http_answer(status: HTTPStatus) -> Headers:
    return ((b":status", b"%d" % status), (b"content-length", b"0"))
