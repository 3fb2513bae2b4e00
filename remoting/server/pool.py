"""Business pools: bounded queues in front of request handlers.

`submit` never waits. A request that does not fit, that its handler refuses, or that lay too long is answered SYSTEM_BUSY with
Java's remarks, so that a client can tell overload from a lost request; a one-way request is dropped. When a pool is idle, the
codec's requests run in place: no hop, no worker. A handler that must wait returns an awaitable, and only that goes to a worker,
or a Later, which is finished by whoever knows; together no more batches wait than there are workers.
Source of the remarks: remoting/…/netty/NettyRemotingAbstract.java, broker/…/latency/BrokerFastFailure.java.
"""

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import takewhile
from typing import Any

import attrs
import trio

from triomq.remoting.errors import Rejected
from triomq.remoting.log_limit import LogLimit
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.server.answers import error_remark, send_answers, send_error
from triomq.remoting.server.config import PoolConfig
from triomq.remoting.server.handlers import Answer, Handler, Later, Request, Response
from triomq.remoting.server.statistics import LATENCY_BUCKETS, CodeStatistics, PoolStatistics

_log = logging.getLogger(__name__)

# What a batch handler gets at once, and what one turn may do before other tasks get theirs.
BATCH_REQUESTS_MAX = 128
BATCH_BYTES_MAX = 1024 * 1024
TURN_REQUESTS_MAX = 256
# Answers of so many bytes leave at once, so that their readers work while the next ones are made.
EARLY_BYTES = 128 * 1024

_OVERLOAD = "[OVERLOAD]system busy, start flow control for a while"
_REJECTED = "[REJECTREQUEST]system busy, start flow control for a while"
_STALLED = "[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: %dms, size of queue: %d"
_TOO_OLD = "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: %dms, size of queue: %d"


@attrs.define(eq=False)
class Route:
    """Where the requests of one code go, and how many went. Routes that share a batch handler share its batches (`key`)."""

    handler: Handler
    pool: "Pool"
    key: int
    batch: bool = attrs.field(init=False)
    call: Callable[[Any], Any] = attrs.field(init=False)
    requests: int = attrs.field(default=0, init=False)
    refused: int = attrs.field(default=0, init=False)
    failed: int = attrs.field(default=0, init=False)
    errors: int = attrs.field(default=0, init=False)
    answer_seconds: float = attrs.field(default=0.0, init=False)
    latency: list[int] = attrs.field(factory=lambda: [0] * LATENCY_BUCKETS, init=False)
    queued: int = attrs.field(default=0, init=False)
    wait_seconds: float = attrs.field(default=0.0, init=False)
    wait_seconds_max: float = attrs.field(default=0.0, init=False)

    def __attrs_post_init__(self) -> None:
        self.batch = self.handler.batch
        self.call = self.handler.call

    def statistics(self) -> CodeStatistics:
        return CodeStatistics(
            requests=self.requests,
            refused=self.refused,
            failed=self.failed,
            errors=self.errors,
            answered=sum(self.latency),
            answer_seconds=self.answer_seconds,
            latency=tuple(self.latency),
            queued=self.queued,
            wait_seconds=self.wait_seconds,
            wait_seconds_max=self.wait_seconds_max,
        )

    def note_answered(self, count: int, seconds: float) -> None:
        """So many requests were answered, the oldest after so long. Called once for each batch."""
        self.answer_seconds += count * seconds
        self.latency[int(seconds * 1e6).bit_length()] += count

    def note_wait(self, count: int, seconds: float) -> None:
        """So many requests have begun after so long in the queue."""
        self.queued += count
        self.wait_seconds += count * seconds
        if seconds > self.wait_seconds_max:
            self.wait_seconds_max = seconds


@attrs.frozen
class _Waiting:
    """Requests whose handler must wait: a worker awaits the rest of the work."""

    requests: list[Request]
    work: Awaitable[Any]


