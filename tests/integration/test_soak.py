"""A short soak, and that its ledger sees the faults which it looks for."""

from __future__ import annotations

import pytest
from soaking import GroupLedger, soak


@pytest.mark.slow
@pytest.mark.feature(92, 98, 100)
async def test_a_short_soak() -> None:
    run = await soak(20.0, seed=20)
    print("\n".join(run.report()))
    assert run.failures() == []
    assert sum(run.acknowledged.values()) > 500
    assert run.events["members joined"] > 5
    assert any("restarts" in event or "crashes" in event for event in run.events)


def test_the_ledger_sees_what_is_lost_doubled_or_out_of_order() -> None:
    ledger = GroupLedger(ordered=True)
    for offset, number in enumerate([0, 1, 1, 3]):
        place = ("a", 0, offset)
        ledger.begin(7, number, place)
        if offset != 2:
            ledger.end(place)
    assert ledger.gaps == ["key 7: 3 came before 2"]
    assert ledger.missing({7: 5, 8: 1}) == ["7:2", "7:4", "8:0"]
    assert (ledger.handled, ledger.sent_twice, ledger.came_twice, ledger.overlaps) == (4, 1, 0, 1)
    ledger.begin(7, 3, ("a", 0, 3))
    assert (ledger.sent_twice, ledger.came_twice) == (1, 1)
