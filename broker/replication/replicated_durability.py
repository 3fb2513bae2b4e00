"""What a send waits for on a SYNC_MASTER: the disk as configured, and a number of slaves.

Both waits run at the same time. If both fail, the slaves' failure is the answer, as in Java
(CommitLog.java#handleDiskFlushAndHA). A wait is a callback, not a task: the step that reads a
slave's report calls it.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import NamedTuple

import attrs
import trio

from triomq.broker.replication.master import ReplicationMaster
from triomq.broker.replication.replicas import AckPlan
from triomq.broker.store.core.errors import FlushFailed
from triomq.broker.store.log.durability import DurabilityResult, OnDurable
from triomq.broker.store.store import MessageStore


class SlaveWait(NamedTuple):
    """A sender that waits for slaves to have the log up to ``end``.

    It waits at most until ``deadline`` (Trio's clock).
    """

    end: int
    deadline: float
    on_durable: OnDurable
    disk: DurabilityResult
    """The result of the disk: that of the send, too, unless the slaves fail."""


@attrs.define(eq=False)
class ReplicatedDurability:
    """Decides when messages are safe if senders wait for slaves; see ``Durability``."""

    store: MessageStore
    master: ReplicationMaster
    timeout_seconds: float = 3.0
    _waits: dict[int, deque[SlaveWait]] = attrs.field(factory=dict, init=False)
    """Number of slaves -> waits for that number, ascending in ``end`` and ``deadline``."""
    _new_wait: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)

    def __attrs_post_init__(self) -> None:
        self.master.on_acknowledged.append(self._settle_reached)

    def refusal(self) -> str:
        """Return why no message may be stored now: too few copies are in sync.

        An empty string: messages may be stored.
        """
        return self.master.replicas.refusal(self.store.appended.value, trio.current_time())

    def durable_now(self, log_end: int) -> bool:
        """Return whether the sender of messages up to ``log_end`` need not wait."""
        acknowledgements = self.master.replicas.acknowledgements(log_end, trio.current_time())
        return self.store.flusher.durable_now(log_end) and (
            not acknowledgements or self.master.mark(acknowledgements).value >= log_end
        )

    def when_durable(self, log_end: int, on_durable: OnDurable) -> None:
        """Call ``on_durable`` when disk and slaves have the log up to ``log_end``, or are too late.

        Raises: FlushFailed, if an earlier fsync has failed.
        Checkpoint: never.
        """
        now = trio.current_time()
        plan = self.master.replicas.plan(log_end, now)
        if plan.acknowledgements:
            deadline = now + self.timeout_seconds
            on_durable = partial(self._wait_for_slaves, plan, log_end, deadline, on_durable)
        self.store.flusher.when_durable(log_end, on_durable)

    def _wait_for_slaves(
        self,
        plan: AckPlan,
        log_end: int,
        deadline: float,
        on_durable: OnDurable,
        disk: DurabilityResult | FlushFailed,
    ) -> None:
        """Go on when the disk has answered."""
        acknowledgements = plan.acknowledgements
        if isinstance(disk, FlushFailed) or self.master.mark(acknowledgements).value >= log_end:
            on_durable(disk)
            return
        if plan.unavailable:
            on_durable(DurabilityResult.SLAVE_NOT_AVAILABLE)
            return
        waits = self._waits.setdefault(acknowledgements, deque())
        if not waits:
            self._new_wait.unpark_all()
        waits.append(SlaveWait(log_end, deadline, on_durable, disk))

    def _settle_reached(self) -> None:
        """End the waits that a report has fulfilled, in the order of the log. Checkpoint: never."""
        for acknowledgements, waits in self._waits.items():
            value = self.master.mark(acknowledgements).value
            while waits and waits[0].end <= value:
                first = waits.popleft()
                first.on_durable(first.disk)

    async def run_deadlines(self) -> None:
        """Run the task "replication-deadlines": end the waits whose time is over."""
        while True:
            deadlines = [waits[0].deadline for waits in self._waits.values() if waits]
            if not deadlines:
                await self._new_wait.park()
                continue
            await trio.sleep_until(min(deadlines))
            now = trio.current_time()
            for waits in self._waits.values():
                while waits and waits[0].deadline <= now:
                    waits.popleft().on_durable(DurabilityResult.FLUSH_SLAVE_TIMEOUT)
