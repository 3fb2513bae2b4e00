"""What senders, readers and the set of a master in controller mode learn, and when."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import trio
import trio.testing

from triomq.broker.replication.confirmed_durability import HELD_SECONDS, ConfirmedDurability
from triomq.broker.replication.master_set import MasterSet, SetRules
from triomq.broker.replication.set_keeper import SetKeeper
from triomq.broker.store.core.confirmations import Confirmations
from triomq.broker.store.core.watermark import Watermark
from triomq.broker.store.log.durability import DurabilityResult


def master_set(*members: int, copies_min: int = 1) -> MasterSet:
    return MasterSet(
        own_id=1,
        epoch_start=0,
        members=frozenset(members),
        set_epoch=1,
        rules=SetRules(copies_min=copies_min),
        since=0.0,
    )


class Log:
    """What set and senders need of a store: how far it is written, forced out and confirmed."""

    def __init__(self) -> None:
        self.appended, self.copyable = Watermark(), Watermark()
        self.confirmations = Confirmations(self.appended, self.copyable)
        self.confirmed = self.confirmations.confirmed
        self.flusher = SimpleNamespace(failure=None)


async def test_a_set_that_became_too_small_confirms_nothing_to_senders() -> None:
    leads, answers = master_set(1, 2, copies_min=2), list[Any]()
    store: Any = Log()
    durability = ConfirmedDurability(store, leads)
    leads.note_log(100)
    durability.when_durable(100, answers.append)
    leads.note_agreed(frozenset({1}), 2)
    assert leads.confirmed == 100
    durability.settle()
    assert answers == [DurabilityResult.NOT_CONFIRMED]
    durability.when_durable(100, answers.append)
    assert len(answers) == 1, "a later sender waits for the second copy"


async def test_no_sender_waits_for_members_that_follow_another_master() -> None:
    """The stop of this master's role waits for its answers."""
    leads, answers = master_set(1, 2), list[Any]()
    store: Any = Log()
    durability = ConfirmedDurability(store, leads)
    leads.note_controller(float("inf"))
    leads.note_log(100)
    durability.when_durable(100, answers.append)
    assert (answers, durability.refusal()) == ([], "")
    durability.depose()
    assert "another broker" in durability.refusal()
    durability.when_durable(100, answers.append)
    assert answers == [DurabilityResult.NOT_CONFIRMED] * 2


async def test_a_planned_switch_begins_when_the_set_has_every_message(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A next master that lacks some would have the other members cut their logs."""
    leads = master_set(1, 2)
    store: Any = Log()
    durability = ConfirmedDurability(store, leads)
    store.copyable.advance(100)
    store.appended.advance(100)
    begun: list[float] = []

    async def switch() -> None:
        async with durability.held():
            begun.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(switch)
        await trio.testing.wait_all_tasks_blocked()
        assert (begun, durability.refusal()) == ([], "another broker becomes the master")
        store.confirmations.confirm(100)
    assert not durability.refusal()
    store.copyable.advance(200)
    store.appended.advance(200)
    await switch()
    assert begun[1] - begun[0] == HELD_SECONDS, "a member that hangs does not hinder it"


def test_a_master_counts_what_it_has_by_its_own_rule() -> None:
    leads = master_set(1)
    store: Any = Log()
    master: Any = SimpleNamespace(connections=[])
    SetKeeper(store, master, leads, ConfirmedDurability(store, leads), propose=None)  # type: ignore[arg-type]
    store.appended.advance(50)
    store.appended.advance(80)
    store.copyable.advance(50)
    assert (leads.log_end, leads.confirmed, store.confirmations.confirmed.value) == (50, 50, 50)


def test_readers_see_whole_appends_that_this_broker_has() -> None:
    appended, has = Watermark(), Watermark()
    confirmations = Confirmations(appended, has)
    for end in (50, 80, 120):
        appended.advance(end)
    seen = []
    for forced_out, confirmed in ((50, 120), (80, 60), (80, 79), (80, 80), (120, 110), (120, 120)):
        has.advance(forced_out)
        confirmations.confirm(confirmed)
        seen.append(confirmations.confirmed.value)
    assert seen == [50, 50, 50, 80, 80, 120]
