"""Watermark: an integer that only grows, and the tasks that wait for it."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import trio


@attrs.define(eq=False)
class Watermark:
    """``value`` grows by ``advance``, which wakes the tasks whose goals are reached, in order."""

    value: int = 0
    callbacks: list[Callable[[], None]] = attrs.field(factory=list, init=False)
    """Called whenever the value has grown, before tasks are woken. They must not raise or wait."""
    _waiters: dict[trio.Event, int] = attrs.field(factory=dict, init=False)

    def advance(self, value: int) -> None:
        """Move to ``value``. A smaller value is ignored, so two sources may report in any order.

        Checkpoint: never.
        """
        if value <= self.value:
            return
        self.value = value
        for callback in self.callbacks:
            callback()
        if self._waiters:
            for event in [event for event, goal in self._waiters.items() if goal <= value]:
                del self._waiters[event]
                event.set()

    def wake_all(self) -> None:
        """Wake all waiting tasks although the value has not been reached, and never will be. They
        find out the reason themselves.

        Checkpoint: never.
        """
        for event in self._waiters:
            event.set()
        self._waiters.clear()

    async def wait_reached(self, goal: int) -> None:
        """Wait until ``value >= goal``, or until ``wake_all``. Checkpoint: always."""
        if self.value >= goal:
            await trio.lowlevel.checkpoint()
            return
        event = trio.Event()
        self._waiters[event] = goal
        try:
            await event.wait()
        finally:
            self._waiters.pop(event, None)

    async def wait_beyond(self, value: int) -> None:
        """Wait until ``self.value > value``, or until ``wake_all``. Checkpoint: always."""
        await self.wait_reached(value + 1)

    @property
    def waiting(self) -> int:
        """The number of waiting tasks."""
        return len(self._waiters)
