"""Clusters with one rule broken: the simulation must find each of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import attrs
import pytest
import trio
from broken_pops import BROKEN_POPS
from broken_requests import BROKEN_REQUESTS
from broken_timers import BROKEN_TIMERS
from simulated_disk import SimulatedDisk

from triomq.broker.replication.master import ReplicationMaster
from triomq.broker.replication.master_link import LogBounds
from triomq.broker.replication.slave import ReplicationSlave
from triomq.broker.roles.held_tables import HeldTables
from triomq.broker.roles.role import Role
from triomq.broker.services import offsets
from triomq.broker.services.delay import DelayedMessages
from triomq.broker.services.delay_slots import DelaySlots
from triomq.broker.services.transactions import halves
from triomq.broker.services.transactions.open_halves import OpenHalves
from triomq.broker.services.transactions.transactions import Transactions
from triomq.broker.store.core.draft import Draft
from triomq.broker.store.io.disk import Disk
from triomq.broker.store.log import flusher as durability
from triomq.broker.store.log.durability import DurabilityResult
from triomq.broker.store.log.flusher import Flusher
from triomq.broker.store.store import MessageStore
from triomq.client.core import routes
from triomq.client.core.routes import TopicQueues
from triomq.remoting.protocol.bodies.route import TopicRoute
from triomq.remoting.protocol.names import (
    HALF_TOPIC,
    OP_HALF_TOPIC,
    SCHEDULE_TOPIC,
    TRANSACTION_GROUP,
)
from triomq.remoting.protocol.record import StoredMessage


def acknowledges_before_its_slave(patch: pytest.MonkeyPatch) -> None:
    """A SYNC_MASTER that asks its own disk only."""
    patch.setattr(Role, "durability", property(lambda self: self.store.flusher))


def acknowledges_before_fsync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Flusher, "durable_now", lambda self, log_end: True)
    patch.setattr(
        Flusher,
        "when_durable",
        lambda self, log_end, on_durable: on_durable(DurabilityResult.DURABLE),
    )


def slave_acknowledges_before_fsync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReplicationSlave, "position", property(lambda self: self.store.appended))


def readers_see_what_the_disk_lacks(patch: pytest.MonkeyPatch) -> None:
    """And slaves get it."""
    original = MessageStore.__attrs_post_init__

    def hasty(self: MessageStore) -> None:
        original(self)
        self.indexer.confirmed = self.log.appended

    def bounds(self: ReplicationMaster) -> LogBounds:
        return LogBounds(self.store.first_offset, self.store.appended.value)

    patch.setattr(MessageStore, "__attrs_post_init__", hasty)
    patch.setattr(ReplicationMaster, "bounds", property(bounds))


def goes_on_after_a_failed_fsync(patch: pytest.MonkeyPatch) -> None:
    """Says that the disk has what it has refused."""

    def careless(disk: Disk, files: Sequence[Path], directories: Sequence[Path]) -> None:
        for sync, paths in ((disk.sync_path, files), (disk.sync_directory, directories)):
            for path in paths:
                with contextlib.suppress(OSError):
                    sync(path)

    patch.setattr(durability, "sync_files", careless)


def recovery_trusts_the_page_cache(patch: pytest.MonkeyPatch) -> None:
    """After a failed fsync it shows what the disk will never get."""
    patch.setattr(SimulatedDisk, "drop_cache", lambda self, path: None)


def consumers_know_one_broker(patch: pytest.MonkeyPatch) -> None:
    """Consumers read only the queues of one broker."""
    original = routes.derive_queues

    def narrow(topic: str, route: TopicRoute, *, template: bool = False) -> TopicQueues:
        found = original(topic, route, template=template)
        return attrs.evolve(
            found,
            subscribe=tuple(
                queue
                for queue in found.subscribe
                if queue.broker_name == found.subscribe[0].broker_name
            ),
        )

    patch.setattr(routes, "derive_queues", narrow)


def levels_wake_before_messages_can_be_read(patch: pytest.MonkeyPatch) -> None:
    """A delay level is woken when a message arrives, and not when the disk has it."""
    schedule = DelayedMessages.schedule

    def hasty(self: DelayedMessages, draft: Draft, level: int) -> None:
        schedule(self, draft, level)
        waiting = self._arrivals.pop(draft.queue_id + 1, None)
        if waiting is not None:
            waiting.set()

    def silent(self: DelayedMessages, arrivals: Iterable[tuple[str, int, int, int]]) -> None:
        for topic, queue_id, end_offset, _ in arrivals:
            if topic == SCHEDULE_TOPIC and queue_id + 1 in self._times:
                self._times[queue_id + 1].note(end_offset, trio.current_time())

    patch.setattr(DelayedMessages, "schedule", hasty)
    patch.setattr(DelayedMessages, "arrived", silent)


def delays_end_by_the_wall_clock(patch: pytest.MonkeyPatch) -> None:
    def absolute(self: DelayedMessages, level: int, message: StoredMessage) -> float:
        return (message.store_timestamp + self.levels_ms[level - 1] - self.clock_ms()) / 1000

    patch.setattr(DelayedMessages, "wait_of", absolute)


def progress_is_saved_ahead_of_the_copies(patch: pytest.MonkeyPatch) -> None:
    """What a delay level has delivered counts as done before the disk has it."""
    advance = DelayedMessages.advance
    patch.setattr(
        DelayedMessages,
        "advance",
        lambda self, level, offset, log_end=0: advance(self, level, offset),
    )


def progress_of_delays_counts_without_its_copies(patch: pytest.MonkeyPatch) -> None:
    """A start believes what was written with a delivery, also if the log has lost the copies."""
    load = DelaySlots.load
    patch.setattr(DelaySlots, "load", lambda self, log_end: load(self, 1 << 62))


def a_slave_takes_delay_progress_beyond_its_log(patch: pytest.MonkeyPatch) -> None:
    take = HeldTables.take
    patch.setattr(HeldTables, "take", lambda self, own_end: take(self, 1 << 62))
    patch.setattr(DelayedMessages, "clamp", lambda self: 0)


def a_slave_takes_consumer_offsets_beyond_its_log(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(offsets, "clamp_offsets", lambda committed, queue_end: [])


def progress_of_transactions_is_saved_ahead_of_the_log(patch: pytest.MonkeyPatch) -> None:
    """The oldest open transaction is told before the disk has what ended the older ones."""

    def hasty(self: Transactions) -> bool:
        progress = self.open.progress()
        self.offsets.commit(TRANSACTION_GROUP, HALF_TOPIC, 0, progress.half)
        self.offsets.commit(TRANSACTION_GROUP, OP_HALF_TOPIC, 0, progress.op)
        return False

    patch.setattr(Transactions, "save_progress", hasty)


def a_committed_transaction_stays_open(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(halves, "op_drafts", lambda *arguments: iter(()))
    patch.setattr(OpenHalves, "finish", lambda self, queue_offsets: None)


def a_start_forgets_open_transactions(patch: pytest.MonkeyPatch) -> None:
    load = Transactions.load

    async def forgetful(self: Transactions) -> None:
        await load(self)
        self.open.finish(list(self.open.open))

    patch.setattr(Transactions, "load", forgetful)


BROKEN: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    broken.__name__: broken
    for broken in (
        acknowledges_before_its_slave,
        acknowledges_before_fsync,
        slave_acknowledges_before_fsync,
        readers_see_what_the_disk_lacks,
        goes_on_after_a_failed_fsync,
        recovery_trusts_the_page_cache,
        consumers_know_one_broker,
        levels_wake_before_messages_can_be_read,
        delays_end_by_the_wall_clock,
        progress_is_saved_ahead_of_the_copies,
        progress_of_delays_counts_without_its_copies,
        a_slave_takes_delay_progress_beyond_its_log,
        a_slave_takes_consumer_offsets_beyond_its_log,
        progress_of_transactions_is_saved_ahead_of_the_log,
        a_committed_transaction_stays_open,
        a_start_forgets_open_transactions,
        *BROKEN_TIMERS,
        *BROKEN_REQUESTS,
        *BROKEN_POPS,
    )
}
