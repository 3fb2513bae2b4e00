"""One connection of a connector: a reader, a writer, and the requests that wait for their answers.

A request that finds nothing else in flight goes straight to the socket; many at once are joined into few sends: a full piece leaves
at once, so that the server works on it while the rest is being made, and the writer task sends what remains at the end of a turn of
the loop. The bytes belong to the connection as soon as they are posted: a caller that is cancelled never leaves half a frame
behind, only an answer that nobody takes.
"""

import logging
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

import attrs
import msgspec
import trio

from triomq.remoting.busy_poll import BusyPoll, busy_poll
from triomq.remoting.client.ends import with_hint
from triomq.remoting.errors import ConnectionLost, RemotingError, RequestTimeout
from triomq.remoting.log_limit import LogLimit
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.command import Command, Outgoing
from triomq.remoting.protocol.peer import ClientPeer

if TYPE_CHECKING:
    from triomq.remoting.tls.stream import TlsStream

_log = logging.getLogger(__name__)

_READ_BYTES = 64 * 1024
_SEND_BYTES = 256 * 1024
_PIECE_BYTES = 16 * 1024
"""a full piece of output: enough for a system call to cost little for each request, and little enough that server and client work side by side"""
_GO_AWAY = int(ResponseCode.GO_AWAY)

_wait_rescheduled = trio.lowlevel.wait_task_rescheduled
_current_task = trio.lowlevel.current_task
_reschedule = trio.lowlevel.reschedule
_GIVEN_UP = trio.lowlevel.Abort.SUCCEEDED


class Waiter(msgspec.Struct, eq=False):
    """A task that waits for an answer, and what it got."""

    task: trio.lowlevel.Task
    answer: Command | None = None
    waiting: bool = False  # not yet while its request is being posted: a task that runs must not be woken

    def wake(self) -> None:
        if self.waiting:
            _reschedule(self.task)


Repeat: TypeAlias = Callable[["ClientConnection", Outgoing, float, float], Awaitable[Command]]
"""(connection whose server is going away, request, deadline, timeout) -> the answer from elsewhere"""


