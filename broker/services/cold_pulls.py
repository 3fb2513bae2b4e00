"""Pulls that wait for the disk: a few at a time, clients in turns.

A pull of messages that are no longer in memory does not stay in the pull pool. There it would
occupy a worker, and one consumer that is days behind on many queues would occupy them all: the
pulls of other clients, whose messages are in memory, would wait for its disk reads. Here the client
whose last turn is longest ago goes first, however many pulls another client has waiting.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Hashable

import attrs
import trio

AT_A_TIME = 4
WAITING_MAX = 20_000
"""About 1.5 KiB each. One more is refused as busy."""

Job = Callable[[], Awaitable[None]]
"""The rest of a pull: waits for the disk and sends the answer. Must not raise."""


@attrs.define(eq=False)
class ColdPulls:
    """``add`` from a handler, ``run`` as a task."""

    at_a_time: int = AT_A_TIME
    waiting_max: int = WAITING_MAX
    waiting: int = attrs.field(default=0, init=False)
    _jobs_of: OrderedDict[Hashable, deque[tuple[Job, Callable[[], None]]]] = attrs.field(
        factory=OrderedDict, init=False
    )
    """Client -> its pulls in order of arrival; the client whose turn is next comes first."""
    _idle: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)

    def add(self, client: Hashable, job: Job, on_forget: Callable[[], None] = lambda: None) -> bool:
        """Let a pull wait its turn; return False if too many wait already. Checkpoint: never.

        ``on_forget``: called in place of the job if the client leaves before its turn.
        """
        if self.waiting >= self.waiting_max:
            return False
        self.waiting += 1
        self._jobs_of.setdefault(client, deque()).append((job, on_forget))
        self._idle.unpark()
        return True

    def forget_client(self, client: Hashable) -> None:
        """Drop the pulls of a client whose connection has closed. Checkpoint: never."""
        for _, on_forget in self._jobs_of.pop(client, ()):
            self.waiting -= 1
            on_forget()

    async def run(self) -> None:
        """Run the task "cold-pulls" and its workers."""
        async with trio.open_nursery() as nursery:
            for number in range(self.at_a_time):
                nursery.start_soon(self._work, name=f"cold-pulls-{number + 1}")

    async def _work(self) -> None:
        while True:
            while not self._jobs_of:
                await self._idle.park()
            client, jobs = self._jobs_of.popitem(last=False)
            job, _ = jobs.popleft()
            self.waiting -= 1
            if jobs:
                self._jobs_of[client] = jobs  # last in turn
            await job()
            await trio.lowlevel.checkpoint()
