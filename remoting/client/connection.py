"""One connection of a connector: a reader, a writer, and the requests that wait for their answers.

A request with no other request in flight goes straight to the socket. Many at once are joined into
few sends: a full piece is sent at once, so that the server works on it while the rest is encoded,
and the writer task sends the remainder at the end of a turn of the loop. Posted bytes belong to the
connection: a cancelled caller never leaves half a frame, only an answer that is dropped.
"""

import logging
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

import attrs
import msgspec
import trio

from triomq.remoting.client.loss_reason import TimeOuts, sending_failed, with_hint
from triomq.remoting.core.busy_poll import BusyPoll, busy_poll
from triomq.remoting.core.errors import ConnectionLost, RemotingError, RequestTimeout
from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.command import Command, Outgoing
from triomq.remoting.protocol.peer import ClientPeer

if TYPE_CHECKING:
    from triomq.remoting.tls.stream import TlsStream

_log = logging.getLogger(__name__)

_READ_BYTES = 64 * 1024
_SEND_BYTES = 256 * 1024
_PIECE_BYTES = 16 * 1024
"""a full piece of output: large enough to make the system call cheap for each request, small enough
that server and client work at the same time
"""
_GO_AWAY = int(ResponseCode.GO_AWAY)

_wait_rescheduled = trio.lowlevel.wait_task_rescheduled
_current_task = trio.lowlevel.current_task
_reschedule = trio.lowlevel.reschedule
_GIVEN_UP = trio.lowlevel.Abort.SUCCEEDED


class Waiter(msgspec.Struct, eq=False):
    """A task that waits for an answer, and the answer."""

    task: trio.lowlevel.Task
    answer: Command | None = None
    expired: bool = False
    # False while the request is being posted: a task that runs must not be woken.
    waiting: bool = False
    wait: float = 0.0
    reads: int = 0  # of the connection, when the request was posted

    def wake(self) -> None:
        if self.waiting:
            _reschedule(self.task)


Repeat: TypeAlias = Callable[["ClientConnection", Outgoing, float, float], Awaitable[Command]]
"""(connection whose server is going away, request, deadline, timeout) -> the answer over a new
connection
"""


