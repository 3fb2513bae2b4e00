"""Which halves are open, when each must be checked, and how far both queues are done. Pure.

Halves are named by their offsets in the half queue. The first check of a half is due some time
after it arrived, all others at a time of their own: those of copies, and of halves whose sender
asked for more time. Times are seconds of one monotonic clock.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable, Sequence

import attrs

ARRIVAL_SECONDS = 0.01
"""Halves that arrive within this time are due together, with the first of them."""
HEAP_SPARE = 1_000


@attrs.frozen
class Progress:
    """How far the queues are done: the next offset of the half queue and of the op queue."""

    half: int
    op: int


@attrs.define(eq=False)
class OpenHalves:
    """The halves from ``oldest`` up to ``end``, of which ``open`` are not finished.

    A set, since nearly all halves are finished in milliseconds: what is kept is what is open.
    """

    end: int
    """Offset behind the last half that has arrived."""
    op_end: int
    """Offset behind the last op record that was read or written."""
    oldest: int = attrs.field(init=False)
    open: set[int] = attrs.field(factory=set, init=False)
    first_copies: dict[int, int] = attrs.field(factory=dict, init=False)
    """First record of a transaction -> its newest copy; only while the copy is open."""
    _firsts: dict[int, int] = attrs.field(factory=dict, init=False)
    """The reverse."""
    old_since: dict[int, float] = attrs.field(factory=dict, init=False)
    """Open copies of transactions that the wall clock calls too old -> when it first did."""
    _arrivals: deque[tuple[int, float]] = attrs.field(factory=deque, init=False)
    """(end of the halves that arrived, time) ascending; those below the first check are gone."""
    _checked_to: int = attrs.field(init=False)
    """Halves below it have had their first check, or have a time of their own."""
    _own_times: dict[int, float] = attrs.field(factory=dict, init=False)
    _heap: list[tuple[float, int]] = attrs.field(factory=list, init=False)
    _op_records: deque[tuple[int, int]] = attrs.field(factory=deque, init=False)
    """(offset of an op record, highest half that it names), ascending in the first."""

    def __attrs_post_init__(self) -> None:
        self.oldest = self._checked_to = self.end

    def arrived(self, end: int, now: float) -> None:
        """Add the halves up to ``end``. Those that are known already stay as they are."""
        if end > self.end:
            self.open.update(range(self.end, end))
            self.end = end
            if self._arrivals and now - self._arrivals[-1][1] < ARRIVAL_SECONDS:
                self._arrivals[-1] = end, self._arrivals[-1][1]
            else:
                self._arrivals.append((end, now))

    def pass_finished(self, finished: set[int]) -> None:
        """Begin behind the halves at the front that are finished, before any has arrived.

        They are taken out of ``finished``.
        """
        while self.end in finished:
            finished.remove(self.end)
            self.end += 1
        self.oldest = self._checked_to = self.end

    def current(self, queue_offset: int) -> int | None:
        """Return the open record of the transaction that began with this one; None: it ended."""
        queue_offset = self.first_copies.get(queue_offset, queue_offset)
        return queue_offset if queue_offset in self.open else None

    def finish(self, queue_offsets: Iterable[int]) -> None:
        """Remove halves that an op record names, or that the log has no more."""
        for offset in queue_offsets:
            self.open.discard(offset)
            self.old_since.pop(offset, None)
            self._own_times.pop(offset, None)
            first = self._firsts.pop(offset, None)
            if first is not None and self.first_copies.get(first) == offset:
                del self.first_copies[first]
        while self.oldest < self.end and self.oldest not in self.open:
            self.oldest += 1

    def note_copy(self, first: int, copy: int, due: float) -> None:
        """Record where the copy of a half is, and when it must be checked again.

        The copy need not have arrived yet.
        """
        self.first_copies[first] = copy
        self._firsts[copy] = first
        self.postpone(copy, due)

    def postpone(self, queue_offset: int, due: float) -> None:
        """Set the time of a half's next check."""
        self._own_times[queue_offset] = due
        heapq.heappush(self._heap, (due, queue_offset))
        if len(self._heap) > 2 * len(self._own_times) + HEAP_SPARE:
            # Most of these halves have ended, long before their time.
            self._heap = [(due, half) for half, due in self._own_times.items() if due < math.inf]
            heapq.heapify(self._heap)

    def op_record(self, op_offset: int, queue_offsets: Sequence[int]) -> None:
        """Record that the op record at ``op_offset`` names these halves."""
        self.op_end = op_offset + 1
        highest = max(queue_offsets, default=-1)
        if highest >= self.oldest:
            self._op_records.append((op_offset, highest))

    def due(self, now: float, timeout: float, count: int) -> list[int]:
        """Return up to ``count`` open halves whose check is due, in no special order.

        ``timeout``: seconds from the arrival of a half to its first check.

        Each must be finished or postponed by the caller, or is never returned again.
        """
        found: list[int] = []
        while self._heap and self._heap[0][0] <= now and len(found) < count:
            due, offset = heapq.heappop(self._heap)
            if self._own_times.get(offset) == due:
                self._own_times[offset] = math.inf  # the walk below must still pass over it
                if offset in self.open:
                    found.append(offset)
        while self._arrivals and self._arrivals[0][1] + timeout <= now:
            end = self._arrivals[0][0]
            while self._checked_to < end and len(found) < count:
                offset = self._checked_to
                self._checked_to += 1
                if offset in self.open and offset not in self._own_times:
                    found.append(offset)
            if self._checked_to < end:
                break
            self._arrivals.popleft()
        return found

    def next_due(self, timeout: float) -> float | None:
        """Return when the next check may be due; None if no half is open."""
        if not self.open:
            return None
        times = [self._heap[0][0]] if self._heap else []
        if self._arrivals:
            times.append(self._arrivals[0][1] + timeout)
        return min(times, default=None)

    def progress(self) -> Progress:
        """Return how far both queues are done.

        An op record is done when all halves that it names are older than every open one.
        """
        while self._op_records and self._op_records[0][1] < self.oldest:
            self._op_records.popleft()
        return Progress(self.oldest, self._op_records[0][0] if self._op_records else self.op_end)
