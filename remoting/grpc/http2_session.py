"""One HTTP/2 connection as calls: bytes in, events of calls out; messages and ends in, bytes out.

No I/O, no clock: ``now`` is given.

::

    receive(bytes) ──▶ Http2Connection ──▶ take_events(): CallStarted, CallReadable, CallWritable,
                                                          CallEnded
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
from collections.abc import Callable
from http import HTTPStatus

import attrs

from triomq.remoting.grpc.call_head import CallHead, NotGrpc, read_head
from triomq.remoting.grpc.frame_budgets import FrameBudgets, always
from triomq.remoting.grpc.frames import NUMBER_MAX, ErrorCode, SessionRefused
from triomq.remoting.grpc.header_encoder import HeaderEncoder
from triomq.remoting.grpc.http2_connection import (
    Announced,
    DataReceived,
    Headers,
    HeadersReceived,
    Http2Connection,
    Http2Stream,
    StreamReset,
)
from triomq.remoting.grpc.message_reader import (
    PREFIX_BYTES,
    Cost,
    MessageReader,
    MessageTooLarge,
    all_bytes,
    message_prefix,
)
from triomq.remoting.grpc.status import CallFailed, GrpcStatus, encode_text
from triomq.remoting.protocol.limits import Limits

FRAME_BYTES_MAX = 256 * 1024
"""announced to clients: fewer frames for large messages than with HTTP/2's 16 KiB"""
OUTPUT_BYTES_MAX = 256 * 1024
"""bytes for the socket above which no more data of calls is framed"""
_HARD_HEADERS = 4
"""times the announced size: between the two, one call is refused and not the whole connection"""

