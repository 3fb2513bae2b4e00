"""A wall clock that jumps ahead does not make files old."""

from __future__ import annotations

from triomq.broker.store.core.clock_guard import HOLD_SECONDS, ClockGuard

HOUR = 3_600_000
START = 1_000 * HOUR


def test_normal_time_counts() -> None:
    guard = ClockGuard.starting(START, 0.0, START - HOUR, 72 * HOUR)
    for hours in range(1, 200):
        assert guard.now_ms(START + hours * HOUR, hours * 3600.0) == START + hours * HOUR


def test_a_jump_is_ignored_for_a_day() -> None:
    guard = ClockGuard.starting(START, 0.0, START, 72 * HOUR)
    assert guard.now_ms(START + 100 * HOUR, 10.0) == START + 10_000
    assert guard.now_ms(START + 101 * HOUR, 3610.0) == START + HOUR + 10_000
    later = 3611.0 + HOLD_SECONDS
    assert guard.now_ms(START + 125 * HOUR + 1000, later) == START + 125 * HOUR + 1000


def test_a_clock_that_jumps_back_is_right_again() -> None:
    guard = ClockGuard.starting(START, 0.0, START, 72 * HOUR)
    guard.now_ms(START + 100 * HOUR, 10.0)
    assert guard.now_ms(START + 20_000, 20.0) == START + 20_000
    assert guard.ignored_ms == 0


def test_a_start_with_only_old_messages_deletes_nothing_at_once() -> None:
    guard = ClockGuard.starting(START, 0.0, START - 73 * HOUR, 72 * HOUR)
    assert guard.now_ms(START, 0.0) == START - 73 * HOUR
    assert guard.now_ms(START + 24 * HOUR, HOLD_SECONDS) == START + 24 * HOUR
    assert ClockGuard.starting(START, 0.0, START - 72 * HOUR, 72 * HOUR).ignored_ms == 0
    assert ClockGuard.starting(START, 0.0, 0, 72 * HOUR).ignored_ms == 0, (
        "a store without messages has nothing to delete"
    )
