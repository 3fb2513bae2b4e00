"""Watermark: an integer that only grows, and tasks that wait for it. Most of what the broker waits for is one of these."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import trio


@attrs.define(eq=False)
class Watermark:
    """``value`` grows by ``advance``; whoever waits is woken in the order of arrival, and only when its own goal is reached."""

    value: int = 0
    followers: list[Callable[[], None]] = attrs.field(factory=list, init=False)
    """Called whenever the value has grown, before anybody is woken. They must not raise. No checkpoint."""
    _waiters: dict[trio.Event, int] = attrs.field(factory=dict, init=False)

    def advance(self, value: int) -> None:
        """Move to ``value``; a smaller one is ignored, so two sources may report in any order. Atomic: no checkpoint."""
        if value <= self.value:
            return
        self.value = value
        for told in self.followers:
            told()
        if self._waiters:
            for event in [event for event, goal in self._waiters.items() if goal <= value]:
                del self._waiters[event]
                event.set()

    def wake_all(self) -> None:
        """Wake whoever waits now, although the value has not been reached: it never will. They see for themselves why. Atomic: no checkpoint."""
        for event in self._waiters:
            event.set()
        self._waiters.clear()

    async def wait_reached(self, goal: int) -> None:
        """Return once ``value >= goal``, or after ``wake_all``. Checkpoint: always."""
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
        """Return once ``self.value > value``, or after ``wake_all``. Checkpoint: always."""
        await self.wait_reached(value + 1)

    @property
    def waiting(self) -> int:
        """How many tasks wait."""
        return len(self._waiters)
