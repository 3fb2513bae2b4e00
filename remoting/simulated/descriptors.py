"""Descriptors of a simulation, and the poller that watches them.

They behave as those of a Unix system do. No call blocks: a task that must wait waits for the
descriptor, as with a real one.
"""

from __future__ import annotations

import itertools
import random
from typing import Any

import attrs
import trio

READABLE, WRITABLE, FAILED = 1, 4, 8
"""The bits of epoll."""
_FIRST_DESCRIPTOR = 1_000_000  # above every real descriptor


class RealWorld(RuntimeError):
    """Code in a simulation used the real system, which would end the determinism."""


@attrs.define(eq=False)
class Descriptors:
    """All open descriptors of a simulation, on all machines."""

    random: random.Random
    files: dict[int, SimulatedFile] = attrs.field(factory=dict)
    _numbers: itertools.count[int] = attrs.field(
        factory=lambda: itertools.count(_FIRST_DESCRIPTOR), init=False
    )

    def open(self, file: SimulatedFile) -> int:
        """Return the number of a new descriptor."""
        number = next(self._numbers)
        self.files[number] = file
        return number

    def file(self, file: Any) -> SimulatedFile:
        """Return the open file of a number or of an object with ``fileno``.

        Raises: RealWorld for a descriptor of the real system, trio.ClosedResourceError.
        """
        number = file if isinstance(file, int) else file.fileno()
        if number == -1:
            raise trio.ClosedResourceError("this descriptor is closed")
        found = self.files.get(number)
        if found is None:
            raise RealWorld(
                f"descriptor {number} is a real one: nothing in a simulation may wait for it"
            )
        return found


class SimulatedFile:
    """Anything with a descriptor that tasks can wait for."""

    def __init__(self, descriptors: Descriptors) -> None:
        self.descriptors = descriptors
        self.number = descriptors.open(self)
        self.readers: list[trio.lowlevel.Task] = []
        self.writers: list[trio.lowlevel.Task] = []
        self.pollers: list[SimulatedPoller] = []
        self.cut_off: list[trio.lowlevel.Task] = []
        """Tasks that waited when this descriptor was closed, and have not run since."""

    def fileno(self) -> int:
        return self.number

    def events(self) -> int:
        """Return which of READABLE, WRITABLE and FAILED hold now."""
        return 0

    async def wait_readable(self) -> None:
        await self._wait(self.readers, READABLE | FAILED)

    async def wait_writable(self) -> None:
        await self._wait(self.writers, WRITABLE | FAILED)

    async def _wait(self, tasks: list[trio.lowlevel.Task], events: int) -> None:
        if tasks:
            raise trio.BusyResourceError("another task waits for this descriptor already")
        if self.events() & events:
            await trio.lowlevel.checkpoint()
            return
        task = trio.lowlevel.current_task()
        tasks.append(task)

        def give_up(_: object) -> trio.lowlevel.Abort:
            tasks.remove(task)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(give_up)
        if task in self.cut_off:
            self.cut_off.remove(task)
            raise trio.ClosedResourceError("another task closed this descriptor")

    def changed(self) -> None:
        """Wake the tasks that wait for an event that holds now."""
        events = self.events()
        if events & (READABLE | FAILED):
            _wake(self.readers)
        if events & (WRITABLE | FAILED):
            _wake(self.writers)
        for poller in self.pollers:
            if poller.watched.get(self.number, 0) & events or events & FAILED:
                poller.changed()

    def notify_closing(self) -> None:
        self.cut_off += self.readers + self.writers
        _wake(self.readers)
        _wake(self.writers)


def _wake(tasks: list[trio.lowlevel.Task]) -> None:
    waiting, tasks[:] = tasks[:], []
    for task in waiting:
        trio.lowlevel.reschedule(task)


class SimulatedPoller(SimulatedFile):
    """``select.epoll``, level-triggered."""

    def __init__(self, descriptors: Descriptors) -> None:
        super().__init__(descriptors)
        self.watched: dict[int, int] = {}

    def register(self, number: int, events: int) -> None:
        self.watched[number] = events
        self.descriptors.files[number].pollers.append(self)
        self.changed()

    def modify(self, number: int, events: int) -> None:
        self.watched[number] = events
        self.changed()

    def unregister(self, number: int) -> None:
        del self.watched[number]
        self.descriptors.files[number].pollers.remove(self)

    def poll(self, _timeout: float = 0, events_max: int = -1) -> list[tuple[int, int]]:
        ready = self._ready()
        self.descriptors.random.shuffle(ready)
        return ready[:events_max] if events_max > 0 else ready

    def _ready(self) -> list[tuple[int, int]]:
        files = self.descriptors.files
        found = [
            (number, files[number].events() & (wanted | FAILED))
            for number, wanted in self.watched.items()
        ]
        return [(number, events) for number, events in found if events]

    def events(self) -> int:
        return READABLE if self._ready() else 0

    def close(self) -> None:
        for number in self.watched:
            self.descriptors.files[number].pollers.remove(self)
        self.watched.clear()
        self.descriptors.files.pop(self.number, None)
