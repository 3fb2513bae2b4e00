"""Which slave acts for a master, step by step: the view, and the role that follows from it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from triomq.broker.roles.acting_rules import HANDOVER_SECONDS, ActingRules, SlaveRole

STANDBY, ACTING, HANDING_OVER = SlaveRole.STANDBY, SlaveRole.ACTING, SlaveRole.HANDING_OVER
HANDOVER = "906"
Step = tuple[Sequence[Sequence[int]] | str, bool, float, SlaveRole]
"""(ids that each name server lists, is the master heard over the stream, seconds since the last
step, role after it)
"""

TABLE: dict[str, tuple[int, list[Step]]] = {
    "the master is there": (1, [([[0, 1]], True, 1, STANDBY)]),
    "it dies: the smallest id acts": (
        1,
        [([[0, 1, 2]], True, 1, STANDBY), ([[1, 2]], False, 1, ACTING)],
    ),
    "and the others do not": (2, [([[1, 2]], False, 1, STANDBY)]),
    "until that one dies, too": (2, [([[1, 2]], False, 1, STANDBY), ([[2]], False, 1, ACTING)]),
    "a smaller id comes back": (2, [([[2]], False, 1, ACTING), ([[1, 2]], False, 1, STANDBY)]),
    "the master comes back": (1, [([[1]], False, 1, ACTING), ([[0, 1]], False, 1, STANDBY)]),
    "the master is heard, though no name server lists it": (1, [([[1]], True, 1, STANDBY)]),
    "it is heard again while we act": (1, [([[1]], False, 1, ACTING), ([[1]], True, 1, STANDBY)]),
    "one name server has lost it": (1, [([[1], [0, 1]], False, 1, STANDBY)]),
    "all have lost it": (1, [([[1], [1]], False, 1, ACTING)]),
    "no name server answers: nothing begins": (1, [([], False, 1, STANDBY)]),
    "no name server answers: nothing ends": (
        1,
        [([[1]], False, 1, ACTING), ([], False, 1, ACTING)],
    ),
    "but a master that is heard ends it": (1, [([[1]], False, 1, ACTING), ([], True, 1, STANDBY)]),
    "a name server that was just started proves nothing": (
        1,
        [([[]], False, 1, STANDBY), ([[2]], False, 1, STANDBY)],
    ),
    "nor does it end anything": (1, [([[1]], False, 1, ACTING), ([[]], False, 1, ACTING)]),
    "the master says that it starts": (
        1,
        [
            ([[1]], False, 1, ACTING),
            (HANDOVER, False, 1, HANDING_OVER),
            ([[1]], False, 5, HANDING_OVER),
            ([[0, 1]], False, 1, STANDBY),
        ],
    ),
    "and is heard first": (
        1,
        [([[1]], False, 1, ACTING), (HANDOVER, False, 1, HANDING_OVER), ([[1]], True, 1, STANDBY)],
    ),
    "and dies again": (
        1,
        [
            ([[1]], False, 1, ACTING),
            (HANDOVER, False, 1, HANDING_OVER),
            ([[1]], False, HANDOVER_SECONDS, ACTING),
        ],
    ),
    "and dies again while no name server answers": (
        1,
        [
            ([[1]], False, 1, ACTING),
            (HANDOVER, False, 1, HANDING_OVER),
            ([], False, HANDOVER_SECONDS, STANDBY),
        ],
    ),
    "and starts once more": (
        1,
        [
            ([[1]], False, 1, ACTING),
            (HANDOVER, False, 1, HANDING_OVER),
            (HANDOVER, False, HANDOVER_SECONDS - 1, HANDING_OVER),
            ([[1]], False, HANDOVER_SECONDS - 1, HANDING_OVER),
            ([[1]], False, 1, ACTING),
        ],
    ),
    "it says so to one that does not act": (
        2,
        [
            ([[1, 2]], False, 1, STANDBY),
            (HANDOVER, False, 1, HANDING_OVER),
            ([[1, 2]], False, HANDOVER_SECONDS, STANDBY),
        ],
    ),
}


@pytest.mark.parametrize("story", TABLE)
def test_roles(story: str) -> None:
    broker_id, steps = TABLE[story]
    rules = ActingRules(broker_id)
    now = 1000.0
    for seen, following, seconds, wanted in steps:
        now += seconds
        if isinstance(seen, str):
            rules.hand_over(now)
        else:
            views = [{member: f"10.0.0.{member}:10911" for member in view} for view in seen]
            rules.decide(views, following, now)
        assert rules.role is wanted, (story, seen)
        assert rules.acting is (wanted is ACTING)


def test_a_slave_that_starts_waits_for_a_master_that_may_be_starting() -> None:
    """It waits once: a master that it has met is known to be gone."""
    alone, rules = [{1: "10.0.0.1:10911"}], ActingRules(1, grace_seconds=10.0)
    assert [rules.decide(alone, False, now) for now in (1.0, 10.9, 11.0)] == [
        STANDBY,
        STANDBY,
        ACTING,
    ]
    rules = ActingRules(1, grace_seconds=10.0)
    assert rules.decide(alone, False, 1.0) is STANDBY
    assert rules.decide(alone, True, 2.0) is STANDBY
    assert rules.decide(alone, False, 3.0) is ACTING
