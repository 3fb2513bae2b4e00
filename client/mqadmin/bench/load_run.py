"""Carry out a ``LoadPlan``: workers that send, and counters of what came of it.

Ctrl-C and SIGTERM end a run early, and its summary is printed.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import attrs
import trio

from triomq.client.core.background import open_background
from triomq.client.core.errors import TrioMQError
from triomq.client.mqadmin.bench.latency_histogram import LatencyHistogram
from triomq.client.mqadmin.bench.load_plan import LoadPlan

REFUSED_PAUSE_SECONDS = 0.1
"""pause of a worker after a failure without a rate: a broker that refuses at once must not be asked
100,000 times per second
"""

TELL_SECONDS = 1.0
"""between two lines about the progress"""


@attrs.define(eq=False)
class EarlyEnd:
    """Tells a run to stop: set by a signal, or when the run has all its messages."""

    stop: trio.Event = attrs.field(factory=trio.Event)
    interrupted: bool = False


@asynccontextmanager
async def load_phase(tell: Callable[[], object]) -> AsyncIterator[EarlyEnd]:
    """Watch for signals and call ``tell`` every second, for the length of the block.

    After the block signals have their usual effect again, so that a second Ctrl-C ends a clean-up.
    """
    end = EarlyEnd()

    async def watch(*, task_status: trio.TaskStatus[None]) -> None:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for _ in signals:
                end.interrupted = True
                end.stop.set()

    async def tell_progress() -> None:
        while True:
            await trio.sleep(TELL_SECONDS)
            tell()

    async with open_background() as nursery:
        await nursery.start(watch)
        nursery.start_soon(tell_progress, name="progress of the benchmark")
        yield end


@attrs.define(eq=False)
class LoadCounts:
    """What came of the requests; messages, unless it says requests."""

    begun: int = 0
    """requests that were sent, whatever came of them"""
    in_flight: int = 0
    """requests"""
    sent: int = 0
    failed: Counter[str] = attrs.field(factory=Counter)
    """name of the error → messages"""
    examples: dict[str, str] = attrs.field(factory=dict)
    """name of the error → the text of the first"""
    overdue: int = 0
    """messages that were due and not sent, because all workers waited for answers"""
    latency: LatencyHistogram = attrs.field(factory=LatencyHistogram)
    began_at: float = 0.0
    """Trio's clock"""
    ended_at: float | None = None
    """when the last answer came"""

    def seconds(self, now: float) -> float:
        """Return how long the run has taken."""
        return max(0.0, (now if self.ended_at is None else self.ended_at) - self.began_at)


async def run_load(
    plan: LoadPlan,
    send: Callable[[int], Awaitable[object]],
    counts: LoadCounts,
    stop: trio.Event,
    *,
    messages: int = 1,
) -> None:
    """Send until the plan or ``stop`` ends it, then wait for the answers in flight.

    ``send`` gets the number of the request and raises TrioMQError for a failure; it must end by
    itself. ``messages``: of each request.
    """
    begin = last_answer = counts.began_at = trio.current_time()
    length = plan.seconds

    async def note_stop() -> None:
        nonlocal length
        await stop.wait()
        length = trio.current_time() - begin

    async def worker() -> None:
        nonlocal last_answer
        while not stop.is_set() and plan.wants(counts.begun, trio.current_time() - begin):
            number = counts.begun
            counts.begun += 1
            due_after = plan.due_after(number)
            due = trio.current_time() if due_after is None else begin + due_after
            if due > trio.current_time():
                with trio.move_on_at(due):
                    await stop.wait()
                if stop.is_set():
                    counts.begun -= 1
                    return
            counts.in_flight += 1
            failure: TrioMQError | None = None
            try:
                await send(number)
            except TrioMQError as error:
                failure = error
            finally:
                counts.in_flight -= 1
            last_answer = trio.current_time()
            if failure is not None:
                reason = type(failure).__name__
                counts.failed[reason] += messages
                counts.examples.setdefault(reason, str(failure))
                if due_after is None:
                    with trio.move_on_after(REFUSED_PAUSE_SECONDS):
                        await stop.wait()
            else:
                counts.sent += messages
                counts.latency.note(last_answer - due, messages)

    async with trio.open_nursery() as watching:
        watching.start_soon(note_stop)
        async with trio.open_nursery() as nursery:
            for _ in range(plan.in_flight_max):
                nursery.start_soon(worker)
        watching.cancel_scope.cancel()
    counts.ended_at = last_answer
    due_count = plan.due_count(length)
    if due_count is not None:
        counts.overdue = max(0, due_count - counts.begun) * messages
