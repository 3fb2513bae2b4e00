"""One accepted connection: its outbox, its counters, and the requests that the server sends.

``write`` is synchronous: it calls the socket at once and keeps in the outbox what the socket does
not take; the owning selector flushes the outbox when the socket takes bytes again. While an outbox
is above its high mark the server reads nothing more from that peer; above the hard mark the
connection is closed.
"""

import contextlib
import logging
import socket
import sys
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from struct import Struct
from typing import Protocol, TypeAlias

import attrs
import trio

from triomq.remoting.core.address import format_address
from triomq.remoting.core.errors import ConnectionLost, RemotingError, RequestTimeout
from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.protocol.command import Command
from triomq.remoting.protocol.framing import FrameBuffer
from triomq.remoting.protocol.peer import ClientPeer
from triomq.remoting.server.poller import READABLE, WRITABLE, Poller

_log = logging.getLogger(__name__)

_PORT = Struct(">i")
_RESET = Struct("ii").pack(1, 0)  # SO_LINGER with 0 seconds: closing sends a reset
_PIECES_PER_SEND = 64
# Up to about 8 KiB a piece, joining pieces is cheaper than giving the kernel a vector of them.
_JOIN_PIECE_BYTES_MAX = 8 * 1024
_JOIN_PIECES_MAX = 512


class BytesFilter(Protocol):
    """What may be between socket and frames: TLS. Unencrypted connections have none."""

    def received(self, data: bytes) -> bytes:
        """Turn bytes from the socket into bytes for the framing; b"" if there are none yet.

        Raises: RemotingError, which ends the connection.
        """

    def to_send(self, data: bytes) -> bytes:
        """Turn bytes of frames into bytes for the socket.

        Called with b"" after each ``received``, for bytes of the filter itself.
        """

    def closing(self) -> bytes:
        """Return the last bytes for the socket: this side is about to close."""

    def peer_name(self) -> str:
        """Return the common name of the peer's verified certificate; empty without one."""


@attrs.define(eq=False)
class Outboxes:
    """The bytes in all outboxes together, and the marks of each outbox, in bytes.

    While the total is above its limit, a connection whose outbox grows beyond the high mark is
    closed: its peer does not read.
    """

    high_bytes: int
    hard_bytes: int
    total_bytes_max: int = sys.maxsize
    full: trio.Event = attrs.field(factory=trio.Event, init=False)
    """Set when the total passes its limit; the guard replaces it."""
    total_bytes: int = attrs.field(default=0, init=False)
    closed_count: int = attrs.field(default=0, init=False)
    """connections closed because of the total"""

    def add(self, size: int) -> None:
        """Add *size* bytes (negative: remove them). Checkpoint: never."""
        self.total_bytes += size
        if self.total_bytes > self.total_bytes_max:
            self.full.set()

    @property
    def overfull(self) -> bool:
        return self.total_bytes > self.total_bytes_max


Answered: TypeAlias = Callable[[Command | None], None]
"""Takes the client's answer, or None if the connection ended before; called once."""


@attrs.define(eq=False)
class _Waiter:
    """A task that waits for the client's answer; ``done`` without one: the connection ended."""

    done: trio.Event = attrs.field(factory=trio.Event)
    answer: Command | None = None

    def answered(self, answer: Command | None) -> None:
        self.answer = answer
        self.done.set()