@attrs.define(eq=False)
class ClientConnection:
    """A connection to one address.

    ``on_request`` is called with every request of the server, ``on_lost`` once, when the connection
    has ended, ``on_deadline`` with every deadline for the connector's timer.
    """

    address: str
    sock: socket.socket
    peer: ClientPeer[Waiter]
    outbox_high_bytes: int
    on_request: Callable[["ClientConnection", Command], None]
    on_lost: Callable[["ClientConnection"], None]
    on_deadline: Callable[[float], None]
    limit: LogLimit = attrs.field(factory=LogLimit)
    tls: "TlsStream | None" = None
    on_going_away: Repeat | None = None
    busy_poll: bool = True
    lost: bool = attrs.field(default=False, init=False)
    reason: str = attrs.field(default="", init=False)
    traffic: int = attrs.field(default=0, init=False)  # reads and sends, for the idle scan
    idle_traffic: int = attrs.field(default=-1, init=False)
    idle_since: float = attrs.field(default=0.0, init=False)
    _reads: int = attrs.field(default=0, init=False)
    _time_outs: TimeOuts = attrs.field(factory=TimeOuts, init=False)
    _retired: bool = attrs.field(default=False, init=False)
    _outbox: list[bytes] = attrs.field(factory=list, init=False)
    _outbox_bytes: int = attrs.field(default=0, init=False)
    _writer: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _writing: bool = attrs.field(default=False, init=False)  # the writer is awake
    # What the writer is sending.
    _rest: memoryview = attrs.field(default=memoryview(b""), init=False)
    _room: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _busy_poll: BusyPoll | None = attrs.field(default=None, init=False)

    # Requests

    async def invoke(
        self, command: Outgoing, *, deadline: float, timeout: float, again: bool = True
    ) -> Command:
        """Send a request and wait for its answer.

        With *again*, a GO_AWAY answer is passed to ``on_going_away``.

        Raises: ConnectionLost, RequestTimeout, LocalProtocolError.
        Checkpoint: always.
        """
        if self.lost or self._outbox_bytes > self.outbox_high_bytes:
            await self._wait_for_room(command, deadline, timeout)
        peer = self.peer
        wait = deadline - trio.current_time()  # shorter than the time-out after a slow connect
        waiter = Waiter(_current_task(), wait=wait, reads=self._reads)
        pending, data = peer.send(command, waiter, deadline)
        self.on_deadline(deadline)
        self.post(data, alone=peer.pending_count == 1)

        def give_up(_raise_cancel: object) -> trio.lowlevel.Abort:
            peer.give_up(pending.opaque)
            return _GIVEN_UP

        if not self.lost:  # otherwise it was lost while posting, and no task would wake this one
            waiter.waiting = True
            await _wait_rescheduled(give_up)
        answer = waiter.answer
        if answer is not None:
            if answer.code == _GO_AWAY and again and self.on_going_away is not None:
                return await self.on_going_away(self, command, deadline, timeout)
            return answer
        # A retired connection is closed as soon as its last request has expired.
        if self.lost and not waiter.expired:
            raise ConnectionLost(self.address, self.reason)
        raise RequestTimeout(self.address, int(command.code), timeout)

    async def oneway(self, command: Outgoing, *, deadline: float, timeout: float) -> None:
        """Post a one-way request. Raises: ConnectionLost, RequestTimeout. Checkpoint: always."""
        await self._wait_for_room(command, deadline, timeout)
        self.post(self.peer.send_oneway(command), alone=not self.peer.pending_count)
        await trio.lowlevel.checkpoint()

    async def _wait_for_room(self, command: Outgoing, deadline: float, timeout: float) -> None:
        if self._outbox_bytes > self.outbox_high_bytes:
            with trio.move_on_at(deadline):
                while self._outbox_bytes > self.outbox_high_bytes and not self.lost:
                    await self._room.park()
        if self.lost:
            raise ConnectionLost(self.address, self.reason)
        if self._outbox_bytes > self.outbox_high_bytes:
            raise RequestTimeout(self.address, int(command.code), timeout)

    def expire(self, now: float) -> None:
        """Wake the callers whose deadline is over; close a connection that died without a word.

        ``TimeOuts`` tells whether it did; any byte that arrived meanwhile keeps it open.
        Checkpoint: never.
        """
        silent = 0.0
        for pending in self.peer.expire(now):
            waiter = pending.token
            waiter.expired = True
            if waiter.reads == self._reads:
                sent_at = pending.deadline - waiter.wait
                found = self._time_outs.timed_out(sent_at, self._reads, pending.deadline)
                silent = max(silent, found)
            waiter.wake()
        self._close_if_retired()
        if silent and not self.lost and not self._has_input():
            self.close(f"the peer sent nothing for {silent:.3g} s")

    def _has_input(self) -> bool:
        """Return whether bytes, or the end, wait to be read: this process may have stood still."""
        try:
            self.sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError as error:
            _log.debug("the connection to %s has ended: %s", self.address, error)
        return True

    # Output

    def post(self, data: bytes, *, alone: bool = False) -> None:
        """Send a frame after all earlier frames; at once if *alone*: no other request is in flight.

        Checkpoint: never.
        """
        if self.lost:
            return
        if self.tls is not None:
            try:
                data = self.tls.to_send(data)
            except RemotingError as error:
                self.close(str(error))
                return
        self._post(data, alone=alone)

    def _post(self, data: bytes, *, alone: bool) -> None:
        if alone and not self._writing:
            sent = self._send_some(data)
            if sent == len(data) or self.lost:
                return
            data = data[sent:]
        self._outbox.append(data)
        self._outbox_bytes += len(data)
        if not self._writing:
            self._writing = True
            self._writer.unpark()
        elif self._outbox_bytes >= _PIECE_BYTES and not self._rest:
            self._send_piece()

    def _send_piece(self) -> None:
        """Send the next piece; leave the rest to the writer, which is awake."""
        data = self._take()
        sent = self._send_some(data)
        if sent < len(data) and not self.lost:
            self._rest = memoryview(data)[sent:]

    def _send_some(self, data: bytes | memoryview) -> int:
        """Return how many bytes the socket took; 0 if it is full, or lost now."""
        try:
            sent = self.sock.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            self.close(sending_failed(error, self.peer.statistics(), self.sock, self.tls))
            return 0
        self.traffic += 1
        return sent

    async def _write(self) -> None:
        """Join and send what was posted, until cancelled: the writer task."""
        while True:
            if not self._rest:
                if not self._outbox:
                    self._writing = False
                    await self._writer.park()
                    continue
                self._rest = memoryview(self._take())
            while self._rest:
                sent = self._send_some(self._rest)
                if self.lost:
                    return
                self._rest = self._rest[sent:]
                if not sent:
                    await trio.lowlevel.wait_writable(self.sock)
            await trio.lowlevel.checkpoint()

    def _take(self) -> bytes:
        """Remove and return the next piece to send: whole posts, joined up to ``_SEND_BYTES``."""
        count = size = 0
        for data in self._outbox:
            if count and size + len(data) > _SEND_BYTES:
                break
            count += 1
            size += len(data)
        joined = self._outbox[0] if count == 1 else b"".join(self._outbox[:count])
        del self._outbox[:count]
        self._outbox_bytes -= size
        if self._room:
            self._room.unpark_all()
        return joined

    def flush_nowait(self) -> None:
        """Send what the socket takes of the posted frames, before a close. Checkpoint: never."""
        data = b"".join((self._rest, *self._outbox))
        if data and not self.lost:
            self._send_last(data)

    # Input

    async def run(self) -> None:
        """Read and write until the connection has ended; the writer is a task of its own."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    if self.busy_poll and not self.lost:
                        shared = busy_poll()
                        if shared.watch(
                            self.sock.fileno(), lambda: self.peer.pending_count, nursery
                        ):
                            self._busy_poll = shared
                    nursery.start_soon(self._write, name=f"writer {self.address}")
                    await self._read()
        finally:
            self.close("the connector was closed")

    async def _read(self) -> None:
        """Read until the connection ends, and wake the callers whose answers came."""
        while not self.lost:
            await trio.lowlevel.wait_readable(self.sock)
            try:
                data = self.sock.recv(_READ_BYTES)
                if not data:
                    self.close(self._hinted("the peer closed the connection"))
                    return
                self.traffic += 1
                self._reads += 1
                if self.tls is not None:
                    data = self._decrypted(self.tls, data)
                received = self.peer.receive(data)
            except BlockingIOError:
                continue
            except OSError as error:
                self.close(self._hinted(f"reading failed: {error.strerror or error}"))
                return
            except RemotingError as error:
                self.limit.warning(_log, "closing the connection to %s: %s", self.address, error)
                self.close(str(error))
                return
            for pending, answer in received.replies:
                waiter = pending.token
                waiter.answer = answer
                if waiter.waiting:
                    _reschedule(waiter.task)
            for request in received.requests:
                self.on_request(self, request)
            self._close_if_retired()

    def _decrypted(self, tls: "TlsStream", data: bytes) -> bytes:
        try:
            return tls.received(data)
        finally:  # after an error too: an alert of TLS
            own = tls.to_send(b"")
            if own:
                self._post(own, alone=not self._outbox)

    def _hinted(self, reason: str) -> str:
        return with_hint(reason, self.peer.statistics(), self.tls)

    # The end

    def retire(self) -> None:
        """Close as soon as no answer is due; the connector sends no new requests."""
        self._retired = True
        self._close_if_retired()

    def _close_if_retired(self) -> None:
        if self._retired and not self.peer.pending_count:
            self.close("the server asked to go away")

    def close(self, reason: str) -> None:
        """End the connection with ConnectionLost for all callers; the first reason stays.

        Checkpoint: never.
        """
        if self.lost:
            return
        self.lost = True
        self.reason = reason
        for pending in self.peer.lose():
            pending.token.wake()
        self._room.unpark_all()
        if self.tls is not None and not self._writing:
            self._send_last(self.tls.closing())
        self._scope.cancel()  # first: then no task waits for the socket
        if self._busy_poll is not None:
            self._busy_poll.unwatch(self.sock.fileno())
        trio.lowlevel.notify_closing(self.sock)
        self.sock.close()
        self.on_lost(self)

    def _send_last(self, data: bytes) -> None:
        try:
            self.sock.send(data)
        except OSError as error:
            _log.debug("the last %d bytes for %s were not sent: %s", len(data), self.address, error)
