"""Which timed messages may be delivered while the records of their slot are still being read, and
what counts as delivered.
"""

from __future__ import annotations

from triomq.broker.services.timers.timer_rules import TimerRules
from triomq.broker.services.timers.timer_schedule import TimerSchedule
from triomq.broker.store.timer.timer_check import DeliveredBound, TimerCheck
from triomq.broker.store.timer.timer_record import TimerRecord

NOW_MS, MANY = 10_500, 1 << 20


def test_a_message_of_a_slot_that_is_being_opened_waits_for_its_recalls() -> None:
    """After a crash a step may end when its message is due already: it comes into the slot before
    the recall that waits there.
    """
    schedule = TimerSchedule(TimerRules())
    schedule.start(9_000)
    assert schedule.next_slot(NOW_MS) == 9_000
    schedule.opened()
    assert schedule.next_slot(NOW_MS) == 10_000
    for due_ms in (9_900, 10_400):
        slot_ms = schedule.rules.slot_of(due_ms)
        schedule.add(slot_ms, schedule.key(slot_ms, due_ms, due_ms, 100, rolls=False))
    assert [message.due_ms for message in schedule.take(NOW_MS, MANY, MANY)] == [9_900]
    schedule.done()
    assert schedule.wait_ms(NOW_MS) is None
    assert schedule.take(NOW_MS, MANY, MANY) == []
    schedule.opened()
    assert schedule.wait_ms(NOW_MS) == 0
    assert [message.due_ms for message in schedule.take(NOW_MS, MANY, MANY)] == [10_400]


def late_in(schedule: TimerSchedule, due_ms: int) -> int:
    """A message that is put into the first slot that is not done, whatever its time."""
    return schedule.key(
        schedule.slot_for(schedule.rules.slot_of(due_ms)), due_ms, due_ms, 100, rolls=False
    )


def test_nothing_counts_as_delivered_before_the_slot_of_late_messages_is_read() -> None:
    known = DeliveredBound(7_000, 52)
    schedule = TimerSchedule(TimerRules(), 9_000, passed_ms=7_000, bounds=[known])
    schedule.start(NOW_MS)
    schedule.note_delivered(NOW_MS, 520)
    assert schedule.next_slot(NOW_MS) == 9_000
    schedule.note_delivered(NOW_MS, 520)
    assert (schedule.bounds, schedule.passed_ms) == ([known], 7_000)
    schedule.load([late_in(schedule, 8_200)])
    schedule.opened()
    schedule.note_delivered(NOW_MS, 520)
    assert (schedule.bounds, schedule.passed_ms) == ([DeliveredBound(8_199, 520)], 8_000)
    assert schedule.next_slot(NOW_MS) == 10_000
    assert len(schedule.take(NOW_MS, MANY, MANY)) == 1
    schedule.done()
    schedule.note_delivered(NOW_MS, 520)  # as far as the slot that is being read
    assert (schedule.bounds, schedule.passed_ms) == ([DeliveredBound(10_000, 520)], 9_000)


def test_what_came_after_a_clock_was_set_back_is_delivered_up_to_an_earlier_time() -> None:
    schedule = TimerSchedule(TimerRules())
    schedule.start(9_000)
    schedule.next_slot(NOW_MS)
    schedule.opened()
    assert schedule.take(9_900, MANY, MANY) == []
    schedule.note_delivered(9_900, 520)
    for position in (520, 572):
        schedule.add(9_000, late_in(schedule, 9_000 - position))
        schedule.note_delivered(8_000, position + 52)
    before, between, after = (
        DeliveredBound(9_900, 520),
        DeliveredBound(8_479, 572),
        DeliveredBound(8_427, 624),
    )
    assert schedule.bounds == [before, between, after]

    def delivered(position: int, due_ms: int) -> bool:
        return schedule.delivered(position, TimerRecord(-1, 1, 0, 9_000, 0, 100, 0, due_ms))

    assert delivered(468, 9_900)
    assert not delivered(468, 9_901)
    assert not delivered(520, 8_480)
    assert not delivered(572, 8_428)
    assert delivered(572, 8_427)
    for now_ms, bounds in (
        (8_430, [before, DeliveredBound(8_479, 624)]),
        (8_480, [DeliveredBound(9_900, 624)]),
    ):
        assert len(schedule.take(now_ms, MANY, MANY)) == 1
        schedule.done()
        schedule.note_delivered(now_ms, 624)
        assert schedule.bounds == bounds


def test_the_number_of_bounds_has_a_limit() -> None:
    schedule = TimerSchedule(TimerRules())
    schedule.start(9_000)
    schedule.next_slot(NOW_MS)
    schedule.opened()
    for number in range(100):
        schedule.note_delivered(9_900, number * 52)
        schedule.add(9_000, late_in(schedule, 8_000 - number))
    assert len(schedule.bounds) == 65
    assert schedule.bounds[0] == DeliveredBound(9_900, 0)
    assert schedule.bounds[-1] == DeliveredBound(8_000 - 98 - 1, 99 * 52)
    assert schedule.bounds == sorted(schedule.bounds, reverse=True)
    check = TimerCheck(marked=True, delivered=tuple(schedule.bounds))
    assert TimerCheck.decode(check.encode()) == check
