"""Which timed messages may be delivered while the records of their slot are still being read."""

from __future__ import annotations

from triomq.broker.services.timers.timer_rules import TimerRules
from triomq.broker.services.timers.timer_schedule import TimerSchedule

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
