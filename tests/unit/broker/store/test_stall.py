"""What counts as a stall of the log, and for how long."""

from __future__ import annotations

import attrs

from triomq.broker.store.core.stall import ECHO_SECONDS, Stall


@attrs.define
class Clock:
    now: float = 5.0

    def __call__(self) -> float:
        return self.now


def test_a_stall_counts_for_a_while_after_its_end() -> None:
    clock, noted = Clock(0.0), []
    stall = Stall(1.0, clock)
    stall.on_stall.append(noted.append)
    assert stall.since_ms() == 0
    stall.note(1.5)
    assert (stall.since_ms(), stall.count, noted) == (1500, 1, [1.5])
    clock.now += ECHO_SECONDS - 0.01
    assert stall.since_ms() == 1500
    clock.now += 0.01
    assert stall.since_ms() == 0
    stall.note(2)
    assert (stall.since_ms(), stall.count) == (2000, 2)
