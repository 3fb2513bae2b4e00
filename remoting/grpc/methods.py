"""The table of methods: how the path of a call leads to an async function of a service.

A service is a plain class with async methods, and a table made by a function::

    def echo_methods(echo: Echo) -> Sequence[Method]:
        return (
            unary("/demo.Echo/Say", Words.FromString, Words.SerializeToString, echo.say),
            bidirectional("/demo.Echo/Talk", …, echo.talk),
        )

    async def say(self, words: Words, call: CallContext) -> Words: ...
    async def talk(
        self, requests: RequestStream[Words], answers: AnswerStream[Words], call: CallContext
    ) -> None: ...

A handler ends its call by returning, or with a status by raising ``CallFailed``. It is cancelled
when the client cancels the call, at the deadline, and when the connection is lost.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import attrs
import trio

from triomq.remoting.grpc.call_head import CallHead, require_trailer
from triomq.remoting.grpc.message_reader import Cost, all_bytes
from triomq.remoting.grpc.status import CallFailed, GrpcStatus

Req = TypeVar("Req")
Res = TypeVar("Res")


class MethodKind(enum.Enum):
    """How many messages go each way."""

    UNARY = "unary"
    SERVER_STREAMING = "server streaming"
    CLIENT_STREAMING = "client streaming"
    BIDIRECTIONAL = "bidirectional"


@attrs.define(eq=False)
class CallContext:
    """What a handler knows about its call.

    ``peer``: host and port of the client. ``deadline``: on Trio's clock, infinite without one.
    ``draining``: set when the server begins to stop; a call without an end should end then.
    ``connection``: what it came over, whose ``close_reason`` is empty while it is open.
    """

    head: CallHead
    peer: tuple[str, int]
    deadline: float
    draining: trio.Event
    begun: float = attrs.field(factory=trio.current_time)
    connection: Any = None
    trailers: list[tuple[str, str]] = attrs.field(factory=list, init=False)

    @property
    def path(self) -> str:
        return self.head.path

    @property
    def metadata(self) -> Mapping[str, str]:
        """The client's metadata; names are in lower case."""
        return self.head.metadata

    def binary_metadata(self, name: str) -> bytes | None:
        """Return the value of ``name-bin``, None without a valid one."""
        return self.head.binary(name)

    def age(self) -> float:
        """Return the seconds since the call began."""
        return trio.current_time() - self.begun

    def time_left(self) -> float:
        """Return the seconds until the deadline, infinite without one."""
        return self.deadline - trio.current_time()

    def add_trailer(self, name: str, value: str) -> None:
        """Send metadata behind the last message. Raises: ValueError."""
        self.trailers.append(require_trailer(name, value))


class MessagePipe(Protocol):
    """The bytes of one call, for its method."""

    context: CallContext

    def expect_request(self) -> None:
        """End the call if its only message does not come soon."""

    async def turn(self, size: int) -> None:
        """Wait until a message of *size* bytes may be decoded: large ones take turns.

        Checkpoint: maybe, only for large ones.
        """

    async def receive(self) -> bytes | None:
        """Return the client's next message, None after its last.

        Raises: CallFailed.
        """

    async def send(self, *messages: bytes) -> None:
        """Send messages, waiting while the client's window is full. Raises: CallFailed."""


@attrs.define(eq=False)
class RequestStream(Generic[Req]):
    """The messages of a client, one after the other: ``async for request in requests``."""

    _pipe: MessagePipe
    _decode: Callable[[bytes], Req]

    async def receive(self) -> Req | None:
        """Return the next message, None after the last.

        Raises: CallFailed, which the handler need not catch.
        Checkpoint: maybe, only to wait for the client.
        """
        message = await self._pipe.receive()
        return None if message is None else await _decoded(self._pipe, self._decode, message)

    def __aiter__(self) -> RequestStream[Req]:
        return self

    async def __anext__(self) -> Req:
        message = await self._pipe.receive()
        if message is None:
            raise StopAsyncIteration
        return await _decoded(self._pipe, self._decode, message)


@attrs.define(eq=False)
class AnswerStream(Generic[Res]):
    """The way of a handler's messages to the client."""

    _pipe: MessagePipe
    _encode: Callable[[Res], bytes]

    async def send(self, *answers: Res) -> None:
        """Send a message, or several in as few frames as possible.

        Raises: CallFailed if the client takes nothing for too long.
        Checkpoint: maybe, only to wait for the client's window.
        """
        await self._pipe.send(*map(self._encode, answers))


async def _decoded(pipe: MessagePipe, decode: Callable[[bytes], Req], message: bytes) -> Req:
    await pipe.turn(len(message))
    return decoded(decode, message)


def decoded(decode: Callable[[bytes], Req], message: bytes) -> Req:
    """Return a request of its message. Raises: CallFailed."""
    try:
        return decode(message)
    except Exception as error:
        raise CallFailed(
            GrpcStatus.INTERNAL,
            f"a message of {len(message)} bytes cannot be decoded ({error}); check that both sides"
            " have the same .proto files",
        ) from error


