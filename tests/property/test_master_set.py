"""The set of a master and the epochs of a log, in random groups: nothing that was confirmed is
missing at a broker that may be elected, and logs of one epoch and offset are equal.
"""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from set_cluster import SetCluster

from triomq.broker.replication.epochs import EpochHistory
from triomq.broker.replication.master_set import MasterSet

SEEDS, STEPS = 200, 600


def test_no_seed_loses_what_was_confirmed() -> None:
    grown = cuts = confirmed = 0
    for seed in range(SEEDS):
        cluster = SetCluster(seed)
        cluster.run(STEPS)
        grown, cuts = grown + cluster.grown, cuts + cluster.cuts
        confirmed += len(cluster.confirmed)
    assert min(grown, cuts) > SEEDS / 2, (grown, cuts)
    assert confirmed > 10 * SEEDS, confirmed


@attrs.frozen
class Mutant:
    owner: type
    attribute: str
    broken: Any


def _drops_a_lost_member(leads: Any, broker_id: int) -> None:
    _gone(leads, broker_id)
    leads.members -= {broker_id}
    leads._confirm()


def _forgets_an_unanswered_proposal(leads: Any) -> None:
    leads.asking, leads.pending = False, frozenset()


def _takes_refusals_for_all_proposals(leads: Any) -> None:
    leads.asking, leads.pending = False, frozenset()


def _lets_anybody_join(leads: Any, now: float) -> frozenset[int]:
    return _wanted(leads, now) | {
        number for number, follower in leads._followers.items() if follower.connected
    }


def _compares_numbers_only(history: Any, own_end: int, other: Any, other_end: int) -> int:
    numbers = {entry.number: index for index, entry in enumerate(other.entries)}
    for index in range(len(history.entries) - 1, -1, -1):
        found = numbers.get(history.entries[index].number)
        if found is not None:
            return min(history.end_of(index, own_end), other.end_of(found, other_end))
    return 0


def _takes_the_shorter_end(history: Any, own_end: int, other: Any, other_end: int) -> int:
    return min(own_end, other_end)


def _ends_no_epoch(history: Any, index: int, log_end: int) -> int:
    return log_end


def breaks(seed: int) -> bool:
    try:
        SetCluster(seed).run(STEPS)
    except (AssertionError, ValueError):
        return True
    return False


_gone, _wanted = MasterSet.note_gone, MasterSet._wanted
MUTANTS = {
    "proposals that are open do not count": Mutant(
        MasterSet, "counting", property(lambda leads: leads.members)
    ),
    "a lost member leaves before the controllers know": Mutant(
        MasterSet, "note_gone", _drops_a_lost_member
    ),
    "a proposal without an answer is forgotten": Mutant(
        MasterSet, "note_unknown", _forgets_an_unanswered_proposal
    ),
    "a refusal ends proposals whose fate is open": Mutant(
        MasterSet, "note_refused", _takes_refusals_for_all_proposals
    ),
    "a slave joins before it has what is confirmed": Mutant(
        MasterSet, "_wanted", _lets_anybody_join
    ),
    "logs are compared by their ends": Mutant(EpochHistory, "common_end", _takes_the_shorter_end),
    "an epoch is taken to last to the end of the log": Mutant(
        EpochHistory, "end_of", _ends_no_epoch
    ),
}


@pytest.mark.parametrize("rule", MUTANTS)
def test_a_broken_rule_is_found(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = MUTANTS[rule]
    monkeypatch.setattr(mutant.owner, mutant.attribute, mutant.broken)
    found = next((seed for seed in range(20 * SEEDS) if breaks(seed)), None)
    print(f"{rule}: found with seed {found}")
    assert found is not None