_OK = (b":status", b"200")
_CONTENT_TYPE = (b"content-type", b"application/grpc")
_HEADERS = (_OK, _CONTENT_TYPE)
_OK_TRAILERS = ((b"grpc-status", b"0"),)


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
class _SessionCall:
    stream: Http2Stream
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
    """One connection."""

    limits: Limits
    buffers: Buffers
    spend_of_address: Callable[[float], bool] = always
    """takes a call that ends in a reset out of the budget of the client's address"""
    draining: bool = attrs.field(default=False, init=False)
    budgets: FrameBudgets = attrs.field(init=False)
    _http2: Http2Connection = attrs.field(init=False)
    _calls: dict[int, _SessionCall] = attrs.field(factory=dict, init=False)
    _waiting: dict[int, _SessionCall] = attrs.field(factory=dict, init=False)
    """calls with data or trailers that wait for a window or the output; the first is next"""
    _events: list[CallEvent] = attrs.field(factory=list, init=False)
    _now: float = attrs.field(default=0.0, init=False)
    _header_bytes_max: int = attrs.field(init=False)
    _calls_max: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        most = self.limits.most
        self._header_bytes_max = most("header_bytes_max")
        self._calls_max = most("calls_max")
        encoder = HeaderEncoder()
        for headers in (_HEADERS, _OK_TRAILERS):
            encoder.remember(headers)
        announced = Announced(
            streams_max=self._calls_max,
            header_bytes_max=self._header_bytes_max,
            stream_window_bytes=most("stream_window_bytes"),
            connection_window_bytes=most("connection_window_bytes"),
            frame_bytes_max=FRAME_BYTES_MAX,
        )
        self.budgets = FrameBudgets(
            self.limits, _HARD_HEADERS * self._header_bytes_max, self.spend_of_address
        )
        self._http2 = Http2Connection(announced, self.budgets, encoder)

    @property
    def calls(self) -> int:
        """How many calls are open."""
        return len(self._calls)

    @property
    def began(self) -> bool:
        """Whether a frame of the client has come."""
        return self._http2.began

    @property
    def peer_leaves(self) -> bool:
        """Whether the client has announced that it begins no more calls."""
        return self._http2.peer_leaves

    @property
    def output_bytes(self) -> int:
        """How many bytes ``take_output`` returns."""
        return self._http2.output_bytes

    # Input

    def receive(self, data: bytes, now: float) -> None:
        """Take bytes of the client.

        Raises: SessionRefused; the output then ends with a GOAWAY, and the connection must end.
        """
        self._now = now
        widened = False
        try:
            for event in self._http2.receive(data, now):
                if isinstance(event, DataReceived):
                    self._data_received(event)
                elif isinstance(event, HeadersReceived):
                    self._call_started(event)
                elif isinstance(event, StreamReset):
                    self._was_reset(event)
                else:
                    widened = True
        except SessionRefused as error:
            self.abandon()
            # RFC 9113, 5.4.1: a GOAWAY with the last stream that was looked at, then the end.
            self._http2.go_away(self._http2.last_stream, error.code)
            raise
        if widened:
            self._pump_all()

    def _call_started(self, event: HeadersReceived) -> None:
        stream, size = event.stream, event.size
        if self.draining:
            # RFC 9113, 8.7: with REFUSED_STREAM clients know that nothing was done, and try
            # elsewhere.
            self._http2.reset(stream, ErrorCode.REFUSED_STREAM)
            return
        if len(self._calls) >= self._calls_max:
            self.limits.note("calls_max")
            self._http2.reset(stream, ErrorCode.REFUSED_STREAM)
            # A client that ignores the announced limit pays as one that resets: otherwise the
            # refusals are free for it.
            self.budgets.was_reset(self._now)
            return
        try:
            if size > self._header_bytes_max:
                self.limits.note("header_bytes_max")
                raise CallFailed(
                    GrpcStatus.RESOURCE_EXHAUSTED,
                    f"the headers of the call have {size} bytes, and the server takes"
                    f" {self._header_bytes_max}; send less metadata, or raise"
                    f" {self.limits.name('header_bytes_max')}",
                )
            head = read_head(event.headers)
        except CallFailed as error:
            # Also a failure has the HTTP status 200: gRPC's status is in the trailers.
            self._http2.end(stream, (_OK, _CONTENT_TYPE, *_trailers(error)))
        except NotGrpc as error:
            self._http2.end(stream, _http_answer(error.status))
        else:
            reader = MessageReader(self.limits, head.gzip, stream.ended)
            self._calls[stream.number] = _SessionCall(stream, reader, received_at=self._now)
            self._events.append(CallStarted(stream.number, head))

    def _data_received(self, event: DataReceived) -> None:
        stream, size = event.stream, event.flow_bytes
        number = stream.number
        call = self._calls[number]
        reader = call.reader
        call.received_at = self._now
        reader.ended = stream.ended
        try:
            reader.add(event.data, size)
        except CallFailed as error:
            self._refuse(number, error)
            return
        # The bytes of a message that is not whole yet are granted again at once, so that it may be
        # larger than a window. A whole one keeps the window until a handler takes it, and the
        # client stops.
        self._grant(call)
        self._keep(call)
        if self.buffers.kept_bytes > self.buffers.bytes_max:
            self.limits.note("buffers_bytes_max")
            failure = CallFailed(
                GrpcStatus.RESOURCE_EXHAUSTED,
                f"the requests of all clients keep more than {self.buffers.bytes_max} bytes in"
                f" memory; send again later, or raise {self.limits.name('buffers_bytes_max')}",
            )
            self._refuse(number, failure)
        elif reader.complete or reader.ended:
            self._events.append(CallReadable(number))

    def _was_reset(self, event: StreamReset) -> None:
        number = event.stream.number
        call = self._calls.get(number)
        if call is not None:
            self._forget(number, call)
            # A flood of calls with a reset each costs no handler (CVE-2023-44487).
            if any(isinstance(one, CallStarted) and one.call == number for one in self._events):
                # Nobody has heard of it: it was begun in the same bytes.
                self._events = [one for one in self._events if one.call != number]
            else:
                why = "cancelled by the client" if event.by_client else "refused by HTTP/2"
                self._events.append(CallEnded(number, why))
        if not event.by_client:
            self.budgets.was_reset(self._now)

    def _refuse(self, number: int, failure: CallFailed) -> None:
        """End a call because of what the client sent."""
        self._note(failure)
        self.finish(number, failure)
        self._events.append(CallEnded(number, failure.text))

    def _note(self, failure: CallFailed) -> None:
        if isinstance(failure, MessageTooLarge):
            self.limits.note(failure.limit)

    def take_message(self, number: int, cost: Cost = all_bytes) -> bytes | None:
        """Return the next whole message, None if there is none (yet, or because the call is gone).

        *cost*: what counts against the limit of bytes without bodies.

        Raises: CallFailed for a message that cannot be used.
        """
        call = self._calls.get(number)
        if call is None:
            return None
        try:
            message = call.reader.take(cost)
        except CallFailed as error:
            self._note(error)
            raise
        if message is not None:
            self._grant(call)
            self._keep(call)
        return message

    def knows(self, number: int) -> bool:
        """Return whether a call is open."""
        return number in self._calls

    def expect_request(self, number: int) -> None:
        """Let a call stall while no message comes: its handler waits for the only one."""
        call = self._calls.get(number)
        if call is not None:
            call.expected = True

    def has_waiting(self, number: int) -> bool:
        """Return whether a message of a call waits for a window or for the output."""
        return number in self._waiting

    def requests_ended(self, number: int) -> bool:
        """Return whether no message of a call will come any more."""
        call = self._calls.get(number)
        return call is None or call.reader.exhausted

    def _grant(self, call: _SessionCall) -> None:
        granted = call.reader.granted()
        if granted:
            self._http2.grant(call.stream, granted)

    def _keep(self, call: _SessionCall) -> None:
        """Bring the count of kept bytes up to date."""
        kept = call.reader.kept_bytes
        self.buffers.kept_bytes += kept - call.kept_bytes
        call.kept_bytes = kept

    # Output

    def send_message(self, number: int, *messages: bytes) -> bool:
        """Send messages behind all earlier ones; return whether all of them could be framed.

        If not, ``CallWritable`` comes when it is.
        """
        call = self._calls.get(number)
        if call is None:
            return True
        if not call.answers:
            call.answers = True
            self._http2.send_headers(call.stream, _HEADERS)
        pieces = [piece for one in messages for piece in (message_prefix(len(one)), one)]
        data = b"".join(pieces)
        if not call.waiting and self._has_room(call, len(data)):
            self._http2.send_data(call.stream, data)
            return True
        call.waiting.append(memoryview(data))
        call.sent_at = self._now
        self._waiting[number] = call
        self._pump(number, call)
        return number not in self._waiting

    def answer(self, number: int, message: bytes) -> bool:
        """Send the only message of a call, and its end; return whether all of it could be framed.

        If not, ``CallWritable`` comes when it is, and ``finish`` is to be called then.
        """
        call = self._calls.get(number)
        if call is None:
            return True
        size = PREFIX_BYTES + len(message)
        if call.stream.ended and not call.answers and self._has_room(call, size):
            self._forget(number, call)
            self._http2.answer(call.stream, _HEADERS, message, _OK_TRAILERS)
            return True
        framed = self.send_message(number, message)
        if framed:
            self.finish(number, None)
        return framed

    def finish(self, number: int, failure: CallFailed | None, more: Headers = ()) -> None:
        """End a call: with OK, or with the status of *failure*. *more*: trailing metadata."""
        call = self._calls.get(number)
        if call is None:
            return
        trailers: Headers = _OK_TRAILERS if failure is None else _trailers(failure)
        call.trailers = (*trailers, *more) if more else trailers
        if failure is not None:
            call.waiting.clear()  # the rest of a message that is cut off is of no use
        if call.waiting:
            self._waiting[number] = call
        else:
            self._send_trailers(number, call)

    def reset(self, number: int, code: ErrorCode = ErrorCode.CANCEL) -> None:
        """End a call without a status: what waits is dropped."""
        call = self._calls.get(number)
        if call is not None:
            self._forget(number, call)
            self._http2.reset(call.stream, code)

    def _send_trailers(self, number: int, call: _SessionCall) -> None:
        headers = call.trailers or _OK_TRAILERS
        if not call.answers:
            headers = (*_HEADERS, *headers)
        self._forget(number, call)
        self._http2.end(call.stream, headers)

    def _forget(self, number: int, call: _SessionCall) -> None:
        del self._calls[number]
        self._waiting.pop(number, None)
        # The window of the connection is shared: bytes that nobody will take must be granted all
        # the same, or the other calls starve (RFC 9113, 6.9).
        held = call.reader.release()
        if held:
            self._http2.grant(call.stream, held)
        self._keep(call)

    def _has_room(self, call: _SessionCall, size: int) -> bool:
        # The windows of the client may be large, and its socket slow: the output has a limit of its
        # own.
        return self.output_bytes <= OUTPUT_BYTES_MAX and size <= self._http2.room(call.stream)

    def _pump_all(self) -> None:
        # In turns, so that a large answer does not hold up the small ones of the connection.
        for number, call in list(self._waiting.items()):
            if self._http2.window <= 0 or self.output_bytes > OUTPUT_BYTES_MAX:
                return
            # To the end of the queue: the next time, another call is first.
            self._waiting[number] = self._waiting.pop(number)
            self._pump(number, call)

    def _pump(self, number: int, call: _SessionCall) -> None:
        waiting = call.waiting
        while waiting:
            room = self._http2.room(call.stream)
            if room <= 0 or self.output_bytes > OUTPUT_BYTES_MAX:
                return
            piece = waiting[0]
            if len(piece) > room:
                waiting[0] = piece[room:]
                piece = piece[:room]
            else:
                waiting.popleft()
            self._http2.send_data(call.stream, piece)
            call.sent_at = self._now
        del self._waiting[number]
        if call.trailers is not None:
            self._send_trailers(number, call)
        else:
            self._events.append(CallWritable(number))

    def take_output(self) -> bytes:
        """Return the bytes for the socket, and frame more of what waits."""
        output = self._http2.take_output()
        if self._waiting:
            self._pump_all()
        return output

    def take_events(self) -> list[CallEvent]:
        """Return what has happened since the last time."""
        events, self._events = self._events, []
        return events

    # Time, and the end

    def stalled(self, now: float, seconds: float) -> list[int]:
        """Return the calls that have waited for their client for *seconds*: to take a byte of the
        answer, or to send one of a request.

        *now* also is the time of what is sent until the next ``receive``.
        """
        self._now = now
        before = now - seconds
        return [number for number, call in self._calls.items() if call.stalls(before)]

    def ping(self) -> None:
        """Ask the client for a sign of life."""
        self._http2.ping()

    def announce_end(self) -> None:
        """Tell the client that the server will stop; calls that are on their way still count."""
        self._http2.go_away(NUMBER_MAX, ErrorCode.NO_ERROR)

    def begin_drain(self) -> None:
        """Refuse new calls from now on; open calls go on."""
        if not self.draining:
            self.draining = True
            self._http2.go_away(self._http2.last_stream, ErrorCode.NO_ERROR)

    def abandon(self) -> None:
        """Forget all calls: the connection is lost."""
        for number, call in self._calls.items():
            self._events.append(CallEnded(number, "the connection is lost"))
            call.reader.release()
            self._keep(call)
        self._calls.clear()
        self._waiting.clear()
        self._http2.forget_streams()


def _trailers(failure: CallFailed) -> Headers:
    text = encode_text(failure.text)
    trailers: list[tuple[bytes, bytes]] = [(b"grpc-status", b"%d" % failure.status)]
    if text:
        trailers.append((b"grpc-message", text))
    trailers += [(name.encode(), value.encode()) for name, value in failure.trailers]
    return trailers


def _http_answer(status: HTTPStatus) -> Headers:
    return ((b":status", b"%d" % status), (b"content-length", b"0"))