class UnaryCall(Protocol):
    """One call of a batch."""

    context: CallContext
    request: Any

    def answer(self, answer: Any) -> None:
        """Send the answer; do nothing for a call that has ended. Checkpoint: never."""

    def fail(self, error: Exception) -> None:
        """End the call: with the status of ``CallFailed``, INTERNAL for others.

        Checkpoint: never.
        """

    def hand_over(self) -> None:
        """Let the method's handler answer, in a task: it waits. Checkpoint: never."""

    def give_up_at(self, late_at: float, on_late: Callable[[], None]) -> None:
        """Let *on_late* answer, if there is no answer at this time of Trio's clock.

        The time is looked at once a second or more often. Checkpoint: never.
        """


@attrs.frozen(eq=False)
class UnaryBatch:
    """How the calls of one read are carried out together, without a task for each.

    ``takes``: whether a request can be in a batch; otherwise its call gets a task and the
    handler. ``run`` gets the calls in the order in which they came, and answers each, now or
    later.
    A call that is ended by the client or its deadline is not told: its answer is dropped.
    """

    takes: Callable[[Any, CallContext], bool]
    run: Callable[[Sequence[UnaryCall]], None]
    decode: Callable[[bytes], Any]
    encode: Callable[[Any], bytes]


@attrs.frozen
class Method:
    """One line of the table. ``serve``: how a call of this kind is carried out."""

    path: str
    kind: MethodKind
    serve: Callable[[MessagePipe], Awaitable[None]]
    batch: UnaryBatch | None = None
    """of some unary methods"""
    cost: Cost = all_bytes
    """of its requests"""


def unary(
    path: str,
    decode: Callable[[bytes], Req],
    encode: Callable[[Res], bytes],
    handler: Callable[[Req, CallContext], Awaitable[Res]],
    takes: Callable[[Req, CallContext], bool] | None = None,
    run: Callable[[Sequence[UnaryCall]], None] | None = None,
    cost: Cost = all_bytes,
) -> Method:
    """Return the line of a method with one message each way.

    ``takes``, ``run``: its batch, as ``UnaryBatch`` has them.
    """

    async def serve(pipe: MessagePipe) -> None:
        request = await _only(pipe, decode)
        await pipe.send(encode(await handler(request, pipe.context)))

    batch = None if takes is None or run is None else UnaryBatch(takes, run, decode, encode)
    return Method(path, MethodKind.UNARY, serve, batch, cost)


def server_streaming(
    path: str,
    decode: Callable[[bytes], Req],
    encode: Callable[[Res], bytes],
    handler: Callable[[Req, AnswerStream[Res], CallContext], Awaitable[None]],
) -> Method:
    """Return the line of a method that answers one message with many."""

    async def serve(pipe: MessagePipe) -> None:
        request = await _only(pipe, decode)
        await handler(request, AnswerStream(pipe, encode), pipe.context)

    return Method(path, MethodKind.SERVER_STREAMING, serve)


def client_streaming(
    path: str,
    decode: Callable[[bytes], Req],
    encode: Callable[[Res], bytes],
    handler: Callable[[RequestStream[Req], CallContext], Awaitable[Res]],
) -> Method:
    """Return the line of a method that answers many messages with one."""

    async def serve(pipe: MessagePipe) -> None:
        await pipe.send(encode(await handler(RequestStream(pipe, decode), pipe.context)))

    return Method(path, MethodKind.CLIENT_STREAMING, serve)


def bidirectional(
    path: str,
    decode: Callable[[bytes], Req],
    encode: Callable[[Res], bytes],
    handler: Callable[[RequestStream[Req], AnswerStream[Res], CallContext], Awaitable[None]],
) -> Method:
    """Return the line of a method with many messages each way, in any order."""

    async def serve(pipe: MessagePipe) -> None:
        await handler(RequestStream(pipe, decode), AnswerStream(pipe, encode), pipe.context)

    return Method(path, MethodKind.BIDIRECTIONAL, serve)


async def _only(pipe: MessagePipe, decode: Callable[[bytes], Any]) -> Any:
    """Return the only message of a client.

    Raises: CallFailed.
    """
    pipe.expect_request()
    message = await pipe.receive()
    if message is None:
        raise no_request()
    if await pipe.receive() is not None:
        raise several_requests()
    return await _decoded(pipe, decode, message)


def no_request() -> CallFailed:
    """Return the failure of a unary call without a message."""
    return CallFailed(GrpcStatus.UNIMPLEMENTED, "the call has no message; send one")


def several_requests() -> CallFailed:
    """Return the failure of a unary call with two messages."""
    return CallFailed(GrpcStatus.UNIMPLEMENTED, "the call has more than one message; send only one")


class MethodTable:
    """All methods of a server, by their paths."""

    def __init__(self, methods: Iterable[Method]) -> None:
        """Make the table. Raises: ValueError for a path that is there twice."""
        self.methods: dict[str, Method] = {}
        for method in methods:
            if method.path in self.methods:
                raise ValueError(f"two methods have the path {method.path}")
            self.methods[method.path] = method
