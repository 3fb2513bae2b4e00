"""Locks of queues: in a group that consumes in order, one member at a time owns a queue.

They are kept in memory only, and last 60 s from the last renewal. Source:
broker/client/rebalance/RebalanceLockManager.java.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs
import trio

from triomq.broker.services.table_limits import broker_limits
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.limits import Limits
from triomq.remoting.server.turns import ROWS_AT_ONCE, Turns, in_turns

LIFE_SECONDS = 60.0


@attrs.define
class QueueLock:
    client_id: str
    renewed: float


@attrs.define(eq=False)
class QueueLocks:
    """SANS-IO except for ``run``: methods get ``now`` in seconds of one monotonic clock."""

    limits: Limits = attrs.field(factory=broker_limits)
    _count: int = 0
    _groups: dict[str, dict[MessageQueue, QueueLock]] = attrs.field(factory=dict)

    def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue], now: float
    ) -> list[MessageQueue]:
        """Take free and expired locks, renew the client's own; return the queues that it holds now.

        Raises: LimitReached.
        """
        queues = list(queues)
        new = self.new(group, queues)
        self.require_room(group, new)
        self._count += new
        locks = self._groups.setdefault(group, {})
        held = []
        for queue in queues:
            lock = locks.get(queue)
            if lock is not None and lock.client_id != client_id and self._alive(lock, now):
                continue
            locks[queue] = QueueLock(client_id, now)
            held.append(queue)
        return held

    def new(self, group: str, queues: Iterable[MessageQueue]) -> int:
        """Return how many of these queues have no lock in this group."""
        return len(set(queues) - self._groups.get(group, {}).keys())

    def require_room(self, group: str, new: int) -> None:
        """Refuse if there is no room for ``new`` more locks. Raises: LimitReached."""
        self.limits.require(
            "locks_max", self._count + new, f"group {group} gets no lock of {new} more queues"
        )

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Release the client's own locks; those of others stay."""
        locks = self._groups.get(group, {})
        for queue in queues:
            lock = locks.get(queue)
            if lock is not None and lock.client_id == client_id:
                del locks[queue]
                self._count -= 1
        if not locks:
            self._groups.pop(group, None)

    def any_alive(self, group: str, now: float) -> bool:
        """Return whether any member holds a queue.

        Then the group consumes in order, and a message that it gives up is dead.
        """
        locks = self._groups.get(group)
        return locks is not None and any(self._alive(lock, now) for lock in locks.values())

    def _alive(self, lock: QueueLock, now: float) -> bool:
        return now - lock.renewed < LIFE_SECONDS

    async def sweep(self) -> None:
        """Forget the locks that are not alive."""
        now, turns = trio.current_time(), Turns(8 * ROWS_AT_ONCE)
        for group, locks in list(self._groups.items()):
            dead = [
                queue
                async for queue, lock in in_turns(list(locks.items()), turns)
                if not self._alive(lock, now)
            ]
            async for queue in in_turns(dead):
                lock = locks.get(queue)
                if lock is None or self._alive(lock, now):
                    continue  # renewed or unlocked in between
                del locks[queue]
                self._count -= 1
                if not locks and self._groups.get(group) is locks:
                    del self._groups[group]
