"""A short soak; and its ledger finds the faults that it looks for."""

from __future__ import annotations

import pytest
from soaking import (
    BROKER_ENDED,
    HANDED_OVER,
    INTERRUPTED,
    SENT_TWICE,
    UNEXPLAINED,
    GroupLedger,
    MemorySample,
    Place,
    is_flat,
    soak,
)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.feature("92b", "98b", "98c", "100a")
async def test_a_short_soak() -> None:
    run = await soak(20.0, seed=20)
    print("\n".join(run.report()))
    assert run.failures() == []
    assert sum(run.acknowledged.values()) > 500
    assert run.events["members joined"] > 5
    assert any("restarts" in event or "crashes" in event for event in run.events)


def place(offset: int) -> Place:
    return Place("broker-a", 0, offset)


def test_the_ledger_sees_what_is_lost_doubled_or_out_of_order() -> None:
    ledger = GroupLedger(ordered=True)
    for offset, number in enumerate([0, 1, 1, 3]):
        ledger.begin(7, number, place(offset), 1, 10.0)
        if offset != 2:
            ledger.end(7, number, place(offset), 1, done=True)
    assert ledger.gaps == ["key 7: 3 came before 2"]
    assert ledger.missing({7: 5, 8: 1}) == ["7:2", "7:4", "8:0"]
    assert (ledger.handled, ledger.again, ledger.overlaps) == (4, {SENT_TWICE: 1}, 1)


@pytest.mark.parametrize("cause", [INTERRUPTED, BROKER_ENDED, HANDED_OVER, UNEXPLAINED])
def test_the_ledger_says_why_a_message_came_twice(cause: str) -> None:
    ledger = GroupLedger(ordered=False)
    ledger.begin(7, 0, place(0), 1, 10.0)
    ledger.end(7, 0, place(0), 1, done=cause != INTERRUPTED)
    ledger.broker_ended_at["broker-a"] = 11.0 if cause == BROKER_ENDED else 9.0
    ledger.gained_at["broker-a", 0] = 11.0 if cause == HANDED_OVER else 9.0
    ledger.begin(7, 0, place(0), 1, 12.0)
    assert ledger.again == {cause: 1}
    if cause == UNEXPLAINED:
        ledger.end(7, 0, place(0), 1, done=True)
        ledger.begin(7, 0, place(0), 2, 13.0)
        assert ledger.again[HANDED_OVER] == 1, "two members: both had the queue"


def samples(rise: int) -> list[MemorySample]:
    return [
        MemorySample(second, 100 * 2**20 + second * rise // 60 + second % 7 * 10**5)
        for second in range(0, 1200, 5)
    ]


def test_memory_that_grows_is_seen_and_noise_is_not() -> None:
    assert is_flat(samples(0))
    assert is_flat(samples(100_000))
    assert not is_flat(samples(2**20))
    warming = [MemorySample(second, min(second, 300) * 2**20) for second in range(0, 1200, 5)]
    assert is_flat(warming), "what a process fills in its first half is not a leak"
