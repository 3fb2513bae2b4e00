"""What a send waits for on a SYNC_MASTER: the disk of this broker as configured, and so many slaves.

Both waits run at the same time.  If both fail, the slaves' failure is the answer, as in Java (CommitLog.java#handleDiskFlushAndHA).
"""

from __future__ import annotations

import attrs
import trio

from triomq.broker.replication.master import ReplicationMaster
from triomq.broker.store.durability import DurabilityResult, Told
from triomq.broker.store.store import MessageStore


@attrs.define(eq=False)
class ReplicatedDurability:
    """In place of the store where senders ask whether, and wait until, their messages are safe."""

    store: MessageStore
    master: ReplicationMaster
    timeout_seconds: float = 3.0

    def refusal(self) -> str:
        """Why messages are refused before they are stored: too few copies are in sync.  Empty: they are not."""
        return self.master.replicas.plan(self.store.appended.value, trio.current_time()).refused

    def durable_now(self, log_end: int) -> bool:
        """Whether a sender of messages up to ``log_end`` may be answered without waiting."""
        plan = self.master.replicas.plan(log_end, trio.current_time())
        return self.store.durable_now(log_end) and (not plan.acknowledgements or self.master.mark(plan.acknowledgements).value >= log_end)

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
        """Only the disk tells by a callback: who waits for slaves, too, waits in ``wait_durable``. No checkpoint."""
        if self.master.replicas.plan(log_end, trio.current_time()).acknowledgements:
            return False
        return self.store.when_durable(log_end, told)
