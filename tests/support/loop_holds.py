"""How long steps of tasks hold a loop: the processor time of each, by the name of the task.

Processor time of the loop's thread: neither a loaded machine nor a thread of Python counts. What
Python's garbage collector takes in between counts on its own, as ``GARBAGE``: it depends on what
the whole process has, not on the step.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import trio

GARBAGE = "garbage collector"


@attrs.define(eq=False)
class LoopHolds(trio.abc.Instrument):
    """An instrument of Trio."""

    longest: dict[str, float] = attrs.field(factory=dict, init=False)
    """Name of a task -> its longest step (s)."""
    _begun: float = attrs.field(default=0.0, init=False)
    _collecting: float = attrs.field(default=0.0, init=False)
    _thread: int = attrs.field(factory=threading.get_ident, init=False)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Called by Trio."""
        self._begun = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """Called by Trio."""
        self._note(task.name, time.thread_time() - self._begun)

    def _note(self, name: str, seconds: float) -> None:
        if seconds > self.longest.get(name, 0.0):
            self.longest[name] = seconds

    def _collected(self, phase: str, _: dict[str, Any]) -> None:
        if threading.get_ident() != self._thread:
            return
        now = time.thread_time()
        if phase == "start":
            self._collecting = now
        else:
            self._note(GARBAGE, now - self._collecting)
            self._begun += now - self._collecting

    def take(self) -> dict[str, float]:
        """Return what there is, and begin again."""
        found, self.longest = self.longest, {}
        return found

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Measure the loop of the caller for the block."""
        trio.lowlevel.add_instrument(self)
        gc.callbacks.append(self._collected)
        try:
            yield
        finally:
            gc.callbacks.remove(self._collected)
            trio.lowlevel.remove_instrument(self)
