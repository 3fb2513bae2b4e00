"""Business pools: bounded queues in front of request handlers.

``submit`` never waits. A request that does not fit, that its handler refuses, or that is older than
the limit is answered SYSTEM_BUSY with Java's remarks, so that a client can tell overload from a
lost request; a one-way request is dropped. When a pool is idle, the codec's requests run in place:
no task switch, no worker. A handler that must wait returns an awaitable, which goes to a worker, or
a ``Deferred``; awaited and deferred batches together never exceed the number of workers.

Source: remoting/…/netty/NettyRemotingAbstract.java, broker/…/latency/BrokerFastFailure.java (the
remarks).
"""

import logging
import math
from collections import deque
from collections.abc import Callable, Sequence

import attrs
import trio

from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.protocol import refused_sends
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.server.answers import send_error
from triomq.remoting.server.config import PoolConfig
from triomq.remoting.server.execution import BATCH_REQUESTS_MAX, Execution, Waiting
from triomq.remoting.server.handlers import Handler
from triomq.remoting.server.requests import Deferred, Destination, HandlerResult, Request
from triomq.remoting.server.slow_requests import SlowRequests
from triomq.remoting.server.statistics import PoolStatistics

_log = logging.getLogger(__name__)

BATCH_BYTES_MAX = 1024 * 1024
TURN_REQUESTS_MAX = 256
"""requests that a task runs before other tasks get their turn"""

_OVERLOAD = "[OVERLOAD]system busy, start flow control for a while"
_REJECTED = f"{refused_sends.REJECTED}system busy, start flow control for a while"
_STALLED = (
    "[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: %dms, size"
    " of queue: %d"
)
_TOO_OLD = (
    "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: %dms, size"
    " of queue: %d"
)


