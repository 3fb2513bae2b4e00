"""What a send waits for on a SYNC_MASTER: the disk of this broker as configured, and so many slaves.

Both waits run at the same time.  If both fail, the slaves' failure is the answer, as in Java (CommitLog.java#handleDiskFlushAndHA).  Most who wait are no tasks: they are told by
the step that reads the slave's report.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import NamedTuple

import attrs
import trio

from triomq.broker.replication.master import ReplicationMaster
from triomq.broker.store.durability import DurabilityResult, Told
from triomq.broker.store.errors import FlushFailed
from triomq.broker.store.store import MessageStore


class Waiting(NamedTuple):
    """Somebody to be told when slaves have the log up to ``end``, or at ``deadline`` (Trio's clock) that they have not."""

    end: int
    deadline: float
    told: Told
    disk: DurabilityResult
    """What the disk has said: the answer, if the slaves do not fail."""


@attrs.define(eq=False)
class ReplicatedDurability:
    """In place of the store where senders ask whether, and wait until, their messages are safe."""

    store: MessageStore
    master: ReplicationMaster
    timeout_seconds: float = 3.0
    _waiting: dict[int, deque[Waiting]] = attrs.field(factory=dict, init=False)
    """Number of slaves -> who waits for so many, ascending in end and in deadline."""
    _somebody_waits: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)

    def __attrs_post_init__(self) -> None:
        self.master.push_in_place = True
        self.master.on_acknowledged.append(self._tell_reached)

    def refusal(self) -> str:
        """Why messages are refused before they are stored: too few copies are in sync.  Empty: they are not."""
        return self.master.replicas.refusal(self.store.appended.value, trio.current_time())

    def durable_now(self, log_end: int) -> bool:
        """Whether a sender of messages up to ``log_end`` may be answered without waiting."""
        acknowledgements = self.master.replicas.acknowledgements(log_end, trio.current_time())
        return self.store.durable_now(log_end) and (not acknowledgements or self.master.mark(acknowledgements).value >= log_end)

    async def wait_durable(self, log_end: int) -> DurabilityResult:
        """Wait for the disk and for the slaves, each at most its own time.  Checkpoint: always."""
        now = trio.current_time()
        plan = self.master.replicas.plan(log_end, now)
        flushed = await self.store.wait_durable(log_end)
        if not plan.acknowledgements:
            return flushed
        mark = self.master.mark(plan.acknowledgements)
        if mark.value >= log_end:
            return flushed
        if plan.unavailable:
            return DurabilityResult.SLAVE_NOT_AVAILABLE
        with trio.move_on_at(now + self.timeout_seconds):
            await mark.wait_reached(log_end)
            return flushed
        return DurabilityResult.FLUSH_SLAVE_TIMEOUT

    def when_durable(self, log_end: int, told: Told) -> bool:
        """The same by a callback, but where slaves are missing: then ``wait_durable`` tells. No checkpoint. Raises FlushFailed."""
        now = trio.current_time()
        plan = self.master.replicas.plan(log_end, now)
        if not plan.acknowledgements:
            return self.store.when_durable(log_end, told)
        if plan.unavailable:
            return False
        wait = partial(self._wait_for_slaves, plan.acknowledgements, log_end, now + self.timeout_seconds, told)
        if self.store.durable_now(log_end):
            wait(DurabilityResult.DURABLE)
            return True
        return self.store.when_durable(log_end, wait)

    def _wait_for_slaves(self, acknowledgements: int, log_end: int, deadline: float, told: Told, disk: DurabilityResult | FlushFailed) -> None:
        """The disk has answered."""
        if isinstance(disk, FlushFailed) or self.master.mark(acknowledgements).value >= log_end:
            told(disk)
            return
        waiting = self._waiting.setdefault(acknowledgements, deque())
        if not waiting:
            self._somebody_waits.unpark_all()
        waiting.append(Waiting(log_end, deadline, told, disk))

    def _tell_reached(self) -> None:
        """A slave has reported: tell those who waited for that, in the order of the log. No checkpoint."""
        for acknowledgements, waiting in self._waiting.items():
            value = self.master.mark(acknowledgements).value
            while waiting and waiting[0].end <= value:
                first = waiting.popleft()
                first.told(first.disk)

    async def run_deadlines(self) -> None:
        """The task "replication-deadlines": tell those who have waited too long."""
        while True:
            deadlines = [waiting[0].deadline for waiting in self._waiting.values() if waiting]
            if not deadlines:
                await self._somebody_waits.park()
                continue
            await trio.sleep_until(min(deadlines))
            now = trio.current_time()
            for waiting in self._waiting.values():
                while waiting and waiting[0].deadline <= now:
                    waiting.popleft().told(DurabilityResult.FLUSH_SLAVE_TIMEOUT)
