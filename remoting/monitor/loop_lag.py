"""How late the event loop runs a task that is due: what every other task has to wait, too."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

import attrs
import trio

from triomq.remoting.monitor.metrics import Family, Histogram, family

PERIOD_SECONDS = 0.25
EDGES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


@attrs.define(eq=False)
class LoopLag:
    """Sleeps, and measures how much later it wakes: four times a second, which costs nothing."""

    counts: list[int] = attrs.field(factory=lambda: [0] * (len(EDGES) + 1), init=False)
    seconds: float = attrs.field(default=0.0, init=False)
    longest: float = attrs.field(default=0.0, init=False)

    async def measure_lag(self) -> None:
        """Run the task "loop-lag"."""
        while True:
            due = trio.current_time() + PERIOD_SECONDS
            await trio.sleep_until(due)
            self.note(trio.current_time() - due)

    def note(self, late: float) -> None:
        """Count one wake-up that was *late* seconds late."""
        self.counts[bisect_left(EDGES, late)] += 1
        self.seconds += late
        self.longest = max(self.longest, late)

    def figures(self) -> Iterator[Family]:
        """Yield the metrics of the loop."""
        yield family(
            "triomq_loop_lag_seconds",
            [Histogram({}, EDGES, self.counts.copy(), self.seconds)] if any(self.counts) else [],
        )
        yield family("triomq_loop_lag_seconds_max", self.longest)
