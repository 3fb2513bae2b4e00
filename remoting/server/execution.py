"""Run handlers and send what they return; independent of queues and workers.

Errors of handlers are answered here: Rejected with its code and remark, any other exception as
SYSTEM_ERROR and with one log entry.
"""

import logging
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence
from itertools import takewhile
from typing import Any

import attrs
import trio

from triomq.remoting.core.errors import Rejected
from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.server.answers import error_remark, send_answers, send_error
from triomq.remoting.server.requests import Deferred, HandlerResult, Request, Response
from triomq.remoting.server.slow_requests import SlowRequests
from triomq.remoting.server.statistics import LATENCY_EDGES

_log = logging.getLogger(__name__)

BATCH_REQUESTS_MAX = 128
# Responses whose bodies sum up to this leave at once: their readers work while the next are made.
_EARLY_BYTES = 128 * 1024
_NO_RESPONSE = "the handler gave %.80r, neither a response nor a deferred one"


@attrs.frozen
class Waiting:
    """Requests whose handler returned an awaitable: a worker awaits the rest of the work."""

    requests: list[Request]
    work: Awaitable[Any]
    begun: float = 0.0
    """When they left the queue; 0 for those that were in none."""


@attrs.define(eq=False)
class Execution:
    """Runs the handlers of one pool. ``released`` is called when a deferred batch has ended."""

    released: Callable[[], None]
    limit: LogLimit
    slow: SlowRequests = attrs.field(factory=SlowRequests)
    begun: float = attrs.field(default=0.0, init=False)
    """When the requests that run now left the queue; 0 for those that were in none."""
    deferred_batches: int = attrs.field(default=0, init=False)
    """batches that wait without a worker"""
    _now: Callable[[], float] = attrs.field(default=trio.current_time, init=False)

    def use_clock_of_run(self) -> None:
        """Read Trio's clock without looking up the run each time; called inside the run."""
        self._now = trio.lowlevel.current_clock().current_time

    def run(self, requests: list[Request], start: int, end: int) -> tuple[int, Waiting | None]:
        """Run one batch, or single requests up to the next batch, from index *start*.

        Returns: the index of the first request that did not run, and what a worker must wait for.
        """
        destination = requests[start].destination
        if not destination.batch:
            return self._run_singles(requests, start, end)
        batch = requests[start : min(end, start + BATCH_REQUESTS_MAX)]
        if len(batch) > 1 and any([request.destination is not destination for request in batch]):  # noqa: C419 - half the time of a generator
            batch = _same_key(batch)
        else:
            destination.counters.requests += len(batch)
        position = start + len(batch)
        try:
            result = destination.call(batch)
            if result.__class__ is list:
                self._answer(batch, result)
            elif result.__class__ is Deferred:
                self._defer(result)
                return position, None
            else:
                return position, Waiting(batch, _awaitable(result), self.begun)
        except Exception as error:
            self._fail(batch, error)
        # `note_answered` without the call, and a clock without the lookup: a batch may be a single
        # request.
        seconds = self._now() - batch[0].arrived
        counters = destination.counters
        counters.answer_seconds += seconds * len(batch)
        counters.latency[bisect_left(LATENCY_EDGES, seconds)] += len(batch)
        if counters.unfiled:
            counters.file_codes(seconds)
        if seconds > self.slow.seconds:
            self.slow.note(batch, self.begun, 0.0, batch[0].arrived + seconds)
        return position, None

    def _run_singles(
        self, requests: list[Request], start: int, end: int
    ) -> tuple[int, Waiting | None]:
        asked: list[Request] = []
        answers: list[Response] = []
        waiting: Waiting | None = None
        size = 0
        position = start
        while position < end:
            request = requests[position]
            destination = request.destination
            if destination.batch:
                break
            position += 1
            destination.counters.requests += 1
            try:
                result = destination.call(request)
                if result.__class__ is not Response:
                    if result.__class__ is Deferred:
                        self._defer(result)
                        continue
                    waiting = Waiting([request], _awaitable(result), self.begun)
                    break
            except Exception as error:
                result = self._failure([request], error)
            asked.append(request)
            answers.append(result)
            size += result.body_size
            if size >= _EARLY_BYTES:
                self._send_singles(asked, answers)
                asked, answers, size = [], [], 0
        if asked:
            self._send_singles(asked, answers)
        return position, waiting

    def _send_singles(self, asked: list[Request], answers: list[Response]) -> None:
        try:
            send_answers(asked, answers)
        except Exception as error:
            self._fail(asked, error)
        seconds = self._now() - asked[0].arrived
        if seconds > self.slow.seconds:
            self.slow.note(asked, self.begun, 0.0, asked[0].arrived + seconds)
        destination = asked[0].destination
        if len(asked) == 1 or all([request.destination is destination for request in asked]):  # noqa: C419 - as above
            destination.counters.note_answered(len(asked), seconds)
        else:
            for request in asked:
                request.destination.counters.note_answered(1, seconds)

    async def wait(self, waiting: Waiting) -> None:
        """Await the work of a handler, and answer. Checkpoint: maybe."""
        deferred = Deferred(waiting.requests)
        deferred.begun = waiting.begun
        try:
            result = await waiting.work
        except Exception as error:
            deferred.fail(error)
        else:
            deferred.finish(lambda: result)

    def finish(self, deferred: Deferred, make: Callable[[], HandlerResult]) -> None:
        """Send the responses that ``make`` returns. Checkpoint: never."""
        requests = deferred.requests
        deferred.finished = True
        result: HandlerResult | None = None
        try:
            result = make()
            if isinstance(result, Deferred):
                self._defer(result)
            elif requests[0].destination.batch:
                self._answer(requests, result)
            elif isinstance(result, Response):
                send_answers(requests, (result,))
            else:
                raise TypeError(_NO_RESPONSE % (result,))
        except Exception as error:
            self._fail(requests, error)
        if result.__class__ is not Deferred:
            seconds = self._now() - requests[0].arrived
            requests[0].destination.counters.note_answered(len(requests), seconds)
            if seconds > self.slow.seconds:
                now = requests[0].arrived + seconds
                self.slow.note(requests, deferred.begun, deferred.since, now)
        if deferred.occupies_worker:
            self.deferred_batches -= 1
            self.released()

    def _defer(self, deferred: Deferred) -> None:
        """Count a deferred batch as a busy worker."""
        if deferred.finished:
            return
        deferred.begun, deferred.since = self.begun, self._now()
        if deferred.requests[0].destination.batch:
            self.deferred_batches += 1
            deferred.occupies_worker = True

    def _answer(self, requests: Sequence[Request], answers: Any) -> None:
        """Send what a handler returned; TypeError if that is not a response for each request."""
        if not isinstance(answers, list) or len(answers) != len(requests):
            raise TypeError(f"the handler gave {answers!r:.80} for {len(requests)} requests")
        send_answers(requests, answers)

    def _fail(self, requests: Sequence[Request], error: Exception) -> None:
        """Answer requests whose handler raised. Checkpoint: never."""
        failure = self._failure(requests, error)
        counters = requests[0].destination.counters
        counters.errors += len(requests)
        counters.note_code(failure.code, len(requests))
        send_error(requests, failure.code, failure.remark or "")

    def _failure(self, requests: Sequence[Request], error: Exception) -> Response:
        """Return the response to requests whose handler raised; log unexpected errors, once."""
        if isinstance(error, Rejected):
            return Response(error.code, remark=error.remark)
        requests[0].destination.counters.failed += len(requests)
        self.limit.log(
            _log,
            logging.ERROR,
            f"request {requests[0].code} from %s failed in its handler",  # limited for each code
            requests[0].connection.peer_text,
            error=error,
        )
        return Response(ResponseCode.SYSTEM_ERROR, remark=error_remark(error))


def _awaitable(result: Any) -> Awaitable[Any]:
    if not isinstance(result, Awaitable):
        raise TypeError(_NO_RESPONSE % (result,))
    return result


def _same_key(requests: list[Request]) -> list[Request]:
    """Return and count the first requests that go to one batch handler under several codes."""
    key = requests[0].destination.key
    batch = list(takewhile(lambda request: request.destination.key == key, requests))
    for request in batch:
        request.destination.counters.requests += 1
    return batch