@attrs.define(eq=False)
class Pool:
    """One pool; `queued` is called whenever requests had to be queued (it wakes the sweeper)."""

    name: str
    config: PoolConfig
    queued: Callable[[], None]
    limit: LogLimit = attrs.field(factory=LogLimit)
    queued_bytes: int = attrs.field(default=0, init=False)
    _queue: deque[Request] = attrs.field(factory=deque, init=False)
    _waiting: deque[_Waiting] = attrs.field(factory=deque, init=False)
    _idle_workers: int = attrs.field(default=0, init=False)  # parked ones that nobody has woken yet
    _later: int = attrs.field(default=0, init=False)  # batches that wait without a worker
    _idle: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _quiet: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _selective: bool = attrs.field(default=False, init=False)  # somebody is to be asked before a request comes in
    _has_rejects: bool = attrs.field(default=False, init=False)
    _held_off_until: float = attrs.field(default=0.0, init=False)
    _wait_seconds: float = attrs.field(init=False)
    _now: Callable[[], float] = attrs.field(default=trio.current_time, init=False)
    _in_place_count: int = attrs.field(default=0, init=False)
    _queued_count: int = attrs.field(default=0, init=False)
    _overloaded: int = attrs.field(default=0, init=False)
    _rejected: int = attrs.field(default=0, init=False)
    _expired: int = attrs.field(default=0, init=False)
    _stalled: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._wait_seconds = self.config.wait_ms_max / 1000

    def __len__(self) -> int:
        """Requests in the queue."""
        return len(self._queue)

    def head_wait_seconds(self) -> float:
        """How long the oldest request of the queue has waited; 0 without one."""
        return max(0.0, trio.current_time() - self._queue[0].arrived) if self._queue else 0.0

    def route(self, handler: Handler, key: int) -> Route:
        """A new route into this pool."""
        self._has_rejects = self._has_rejects or handler.reject is not None
        self._selective = self._selective or self._has_rejects
        return Route(handler, self, key)

    # Admission

    def submit(self, requests: list[Request], *, in_place: bool = False) -> None:
        """Let requests in, in their order, or answer why not. No checkpoint.

        With `in_place` (codecs only: nobody else can tell how deep the stack is) an idle pool does the work at once.
        """
        if self._selective:
            requests = self._not_rejected(requests)
        # The requests of one call were read together and may have waited in the codec's mailbox.
        if self._wait_seconds and requests and trio.current_time() - requests[0].arrived > self._wait_seconds:
            requests = self._not_expired(requests)
        if in_place and self._idle_workers > self._later and not self._queue and not self._waiting:
            done = self._run_in_place(requests)
            self._in_place_count += done
            if done == len(requests):
                return
            requests = requests[done:]
        if requests:
            self._enqueue(requests)

    def hold_off(self, seconds: float, *, drain: bool = True) -> None:
        """What this pool's requests need has stalled: refuse those that come in the next *seconds*, and with *drain* those that wait.

        No checkpoint; may be called by a handler of this pool.
        """
        now = trio.current_time()
        self._held_off_until = now + seconds
        self._selective = True
        while drain and self._queue:
            request = self._pop()
            self._stalled += 1
            self._refuse([request], _STALLED % ((now - request.arrived) * 1000, len(self._queue)))

    def _not_rejected(self, requests: list[Request]) -> list[Request]:
        if self._held_off_until:
            if trio.current_time() < self._held_off_until:
                self._rejected += len(requests)
                self._refuse(requests, _REJECTED)
                return []
            self._held_off_until = 0.0
            self._selective = self._has_rejects
        if not self._has_rejects:
            return requests
        verdicts: dict[Route, bool] = {}
        refused: list[Request] = []
        admitted: list[Request] = []
        for request in requests:
            route = request.route
            verdict = verdicts.get(route)
            if verdict is None:
                verdict = verdicts[route] = _rejects(route)
            (refused if verdict else admitted).append(request)
        if refused:
            self._rejected += len(refused)
            self._refuse(refused, _REJECTED)
        return admitted

    def _not_expired(self, requests: list[Request]) -> list[Request]:
        """What is left after the requests that lay too long were answered; those are at the front, mostly."""
        now = trio.current_time()
        kept = [request for request in requests if now - request.arrived <= self._wait_seconds]
        if len(kept) < len(requests):
            for request in requests:
                waited = now - request.arrived
                if waited > self._wait_seconds:
                    self._expired += 1
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
            self._queued_count += len(requests)
        if queue:
            self._wake_worker()
            self.queued()

    def _wake_worker(self) -> None:
        if self._idle_workers:
            self._idle_workers -= 1
            self._idle.unpark()

    def _enqueue_what_fits(self, requests: list[Request]) -> None:
        """One by one; the first that does not fit refuses all after it, for order's sake. An empty queue takes any single one."""
        queue = self._queue
        for index, request in enumerate(requests):
            size = len(request.body) + len(request.raw_header)
            full = (
                len(queue) >= self.config.queue_requests_max or self.queued_bytes + size > self.config.queue_bytes_max
            )
            if full and queue:
                refused = requests[index:]
                self._overloaded += len(refused)
                self._refuse(refused, _OVERLOAD)
                return
            queue.append(request)
            self.queued_bytes += size
            self._queued_count += 1

    def _refuse(self, requests: Sequence[Request], remark: str) -> None:
        for request in requests:
            request.route.refused += 1
        send_error(requests, ResponseCode.SYSTEM_BUSY, remark)

    def sweep(self) -> None:
        """Answer the requests that lay too long in the queue. No checkpoint."""
        if not self._wait_seconds:
            return
        now = trio.current_time()
        expired = 0
        for request in self._queue:  # arrival order, except for requests that came back: stop at the first young one
            if now - request.arrived <= self._wait_seconds:
                break
            expired += 1
        self._not_expired([self._pop() for _ in range(expired)])

    # Work

    def _run_in_place(self, requests: list[Request]) -> int:
        """Run from the front until the turn is over or something must wait for a worker, or in place of one; how many were run."""
        position = 0
        end = min(len(requests), TURN_REQUESTS_MAX)
        while position < end and self._idle_workers > self._later:
            position, waiting = self._run_some(requests, position, end)
            if waiting is not None:
                self._waiting.append(waiting)
                self._wake_worker()
                break
        return position

    async def work(self) -> None:
        """One worker: run until cancelled."""
        self._now = trio.lowlevel.current_clock().current_time
        while True:
            if self._waiting:
                # First come, first started: an `async def` handler has not begun yet.
                await self._finish(self._waiting.popleft())
            elif self._queue and self._idle_workers >= self._later:
                waiting = self._run_turn()
                if waiting is None:
                    await trio.lowlevel.checkpoint()
                    continue
                if self._queue:
                    self._wake_worker()
                await self._finish(waiting)
            else:
                self._idle_workers += 1
                if self._idle_workers == self.config.workers:
                    self._quiet.unpark_all()
                await self._idle.park()

    def _run_turn(self) -> _Waiting | None:
        """Run from the queue until the turn is over, nothing is left, or as many batches wait as there are workers; what this worker must wait for."""
        for _ in range(TURN_REQUESTS_MAX // BATCH_REQUESTS_MAX):
            taken: list[Request] = []
            size_before = self.queued_bytes
            while self._queue and len(taken) < BATCH_REQUESTS_MAX and size_before - self.queued_bytes < BATCH_BYTES_MAX:
                taken.append(self._pop())
            if self._wait_seconds:
                taken = self._not_expired(taken)
            begun = trio.current_time()
            position = 0
            while position < len(taken):
                before = position
                position, waiting = self._run_some(taken, position, len(taken))
                _note_waits(taken[before:position], begun)
                if waiting is not None or self._later > self._idle_workers:
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

    def _run_some(self, requests: list[Request], start: int, end: int) -> tuple[int, _Waiting | None]:
        """Run one batch, or singles up to the next batch, from `start`; the position after them, and what must wait."""
        route = requests[start].route
        if not route.batch:
            return self._run_singles(requests, start, end)
        batch = requests[start : min(end, start + BATCH_REQUESTS_MAX)]
        if len(batch) > 1 and any([request.route is not route for request in batch]):  # noqa: C419 - half the time of a generator
            batch = _same_key(batch)
        else:
            route.requests += len(batch)
        position = start + len(batch)
        try:
            result = route.call(batch)
            if result is not None:  # else it has answered them all
                if result.__class__ is Later:
                    self._later += 1
                    result.finish = partial(self._finish_later, batch)
                    return position, None
                if not isinstance(result, list):
                    return position, _Waiting(batch, result)
                self._answer(batch, result)
        except Exception as error:
            self.fail(batch, error)
        # `note_answered` without the call, and a clock without the way to it: a batch may be a single request.
        seconds = self._now() - batch[0].arrived
        route.answer_seconds += seconds * len(batch)
        route.latency[int(seconds * 1e6).bit_length()] += len(batch)
        return position, None

    def _run_singles(self, requests: list[Request], start: int, end: int) -> tuple[int, _Waiting | None]:
        asked: list[Request] = []
        answers: list[Answer] = []
        waiting: _Waiting | None = None
        size = 0
        position = start
        while position < end:
            request = requests[position]
            route = request.route
            if route.batch:
                break
            position += 1
            route.requests += 1
            try:
                result = route.call(request)
            except Exception as error:
                result = self._failure([request], error)
            if result is None:
                continue
            if isinstance(result, Response):
                asked.append(request)
                answers.append(result)
                size += result.body_size
                if size >= EARLY_BYTES:
                    self._send_singles(asked, answers)
                    asked, answers, size = [], [], 0
                continue
            waiting = _Waiting([request], result)
            break
        if asked:
            self._send_singles(asked, answers)
        return position, waiting

    def _send_singles(self, asked: list[Request], answers: list[Answer]) -> None:
        try:
            send_answers(asked, answers)
        except Exception as error:
            self.fail(asked, error)
        seconds = self._now() - asked[0].arrived
        route = asked[0].route
        if len(asked) == 1 or not any([request.route is not route for request in asked]):  # noqa: C419 - as above
            route.note_answered(len(asked), seconds)
        else:
            for request in asked:
                request.route.note_answered(1, seconds)

    async def _finish(self, waiting: _Waiting) -> None:
        requests = waiting.requests
        try:
            result = await waiting.work
            self._answer(requests, result if requests[0].route.batch else [result])
        except Exception as error:
            self.fail(requests, error)
        requests[0].route.note_answered(len(requests), trio.current_time() - requests[0].arrived)

    def _finish_later(self, requests: list[Request], make: Callable[[], list[Answer] | None]) -> None:
        """What ``_finish`` does, without a worker."""
        try:
            answers = make()
            if answers is not None:
                self._answer(requests, answers)
        except Exception as error:
            self.fail(requests, error)
        requests[0].route.note_answered(len(requests), self._now() - requests[0].arrived)
        self._later -= 1
        if self._queue:
            self._wake_worker()
        elif not self._later and self._idle_workers == self.config.workers:
            self._quiet.unpark_all()

    def _answer(self, requests: list[Request], answers: Any) -> None:
        """Send what a handler gave; TypeError if that is not an answer for each request."""
        if not isinstance(answers, list) or len(answers) != len(requests):
            raise TypeError(f"the handler gave {answers!r:.80} for {len(requests)} requests")
        send_answers(requests, answers)

    def fail(self, requests: Sequence[Request], error: Exception) -> None:
        """Tell what a handler's work came to; unexpected errors go to the log. No checkpoint."""
        failure = self._failure(requests, error)
        requests[0].route.errors += len(requests)
        send_error(requests, failure.code, failure.remark or "")

    def _failure(self, requests: Sequence[Request], error: Exception) -> Response:
        """The answer to requests whose handler raised; unexpected errors are logged here, once."""
        if isinstance(error, Rejected):
            return Response(error.code, remark=error.remark)
        route = requests[0].route
        route.failed += len(requests)
        self.limit.log(
            _log,
            logging.ERROR,
            f"request {requests[0].code} from %s failed in its handler",  # a brake for each code
            requests[0].connection.peer_text,
            error=error,
        )
        return Response(ResponseCode.SYSTEM_ERROR, remark=error_remark(error))

    # The end

    async def wait_quiet(self) -> None:
        """Wait until nothing is queued and no handler runs. Checkpoint: only if something is."""
        while self._queue or self._waiting or self._later or self._idle_workers < self.config.workers:
            await self._quiet.park()

    def abandon(self) -> None:
        """The workers are gone: forget what is queued, and close handlers that never began."""
        for waiting in self._waiting:
            close = getattr(waiting.work, "close", None)
            if close is not None:
                close()
        self._waiting.clear()
        self._queue.clear()
        self.queued_bytes = 0

    def statistics(self) -> PoolStatistics:
        return PoolStatistics(
            workers=self.config.workers,
            idle_workers=self._idle_workers,
            queued_requests=len(self._queue),
            queued_bytes=self.queued_bytes,
            requests_in_place=self._in_place_count,
            requests_queued=self._queued_count,
            overloaded=self._overloaded,
            rejected=self._rejected,
            expired=self._expired,
            stalled=self._stalled,
        )


def _note_waits(begun: list[Request], now: float) -> None:
    """Requests that were read together are counted together: the queue is in order of arrival."""
    first, last = begun[0], begun[-1]
    if first.arrived == last.arrived and first.route is last.route:
        first.route.note_wait(len(begun), now - first.arrived)
        return
    for request in begun:
        request.route.note_wait(1, now - request.arrived)


def _rejects(route: Route) -> bool:
    """Ask the handler whether it refuses; one that fails at that refuses."""
    if route.handler.reject is None:
        return False
    try:
        return route.handler.reject()
    except Exception:
        _log.exception("the handler of request %d cannot tell whether it is busy", route.handler.code)
        return True


def _same_key(requests: list[Request]) -> list[Request]:
    """The requests at the front that go to one batch handler under several codes; counted as taken."""
    key = requests[0].route.key
    batch = list(takewhile(lambda request: request.route.key == key, requests))
    for request in batch:
        request.route.requests += 1
    return batch
