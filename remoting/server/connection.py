"""One accepted connection: its outbox, its facts, and the requests that the server itself sends on it.

`write` is synchronous: it tries the socket at once and keeps what does not fit in the outbox, which the owning selector flushes
when the socket takes bytes again. An outbox above its high mark stops reading from that peer (it should first take its
answers); above the hard mark the connection is closed.
"""

import contextlib
import logging
import socket
import sys
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from struct import Struct
from typing import Protocol

import attrs
import trio

from triomq.remoting.address import format_address
from triomq.remoting.errors import ConnectionLost, RemotingError, RequestTimeout
from triomq.remoting.log_limit import LogLimit
from triomq.remoting.protocol.command import Command
from triomq.remoting.protocol.framing import FrameBuffer
from triomq.remoting.protocol.peer import ClientPeer
from triomq.remoting.server.poller import READABLE, WRITABLE, Poller

_log = logging.getLogger(__name__)

_PORT = Struct(">i")
_FRAME_TOTAL = Struct(">i")
_RESET = Struct("ii").pack(1, 0)  # linger for no time: closing sends a reset
TOO_MUCH = "closing %s: all connections keep more than %d bytes in memory, and this one %d of them"
_PIECES_PER_SEND = 64
# Joining small pieces is cheaper than giving the kernel a vector of them; from about 8 KiB a piece it is dearer.
_JOIN_PIECE_BYTES_MAX = 8 * 1024
_JOIN_PIECES_MAX = 512


class BytesFilter(Protocol):
    """What may stand between socket and frames: TLS. A plain connection has none."""

    def received(self, data: bytes) -> bytes:
        """Bytes from the socket -> bytes for the framing (b"" if there are none yet). RemotingError ends the connection."""

    def to_send(self, data: bytes) -> bytes:
        """Bytes of frames -> bytes for the socket. Called with b"" after each `received`, for what the filter itself must say."""

    def closing(self) -> bytes:
        """The last bytes for the socket: this side is about to close."""


@attrs.define(eq=False)
class Outboxes:
    """What the outboxes of all connections hold together, and the marks of each, in bytes.

    While the total is above its limit, a connection whose outbox grows beyond the high mark is closed: its peer does not read.
    """

    high_bytes: int
    hard_bytes: int
    total_bytes_max: int = sys.maxsize
    full: trio.Event = attrs.field(factory=trio.Event, init=False)
    """Set when the total passes its limit; the guard replaces it."""
    total_bytes: int = attrs.field(default=0, init=False)
    closed_count: int = attrs.field(default=0, init=False)
    """connections that were closed for the sake of the total"""

    def add(self, size: int) -> None:
        """So many bytes more (less, if negative) are kept.  Checkpoint: never."""
        self.total_bytes += size
        if self.total_bytes > self.total_bytes_max:
            self.full.set()

    @property
    def overfull(self) -> bool:
        return self.total_bytes > self.total_bytes_max


@attrs.define(eq=False)
class _Waiter:
    """Somebody waits for the client's answer; `done` without an answer means that the connection ended."""

    done: trio.Event = attrs.field(factory=trio.Event)
    answer: Command | None = None


