"""TimerSettings: messages with a time of delivery."""

from __future__ import annotations

import attrs

from triomq.remoting.core.settings import INT_MAX, flag, number


@attrs.frozen(kw_only=True)
class TimerSettings:
    """Whether and how far ahead messages may be timed, and how their files are kept.

    enabled: take messages with a time of delivery; false: refuse them
    precision_ms: length of a slot of the timer wheel (ms); messages are delivered to the
        millisecond all the same; must match files that exist
    delay_max_seconds: farthest time of delivery from now (s)
    roll_window_slots: a message that is due in more slots than this waits in several steps
    slot_count_max: messages of one slot from which on some are refused; all from twice this number
    log_file_bytes: size of a timer log file; must match files that exist
    recalls_with_topic: write the topic, too, into the record of a recall, as Java 5.3.3 does; both
        are read
    save_interval_ms: how often the progress of timers is saved (ms)
    """

    enabled: bool = flag("timerWheelEnable", True)
    precision_ms: int = number("timerPrecisionMs", 1_000, high=60_000)
    delay_max_seconds: int = number("timerMaxDelaySec", 259_200, high=INT_MAX)
    roll_window_slots: int = number("timerRollWindowSlot", 172_800, low=0, high=INT_MAX)
    slot_count_max: int = number("timerCongestNumEachSlot", INT_MAX, low=1, high=INT_MAX)
    log_file_bytes: int = number("mappedFileSizeTimerLog", 104_857_600, low=1024)
    recalls_with_topic: bool = flag("appendTopicForTimerDeleteKey", False)
    save_interval_ms: int = number("timerFlushIntervalMs", 1_000)
