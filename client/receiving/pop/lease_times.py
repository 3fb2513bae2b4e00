"""``LeaseTimes``: what a consumer holds, and when each invisible time is renewed. Pure.

A *lease* is a popped message together with the time until which the broker hides it from the rest
of the group. Times are seconds of any clock that only goes forward.
"""

from __future__ import annotations

from math import inf
from typing import Generic, TypeVar

import attrs

from triomq.remoting.protocol.receipt_handle import ORDERED_QUEUE, ReceiptHandle

L = TypeVar("L")


@attrs.define(eq=False)
class Lease:
    """A popped message on the consumer's side."""

    topic: str
    """the topic that was asked for; the message may be in the group's retry topic"""
    handle: ReceiptHandle
    """changes with each new invisible time"""
    ends: float
    """when the invisible time is over, by the consumer's clock"""

    @property
    def ordered(self) -> bool:
        """Whether the group is orderly."""
        return self.handle.revive_queue == ORDERED_QUEUE


@attrs.define(eq=False)
class OpenLeases:
    """The leases of a simple consumer that its end gives back: neither settled nor changed."""

    _open: set[Lease] = attrs.field(factory=set, init=False)
    _sweep_at: int = attrs.field(default=64, init=False)
    """number of leases at which those that are over are forgotten"""

    def __len__(self) -> int:
        return len(self._open)

    def add(self, lease: Lease, now: float) -> None:
        """Note a message that the application has received."""
        self._open.add(lease)
        if len(self._open) >= self._sweep_at:
            self._open = {each for each in self._open if each.ends > now}
            self._sweep_at = max(64, 2 * len(self._open))

    def discard(self, lease: Lease) -> None:
        """Forget a lease, if it is known."""
        self._open.discard(lease)

    def take(self, now: float) -> list[Lease]:
        """Return the leases that are not over, and forget all."""
        taken, self._open = self._open, set()
        return [lease for lease in taken if lease.ends > now]


@attrs.define(eq=False)
class LeaseTimes(Generic[L]):
    """The leases of a consumer, each due after ``period``; one that failed after ``retry``.

    Both durations are constant, so insertion order is the order of due times, and memory is bounded
    by what is held.
    """

    period: float
    retry: float
    _due: dict[L, float] = attrs.field(factory=dict, init=False)
    _failed: dict[L, float] = attrs.field(factory=dict, init=False)

    def __len__(self) -> int:
        return len(self._due) + len(self._failed)

    def __contains__(self, lease: L) -> bool:
        return lease in self._due or lease in self._failed

    def keep(self, lease: L, now: float) -> None:
        """Note a new lease, or one that was renewed."""
        self.drop(lease)
        self._due[lease] = now + self.period

    def failed(self, lease: L, now: float) -> None:
        """Note a lease that could not be renewed."""
        self.drop(lease)
        self._failed[lease] = now + self.retry

    def drop(self, lease: L) -> None:
        """Forget a lease: it is given back, or being renewed."""
        self._due.pop(lease, None)
        self._failed.pop(lease, None)

    def take_due(self, now: float) -> list[L]:
        """Return the leases that are to be renewed now; ``keep`` or ``failed`` lists them again."""
        taken = []
        for table in (self._due, self._failed):
            while table:
                lease, due = next(iter(table.items()))
                if due > now:
                    break
                del table[lease]
                taken.append(lease)
        return taken

    def next_due(self) -> float:
        """Return when the next lease is due; infinity if none is held."""
        return min(next(iter(table.values()), inf) for table in (self._due, self._failed))