@attrs.define(eq=False)
class ClientConnection:
    """`on_request` is called with every request of the server, `on_lost` once, when the connection has ended."""

    address: str
    sock: socket.socket
    peer: ClientPeer[Waiter]
    outbox_high_bytes: int
    on_request: Callable[["ClientConnection", Command], None]
    on_lost: Callable[["ClientConnection"], None]
    on_deadline: Callable[[float], None]  # told every deadline that the connector's timer must know of
    limit: LogLimit = attrs.field(factory=LogLimit)
    tls: "TlsStream | None" = None
    on_going_away: Repeat | None = None
    look: bool = True  # for answers, before the loop sleeps
    lost: bool = attrs.field(default=False, init=False)
    reason: str = attrs.field(default="", init=False)
    traffic: int = attrs.field(default=0, init=False)  # reads and sends; the idle scan looks whether it moves
    idle_traffic: int = attrs.field(default=-1, init=False)
    idle_since: float = attrs.field(default=0.0, init=False)
    _retired: bool = attrs.field(default=False, init=False)
    _outbox: list[bytes] = attrs.field(factory=list, init=False)
    _outbox_bytes: int = attrs.field(default=0, init=False)
    _writer: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _writing: bool = attrs.field(default=False, init=False)  # the writer is awake
    _rest: memoryview = attrs.field(default=memoryview(b""), init=False)  # what the writer is sending
    _room: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _looking: BusyPoll | None = attrs.field(default=None, init=False)

    # Requests

    async def invoke(self, command: Outgoing, *, deadline: float, timeout: float, again: bool = True) -> Command:
        """Send a request and wait for its answer; ConnectionLost, RequestTimeout, LocalProtocolError.

        An answer that says GO_AWAY is the business of `on_going_away`, unless *again* is False.
        """
        if self.lost or self._outbox_bytes > self.outbox_high_bytes:
            await self._wait_for_room(command, deadline, timeout)
        peer = self.peer
        waiter = Waiter(_current_task())
        pending, data = peer.send(command, waiter, deadline)
        self.on_deadline(deadline)
        self.post(data, alone=peer.pending_count == 1)

        def give_up(_raise_cancel: object) -> trio.lowlevel.Abort:
            peer.give_up(pending.opaque)
            return _GIVEN_UP

        if not self.lost:  # else it was lost while posting, and nobody wakes us
            waiter.waiting = True
            await _wait_rescheduled(give_up)
        answer = waiter.answer
        if answer is not None:
            if answer.code == _GO_AWAY and again and self.on_going_away is not None:
                return await self.on_going_away(self, command, deadline, timeout)
            return answer
        if self.lost:
            raise ConnectionLost(self.address, self.reason)
        raise RequestTimeout(self.address, int(command.code), timeout)

    async def oneway(self, command: Outgoing, *, deadline: float, timeout: float) -> None:
        """Send a request that is never answered; returns when it is posted. ConnectionLost, RequestTimeout."""
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
        """Wake those whose time is over. No checkpoint."""
        for pending in self.peer.expire(now):
            pending.token.wake()
        self._close_if_retired()

    # Output

    def post(self, data: bytes, *, alone: bool = False) -> None:
        """Send a frame after all earlier ones. No checkpoint. `alone`: nothing else is in flight, so do it at once."""
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
        """Send what has come together; what the socket does not take is left to the writer, which is awake."""
        data = self._take()
        sent = self._send_some(data)
        if sent < len(data) and not self.lost:
            self._rest = memoryview(data)[sent:]

    def _send_some(self, data: bytes | memoryview) -> int:
        """How many bytes the socket has taken; 0 if it is full, or lost now."""
        try:
            sent = self.sock.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            self.close(self._why(f"sending failed: {error.strerror or error}"))
            return 0
        self.traffic += 1
        return sent

    async def _write(self) -> None:
        """The writer task: join what was posted, send it, sleep."""
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
        """The next piece to send: whole posts, joined up to a size that the socket takes in a few bites."""
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
        """Before a close: hand the socket what it takes of the posted frames. No checkpoint."""
        data = b"".join((self._rest, *self._outbox))
        if data and not self.lost:
            try:
                self.sock.send(data)
            except OSError as error:
                _log.debug("the last %d bytes for %s were not sent: %s", len(data), self.address, error)

    # Input

    async def run(self) -> None:
        """The reader task, with the writer as its child; returns when the connection has ended."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    if self.look and not self.lost:
                        looking = busy_poll()
                        if looking.watch(self.sock.fileno(), self._expects, nursery):
                            self._looking = looking
                    nursery.start_soon(self._write, name=f"writer {self.address}")
                    await self._read()
        finally:
            self.close("the connector was closed")

    def _expects(self) -> int:
        """Is an answer due?"""
        return self.peer.pending_count

    async def _read(self) -> None:
        """Read until the connection ends, wake the callers whose answers came."""
        while not self.lost:
            await trio.lowlevel.wait_readable(self.sock)
            try:
                data = self.sock.recv(_READ_BYTES)
                if not data:
                    self.close(self._hinted("the peer closed the connection"))
                    return
                self.traffic += 1
                if self.tls is not None:
                    data = self._decrypted(self.tls, data)
                received = self.peer.receive(data)
            except BlockingIOError:
                continue
            except OSError as error:
                self.close(self._hinted(f"reading failed: {error.strerror or error}"))
                return
            except RemotingError as error:
                self.limit.log(_log, logging.WARNING, "closing the connection to %s: %s", self.address, error)
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
        finally:  # an error has last words, too
            said = tls.to_send(b"")
            if said:
                self._post(said, alone=not self._outbox)

    def _hinted(self, reason: str) -> str:
        return with_hint(reason, self.peer.statistics(), tls=self.tls is not None)

    def _why(self, reason: str) -> str:
        if self.tls is None:
            return self._hinted(reason)
        from triomq.remoting.client.secure import last_words  # ssl, only with TLS

        return last_words(self.sock, self.tls, self._hinted(reason))

    # The end

    def retire(self) -> None:
        """No new requests (the connector has forgotten us); close as soon as nobody waits for an answer. No checkpoint."""
        self._retired = True
        self._close_if_retired()

    def _close_if_retired(self) -> None:
        if self._retired and not self.peer.pending_count:
            self.close("the server asked to go away")

    def close(self, reason: str) -> None:
        """End the connection now: all who wait get ConnectionLost at once. No checkpoint; the first reason stays."""
        if self.lost:
            return
        self.lost = True
        self.reason = reason
        for pending in self.peer.lose():
            pending.token.wake()
        self._room.unpark_all()
        if self.tls is not None and not self._writing:
            self._say_farewell(self.tls.closing())
        self._scope.cancel()  # first: then nobody waits for the socket any more
        if self._looking is not None:
            self._looking.unwatch(self.sock.fileno())
        trio.lowlevel.notify_closing(self.sock)
        self.sock.close()
        self.on_lost(self)

    def _say_farewell(self, data: bytes) -> None:
        try:
            self.sock.send(data)
        except OSError as error:
            _log.debug("no farewell to %s: %s", self.address, error)
