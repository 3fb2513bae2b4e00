"""``Supervisor``: the parent of several processes, which all do the same.

A child that fails is started again, after growing waits. A signal goes to every child as SIGTERM,
also a second one, which ends them at once. Children watch their standard input, a pipe of the
parent, and stop when it ends: none is left alone when the parent is killed.
"""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence

import attrs
import trio

from triomq.client.core.retry import BusyBackoff
from triomq.remoting.core.interrupt import EXIT_INTERRUPTED
from triomq.remoting.core.process import ExitCode

logger = logging.getLogger(__name__)

RESTARTS = BusyBackoff(first=1.0, longest=30.0, jitter=0.0)
STEADY_SECONDS = 60.0
"""a child that ran so long has failed for the first time"""


@attrs.define(eq=False)
class Supervisor:
    """Keeps children running until a signal comes, all end by themselves, or one cannot start."""

    commands: Sequence[Sequence[str]]
    """one for each child"""
    changed: Callable[[], Awaitable[str]] | None = None
    """waits for a change of the program and names it; children are then started again"""
    _children: dict[int, trio.Process] = attrs.field(factory=dict, init=False)
    _signal: int = attrs.field(default=0, init=False)
    _stopping: trio.Event = attrs.field(factory=trio.Event, init=False)
    _reloaded: trio.Event = attrs.field(factory=trio.Event, init=False)
    _code: int = attrs.field(default=0, init=False)

    async def run(self) -> int:
        """Run the children; return the exit code of the parent."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._pass_signals_on)
            if self.changed is not None:
                nursery.start_soon(self._reload)
            async with trio.open_nursery() as children:
                for number in range(len(self.commands)):
                    children.start_soon(self._keep, number)
            nursery.cancel_scope.cancel()
        return EXIT_INTERRUPTED if self._signal == signal.SIGINT else self._code

    async def _keep(self, number: int) -> None:
        failures = 0
        while not self._stopping.is_set():
            reloaded = self._reloaded
            began = trio.current_time()
            code = await self._run_once(number)
            if self._stopping.is_set():
                self._code = self._code or max(code, 0)
                return
            if reloaded.is_set():
                continue
            if self.changed is None and code in (ExitCode.OK, ExitCode.CONFIGURATION):
                self._code = self._code or code
                if code:
                    self._stop()
                return
            if trio.current_time() - began >= STEADY_SECONDS:
                failures = 0
            failures += 1
            await self._pause(number, code, failures)

    async def _run_once(self, number: int) -> int:
        """Run one child; return its exit code, negative for a signal."""
        process = await trio.lowlevel.open_process(
            self.commands[number],
            stdin=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C in a terminal reaches the parent only
        )
        self._children[number] = process
        if self._stopping.is_set():  # while the process was made
            process.terminate()
        code = await process.wait()
        del self._children[number]
        if process.stdin is not None:
            await process.stdin.aclose()
        return code

    async def _pause(self, number: int, code: int, failures: int) -> None:
        """Wait before a restart: for a change of the program, otherwise longer each time."""
        if self.changed is not None:
            logger.error("process %d ended with %d: waiting for a change", number + 1, code)
            async with trio.open_nursery() as nursery:
                for event in (self._reloaded, self._stopping):
                    nursery.start_soon(_cancel_at, event, nursery.cancel_scope)
            return
        seconds = RESTARTS.seconds(failures, 0.5)
        logger.error("process %d ended with %d: starts again in %.0f s", number + 1, code, seconds)
        with trio.move_on_after(seconds):
            await self._stopping.wait()

    async def _reload(self) -> None:
        assert self.changed is not None
        while True:
            name = await self.changed()
            logger.warning("%s has changed: starting again", name)
            event, self._reloaded = self._reloaded, trio.Event()
            event.set()
            self._terminate()

    async def _pass_signals_on(self, *, task_status: trio.TaskStatus[None]) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            task_status.started()
            async for number in signals:
                self._signal = self._signal or number
                self._stop()

    def _stop(self) -> None:
        self._stopping.set()
        self._terminate()

    def _terminate(self) -> None:
        for process in self._children.values():
            process.terminate()


async def _cancel_at(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


def child_command(arguments: Sequence[str]) -> list[str]:
    """Return the command of a child with these arguments of ``triomq``."""
    return [sys.executable, "-m", "triomq.runner", *arguments]
