"""What a handler gets and returns: a request, and a response or a deferred one."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeAlias, cast

import attrs
import msgspec
import trio

from triomq.remoting.access.users import AccessUser
from triomq.remoting.protocol.codes import SerializeType
from triomq.remoting.protocol.request_decoder import decode_ext
from triomq.remoting.server.connection import Connection
from triomq.remoting.server.statistics import CodeStatistics

Body = bytes | memoryview | Sequence[bytes | memoryview]


class Response(msgspec.Struct, eq=False, gc=False):
    """A response. ``header`` is an object of a header class, ``ext`` has other text fields.

    The pieces of a body are sent without joining them. ``body_size`` is a hint for large bodies:
    about how many bytes the body has. Responses with a large sum of hints are sent before the
    handler of the next request runs.
    """

    code: int = 0
    header: Any = None
    body: Body = b""
    remark: str | None = None
    ext: dict[str, str] | None = None
    body_size: int = 0


class Request(msgspec.Struct, eq=False, gc=False, dict=False):
    """One request for a handler; a Struct costs 0.2 µs instead of the 0.5 µs of attrs.

    ``header`` is an object of the handler's header class or its twin (None without a header class),
    ``arrived`` is Trio's clock when the frame was complete, ``destination`` is where the server
    sent the request: its handler and pool. ``waits_until`` is when a held request waits no longer,
    by Trio's clock, or 0 before its handler has looked; it stays when the request goes through its
    pool again. ``user`` is who sent it, where a hook verifies that. ``answered`` takes the response
    of a request that was never bytes; it must not raise.
    """

    connection: Connection
    code: int
    opaque: int
    oneway: bool
    version: int
    language: int
    serialize: SerializeType
    header: Any
    body: bytes
    arrived: float
    raw_header: bytes
    # The server sets the destination; a handler's unit test need not.
    destination: "Destination" = cast("Destination", None)
    waits_until: float = 0.0
    user: AccessUser | None = None
    answered: Callable[[Response], None] | None = None

    def wait_seconds(self, limit: float) -> float:
        """Return how long this request may still wait, ``limit`` seconds after it came at most.

        Neither the sender's wall clock nor ours counts.
        """
        if not self.waits_until:
            self.waits_until = self.arrived + limit
        return self.waits_until - trio.current_time()

    def ext(self) -> dict[str, str]:
        """Return all header fields as text, unknown fields included. Parsed on demand."""
        return decode_ext(self.serialize, self.raw_header)

    def resubmit(self) -> None:
        """Submit this request again, as if it arrived now (a held pull whose message came)."""
        self.arrived = trio.current_time()
        self.destination = self.destination.for_resumed()
        self.destination.pool.submit([self])


class Deferred:
    """A response that comes later, for one request or for a whole batch.

    The handler returns it and keeps it; ``finish`` or ``fail`` is called once, by any synchronous
    code. A deferred response needs no task. If neither is called, the requests get no response: a
    held pull, for example, goes through its pool again.
    """

    __slots__ = ("begun", "finished", "occupies_worker", "requests", "since")

    def __init__(self, requests: Sequence[Request]) -> None:
        self.requests = requests
        self.finished = False
        # Set by the pool: a deferred batch counts as a busy worker, so that the next batches grow.
        self.occupies_worker = False
        # Set by the pool: when the requests left the queue, and when the handler left this behind.
        self.begun = self.since = 0.0

    def finish(self, make: "Callable[[], HandlerResult]") -> None:
        """Send what ``make()`` returns or raises, as for a handler; an awaitable is not allowed.

        Closed connections get nothing. Checkpoint: never.
        """
        self.requests[0].destination.pool.finish(self, make)

    def fail(self, error: Exception) -> None:
        """Answer as if the handler had raised *error*. Checkpoint: never."""

        def make() -> "HandlerResult":
            raise error

        self.finish(make)


Result: TypeAlias = Response | Deferred
BatchResult: TypeAlias = list[Response | None] | Deferred
"""None in the list: the handler has already written that response itself."""
HandlerResult: TypeAlias = Response | list[Response | None] | Deferred
Call: TypeAlias = (
    Callable[[Request], Result | Awaitable[Result]]
    | Callable[[list[Request]], BatchResult | Awaitable[BatchResult]]
)


class RequestPool(Protocol):
    """A pool as seen from a request."""

    def submit(self, requests: list[Request], *, in_place: bool = False) -> None:
        """Let requests in, in their order, or refuse them."""

    def finish(self, deferred: Deferred, make: Callable[[], HandlerResult]) -> None:
        """Send the responses that ``make`` returns."""


@attrs.define(eq=False)
class Destination:
    """Where the requests of one code go, and their counters.

    Destinations that share a batch handler have the same ``key`` and share its batches.
    """

    call: Callable[[Any], Any]
    pool: RequestPool
    key: int
    batch: bool = False
    reject: Callable[[], bool] | None = None
    counters: CodeStatistics = attrs.field(factory=CodeStatistics, init=False)
    resumed: "Destination | None" = attrs.field(default=None, init=False)
    """The same with counters of its own, for requests that were held and run again."""

    def for_resumed(self) -> "Destination":
        """Return the destination of a request that was held; its own when it is held again."""
        if self.resumed is None:
            self.resumed = attrs.evolve(self)
            self.resumed.resumed = self.resumed
        return self.resumed
