"""Run a scenario again and again, cancelled one step of the loop later each time, and check what it
leaves behind.

Every checkpoint at which a task can be cancelled is hit sooner or later, on a clock that jumps:
time-outs and drains cost nothing.
"""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Awaitable, Callable

import attrs
import psutil
import trio
import trio.testing

THREADS_END_SECONDS = 2.0


@attrs.define(eq=False)
class CancelAt(trio.abc.Instrument):
    """Cancels ``scope`` before the loop's step number ``step``, counted from the moment the scope
    is set.
    """

    step: int
    scope: trio.CancelScope | None = None
    steps: int = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if self.scope is None:
            return
        self.steps += 1
        if self.steps == self.step:
            self.scope.cancel()

    @property
    def hit(self) -> bool:
        return self.steps >= self.step


@attrs.frozen
class Rest:
    """What is open at one moment."""

    descriptors: int
    tasks: int


def rest() -> Rest:
    return Rest(psutil.Process().num_fds(), trio.lowlevel.current_statistics().tasks_living)


def rest_at_last(expected: Rest) -> Rest:
    """Return what is open once the threads that were abandoned with a slow disk have closed their
    files. Blocks the loop, which has nothing to do.
    """
    deadline = time.monotonic() + THREADS_END_SECONDS
    while (now := rest()) != expected and time.monotonic() < deadline:
        time.sleep(0.01)
    return now


Scenario = Callable[[Callable[[trio.CancelScope], None]], Awaitable[None]]
"""Gets a function that takes the scope to cancel; returns when all is over."""


def cancel_everywhere(
    scenario: Scenario, *, first: int = 1, stride: int = 1, steps_max: int = 5000, jump: bool = True
) -> int:
    """Run *scenario* with a cancellation at each step, until it ends before it is cancelled.

    ``jump``: on a clock that jumps when the loop is idle; not for scenarios that wait for threads,
    since that clock does not see them work.

    Returns: the number of runs.
    Raises: AssertionError if a run leaves a task or a descriptor behind. A socket that was not
    closed is a ResourceWarning, which is an error in tests.
    """
    for runs, step in enumerate(range(first, steps_max, stride), start=1):
        instrument = CancelAt(step)

        async def once(instrument: CancelAt = instrument) -> None:
            before = rest()

            def begin(scope: trio.CancelScope) -> None:
                instrument.scope = scope

            await scenario(begin)
            after = rest_at_last(before)
            assert after == before, (
                f"cancelled before step {instrument.step}: {after}, not {before}"
            )

        with warnings.catch_warnings():
            warnings.simplefilter("error", ResourceWarning)
            clock = trio.testing.MockClock(autojump_threshold=0) if jump else None
            trio.run(once, clock=clock, instruments=[instrument])
        if not instrument.hit:
            gc.collect()  # what was forgotten speaks up here at the latest
            return runs
    raise AssertionError(f"the scenario still runs after {steps_max} steps")
