"""The open calls of a connection: those with a task, and unary ones that share a batch.

A call whose method has a ``UnaryBatch`` needs no task: the whole requests of one read go to its
handler together, and are answered then or later. Its deadline is looked at by the connection's
tick. A request that the batch does not take gets a task, as the calls of all other methods.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import attrs
import trio

from triomq.remoting.grpc.http2_session import Http2Session
from triomq.remoting.grpc.methods import CallContext, Method, no_request, several_requests
from triomq.remoting.grpc.status import CallFailed, GrpcStatus

LARGE_BYTES = 16 * 1024
"""of a message from which on it takes a turn: one read can bring the ends of hundreds of them"""


class CallOwner(Protocol):
    """The connection, as its calls see it."""

    session: Http2Session

    @property
    def large_messages(self) -> trio.Lock:
        """Held by the call of the server that decodes a large message next."""

    def flush(self) -> None:
        """Let the writer send in its next turn."""

    def answer_batched(self, call: BatchedCall, message: bytes) -> None:
        """Send the answer of a call, and end it."""

    def fail_batched(self, call: BatchedCall, error: Exception) -> None:
        """End a call with the status of an error."""

    def start_task(self, call: BatchedCall) -> None:
        """Let the method's handler answer a call."""


@attrs.define(eq=False)
class TaskCall:
    """A call and its handler: the ``MessagePipe`` of its method."""

    number: int
    method: Method
    context: CallContext
    owner: CallOwner
    began_at: float
    scope: trio.CancelScope
    given: bytes | None = None
    """a request that was taken already, the only one"""
    failure: CallFailed | None = None
    """why this side cancels it; None: the deadline"""
    gone: bool = False
    """whether the session has forgotten it"""
    _lot: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)

    def wake(self) -> None:
        self._lot.unpark_all()

    def expect_request(self) -> None:
        self.owner.session.expect_request(self.number)

    async def receive(self) -> bytes | None:
        owner, number = self.owner, self.number
        session = owner.session
        while True:
            await self._require_open()
            if self.given is not None:
                given, self.given = self.given, None
                return given
            message = session.take_message(number, self.method.cost)
            if message is not None:
                owner.flush()  # the windows may be wider
                return message
            if session.requests_ended(number):
                return None
            await self._lot.park()

    async def turn(self, size: int) -> None:
        if size > LARGE_BYTES:
            async with self.owner.large_messages:
                # The next one may decode when this one has, and the loop has looked at its sockets.
                await trio.lowlevel.checkpoint()

    async def send(self, *messages: bytes) -> None:
        owner, number = self.owner, self.number
        await self._require_open()
        framed = owner.session.send_message(number, *messages)
        owner.flush()
        while not framed:
            await self._lot.park()
            await self._require_open()
            framed = not owner.session.has_waiting(number)

    async def _require_open(self) -> None:
        if self.gone:
            await trio.lowlevel.checkpoint()  # raises Cancelled, but for a shielded handler
            raise CallFailed(GrpcStatus.CANCELLED, "the call has ended")


@attrs.define(eq=False)
class BatchedCall:
    """A unary call without a task. ``request``: decoded, when its batch gets it.

    ``answer`` and ``fail`` may be called by any synchronous code, at any time: they do nothing for
    a call that has ended. Neither has a checkpoint.
    """

    number: int
    method: Method
    context: CallContext
    owner: CallOwner
    began_at: float
    message: bytes | None = None
    request: object = None
    whole: bool = False
    """whether the request is here, and nothing can follow it"""
    answered: bool = False
    """whether the answer waits for the client's window"""
    over: bool = False
    _late_at: float = math.inf
    _on_late: Callable[[], None] | None = None

    def answer(self, answer: object) -> None:
        """Send the answer, an object of the method's class."""
        if self.over:
            return
        batch = self.method.batch
        assert batch is not None
        try:
            message = batch.encode(answer)
        except Exception as error:
            self.owner.fail_batched(self, error)
        else:
            self.owner.answer_batched(self, message)

    def fail(self, error: Exception) -> None:
        """End the call with the status of an error: INTERNAL but for ``CallFailed``."""
        if not self.over:
            self.owner.fail_batched(self, error)

    def hand_over(self) -> None:
        """Let the method's handler answer, in a task."""
        if not self.over and not self.answered:
            self.owner.start_task(self)

    def give_up_at(self, late_at: float, on_late: Callable[[], None]) -> None:
        """Let the tick call *on_late*, which answers, if there is no answer by then."""
        self._late_at, self._on_late = late_at, on_late

    def take(self) -> bool:
        """Take what is here of the request; return whether it is whole. Raises: CallFailed."""
        session, number = self.owner.session, self.number
        while (message := session.take_message(number, self.method.cost)) is not None:
            if self.message is not None:
                raise several_requests()
            self.message = message
            if session.requests_ended(number):
                break
        if not session.knows(number):
            return False  # its end is the next event
        self.whole = session.requests_ended(number)
        if not self.whole:
            session.expect_request(number)
        elif self.message is None:
            raise no_request()
        return self.whole

    def tick(self, now: float) -> None:
        """End the call if its time is over."""
        if now >= self.context.deadline:
            self.fail(deadline_failure(self.context))
        elif now >= self._late_at and not self.answered:
            on_late, self._on_late, self._late_at = self._on_late, None, math.inf
            if on_late is not None:
                on_late()


def deadline_failure(context: CallContext) -> CallFailed:
    """Return the status of a call without an answer in time."""
    return CallFailed(
        GrpcStatus.DEADLINE_EXCEEDED,
        f"no answer within {context.head.timeout_seconds:g} s, the client's deadline",
    )
