"""TimerCounts: how many messages of each topic wait for their time, and the file of the counts.

The counts are figures for people: a crash may leave them off by what the last save lacks. Source:
store/…/timer/TimerMetrics.java.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import attrs

from triomq.broker.services.persisted import PersistedTable, Version, encode_pretty, load_table
from triomq.remoting.protocol.bodies.schema import write_plain
from triomq.remoting.protocol.bodies.timer import TimedCount, TimerMetrics

SAVE_SECONDS = 10.0
DELAY_EDGES_SECONDS = (60, 600, 3_600, 12 * 3_600, 86_400, 3 * 86_400)


@attrs.define
class TimedDelays:
    """The delays of one topic's messages: a histogram with ``DELAY_EDGES_SECONDS``."""

    counts: list[int] = attrs.field(factory=lambda: [0] * (len(DELAY_EDGES_SECONDS) + 1))
    seconds: float = 0.0


@attrs.define(eq=False)
class TimerCounts(PersistedTable):
    """Topic -> its count, and when it changed (ms)."""

    version: Version
    clock_ms: Callable[[], int]
    counts: dict[str, TimedCount] = attrs.field(factory=dict)
    enqueued: Counter[str] = attrs.field(factory=Counter, init=False)
    """Messages put into the wheel since the start, by topic."""
    dequeued: Counter[str] = attrs.field(factory=Counter, init=False)
    """Messages that left it: delivered, recalled, put into a later slot."""
    delays: dict[str, TimedDelays] = attrs.field(factory=dict, init=False)

    def note_delay(self, topic: str, delay_ms: int) -> None:
        """Count the delay that a message was sent with."""
        delays = self.delays.get(topic)
        if delays is None:
            delays = self.delays[topic] = TimedDelays()
        delays.counts[bisect_left(DELAY_EDGES_SECONDS, delay_ms / 1000)] += 1
        delays.seconds += delay_ms / 1000

    def add(self, topic: str, change: int) -> None:
        if change > 0:
            self.enqueued[topic] += change
        else:
            self.dequeued[topic] -= change
        known = self.counts.get(topic)
        count = max(0, (known.count if known is not None else 0) + change)
        self.counts[topic] = TimedCount(count, self.clock_ms())
        self.touch()

    def body(self) -> TimerMetrics:
        """Return the answer to GET_TIMER_METRICS, the content of the file."""
        return TimerMetrics(
            {topic: count for topic, count in self.counts.items() if count.count},
            self.version.current,
        )

    def encode(self) -> bytes:
        self.version.bump()
        return encode_pretty(write_plain(self.body()))


def open_timer_counts(
    directory: Path, version: Version, clock_ms: Callable[[], int]
) -> TimerCounts:
    """Load config/timermetrics. Raises: DamagedTable."""
    path = directory / "timermetrics"
    loaded = load_table(path, TimerMetrics.decode) or TimerMetrics()
    version.load(loaded.data_version)
    return TimerCounts(
        path, version, clock_ms, dict(loaded.timing_count), gather_seconds=SAVE_SECONDS
    )