@attrs.define(eq=False)
class Pool:
    """One pool; ``queued`` is called whenever requests had to be queued (it wakes the sweeper)."""

    name: str
    config: PoolConfig
    queued: Callable[[], None]
    limit: LogLimit = attrs.field(factory=LogLimit)
    slow_seconds: float = math.inf
    """Requests that take longer are logged."""
    queued_bytes: int = attrs.field(default=0, init=False)
    _execution: Execution = attrs.field(init=False)
    _queue: deque[Request] = attrs.field(factory=deque, init=False)
    _waiting: deque[Waiting] = attrs.field(factory=deque, init=False)
    _idle_workers: int = attrs.field(default=0, init=False)  # parked, and not yet woken
    _idle: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _quiet: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    # Some request may have to be refused before it is queued: handlers can reject, or a stall.
    _selective: bool = attrs.field(default=False, init=False)
    _has_rejects: bool = attrs.field(default=False, init=False)
    _held_off_until: float = attrs.field(default=0.0, init=False)
    _wait_seconds: float = attrs.field(init=False)
    _counters: PoolStatistics = attrs.field(factory=PoolStatistics, init=False)  # without gauges

    def __attrs_post_init__(self) -> None:
        self._execution = Execution(
            self._deferred_batch_ended,
            self.limit,
            SlowRequests(self.name, self.slow_seconds, self.limit),
        )
        self._wait_seconds = self.config.wait_ms_max / 1000

    def __len__(self) -> int:
        """Requests in the queue."""
        return len(self._queue)

    def head_wait_seconds(self) -> float:
        """Return how long the oldest request of the queue has waited; 0 if the queue is empty."""
        return max(0.0, trio.current_time() - self._queue[0].arrived) if self._queue else 0.0

    def destination(self, handler: Handler, key: int) -> Destination:
        """Return a new destination in this pool."""
        self._has_rejects = self._has_rejects or handler.reject is not None
        self._selective = self._selective or self._has_rejects
        return Destination(handler.call, self, key, handler.batch, handler.reject)

    # Admission

    def submit(self, requests: list[Request], *, in_place: bool = False) -> None:
        """Let requests in, in their order, or refuse them.

        With ``in_place`` an idle pool does the work at once. Only codecs may set it: any
        other caller may be deep in the stack of a handler.

        Checkpoint: never.
        """
        if self._selective:
            requests = self._not_rejected(requests)
        # The requests of one call were read together and may have waited in the codec's mailbox.
        if (
            self._wait_seconds
            and requests
            and trio.current_time() - requests[0].arrived > self._wait_seconds
        ):
            requests = self._not_expired(requests)
        if (
            in_place
            and self._idle_workers > self._execution.deferred_batches
            and not self._queue
            and not self._waiting
        ):
            done = self._run_in_place(requests)
            self._counters.requests_in_place += done
            if done == len(requests):
                return
            requests = requests[done:]
        if requests:
            self._enqueue(requests)

    def hold_off(self, seconds: float, *, drain: bool = True) -> None:
        """Refuse new requests for *seconds*, because what they need has stalled.

        With *drain*, also refuse the queued requests. May be called by a handler of this pool.
        Checkpoint: never.
        """
        now = trio.current_time()
        self._held_off_until = now + seconds
        self._selective = True
        while drain and self._queue:
            request = self._pop()
            self._counters.stalled += 1
            self._refuse([request], _STALLED % ((now - request.arrived) * 1000, len(self._queue)))

    def _not_rejected(self, requests: list[Request]) -> list[Request]:
        if self._held_off_until:
            if trio.current_time() < self._held_off_until:
                self._counters.rejected += len(requests)
                self._refuse(requests, _REJECTED)
                return []
            self._held_off_until = 0.0
            self._selective = self._has_rejects
        if not self._has_rejects:
            return requests
        rejects: dict[Destination, bool] = {}
        refused: list[Request] = []
        admitted: list[Request] = []
        for request in requests:
            destination = request.destination
            rejected = rejects.get(destination)
            if rejected is None:
                rejected = rejects[destination] = _rejects(request.code, destination.reject)
            (refused if rejected else admitted).append(request)
        if refused:
            self._counters.rejected += len(refused)
            self._refuse(refused, _REJECTED)
        return admitted

    def _not_expired(self, requests: list[Request]) -> list[Request]:
        """Refuse the requests that are too old; return the others."""
        now = trio.current_time()
        kept = [request for request in requests if now - request.arrived <= self._wait_seconds]
        if len(kept) < len(requests):
            for request in requests:
                waited = now - request.arrived
                if waited > self._wait_seconds:
                    self._counters.expired += 1
                    self._refuse([request], _TOO_OLD % (waited * 1000, len(self._queue)))
        return kept

    def _enqueue(self, requests: list[Request]) -> None:
        queue = self._queue
        size = sum([len(request.body) + len(request.raw_header) for request in requests])
        if (
            len(queue) + len(requests) > self.config.queue_requests_max
            or self.queued_bytes + size > self.config.queue_bytes_max
        ):
            self._enqueue_what_fits(requests)
        else:
            queue.extend(requests)
            self.queued_bytes += size
            self._counters.requests_queued += len(requests)
        if queue:
            self._wake_worker()
            self.queued()

    def _wake_worker(self) -> None:
        if self._idle_workers:
            self._idle_workers -= 1
            self._idle.unpark()

    def _enqueue_what_fits(self, requests: list[Request]) -> None:
        """Queue requests up to the first that does not fit; refuse the rest, to keep the order.

        An empty queue takes any single request.
        """
        queue = self._queue
        for index, request in enumerate(requests):
            size = len(request.body) + len(request.raw_header)
            full = (
                len(queue) >= self.config.queue_requests_max
                or self.queued_bytes + size > self.config.queue_bytes_max
            )
            if full and queue:
                refused = requests[index:]
                self._counters.overloaded += len(refused)
                self._refuse(refused, _OVERLOAD)
                return
            queue.append(request)
            self.queued_bytes += size
            self._counters.requests_queued += 1

    def _refuse(self, requests: Sequence[Request], remark: str) -> None:
        for request in requests:
            request.destination.counters.refused += 1
        send_error(requests, ResponseCode.SYSTEM_BUSY, remark)

    def sweep(self) -> None:
        """Refuse the queued requests that are too old; called if the pool has such a limit."""
        now = trio.current_time()
        expired: list[Request] = []
        # The queue is in order of arrival, except for resubmitted requests: stop at the first young
        # request.
        while self._queue and now - self._queue[0].arrived > self._wait_seconds:
            expired.append(self._pop())
        self._not_expired(expired)

    # Work

    def _run_in_place(self, requests: list[Request]) -> int:
        """Run requests from the front; return how many ran.

        Stops at the end of the turn, when a request must wait for a worker, or when deferred
        batches occupy all idle workers.
        """
        position = 0
        end = min(len(requests), TURN_REQUESTS_MAX)
        execution = self._execution
        execution.begun = 0.0
        while position < end and self._idle_workers > execution.deferred_batches:
            position, waiting = execution.run(requests, position, end)
            if waiting is not None:
                self._waiting.append(waiting)
                self._wake_worker()
                break
        return position

    async def work(self) -> None:
        """Run one worker until cancelled."""
        execution = self._execution
        execution.use_clock_of_run()
        while True:
            if self._waiting:
                # Start in order of arrival: an `async def` handler has not begun yet.
                await execution.wait(self._waiting.popleft())
            elif self._queue and self._idle_workers >= execution.deferred_batches:
                waiting = self._run_turn()
                if waiting is None:
                    await trio.lowlevel.checkpoint()
                    continue
                if self._queue:
                    self._wake_worker()
                await execution.wait(waiting)
            else:
                self._idle_workers += 1
                if self._idle_workers == self.config.workers:
                    self._quiet.unpark_all()
                await self._idle.park()

    def _run_turn(self) -> Waiting | None:
        """Run queued requests for one turn; return what this worker must wait for.

        The turn also ends when as many batches wait as there are workers.
        """
        execution = self._execution
        for _ in range(TURN_REQUESTS_MAX // BATCH_REQUESTS_MAX):
            taken: list[Request] = []
            size_before = self.queued_bytes
            while (
                self._queue
                and len(taken) < BATCH_REQUESTS_MAX
                and size_before - self.queued_bytes < BATCH_BYTES_MAX
            ):
                taken.append(self._pop())
            if self._wait_seconds:
                taken = self._not_expired(taken)
            begun = execution.begun = trio.current_time()
            position = 0
            while position < len(taken):
                before = position
                position, waiting = execution.run(taken, position, len(taken))
                _note_waits(taken[before:position], begun)
                if waiting is not None or execution.deferred_batches > self._idle_workers:
                    for request in reversed(taken[position:]):
                        self._queue.appendleft(request)
                        self.queued_bytes += len(request.body) + len(request.raw_header)
                    return waiting
            if not self._queue:
                break
        return None

    def _pop(self) -> Request:
        request = self._queue.popleft()
        self.queued_bytes -= len(request.body) + len(request.raw_header)
        return request

    def finish(self, deferred: Deferred, make: Callable[[], HandlerResult]) -> None:
        """Send the responses that ``make`` returns. Checkpoint: never."""
        self._execution.finish(deferred, make)

    def _deferred_batch_ended(self) -> None:
        if self._queue:
            self._wake_worker()
        elif not self._execution.deferred_batches and self._idle_workers == self.config.workers:
            self._quiet.unpark_all()

    # The end

    async def wait_quiet(self) -> None:
        """Wait until nothing is queued and no handler runs. Checkpoint: maybe."""
        while (
            self._queue
            or self._waiting
            or self._execution.deferred_batches
            or self._idle_workers < self.config.workers
        ):
            await self._quiet.park()

    def abandon(self) -> None:
        """Drop the queue and close handlers that never began; called when no worker is left."""
        for waiting in self._waiting:
            close = getattr(waiting.work, "close", None)
            if close is not None:
                close()
        self._waiting.clear()
        self._queue.clear()
        self.queued_bytes = 0

    def statistics(self) -> PoolStatistics:
        return attrs.evolve(
            self._counters,
            workers=self.config.workers,
            idle_workers=self._idle_workers,
            queued_requests=len(self._queue),
            queued_bytes=self.queued_bytes,
        )


def _note_waits(begun: list[Request], now: float) -> None:
    """Count requests that were read together as one group: the queue is in order of arrival."""
    first, last = begun[0], begun[-1]
    if first.arrived == last.arrived and first.destination is last.destination:
        first.destination.counters.note_wait(len(begun), now - first.arrived)
        return
    for request in begun:
        request.destination.counters.note_wait(1, now - request.arrived)


def _rejects(code: int, reject: Callable[[], bool] | None) -> bool:
    """Ask the handler whether it refuses requests now; an error counts as yes."""
    if reject is None:
        return False
    try:
        return reject()
    except Exception:
        _log.exception("the handler of request %d cannot tell whether it is busy", code)
        return True


SWEEP_SECONDS = 0.010


@attrs.define(eq=False)
class Sweeper:
    """Sweeps the pools every 10 ms while one has a queue; sleeps otherwise, until ``wake``."""

    pools: Sequence[Pool] = ()
    _asleep: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)

    def wake(self) -> None:
        """Start sweeping: a pool has queued requests. Checkpoint: never."""
        if self._asleep:
            self._asleep.unpark_all()

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            if not any(map(len, self.pools)):
                await self._asleep.park()
            await trio.sleep(SWEEP_SECONDS)
            for pool in self.pools:
                pool.sweep()
