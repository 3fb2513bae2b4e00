"""``Timetable``: items that become due at a trio time, such as messages that come again later."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Generic, TypeVar

import attrs
import trio

T = TypeVar("T")

_IDLE_SECONDS = 3600.0
"""Wait while there are no items; ``put`` ends it."""


@attrs.define(eq=False)
class Timetable(Generic[T]):
    """Items ordered by the time at which they are due, then in the order of ``put``."""

    _heap: list[tuple[float, int, T]] = attrs.field(factory=list, init=False)
    _numbers: itertools.count[int] = attrs.field(factory=itertools.count, init=False)
    _changed: trio.Event = attrs.field(factory=trio.Event, init=False)

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, due: float, item: T) -> None:
        """Add an item that is due at a trio time."""
        heapq.heappush(self._heap, (due, next(self._numbers), item))
        self._changed.set()

    async def deliver_due(self, deliver: Callable[[T], object]) -> None:
        """Call ``deliver`` with each item when it is due; runs for ever."""
        heap = self._heap
        while True:
            self._changed = trio.Event()
            with trio.move_on_at(heap[0][0] if heap else trio.current_time() + _IDLE_SECONDS):
                await self._changed.wait()
            while heap and heap[0][0] <= trio.current_time():
                deliver(heapq.heappop(heap)[2])
