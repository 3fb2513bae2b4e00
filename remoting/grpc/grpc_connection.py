"""One connection: its socket, its calls, and the tasks of both.

::

    run ─┬ grpc-writer          sends what the session has, one batch for each turn of the loop
         └ calls ── × grpc-call the handlers; the reader runs in ``run`` itself, and the batches
                                of calls without a task run in it: it sends their answers itself,
                                and leaves to the writer what the socket does not take

The reader stops when the client closes, violates the protocol or runs into a limit, and when the
server stops. Then all calls are cancelled, and what is left to send gets ``FLUSH_SECONDS``.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from contextlib import suppress

import attrs
import trio

from triomq.remoting.core.address import format_address
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.grpc.call_head import CallHead
from triomq.remoting.grpc.call_statistics import UNKNOWN_PATH, CallCounters
from triomq.remoting.grpc.calls import BatchedCall, TaskCall, deadline_failure
from triomq.remoting.grpc.frame_budgets import AddressResets
from triomq.remoting.grpc.grpc_settings import GrpcSettings
from triomq.remoting.grpc.http2_session import Buffers, CallEnded, CallStarted, Http2Session
from triomq.remoting.grpc.liveness import LifeSign, Liveness
from triomq.remoting.grpc.methods import CallContext, MethodTable, UnaryBatch, decoded
from triomq.remoting.grpc.status import CallFailed, GrpcStatus
from triomq.remoting.protocol.limits import Limits
from triomq.remoting.server.connection import BytesFilter

_log = logging.getLogger(__name__)

READ_BYTES = 16 * 1024
"""of one turn: even the smallest frames in it keep the loop for tens of milliseconds only"""
FLUSH_SECONDS = 5.0
"""for the last bytes of a connection that ends, such as the GOAWAY that says why"""
DECODED_BYTES_MAX = 64 * 1024
"""of the requests of calls without a task, in one turn: the calls of further ones get tasks"""
_OUTPUT_PAUSE_BYTES = 512 * 1024
"""unsent bytes at which nothing more is read: a client that reads no answers gets none"""


@attrs.define(eq=False)
class GrpcShared:
    """What all connections of a server have together."""

    settings: GrpcSettings
    table: MethodTable
    limits: Limits
    buffers: Buffers
    resets: AddressResets
    counters: CallCounters
    draining: trio.Event
    limit: LogLimit
    large_messages: trio.Lock = attrs.field(factory=trio.Lock, init=False)


@attrs.define(eq=False)
class GrpcConnection:
    """One client. ``filter``: between socket and HTTP/2, where the port has TLS or PROXY headers.

    ``ended`` is called when the connection is closed.
    """

    sock: socket.socket
    peer: tuple[str, int]
    shared: GrpcShared
    ended: Callable[[GrpcConnection], None]
    filter: BytesFilter | None = None
    close_reason: str = attrs.field(default="", init=False)
    session: Http2Session = attrs.field(init=False)
    _liveness: Liveness = attrs.field(init=False)
    _calls: dict[int, TaskCall | BatchedCall] = attrs.field(factory=dict, init=False)
    _nursery: trio.Nursery | None = attrs.field(default=None, init=False)
    _reading: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _writer: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _written: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _sealed: list[bytes] = attrs.field(factory=list, init=False)
    """bytes that have passed the filter"""
    _opened: bool = attrs.field(default=False, init=False)
    """whether bytes of HTTP/2 have come: before, it is not known how to send any"""
    _lost: bool = attrs.field(default=False, init=False)
    _unsent: bytes | memoryview = attrs.field(default=b"", init=False)
    """what the socket has not taken: the writer waits for it"""
    _decoded_bytes: int = attrs.field(default=0, init=False)
    """in this turn"""
    _reacting: bool = attrs.field(default=False, init=False)
    """whether the reader is about to send what its calls answer"""

    def __attrs_post_init__(self) -> None:
        self.session = Http2Session(self.shared.limits, self.shared.buffers, self._spend_of_address)
        self._liveness = Liveness(self.shared.settings, trio.current_time())

    def _spend_of_address(self, now: float) -> bool:
        return self.shared.resets.spend(self.peer[0], now)

    def set_peer(self, peer: tuple[str, int]) -> None:
        """Set the client's address, as a load balancer gives it."""
        self.peer = peer

    @property
    def large_messages(self) -> trio.Lock:
        return self.shared.large_messages

    @property
    def calls(self) -> int:
        """How many calls have no answer yet."""
        return len(self._calls)

    async def run(self) -> None:
        """Serve the connection to its end, and close the socket. Errors affect no other."""
        try:
            await self._run()
        except BaseExceptionGroup as group:
            errors, others = group.split(Exception)
            if errors is not None:
                self.close_reason = "an unexpected error"
                self._lost = True
                self.shared.counters.broken += 1
                message = "the gRPC connection of %s failed"
                peer = format_address(*self.peer)
                self.shared.limit.log(_log, logging.ERROR, message, peer, error=errors)
            if others is not None:
                raise others from None
        finally:
            self._close()

    async def _run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write, nursery.cancel_scope, name="grpc-writer")
            async with trio.open_nursery() as calls:
                self._nursery = calls
                await self._read()
                self._nursery = None
                # Not the scope of `calls`: a call that is cancelled by its own gets a status.
                self._cancel_calls()
            with trio.move_on_after(FLUSH_SECONDS):
                await self._flushed()
            nursery.cancel_scope.cancel()

    # Input

    async def _read(self) -> None:
        sock, session = self.sock, self.session
        with self._reading:
            while True:
                await trio.lowlevel.wait_readable(sock)
                try:
                    data = sock.recv(READ_BYTES)
                except BlockingIOError:
                    continue
                except OSError as error:
                    self.close_reason = f"receiving failed: {error.strerror or error}"
                    self._lost = True
                    return
                if not data:
                    self.close_reason = "closed by the client"
                    self._lost = True
                    return
                self.shared.counters.received_bytes += len(data)
                try:
                    self._received(data)
                except RemotingError as error:
                    self._refuse(error)
                    return
                while session.output_bytes > _OUTPUT_PAUSE_BYTES:
                    await self._written.park()

    def _received(self, data: bytes) -> None:
        now = trio.current_time()
        self._liveness.heard(now)
        if self.filter is not None:
            try:
                data = self.filter.received(data)
            finally:
                if self.filter is not None and (own := self.filter.to_send(b"")):
                    self._sealed.append(own)
                    self.flush()
            if not data:
                return
        self._opened = self._reacting = True
        try:
            self.session.receive(data, now)
            self._dispatch(now)
        finally:
            self._reacting = False
        if not self._unsent:
            with suppress(OSError):  # the writer meets the same error
                self._send_some()
        if self._unsent or self._sealed or self.session.output_bytes:
            self.flush()

    def _refuse(self, error: RemotingError) -> None:
        self.shared.counters.broken += 1
        self.shared.limit.warning(
            _log, "closing the gRPC connection of %s: %s", format_address(*self.peer), error
        )
        self.close_reason = str(error)
        self._dispatch(trio.current_time())
        self.flush()

    def _dispatch(self, now: float) -> None:
        """Start, wake and end handlers; run batches of calls whose requests are whole."""
        batches: dict[UnaryBatch, list[BatchedCall]] = {}
        self._decoded_bytes = 0
        for event in self.session.take_events():
            if isinstance(event, CallStarted):
                self._start(event.call, event.head, now)
                call = self._calls.get(event.call)
            else:
                call = self._calls.get(event.call)
                if isinstance(event, CallEnded) and call is not None:
                    self._lose(call)
                    continue
            if isinstance(call, BatchedCall):
                self._advance(call, batches)
            elif call is not None:
                call.wake()
        for batch, calls in batches.items():
            self._run_batch(batch, calls)
        if self.session.peer_leaves and not self._calls:
            self.end("the client leaves")

    def _start(self, number: int, head: CallHead, now: float) -> None:
        shared = self.shared
        self._liveness.busy_at = now
        method = shared.table.methods.get(head.path)
        if method is None:
            text = f"there is no method {head.path[:200]}; update the server, or the client"
            self.session.finish(number, CallFailed(GrpcStatus.UNIMPLEMENTED, text))
            shared.counters.note_end(UNKNOWN_PATH, GrpcStatus.UNIMPLEMENTED, 0.0)
            return
        if self._nursery is None:
            self.session.reset(number)
            return
        deadline = now + head.timeout_seconds
        context = CallContext(head, self.peer, deadline, shared.draining, now, self)
        call = BatchedCall(number, method, context, self, now)
        if method.batch is not None:
            self._calls[number] = call
        else:
            self.start_task(call)

    def start_task(self, call: BatchedCall) -> None:
        """Give a call a task, with what was taken of its request."""
        if self._nursery is None:
            return  # the connection ends
        scope = trio.CancelScope(deadline=call.context.deadline)
        made = TaskCall(
            call.number, call.method, call.context, self, call.began_at, scope, call.message
        )
        call.over = True
        self._calls[call.number] = made
        self._nursery.start_soon(self._run_call, made, name="grpc-call")

    def _lose(self, call: TaskCall | BatchedCall) -> None:
        """End a call that the session has forgotten."""
        if isinstance(call, BatchedCall):
            self._conclude(call, CallFailed(GrpcStatus.CANCELLED, ""), gone=True)
        else:
            call.gone = True
            call.scope.cancel()

    # Calls without a task

    def _advance(self, call: BatchedCall, batches: dict[UnaryBatch, list[BatchedCall]]) -> None:
        """Take the request of a call, or end a call whose answer has found room."""
        if call.answered:
            if not self.session.has_waiting(call.number):
                self._conclude(call, None)
            return
        batch = call.method.batch
        assert batch is not None
        if call.whole:
            return
        if self._decoded_bytes > DECODED_BYTES_MAX:
            self.start_task(call)
            return
        try:
            whole = call.take()
            self._decoded_bytes += len(call.message or b"")
            if not whole:
                return
            assert call.message is not None
            call.request = decoded(batch.decode, call.message)
        except CallFailed as error:
            self._conclude(call, error)
            return
        try:
            takes = batch.takes(call.request, call.context)
        except Exception as error:
            self.fail_batched(call, error)
            return
        if takes:
            batches.setdefault(batch, []).append(call)
        else:
            self.start_task(call)

    def _run_batch(self, batch: UnaryBatch, calls: list[BatchedCall]) -> None:
        try:
            batch.run([call for call in calls if not call.over])
        except Exception as error:  # a handler ends the calls that fail by itself
            for call in calls:
                call.fail(error)

    def answer_batched(self, call: BatchedCall, message: bytes) -> None:
        """Send the answer of a call, and end it. Checkpoint: never."""
        if call.answered:
            return
        more = bool(call.context.trailers)
        send = self.session.send_message if more else self.session.answer
        if send(call.number, message):
            self._conclude(call, None, finished=not more)
        else:
            call.answered = True
        self.flush()

    def fail_batched(self, call: BatchedCall, error: Exception) -> None:
        """End a call with the status of an error. Checkpoint: never."""
        self._conclude(call, self._failure(call, error))

    # Calls with a task

    async def _run_call(self, call: TaskCall) -> None:
        failure: CallFailed | None = None
        over = False
        try:
            try:
                with call.scope:
                    await call.method.serve(call)
            except BaseExceptionGroup as group:
                errors, others = group.split(Exception)
                if errors is not None:
                    failure = self._failure(call, errors)
                if others is not None:
                    raise others from None
            except Exception as error:
                failure = self._failure(call, error)
            over = True
        finally:
            if not over:  # the whole connection ends
                del self._calls[call.number]
        if failure is None and call.scope.cancelled_caught:
            failure = call.failure or deadline_failure(call.context)
        self._conclude(call, failure, gone=call.gone)

    def _conclude(
        self,
        call: TaskCall | BatchedCall,
        failure: CallFailed | None,
        *,
        gone: bool = False,
        finished: bool = False,
    ) -> None:
        """Send the end of a call, and count it. ``finished``: its end is sent already."""
        del self._calls[call.number]
        if isinstance(call, BatchedCall):
            call.over = True
        status = GrpcStatus.OK if failure is None else failure.status
        if gone:
            status = GrpcStatus.CANCELLED
        elif not finished:
            trailers = [
                (name.encode("ascii"), value.encode("ascii"))
                for name, value in call.context.trailers
            ]
            self.session.finish(call.number, failure, trailers)
            self.flush()
        now = trio.current_time()
        self._liveness.busy_at = now
        self.shared.counters.note_end(call.method.path, status, now - call.began_at)
        if not self._calls and (self.session.draining or self.session.peer_leaves):
            self.end("all calls are finished")

    def _failure(self, call: TaskCall | BatchedCall, error: Exception) -> CallFailed:
        chosen = _chosen(error)
        if chosen is not None:
            return chosen
        self.shared.limit.log(
            _log,
            logging.ERROR,
            "the handler of %s failed, called by %s",
            call.method.path,
            format_address(*self.peer),
            error=error,
        )
        return CallFailed(GrpcStatus.INTERNAL, "the handler failed; the server's log has the cause")

    def _cancel_calls(self) -> None:
        """End all calls: with a status if the client can still get one."""
        if self._lost:
            self.session.abandon()
            self.session.take_events()
        failure = CallFailed(
            GrpcStatus.UNAVAILABLE, f"the server ends the connection: {self.close_reason}"
        )
        for call in list(self._calls.values()):
            if isinstance(call, BatchedCall):
                self._conclude(call, failure, gone=self._lost)
                continue
            call.gone = call.gone or self._lost
            call.failure = failure
            call.scope.cancel()

    # Output

    def flush(self) -> None:
        """Let the writer send in its next turn. Checkpoint: never."""
        if not self._reacting and self._writer:
            self._writer.unpark_all()

    async def _write(self, scope: trio.CancelScope) -> None:
        """Send until cancelled; cancel *scope* if the connection is lost, or stalls."""
        while True:
            try:
                sends = self._send_some()
            except OSError as error:
                self.close_reason = f"sending failed: {error.strerror or error}"
                break
            if self._unsent:
                if not await self._writable():
                    break
                continue
            self._written.unpark_all()
            if sends:
                await trio.lowlevel.checkpoint()
            else:
                await self._writer.park()
        self._lost = True
        self._cancel_calls()
        scope.cancel()

    def _send_some(self) -> bool:
        """Send what there is, as far as the socket takes it; return whether there was something.

        Raises: OSError.
        """
        data = self._unsent or self._take()
        if not data:
            return False
        self._unsent = data  # also after an error
        with suppress(BlockingIOError):
            sent = self.sock.send(data)
            self.shared.counters.sent_bytes += sent
            self._unsent = memoryview(data)[sent:] if sent < len(data) else b""
        return True

    async def _writable(self) -> bool:
        """Wait for room in the socket; return False if there is none for too long."""
        seconds = self.shared.settings.stall_ms / 1000
        with trio.move_on_after(seconds) as waiting:
            await trio.lowlevel.wait_writable(self.sock)
        if waiting.cancelled_caught:
            self.shared.limits.note("stall_ms")
            self.close_reason = f"the client has read nothing for {seconds:g} s"
        return not waiting.cancelled_caught

    def _take(self) -> bytes:
        if self._opened:
            data = self.session.take_output()
            if data and self.filter is None:
                self._dispatch(trio.current_time())
                return data
            if data and self.filter is not None:
                self._sealed.append(self.filter.to_send(data))
                self._dispatch(trio.current_time())
        data = b"".join(self._sealed)
        self._sealed.clear()
        return data

    async def _flushed(self) -> None:
        """Wait until everything is sent."""
        while not self._lost and (
            self._unsent or self._sealed or (self._opened and self.session.output_bytes)
        ):
            self.flush()
            await self._written.park()

    # The end

    def tick(self, now: float) -> None:
        """Look after what has waited for too long; the server calls this regularly."""
        if self._reading.cancel_called:
            return  # it ends already, and is counted
        session, settings = self.session, self.shared.settings
        seconds = settings.stall_ms / 1000
        for number in session.stalled(now, seconds):
            self._stalled(number, seconds)
        for call in [call for call in self._calls.values() if isinstance(call, BatchedCall)]:
            call.tick(now)
        sign = self._liveness.check(now, began=session.began, calls=len(self._calls))
        if sign is LifeSign.FINE:
            return
        if sign is LifeSign.ASK:
            session.ping()
            self.flush()
            return
        self.shared.limits.note(sign.value)
        if sign is LifeSign.IDLE:
            self.begin_drain()
            self.end("it had no calls")
        elif sign is LifeSign.TOO_SLOW:
            self.end("it sent no HTTP/2 in time")
        else:
            self._lost = True
            self.end("the client gives no sign of life")

    def _stalled(self, number: int, seconds: float) -> None:
        self.shared.limits.note("stall_ms")
        self.session.reset(number)
        call = self._calls.get(number)
        if call is not None:
            self._lose(call)
        self.shared.limit.warning(
            _log,
            "ending a call of %s: its client has sent or taken nothing for %g s",
            format_address(*self.peer),
            seconds,
        )
        self.flush()

    def announce_end(self) -> None:
        """Say that the server will stop; calls on their way are still taken."""
        self.session.announce_end()
        self.flush()

    def begin_drain(self) -> None:
        """Take no more calls, and end when the open ones are finished."""
        self.session.begin_drain()
        self.flush()
        if not self._calls:
            self.end("the server stops")

    def end(self, reason: str) -> None:
        """Cancel all calls and close, in later turns of the tasks. Checkpoint: never."""
        self.close_reason = self.close_reason or reason
        self._reading.cancel()

    def _close(self) -> None:
        self.session.abandon()
        if not self._lost and self.filter is not None and (last := self.filter.closing()):
            try:
                self.sock.send(last)
            except OSError as error:
                _log.debug("no close_notify to %s: %s", format_address(*self.peer), error)
        self.sock.close()
        self.shared.counters.closed += 1
        self.ended(self)


def _chosen(error: BaseException) -> CallFailed | None:
    """Return the error by which a handler chose the status; None for any other."""
    if isinstance(error, CallFailed):
        return error
    if isinstance(error, BaseExceptionGroup):
        leaves = [_chosen(one) for one in error.exceptions]
        if all(leaf is not None for leaf in leaves):
            return leaves[0]
    return None
