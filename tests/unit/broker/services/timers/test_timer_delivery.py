"""What a timed message that is due does to the counts of its topic."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio

from triomq.broker.services.timers.timer_delivery import TimerDelivery
from triomq.remoting.protocol.record import StoredMessage

MESSAGE: Any = SimpleNamespace(properties={"REAL_TOPIC": "T"})


@attrs.define(eq=False)
class Kept(TimerDelivery):
    plain: list[StoredMessage] = attrs.field(factory=list)

    async def store(self, plain: list[StoredMessage], rolled: list[StoredMessage]) -> bool:
        await trio.lowlevel.checkpoint()
        self.plain += plain
        return True


@pytest.mark.parametrize("settled", [True, False])
async def test_one_that_was_settled_counts_no_more_and_is_not_stored(settled: bool) -> None:
    """A check point of which everything was acknowledged in time."""
    changes: list[tuple[str, int]] = []

    async def read(places: object) -> list[StoredMessage]:
        await trio.lowlevel.checkpoint()
        return [MESSAGE]

    timers: Any = SimpleNamespace(
        clock_ms=lambda: 1_000,
        schedule=SimpleNamespace(
            take=lambda *words: [SimpleNamespace(log_offset=0, size=100, rolls=False)],
            recalled={},
            done=lambda: None,
        ),
        read=read,
        settled=lambda message: settled,
        taken_back=lambda message: False,
        counts=SimpleNamespace(add=lambda topic, change: changes.append((topic, change))),
        note_delivered=lambda: None,
    )
    delivery = Kept(timers)
    assert await delivery.deliver_some() == 0
    assert delivery.plain == ([] if settled else [MESSAGE])
    assert changes == ([("T", -1)] if settled else [])
