"""Requests that wait for a message or for the end of their time: what all tables of them share.

A held request costs a table entry, not a task. Deadlines are exact (a Java broker looks every 5 s).
"""

from __future__ import annotations

import abc
import heapq
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

import attrs
import trio

STALE_DEADLINES_MAX = 1024
"""Woken requests leave stale deadlines behind; they are removed when they outnumber this and the
live ones.
"""


class HeldRequest(Protocol):
    """One waiting request."""

    deadline: float
    connection: Hashable
    resume: Callable[[], None] | None
    """Run the request again; None once the wait has ended."""


H = TypeVar("H", bound=HeldRequest)


@attrs.define(eq=False)
class HeldRequests(abc.ABC, Generic[H]):
    """Waiting requests by their deadlines and connections; a table lists what each waits for."""

    _by_connection: dict[Hashable, dict[H, None]] = attrs.field(factory=dict, init=False)
    _deadlines: list[tuple[float, int, H]] = attrs.field(factory=list, init=False)
    _sequence: int = attrs.field(default=0, init=False)
    count: int = attrs.field(default=0, init=False)
    """Of the requests that wait."""
    _earlier: trio.Event = attrs.field(factory=trio.Event, init=False)

    @abc.abstractmethod
    def _list(self, held: H) -> None:
        """Note what a request waits for."""

    @abc.abstractmethod
    def _unlist(self, held: H) -> None:
        """Forget what a request waits for."""

    def _keep(self, held: H) -> None:
        """Let a request wait. Checkpoint: never."""
        self._list(held)
        self._by_connection.setdefault(held.connection, {})[held] = None
        first = self._deadlines[0][0] if self._deadlines else float("inf")
        self._sequence += 1
        heapq.heappush(self._deadlines, (held.deadline, self._sequence, held))
        self.count += 1
        if held.deadline < first:
            self._earlier.set()

    def forget_connection(self, connection: Hashable) -> None:
        """Drop the requests of a closed connection."""
        for held in list(self._by_connection.get(connection, ())):
            self._remove(held)

    def _wake(self, held: H) -> None:
        """Resume a request, unless another one has ended it (by closing its connection)."""
        if held.resume is not None:
            self._remove(held)()

    def expire(self, now: float) -> float:
        """Resume requests whose time is up; return when the next one is due."""
        while self._deadlines:
            due, _, held = self._deadlines[0]
            if held.resume is not None and due > now:
                return due
            heapq.heappop(self._deadlines)
            self._wake(held)
        return float("inf")

    def _remove(self, held: H) -> Callable[[], None]:
        """End a wait; return the callback that resumes the request.

        The entry forgets its callback: its deadline may stay in the heap for a while, and the
        garbage collector does not look into requests. A request that is kept there would keep its
        connection, and this whole broker.
        """
        assert held.resume is not None
        resume, held.resume = held.resume, None
        self.count -= 1
        self._unlist(held)
        mine = self._by_connection[held.connection]
        del mine[held]
        if not mine:
            del self._by_connection[held.connection]
        stale = len(self._deadlines) - self.count
        if stale > STALE_DEADLINES_MAX and stale > self.count:
            self._deadlines = [entry for entry in self._deadlines if entry[2].resume is not None]
            heapq.heapify(self._deadlines)
        return resume

    async def run(self) -> None:
        """Run the task that ends waits: it sleeps until the earliest deadline."""
        while True:
            next_due = self.expire(trio.current_time())
            self._earlier = trio.Event()
            with trio.move_on_at(next_due):
                await self._earlier.wait()