@attrs.define(eq=False)
class Connection:
    """Changed in one loop by its codec (input), calls of ``write`` (output) and its selector."""

    sock: socket.socket
    number: int
    peer: tuple[str, int]
    outboxes: Outboxes
    frames: FrameBuffer
    poller: Poller
    ended: Callable[["Connection"], None]  # the selector removes the connection
    limit: LogLimit = attrs.field(factory=LogLimit)
    local: bool = False
    """Whether the client is the gRPC service of this process. It divides no queues, and so need not
    know when a group changes; its signatures are those of its clients' calls.
    """
    fd: int = attrs.field(init=False)
    origin: str = attrs.field(init=False)
    """The host of the socket's other end, whatever a PROXY header says."""
    peer_text: str = attrs.field(init=False)
    peer_bytes: bytes = attrs.field(init=False)
    filter: BytesFilter | None = attrs.field(default=None, init=False)
    closed: bool = attrs.field(default=False, init=False)
    close_reason: str = attrs.field(default="", init=False)
    traffic: int = attrs.field(default=0, init=False)  # reads and sends, for the idle scan
    idle_traffic: int = attrs.field(default=-1, init=False)
    idle_since: float = attrs.field(default=0.0, init=False)
    sent_bytes: int = attrs.field(default=0, init=False)
    reading: bool = attrs.field(default=True, init=False)
    outbox_bytes: int = attrs.field(default=0, init=False)
    receive_into: Callable[[bytearray], int] = attrs.field(init=False)
    _send: Callable[[bytes | memoryview], int] = attrs.field(init=False)
    _peer: ClientPeer[Answered] | None = attrs.field(default=None, init=False)
    _outbox: deque[bytes | memoryview] = attrs.field(factory=deque, init=False)
    # The events that the poller watches; None: not registered.
    _events: int | None = attrs.field(default=None, init=False)
    _stopped: bool = attrs.field(default=False, init=False)  # the server reads no more from it
    _finished: bool = attrs.field(default=False, init=False)  # the peer sends no more
    _reset_at_end: bool = attrs.field(default=False, init=False)

    def certificate_name(self) -> str:
        """Return the common name of the client's verified certificate; empty without one."""
        return "" if self.filter is None else self.filter.peer_name()

    def __attrs_post_init__(self) -> None:
        self.origin = self.peer[0]
        self.set_peer(self.peer)
        self.fd = self.sock.fileno()
        self.receive_into = self.sock.recv_into
        self._send = self.sock.send

    def set_peer(self, peer: tuple[str, int]) -> None:
        """Set the peer's address: the socket's other end, or the client of a load balancer."""
        host, port = self.peer = peer
        self.peer_text = format_address(host, port)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.peer_bytes = socket.inet_pton(family, host.partition("%")[0]) + _PORT.pack(port)

    # Output

    def write(self, pieces: Sequence[bytes | memoryview], *, filtered: bool = False) -> None:
        """Send bytes after all earlier bytes; do nothing on a closed connection.

        Checkpoint: never.
        """
        if self.closed:
            return
        if self.filter is not None and not filtered:
            try:
                pieces = (self.filter.to_send(b"".join(pieces)),)
            except RemotingError as error:
                self.close(str(error))
                return
        self.traffic += 1
        if self._outbox:
            self._keep(b"".join(pieces))
            return
        count = len(pieces)
        try:
            if count <= 1:
                data: bytes | memoryview = pieces[0] if count else b""
                size = len(data)
                sent = self._send(data)
            else:
                # Only the last piece is measured: adding up all sizes takes as long as joining.
                if len(pieces[-1]) <= _JOIN_PIECE_BYTES_MAX or count > _JOIN_PIECES_MAX:
                    data = b"".join(pieces)
                    size = len(data)
                    sent = self._send(data)
                else:
                    data = b""
                    size = sum(map(len, pieces))
                    sent = self.sock.sendmsg(pieces)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self.close(f"sending failed: {error.strerror or error}")
            return
        self.sent_bytes += sent
        if sent != size:
            # A copy: a piece may be a view of a file that will be unmapped.
            self._keep(bytes(memoryview(data or b"".join(pieces))[sent:]))

    def _keep(self, rest: bytes) -> None:
        if not rest:
            return
        self._outbox.append(rest)
        self.outbox_bytes += len(rest)
        self.outboxes.add(len(rest))
        if self.outbox_bytes > self.outboxes.hard_bytes:
            self.limit.warning(
                _log,
                "closing %s: it does not read its answers, %d bytes wait (limit %d)",
                self.peer_text,
                self.outbox_bytes,
                self.outboxes.hard_bytes,
            )
            self.close("the outbox is above its hard mark")
        elif self.outbox_bytes <= self.outboxes.high_bytes:
            self.watch()
        elif self.outboxes.overfull:
            self.close_greedy(self.outbox_bytes)
        else:
            self.reading = False
            self.watch()

    def flush(self) -> None:
        """Send what the socket takes; the selector calls this when the socket takes bytes again."""
        outbox = self._outbox
        while outbox:
            try:
                sent = self.sock.sendmsg(list(islice(outbox, _PIECES_PER_SEND)))
            except BlockingIOError:
                break
            except OSError as error:
                self.close(f"sending failed: {error.strerror or error}")
                return
            self.traffic += 1
            self.sent_bytes += sent
            self.outbox_bytes -= sent
            self.outboxes.add(-sent)
            while sent:
                size = len(outbox[0])
                if sent < size:
                    outbox[0] = memoryview(outbox[0])[sent:]
                    break
                sent -= size
                outbox.popleft()
        if not self.reading and self.outbox_bytes <= self.outboxes.high_bytes // 2:
            self.reading = True
        self.watch()

    # Its place in the poller

    def watch(self) -> None:
        """Tell the poller which events this connection waits for now."""
        if self.closed or self._finished:
            return
        events = (READABLE if self.reading and not self._stopped else 0) | (
            WRITABLE if self._outbox else 0
        )
        if events == self._events:
            return
        if self._events is None:
            self.poller.register(self.sock, events)
        else:
            self.poller.modify(self.sock, events)
        self._events = events

    def stop_reading(self) -> None:
        """Read no more from this peer, but send its answers: the server stops."""
        self._stopped = True
        self.watch()

    def refuse_in_silence(self) -> None:
        """Leave a request unanswered: read no more, and end the connection with a reset.

        Java 4.9 gives up its calls when a connection is reset; after an orderly close it waits for
        their time-outs.
        """
        self._reset_at_end = True
        self.stop_reading()

    def finish(self, reason: str) -> None:
        """Stop polling: the peer closed its sending side. Requests already read are finished."""
        self.close_reason = self.close_reason or reason
        self._finished = True
        if self._events is not None:
            self._events = None
            self.poller.unregister(self.sock)

    # Requests of the server

    def oneway(self, command: Command) -> None:
        """Send a one-way request; do nothing on a closed connection. Checkpoint: never."""
        self.write((self._requester().send_oneway(command),))

    async def invoke(self, command: Command, timeout: float) -> Command:
        """Send a request to the client and wait for its answer, up to *timeout* seconds.

        Cancellation leaves the connection unchanged; the late answer is dropped.

        Raises: RequestTimeout, ConnectionLost.
        Checkpoint: always.
        """
        waiter = _Waiter()
        number = self.ask(command, trio.current_time() + timeout, waiter.answered)
        try:
            with trio.move_on_after(timeout):
                await waiter.done.wait()
        finally:
            self.give_up(number)
        if waiter.answer is not None:
            return waiter.answer
        if self.closed:
            raise ConnectionLost(self.peer_text, self.close_reason)
        raise RequestTimeout(self.peer_text, int(command.code), timeout)

    def ask(self, command: Command, deadline: float, answered: Answered) -> int:
        """Send a request to the client and return its number; no task waits.

        ``answered`` may be called before this returns, if the connection ends now. The caller calls
        ``give_up`` at the deadline.

        Raises: ConnectionLost.
        Checkpoint: never.
        """
        if self.closed:
            raise ConnectionLost(self.peer_text, self.close_reason)
        pending, data = self._requester().send(command, answered, deadline)
        self.write((data,))
        return pending.opaque

    def give_up(self, number: int) -> None:
        """Drop the answer to a request when it comes. Checkpoint: never."""
        self._requester().give_up(number)

    def take_response(self, frame: bytes) -> None:
        """Pass a frame that answers a request of this server to its caller.

        Raises: RemoteProtocolError for a damaged frame.
        """
        for pending, answer in self._requester().receive_frames((frame,)).replies:
            pending.token(answer)

    def _requester(self) -> ClientPeer[Answered]:
        """Return the requesting side, made at the first use: most connections never need it."""
        if self._peer is None:
            self._peer = ClientPeer()
        return self._peer

    # The end

    def close(self, reason: str = "closed by this side") -> None:
        """Close at once and drop queued output. The reason of the first call stays.

        Checkpoint: never.
        """
        if self.closed:
            return
        self.finish(reason)
        self.closed = True
        if self.filter is not None:
            self._send_close_notify(self.filter)
        self._outbox.clear()
        self.outboxes.add(-self.outbox_bytes)
        self.outbox_bytes = 0
        if self._reset_at_end:
            with contextlib.suppress(OSError):  # the peer may have closed it already
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.sock.close()
        if self._peer is not None:
            for pending in self._peer.lose():
                pending.token(None)
        self.ended(self)

    def close_greedy(self, size: int) -> None:
        """Close, since all connections keep too many bytes in memory, and this one *size* bytes."""
        self.outboxes.closed_count += 1
        message = (
            "closing %s: all connections keep more than %d bytes in memory, and this one %d of them"
        )
        most = self.outboxes.total_bytes_max
        self.limit.warning(_log, message, self.peer_text, most, size)
        self.close("too many bytes kept in memory")

    def _send_close_notify(self, bytes_filter: BytesFilter) -> None:
        """Send TLS's close_notify if the outbox is empty: the peer sees that nothing is missing."""
        last = bytes_filter.closing()
        if last and not self._outbox:
            try:
                self._send(last)
            except OSError as error:
                _log.debug("no close_notify to %s: %s", self.peer_text, error)