@attrs.define(eq=False)
class Connection:
    """Changed by its codec (input), any synchronous `write` (output), and its selector (flush, close); all in one loop."""

    sock: socket.socket
    number: int
    peer: tuple[str, int]
    outboxes: Outboxes
    frames: FrameBuffer
    poller: Poller
    ended: Callable[["Connection"], None]  # the selector's: forget me
    limit: LogLimit = attrs.field(factory=LogLimit)
    fd: int = attrs.field(init=False)
    peer_text: str = attrs.field(init=False)
    peer_bytes: bytes = attrs.field(init=False)
    filter: BytesFilter | None = attrs.field(default=None, init=False)
    closed: bool = attrs.field(default=False, init=False)
    close_reason: str = attrs.field(default="", init=False)
    read_count: int = attrs.field(default=0, init=False)
    write_count: int = attrs.field(default=0, init=False)
    sent_bytes: int = attrs.field(default=0, init=False)
    idle_traffic: int = attrs.field(default=-1, init=False)  # the idle scan's: reads and writes when it last looked
    idle_since: float = attrs.field(default=0.0, init=False)
    reading: bool = attrs.field(default=True, init=False)
    outbox_bytes: int = attrs.field(default=0, init=False)
    receive_into: Callable[[bytearray], int] = attrs.field(init=False)
    _send: Callable[[bytes | memoryview], int] = attrs.field(init=False)
    _peer: ClientPeer["_Waiter"] | None = attrs.field(default=None, init=False)
    _outbox: deque[bytes | memoryview] = attrs.field(factory=deque, init=False)
    _events: int | None = attrs.field(default=None, init=False)  # what the poller was told; None = it does not know us
    _stopped: bool = attrs.field(default=False, init=False)  # the server takes no more from it
    _finished: bool = attrs.field(default=False, init=False)  # the peer has said its last word
    _reset_at_end: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self.set_peer(self.peer)
        self.fd = self.sock.fileno()
        self.receive_into = self.sock.recv_into
        self._send = self.sock.send

    def set_peer(self, peer: tuple[str, int]) -> None:
        """Who the peer is: the socket's other end, or whom a load balancer speaks for."""
        host, port = self.peer = peer
        self.peer_text = format_address(host, port)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.peer_bytes = socket.inet_pton(family, host.partition("%")[0]) + _PORT.pack(port)

    # Output

    def write(self, pieces: Sequence[bytes | memoryview], *, filtered: bool = False) -> None:
        """Send these bytes, in this order, after all earlier ones. No checkpoint; nothing happens on a closed connection."""
        if self.closed:
            return
        if self.filter is not None and not filtered:
            try:
                pieces = (self.filter.to_send(b"".join(pieces)),)
            except RemotingError as error:
                self.close(str(error))
                return
        self.write_count += 1
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
                # The last piece stands for all: adding up their sizes would take as long as joining them.
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
            # A copy, since a piece may be a view of a file that is to be unmapped.
            self._keep(bytes(memoryview(data or b"".join(pieces))[sent:]))

    def _keep(self, rest: bytes) -> None:
        if not rest:
            return
        self._outbox.append(rest)
        self.outbox_bytes += len(rest)
        self.outboxes.add(len(rest))
        if self.outbox_bytes > self.outboxes.hard_bytes:
            self.limit.log(
                _log,
                logging.WARNING,
                "closing %s: it does not read its answers, %d bytes wait (limit %d)",
                self.peer_text,
                self.outbox_bytes,
                self.outboxes.hard_bytes,
            )
            self.close("the outbox is above its hard mark")
            return
        if self.outboxes.overfull and self.outbox_bytes > self.outboxes.high_bytes:
            self.outboxes.closed_count += 1
            self.limit.log(_log, logging.WARNING, TOO_MUCH, self.peer_text, self.outboxes.total_bytes_max, self.outbox_bytes)
            self.close("too many bytes kept in memory")
            return
        if self.outbox_bytes > self.outboxes.high_bytes:
            self.reading = False
        self.watch()

    def flush(self) -> None:
        """Send from the outbox what the socket takes; called by the selector when it takes bytes again."""
        outbox = self._outbox
        while outbox:
            try:
                sent = self.sock.sendmsg(list(islice(outbox, _PIECES_PER_SEND)))
            except BlockingIOError:
                break
            except OSError as error:
                self.close(f"sending failed: {error.strerror or error}")
                return
            self.write_count += 1
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
        """Tell the poller what this connection waits for now."""
        if self.closed or self._finished:
            return
        events = (READABLE if self.reading and not self._stopped else 0) | (WRITABLE if self._outbox else 0)
        if events == self._events:
            return
        if self._events is None:
            self.poller.register(self.sock, events)
        else:
            self.poller.modify(self.sock, events)
        self._events = events

    def stop_reading(self) -> None:
        """The server stops: take no more from this peer, but let it have its answers."""
        self._stopped = True
        self.watch()

    def refuse_in_silence(self) -> None:
        """A request was read that will not be answered: read no more, and end the connection with a reset.

        Java 4.9 gives up its calls when a connection is reset; after an orderly close it waits for their time-outs.
        """
        self._reset_at_end = True
        self.stop_reading()

    def finish(self, reason: str) -> None:
        """The peer has said its last word: no more events from this socket. What it said before is still being worked on."""
        self.close_reason = self.close_reason or reason
        self._finished = True
        if self._events is not None:
            self._events = None
            self.poller.unregister(self.sock)

    # Requests of the server

    def oneway(self, command: Command) -> None:
        """Send a request that is never answered. No checkpoint; nothing happens on a closed connection."""
        self.write((self._requester().send_oneway(command),))

    async def invoke(self, command: Command, timeout: float) -> Command:
        """Send a request to the client and wait for its answer; RequestTimeout after *timeout* seconds, ConnectionLost at its end.

        Whoever is cancelled here leaves the connection as it is; the late answer is dropped.
        """
        if self.closed:
            raise ConnectionLost(self.peer_text, self.close_reason)
        waiter = _Waiter()
        requester = self._requester()
        pending, data = requester.send(command, waiter, trio.current_time() + timeout)
        self.write((data,))
        try:
            with trio.move_on_after(timeout):
                await waiter.done.wait()
        finally:
            requester.give_up(pending.opaque)
        if waiter.answer is not None:
            return waiter.answer
        if self.closed:
            raise ConnectionLost(self.peer_text, self.close_reason)
        raise RequestTimeout(self.peer_text, int(command.code), timeout)

    def take_response(self, frame: bytes) -> None:
        """The codec found an answer to one of our requests among the frames. RemoteProtocolError if it is damaged."""
        for pending, command in self._requester().receive(_FRAME_TOTAL.pack(len(frame)) + frame).replies:
            pending.token.answer = command
            pending.token.done.set()

    def _requester(self) -> ClientPeer["_Waiter"]:
        """Most connections never carry a request of ours: made at the first one."""
        if self._peer is None:
            self._peer = ClientPeer()
        return self._peer

    # The end

    def close(self, reason: str = "closed by this side") -> None:
        """Close at once; queued output is dropped. No checkpoint. The first call decides the reason."""
        if self.closed:
            return
        self.finish(reason)
        self.closed = True
        if self.filter is not None:
            self._say_farewell(self.filter)
        self._outbox.clear()
        self.outboxes.add(-self.outbox_bytes)
        self.outbox_bytes = 0
        if self._reset_at_end:
            with contextlib.suppress(OSError):  # the peer may have been faster
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.sock.close()
        if self._peer is not None:
            for pending in self._peer.lose():
                pending.token.done.set()
        self.ended(self)

    def _say_farewell(self, bytes_filter: BytesFilter) -> None:
        """TLS tells its peer that nothing was cut off; only possible where nothing else waits to be sent."""
        last = bytes_filter.closing()
        if last and not self._outbox:
            try:
                self._send(last)
            except OSError as error:
                _log.debug("no farewell to %s: %s", self.peer_text, error)
