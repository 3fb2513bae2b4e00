"""Groups in controller mode with one rule broken: the simulation must find each of them."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest
import trio

from triomq.broker.replication.confirmed_durability import ConfirmedDurability
from triomq.broker.replication.master_set import MasterSet
from triomq.broker.replication.slave import ReplicationSlave
from triomq.broker.store.log.durability import DurabilityResult
from triomq.broker.store.queues.table import QueueTable
from triomq.broker.store.store import MessageStore
from triomq.namesrv.controller import transitions
from triomq.namesrv.controller.commands import Register
from triomq.namesrv.controller.state import ControllerState


def a_member_leaves_before_the_controllers_agree(patch: pytest.MonkeyPatch) -> None:
    """As in Java's 5.5.0: a lost connection makes the set smaller at once."""
    gone = MasterSet.note_gone

    def leave(self: MasterSet, broker_id: int) -> None:
        gone(self, broker_id)
        self.members -= {broker_id}
        self._confirm()

    patch.setattr(MasterSet, "note_gone", leave)


def a_late_send_is_answered_as_done(patch: pytest.MonkeyPatch) -> None:
    """As FLUSH_SLAVE_TIMEOUT, which clients take for success."""

    async def hasty(self: ConfirmedDurability) -> None:
        while True:
            if not self._waits:
                await self._new_wait.park()
                continue
            await trio.sleep_until(self._waits[0].deadline)
            while self._waits and self._waits[0].deadline <= trio.current_time():
                self._waits.popleft().on_durable(DurabilityResult.DURABLE)

    patch.setattr(ConfirmedDurability, "run_deadlines", hasty)


def fewer_copies_than_the_minimum_are_enough(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MasterSet, "too_few", property(lambda self: False))


def a_slave_reports_what_its_disk_lacks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReplicationSlave, "position", property(lambda self: self.store.appended))


def readers_see_what_is_not_confirmed(patch: pytest.MonkeyPatch) -> None:
    made = MessageStore.__attrs_post_init__

    def hasty(self: MessageStore) -> None:
        made(self)
        self.indexer.confirmed = self.copyable

    patch.setattr(MessageStore, "__attrs_post_init__", hasty)


def a_new_master_numbers_on_behind_what_was_shown(patch: pytest.MonkeyPatch) -> None:
    """Queue offsets are given twice (apache/rocketmq 7689)."""
    patch.setattr(QueueTable, "number_on", lambda self: None)


def a_master_that_starts_keeps_its_epoch(patch: pytest.MonkeyPatch) -> None:
    register = transitions._register

    def forgiving(state: ControllerState, started: Register) -> ControllerState:
        before, after = state.groups.get(started.broker_name), register(state, started)
        if before is None or before.master is None:
            return after
        group = attrs.evolve(after.groups[started.broker_name], master=before.master)
        return after.with_group(started.broker_name, group)

    patch.setattr(transitions, "_register", forgiving)


BROKEN_FAILOVERS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    broken.__name__: broken
    for broken in (
        a_member_leaves_before_the_controllers_agree,
        a_late_send_is_answered_as_done,
        fewer_copies_than_the_minimum_are_enough,
        a_slave_reports_what_its_disk_lacks,
        readers_see_what_is_not_confirmed,
        a_new_master_numbers_on_behind_what_was_shown,
        a_master_that_starts_keeps_its_epoch,
    )
}
