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
    "a voter has one vote in a term": 2,
    "a voter refuses a shorter log": 0,
    "votes are durable before they are answered": 524,
    "entries are durable before they are answered": 0,
    "terms are durable": 1,
    "a leader counts itself when its disk has the entry": 1,
    "an entry that is cut is not durable": 17,
    "only entries of the own term are counted": 1545,
    "no vote soon after a start": 21,
    "a majority commits": 0,
    "learners do not count": 0,
    "entries continue an equal one": 11,
    "only a conflict cuts the log": 0,
    "a follower commits what is equal": 20,
    "a pre-vote comes before a term": 7,
    "no vote while a leader is heard": 7,
    "a leader without a majority steps down": 0,
    "a transfer ends the lease": 11,
    "a read needs a lease or a round": 28,
    "a read needs the first entry of the term": 1,
    "one change of the configuration at a time": 19,
    "a log that does not continue its snapshot is dropped": 24,
    "a change needs a committed entry of the term": 19,
    "a learner counts when it has caught up": 149,
    "a configuration is valid when it is appended": 2,
    "an empty disk keeps out of a group that has begun": 27,
    "a group begins with all of its voters": 118,
}
"""Broken rule -> the first seed that finds it."""
FOUND_BY_UNIT_TESTS = {
    "a learner with a new disk has voted for its leader",
    "a configuration that is cut is not valid",
    "a snapshot replaces a log of another history",
}
"""Rules that none of the first 700 seeds needs."""


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
