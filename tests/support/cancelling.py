"""Run something again and again, cancelled one step of the loop later each time, and look what it leaves behind.

Every checkpoint at which a task can be cancelled is hit sooner or later, on a clock that jumps: time-outs and drains cost nothing.
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
    """Cancels `scope` before the loop's step number `step`, counted from the moment the scope is set."""

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
    """What is open, once the threads that were left alone with a slow disk have closed their files. Stops the loop, which has nothing to do."""
    patience = time.monotonic() + THREADS_END_SECONDS
    while (now := rest()) != expected and time.monotonic() < patience:
        time.sleep(0.01)
    return now


Scenario = Callable[[Callable[[trio.CancelScope], None]], Awaitable[None]]
"""Told where to hand in the scope that is to be cancelled; returns when all is over."""


def cancel_everywhere(scenario: Scenario, *, first: int = 1, stride: int = 1, steps_max: int = 5000, jump: bool = True) -> int:
    """Run *scenario* with a cancellation at each step, until it ends before it is cancelled; how many runs that took.

    `jump`: on a clock that jumps when the loop is idle; not for what waits for threads, since that clock does not see them work.
    AssertionError if a run leaves a task or a descriptor for good; a socket that nobody closed is a ResourceWarning, and that an error.
    """
    for runs, step in enumerate(range(first, steps_max, stride), start=1):
        instrument = CancelAt(step)

        async def once(instrument: CancelAt = instrument) -> None:
            before = rest()

            def begin(scope: trio.CancelScope) -> None:
                instrument.scope = scope

            await scenario(begin)
            after = rest_at_last(before)
            assert after == before, f"cancelled before step {instrument.step}: {after}, not {before}"

        with warnings.catch_warnings():
            warnings.simplefilter("error", ResourceWarning)
            clock = trio.testing.MockClock(autojump_threshold=0) if jump else None
            trio.run(once, clock=clock, instruments=[instrument])
        if not instrument.hit:
            gc.collect()  # what was forgotten speaks up here at the latest
            return runs
    raise AssertionError(f"the scenario still runs after {steps_max} steps")
