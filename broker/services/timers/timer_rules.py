"""The rules of timed messages: which are taken, which slot they get, when they go on. SANS-IO.

A slot with the time T has the messages due after T, up to and including T + precision. So a Java
broker, which delivers a slot once its second is over, is never early with the files of this one.
Source: broker/util/HookUtils.java#transformTimerMessage,
store/…/timer/TimerMessageStore.java#doEnqueue.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import attrs

from triomq.broker.store.timer.timer_record import DELETE, PLAIN, ROLL
from triomq.broker.store.timer.wheel import SLOT_COUNT
from triomq.remoting.protocol.message_properties import (
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
)

BLANK_SLOTS = 60
"""Slots that no message may reach ahead, so that none meets one of the round before."""
I8_MAX = (1 << 63) - 1
TIME_MAX = 1 << 46
"""Times from here on (ms; in about 2,000 years) are not delivery times of messages."""


class NotATime(ValueError):
    """A timer property does not hold a number. The text names the property and its value."""


class Placed(NamedTuple):
    """Where a message waits, and until when."""

    slot_ms: int
    magic: int
    due_ms: int


@attrs.frozen
class TimerRules:
    """The times are ms of the wall clock."""

    precision_ms: int = 1_000
    delay_max_ms: int = 259_200_000
    roll_slots: int = 172_800

    @property
    def window_ms(self) -> int:
        """How far ahead of now a message may be put into the wheel."""
        half = SLOT_COUNT // 2 - BLANK_SLOTS
        slots = self.roll_slots if 2 <= self.roll_slots <= half else half
        return slots * self.precision_ms

    def floor(self, time_ms: int) -> int:
        return time_ms // self.precision_ms * self.precision_ms

    def slot_of(self, due_ms: int) -> int:
        """Return the slot of a due time, the property TIMER_OUT_MS."""
        return self.floor(due_ms - 1)

    def due_of(self, slot_ms: int, due_ms: int) -> int:
        """Return when a record of a slot is due; ``due_ms`` 0: not known, as with Java's."""
        end = slot_ms + self.precision_ms
        return min(due_ms, end) if due_ms > 0 else end

    def place(self, out_ms: int, due_ms: int, now_ms: int, *, deletes: bool = False) -> Placed:
        """Return where a message of slot ``out_ms`` waits from now on."""
        write, window = self.floor(now_ms), self.window_ms
        magic = PLAIN | DELETE if deletes else PLAIN
        if out_ms - write < window:
            return Placed(out_ms, magic, due_ms)
        # The rest of the way must be long enough for the next step.
        short = out_ms - write - window < window // self.precision_ms // 3 * self.precision_ms
        step = window // self.precision_ms // 2 * self.precision_ms if short else window
        slot = write + step
        return Placed(slot, magic | ROLL, slot + self.precision_ms)


def deliver_time(properties: Mapping[str, str], now_ms: int) -> int | None:
    """Return when a message wants to be delivered (ms); None if it names no time.

    The first of TIMER_DELAY_SEC, TIMER_DELAY_MS and TIMER_DELIVER_MS counts.

    Raises: NotATime.
    """
    for name, unit in ((TIMER_DELAY_SEC, 1_000), (TIMER_DELAY_MS, 1), (TIMER_DELIVER_MS, 0)):
        text = properties.get(name)
        if not text:
            continue
        number = _number(text)
        if number is None:
            raise NotATime(f"the property {name}={text} is not a whole number of at most 64 bits")
        return now_ms + number * unit if unit else number
    return None


def times_of(properties: Mapping[str, str], precision_ms: int) -> tuple[int, int] | None:
    """Return slot and exact due time of a message of the timer topic; None if it has none.

    A message that a Java broker took has no exact time: it is due at the end of its slot. Any
    client may write to the topic, so a slot may lie between two steps of the precision.
    """
    out = _number(properties.get(TIMER_OUT_MS, ""))
    if out is None or not 0 <= out < TIME_MAX:
        return None
    out -= out % precision_ms
    due = _number(properties.get(TIMER_DELIVER_MS, "")) or 0
    return out, due if out < due <= out + precision_ms else out + precision_ms


def recall_key(topic: str, message_id: str, *, with_topic: bool) -> str:
    """Return how a recall names its message, the property TIMER_DEL_UNIQKEY.

    Java 5.5.0 writes and reads the id; with appendTopicForTimerDeleteKey=true, and in 5.3.3, the
    topic comes before it.
    """
    return f"{topic}+{message_id}" if with_topic else message_id


def _number(text: str) -> int | None:
    sign, digits = (-1, text[1:]) if text[:1] == "-" else (1, text.removeprefix("+"))
    if not digits.isascii() or not digits.isdecimal() or len(digits) > 19:
        return None
    number = sign * int(digits)
    return number if -I8_MAX <= number <= I8_MAX else None
