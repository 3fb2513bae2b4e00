"""Whole Raft groups in virtual time, one history for each seed; Raft with a broken rule is found.

``make nightly`` plays more of them (RAFT_SEEDS).
"""

import os

import pytest
from raft_checks import RaftBroken
from raft_history import play_raft
from raft_mutants import MUTANTS

from triomq.namesrv.controller.raft.state import RaftInvariantBroken

SEEDS = int(os.environ.get("RAFT_SEEDS", "80"))
PARTS = 4
FOUND_BY = {
    "a voter has one vote in a term": 6,
    "a voter refuses a shorter log": 0,
    "votes are durable before they are answered": 156,
    "entries are durable before they are answered": 0,
    "terms are durable": 1,
    "a leader counts itself when its disk has the entry": 1,
    "an entry that is cut is not durable": 1,
    "only entries of the own term are counted": 539,
    "no vote soon after a start": 774,
    "a majority commits": 0,
    "learners do not count": 4,
    "entries continue an equal one": 1,
    "only a conflict cuts the log": 7,
    "a follower commits what is equal": 51,
    "a pre-vote comes before a term": 7,
    "no vote while a leader is heard": 7,
    "a leader without a majority steps down": 0,
    "a transfer ends the lease": 10,
    "a read needs a lease or a round": 10,
    "a read needs the first entry of the term": 0,
    "one change of the configuration at a time": 81,
    "a log that does not continue its snapshot is dropped": 53,
}
"""Broken rule -> the first seed that finds it."""
FOUND_BY_UNIT_TESTS = {
    "a change needs a committed entry of the term",
    "a configuration that is cut is not valid",
    "a snapshot replaces a log of another history",
}
"""Rules that none of the seeds that were tried needs: 1,600 of the first two, 300 of the third."""


@pytest.mark.parametrize("part", range(PARTS))
def test_histories_keep_every_promise(part: int) -> None:
    histories = [play_raft(seed) for seed in range(part, SEEDS, PARTS)]
    assert sum(one.acknowledged for one in histories) > 50 * len(histories)
    assert sum(one.reads for one in histories) > 10 * len(histories)
    assert sum(one.terms for one in histories) > 2 * len(histories)


@pytest.mark.parametrize("rule", FOUND_BY)
def test_a_broken_rule_is_found(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = MUTANTS[rule]
    for one in (mutant, mutant.also):
        if one is not None:
            monkeypatch.setattr(one.owner, one.attribute, one.broken, raising=False)
    with pytest.raises((RaftBroken, RaftInvariantBroken, ValueError)):
        play_raft(FOUND_BY[rule])


def test_a_seed_plays_the_same_history_each_time() -> None:
    assert play_raft(3) == play_raft(3)


def test_each_broken_rule_has_its_proof() -> None:
    assert set(MUTANTS) == set(FOUND_BY) | FOUND_BY_UNIT_TESTS
