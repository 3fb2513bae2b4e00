"""Long polling: pulls that found nothing wait here until a message for them arrives or their time is up.

A held pull costs a table entry, not a task.  The indexer reports arrivals synchronously, right after the queue entries are readable; a
pull that finds nothing is held in the same stretch without a checkpoint, so no arrival can fall between the two.  Deadlines are kept
exactly (a Java broker looks at them every 5 s).
Source: broker/longpolling/PullRequestHoldService.java, NotifyMessageArrivingListener.java.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import attrs
import trio

# Woken pulls leave stale deadlines behind; they are swept when they outnumber the live ones and this many.
STALE_DEADLINES_MAX = 1024
# About 1.5 KiB each. One more is answered at once, and comes back at once: slower for everybody, and bounded.
HELD_PULLS_MAX = 100_000


@attrs.define(eq=False)
class HeldPull:
    """One waiting request: what it wants, and until when."""

    topic: str
    queue_id: int
    next_offset: int
    tag_codes: frozenset[int] | None
    deadline: float
    connection: Hashable
    request: Any
    done: bool = False


@attrs.define(eq=False)
class HeldPullStatistics:
    held: int
    woken: int
    expired: int
    dropped: int


@attrs.define(eq=False)
class HeldPulls:
    """``resume`` is called with the request of every pull that must be run again, now without waiting."""

    resume: Callable[[Any], None] = attrs.field(init=False)
    _by_queue: dict[tuple[str, int], dict[HeldPull, None]] = attrs.field(factory=dict)
    """Dicts, not lists: removing one of 100,000 pulls of a queue takes constant time."""
    _by_connection: dict[Hashable, dict[HeldPull, None]] = attrs.field(factory=dict)
    _deadlines: list[tuple[float, int, HeldPull]] = attrs.field(factory=list)
    _sequence: int = 0
    _live: int = 0
    _earlier: trio.Event = attrs.field(factory=trio.Event)
    woken: int = 0
    expired: int = 0
    dropped: int = 0

    def hold(self, pull: HeldPull) -> bool:
        """Keep a pull; False if there are too many already.  atomic: no checkpoint between the failed read and this."""
        if self._live >= HELD_PULLS_MAX:
            return False
        self._by_queue.setdefault((pull.topic, pull.queue_id), {})[pull] = None
        self._by_connection.setdefault(pull.connection, {})[pull] = None
        first = self._deadlines[0][0] if self._deadlines else float("inf")
        self._sequence += 1
        heapq.heappush(self._deadlines, (pull.deadline, self._sequence, pull))
        self._live += 1
        if pull.deadline < first:
            self._earlier.set()
        return True

    def arrived(self, arrivals: Iterable[tuple[str, int, int, int]]) -> None:
        """Resume whoever waits for one of ``(topic, queue_id, end_offset, tags_code)``.  atomic: no checkpoint."""
        by_queue = self._by_queue
        if not by_queue:
            return
        for topic, queue_id, end_offset, tags_code in arrivals:
            waiting = by_queue.get((topic, queue_id))
            if waiting is None:
                continue
            for pull in [
                pull
                for pull in waiting
                if pull.next_offset < end_offset and (pull.tag_codes is None or tags_code in pull.tag_codes)
            ]:
                self._wake(pull)

    def forget_connection(self, connection: Hashable) -> None:
        """Drop what a closed connection was waiting for."""
        for pull in list(self._by_connection.get(connection, ())):
            self._remove(pull)
            self.dropped += 1

    def wake_topic(self, topic: str) -> None:
        """Resume every pull of a topic, whose state changed otherwise than by an arrival (deleted, no longer readable)."""
        for key in [key for key in self._by_queue if key[0] == topic]:
            for pull in list(self._by_queue.get(key, ())):
                self._wake(pull)

    def _wake(self, pull: HeldPull) -> None:
        """Resume a pull, unless resuming another one has ended it (by closing its connection)."""
        if not pull.done:
            request = self._remove(pull)
            self.woken += 1
            self.resume(request)

    def expire(self, now: float) -> float:
        """Resume pulls whose time is up; return when the next one is due."""
        while self._deadlines:
            due, _, pull = self._deadlines[0]
            if not pull.done and due > now:
                return due
            heapq.heappop(self._deadlines)
            if not pull.done:
                request = self._remove(pull)
                self.expired += 1
                self.resume(request)
        return float("inf")

    def _remove(self, pull: HeldPull) -> Any:
        """End the waiting; returns the request, which the pull forgets.

        Its deadline may stay in the heap for a while, and the garbage collector does not look into requests: one that is kept there would
        keep its connection and this whole broker for ever.
        """
        pull.done = True
        request, pull.request = pull.request, None
        self._live -= 1
        key = (pull.topic, pull.queue_id)
        waiting = self._by_queue[key]
        del waiting[pull]
        if not waiting:
            del self._by_queue[key]
        mine = self._by_connection[pull.connection]
        del mine[pull]
        if not mine:
            del self._by_connection[pull.connection]
        stale = len(self._deadlines) - self._live
        if stale > STALE_DEADLINES_MAX and stale > self._live:
            self._deadlines = [entry for entry in self._deadlines if not entry[2].done]
            heapq.heapify(self._deadlines)
        return request

    async def run(self) -> None:
        """Wake up for the earliest deadline; sleep while there is none."""
        while True:
            next_due = self.expire(trio.current_time())
            self._earlier = trio.Event()
            with trio.move_on_at(next_due):
                await self._earlier.wait()

    def statistics(self) -> HeldPullStatistics:
        return HeldPullStatistics(self._live, self.woken, self.expired, self.dropped)
