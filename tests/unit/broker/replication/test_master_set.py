"""A master's set when a member or the controllers are silent, and come back."""

from __future__ import annotations

import pytest

from triomq.broker.replication.master_set import MasterSet, SetRules

BOTH, ALONE = frozenset({1, 2}), frozenset({1})


@pytest.fixture
def leads() -> MasterSet:
    """Brokers 1, the master, and 2 have all of a log of 100 bytes."""
    made = MasterSet(
        own_id=1, epoch_start=0, members=BOTH, set_epoch=1, rules=SetRules(), since=0.0
    )
    made.note_log(100)
    made.note_report(2, 100, 0.0)
    return made


def test_a_member_that_connects_again_stays(leads: MasterSet) -> None:
    leads.note_gone(2)
    leads.note_report(2, 100, 1.0)
    assert leads.proposal(1.0) is None


def test_a_broker_that_connects_again_joins_again(leads: MasterSet) -> None:
    leads.note_gone(2)
    assert leads.proposal(1.0) == ALONE
    leads.note_answered(ALONE, 2)
    assert leads.proposal(2.0) is None
    leads.note_report(2, 100, 3.0)
    assert leads.proposal(3.0) == BOTH


def test_a_newer_set_ends_what_was_unknown(leads: MasterSet) -> None:
    """Else each later refusal would leave its proposal counting, for ever."""
    leads.note_gone(2)
    assert leads.proposal(1.0) == ALONE
    leads.note_unknown()
    leads.note_agreed(ALONE, 2)
    leads.note_report(2, 100, 2.0)
    assert leads.proposal(2.0) == BOTH
    leads.note_refused()
    assert leads.counting == ALONE
