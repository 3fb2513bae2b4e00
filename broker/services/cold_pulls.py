"""Pulls that wait for the disk: a few at a time, clients in turns.

A pull of messages that are in memory no more does not stay in the pull pool. There it would keep a worker, and one consumer that is days behind on many queues would
keep them all: everybody else's pulls, whose messages are in memory, would wait for its disk reads. Here the client whose turn is longest ago goes first, however many pulls
another one has waiting.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Hashable

import attrs
import trio

AT_A_TIME = 4
WAITING_MAX = 20_000
"""About 1.5 KiB each; one more is refused as busy."""

Job = Callable[[], Awaitable[None]]
"""The rest of a pull: waits for the disk and sends the answer. Must not raise."""


@attrs.define(eq=False)
class ColdPulls:
    """``add`` from a handler, ``run`` as a task."""

    at_a_time: int = AT_A_TIME
    waiting_max: int = WAITING_MAX
    waiting: int = attrs.field(default=0, init=False)
    _rows: OrderedDict[Hashable, deque[Job]] = attrs.field(factory=OrderedDict, init=False)
    """Client -> its pulls, in the order of arrival; the client whose turn is next comes first."""
    _idle: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)

    def add(self, client: Hashable, job: Job) -> bool:
        """Put a pull into its client's row; False when too many wait already. No checkpoint."""
        if self.waiting >= self.waiting_max:
            return False
        self.waiting += 1
        self._rows.setdefault(client, deque()).append(job)
        self._idle.unpark()
        return True

    def forget_client(self, client: Hashable) -> None:
        """Nobody is there to be answered. No checkpoint."""
        self.waiting -= len(self._rows.pop(client, ()))

    async def run(self) -> None:
        """The task "cold-pulls" and its workers."""
        async with trio.open_nursery() as nursery:
            for number in range(self.at_a_time):
                nursery.start_soon(self._work, name=f"cold-pulls-{number + 1}")

    async def _work(self) -> None:
        while True:
            while not self._rows:
                await self._idle.park()
            client, jobs = self._rows.popitem(last=False)
            job = jobs.popleft()
            self.waiting -= 1
            if jobs:
                self._rows[client] = jobs  # at the end of the line
            await job()
            await trio.lowlevel.checkpoint()
