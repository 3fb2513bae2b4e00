"""Timers with one rule broken: the simulation must find each of them."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import pytest

from triomq.broker.roles.table_copy import TableCopy
from triomq.broker.services.timers import opening
from triomq.broker.services.timers import timers as timer_tasks
from triomq.broker.services.timers.timer_delivery import LocalTimerDelivery
from triomq.broker.services.timers.timer_rules import Placed, TimerRules
from triomq.broker.services.timers.timer_schedule import DueMessage, TimerSchedule
from triomq.broker.services.timers.timers import Timers
from triomq.broker.store.store import MessageStore
from triomq.broker.store.timer.timer_files import TimerFiles
from triomq.broker.store.timer.timer_record import ROLL, TimerRecord
from triomq.remoting.protocol.names import TIMER_TOPIC
from triomq.remoting.protocol.record import StoredMessage


def timed_messages_come_a_slot_early(patch: pytest.MonkeyPatch) -> None:
    take = TimerSchedule.take

    def hasty(self: TimerSchedule, now_ms: int, count_max: int, bytes_max: int) -> list[DueMessage]:
        return take(self, now_ms + self.rules.precision_ms, count_max, bytes_max)

    patch.setattr(TimerSchedule, "take", hasty)


def slots_are_opened_late(patch: pytest.MonkeyPatch) -> None:
    """A task that looks for slots now and then looks too seldom."""
    patch.setattr(timer_tasks, "SLEEP_SECONDS_MAX", 5.0)


def a_message_comes_at_the_end_of_the_wheel(patch: pytest.MonkeyPatch) -> None:
    """The first step of its way counts as the whole way."""
    place = TimerRules.place

    def short(
        self: TimerRules, out_ms: int, due_ms: int, now_ms: int, *, deletes: bool = False
    ) -> Placed:
        placed = place(self, out_ms, due_ms, now_ms, deletes=deletes)
        return placed._replace(magic=placed.magic & ~ROLL)

    patch.setattr(TimerRules, "place", short)


def a_message_is_dropped_at_the_end_of_the_wheel(patch: pytest.MonkeyPatch) -> None:
    store = LocalTimerDelivery.store

    async def lossy(
        self: LocalTimerDelivery, plain: list[StoredMessage], rolled: list[StoredMessage]
    ) -> bool:
        return await store(self, plain, [])

    patch.setattr(LocalTimerDelivery, "store", lossy)


def recalls_have_no_effect(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LocalTimerDelivery, "_is_recalled", lambda self, message: False)


def recalls_of_later_slots_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    async def nothing(self: Timers, deletes: Sequence[TimerRecord]) -> None:
        return

    patch.setattr(Timers, "_load_recalls", nothing)


def a_start_skips_what_was_due_meanwhile(patch: pytest.MonkeyPatch) -> None:
    start = TimerSchedule.start

    def forgetful(self: TimerSchedule, now_ms: int) -> None:
        self.read_ms = 0
        start(self, now_ms)

    patch.setattr(TimerSchedule, "start", forgetful)


def a_start_takes_the_wheel_for_complete(patch: pytest.MonkeyPatch) -> None:
    """Messages that were not in the wheel at a crash are not put into it."""

    async def end(files: TimerFiles, store: MessageStore) -> int:
        return store.max_offset(TIMER_TOPIC, 0)

    patch.setattr(opening, "_queue_offset", end)


def progress_of_timers_is_saved_ahead_of_the_log(patch: pytest.MonkeyPatch) -> None:
    """What was delivered counts as done before the disk has it."""

    async def hasty(self: Timers, *, wheel: bool = False) -> None:
        self._changed = False
        self.files.write(self.files.snapshot(self.progress(), wheel=wheel))

    patch.setattr(Timers, "save", hasty)


def progress_of_timers_is_saved_ahead_of_the_timer_log(patch: pytest.MonkeyPatch) -> None:
    """Messages count as being in the wheel before the disk has their records."""
    write = TimerFiles.write
    patch.setattr(
        TimerFiles, "write", lambda self, save: write(self, attrs.evolve(save, log_files=()))
    )


def a_slave_takes_timer_progress_beyond_its_log(patch: pytest.MonkeyPatch) -> None:
    hold = TableCopy._copy_timers

    async def hasty(self: TableCopy, address: str) -> None:
        await hold(self, address)
        point = self._timer_points.newest
        if point is not None and self.timers is not None:
            self.timers.follow(point)

    patch.setattr(TableCopy, "_copy_timers", hasty)


BROKEN_TIMERS = (
    timed_messages_come_a_slot_early,
    slots_are_opened_late,
    a_message_comes_at_the_end_of_the_wheel,
    a_message_is_dropped_at_the_end_of_the_wheel,
    recalls_have_no_effect,
    recalls_of_later_slots_are_forgotten,
    a_start_skips_what_was_due_meanwhile,
    a_start_takes_the_wheel_for_complete,
    progress_of_timers_is_saved_ahead_of_the_log,
    progress_of_timers_is_saved_ahead_of_the_timer_log,
    a_slave_takes_timer_progress_beyond_its_log,
)
