"""Timed messages, under Java's names. Source: store/metrics/DefaultStoreMetricsConstant.java."""

from __future__ import annotations

import time
from collections.abc import Iterator

import attrs
import trio

from triomq.broker.services.timers.timer_counts import DELAY_EDGES_SECONDS
from triomq.broker.services.timers.timers import Timers
from triomq.broker.store.timer.wheel import BLOCK_BYTES, SLOT, WHEEL_BYTES
from triomq.remoting.monitor.metrics import (
    PIECE_SECONDS,
    Family,
    Histogram,
    Sample,
    by_label,
    family,
)

STORAGE = {"storage_type": "local", "storage_medium": "disk"}
BOUNDS_SECONDS = (5, 60, 300, 900, 3_600, 14_400, 28_800, 86_400)
"""Upper bounds of the remaining time. Source: store/timer/TimerMetrics.java."""
_STEP_BYTES = 8 * BLOCK_BYTES
"""1,024 slots: about 0.3 ms."""
_NOTHING = bytes(_STEP_BYTES)


@attrs.define(eq=False)
class TimerFigures:
    """Reads the wheel in steps, the rest when the page is written."""

    timers: Timers
    snapshot: list[int] = attrs.field(factory=lambda: [0] * len(BOUNDS_SECONDS), init=False)

    async def refresh(self) -> None:
        """Count the messages of the wheel by their remaining time. Checkpoint: maybe."""
        counts = [0] * len(BOUNDS_SECONDS)
        timers = self.timers
        if not any(count.count for count in timers.counts.counts.values()):
            self.snapshot = counts
            return
        wheel, now = timers.files.wheel, timers.clock_ms()
        begun = time.perf_counter()
        assert WHEEL_BYTES % SLOT.size == 0
        for position in range(0, WHEEL_BYTES, _STEP_BYTES):
            end = min(WHEEL_BYTES, position + _STEP_BYTES)
            if wheel.data[position:end] != _NOTHING:
                for slot in wheel.slots_in(position, end):
                    left = (slot.time_ms - now) / 1000
                    place = next(
                        (index for index, bound in enumerate(BOUNDS_SECONDS) if left <= bound), None
                    )
                    if place is not None and left > -1:
                        counts[place] += slot.messages
            if time.perf_counter() - begun > PIECE_SECONDS:
                await trio.lowlevel.checkpoint()
                begun = time.perf_counter()
        self.snapshot = counts

    def figures(self) -> Iterator[Family]:
        """Yield the families."""
        timers, counts = self.timers, self.timers.counts
        behind_ms, not_read, _ = timers.behind()
        yield family("rocketmq_timer_enqueue_lag", [Sample(not_read, STORAGE)])
        yield family(
            "rocketmq_timer_enqueue_latency_milliseconds",
            [Sample(timers.enqueue_late_ms(), STORAGE)],
        )
        yield family("rocketmq_timer_dequeue_lag", [Sample(timers.schedule.waiting, STORAGE)])
        yield family("rocketmq_timer_dequeue_latency_milliseconds", [Sample(behind_ms, STORAGE)])
        yield family(
            "rocketmq_timing_messages",
            [
                Sample(count.count, {"topic": topic, **STORAGE})
                for topic, count in counts.counts.items()
            ],
        )
        for name, numbers in (("enqueue", counts.enqueued), ("dequeue", counts.dequeued)):
            yield family(
                f"rocketmq_timer_{name}_total",
                [Sample(count, {"topic": topic, **STORAGE}) for topic, count in numbers.items()],
            )
        yield family(
            "rocketmq_timer_message_snapshot",
            [
                Sample(count, {"timer_bound_s": str(bound), **STORAGE})
                for bound, count in zip(BOUNDS_SECONDS, self.snapshot)
            ],
        )
        yield family(
            "rocketmq_delay_message_latency_seconds",
            [
                Histogram(
                    {"topic": topic, **STORAGE}, DELAY_EDGES_SECONDS, delays.counts, delays.seconds
                )
                for topic, delays in counts.delays.items()
            ],
        )
        outcomes = {
            "put into the wheel": timers.enqueued,
            "delivered": timers.delivered,
            "dropped": timers.dropped,
            "refused": timers.refused,
        }
        yield family("triomq_timers_total", by_label("outcome", outcomes))
