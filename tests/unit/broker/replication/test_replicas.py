"""The number of slaves that a send waits for, by every setting; and the rate limit of a slave."""

from __future__ import annotations

from typing import Any

import pytest

from triomq.broker.replication.replicas import (
    AckPlan,
    Replica,
    ReplicaRules,
    ReplicaSet,
    kth_largest,
)
from triomq.remoting.core.token_bucket import TokenBucket

END = 1_000_000
GAP = 100_000


def replicas(*acknowledged: int, caught_up_at: float = 0.0, **rules: Any) -> ReplicaSet:
    found = ReplicaSet(ReplicaRules(available_gap_bytes=GAP, in_sync_gap_bytes=GAP, **rules))
    for number, offset in enumerate(acknowledged):
        found.replicas[number] = Replica(f"slave-{number}", offset, caught_up_at)
    return found


@pytest.mark.parametrize(
    ("acknowledged", "rules", "plan"),
    [
        ((END,), {}, AckPlan(1)),
        ((END - GAP + 1,), {}, AckPlan(1)),
        ((END - GAP,), {}, AckPlan(1, unavailable=True)),
        ((), {}, AckPlan(1, unavailable=True)),
        ((), {"in_sync_replicas": 1}, AckPlan(0)),
        ((END, END), {"in_sync_replicas": 3}, AckPlan(2)),
        ((END,), {"in_sync_replicas": 3}, AckPlan(2, unavailable=True)),
        ((END,), {"in_sync_replicas": 3, "auto": True}, AckPlan(1)),
        ((), {"in_sync_replicas": 3, "auto": True}, AckPlan(0)),
        ((END, END, END), {"in_sync_replicas": 2, "auto": True}, AckPlan(1)),
        ((END, END, END), {"all_in_sync": True}, AckPlan(3)),
        ((END, 0), {"all_in_sync": True}, AckPlan(1)),
        ((), {"all_in_sync": True}, AckPlan(0)),
        ((END, 0), {"min_in_sync_replicas": 2}, AckPlan(1)),
    ],
)
def test_the_number_of_slaves_that_a_send_waits_for(
    acknowledged: tuple[int, ...], rules: dict[str, Any], plan: AckPlan
) -> None:
    assert replicas(*acknowledged, **rules).plan(END, 0.0) == plan


@pytest.mark.parametrize("rules", [{}, {"auto": True}, {"all_in_sync": True}])
def test_a_message_is_refused_before_it_is_stored(rules: dict[str, bool]) -> None:
    assert (
        replicas(0, min_in_sync_replicas=2, **rules).refusal(END, 0.0)
        == "1 in sync, the master included, minInSyncReplicas=2"
    )
    assert replicas(END, min_in_sync_replicas=2, **rules).refusal(END, 0.0) == ""


@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"auto": True},
        {"all_in_sync": True},
        {"in_sync_replicas": 1},
        {"auto": True, "all_in_sync": True},
    ],
)
def test_a_slave_that_leaves_the_set_by_what_is_stored_is_waited_for(rules: dict[str, Any]) -> None:
    """The message is admitted because the slave has the whole log; then the slave is out of sync by
    silence or by the size of the message, or gone.
    """
    found = replicas(END, min_in_sync_replicas=2, **rules)
    assert found.refusal(END, 17.0) == ""
    assert found.plan(END + 1, 17.0) == AckPlan(1)
    assert found.plan(END + GAP, 0.0) == AckPlan(1, unavailable=True)
    found.replicas.clear()
    assert found.plan(END + 1, 17.0) == AckPlan(1, unavailable=True)


@pytest.mark.parametrize("rules", [{"auto": True}, {"all_in_sync": True}])
def test_without_a_minimum_a_send_may_wait_for_no_slave(rules: dict[str, Any]) -> None:
    assert replicas(END, **rules).plan(END + 1, 17.0) == AckPlan(0)


def test_a_slave_that_never_comes_to_the_end_is_not_in_sync_for_long() -> None:
    found = replicas(END - 10)
    assert (found.in_sync(END, 15.0), found.in_sync(END, 15.1)) == (1, 0)
    replica = found.replicas[0]
    replica.note_acknowledged(
        END - 9, END + 50, 16.0
    )  # it is always a little behind a log that grows
    replica.note_acknowledged(END + 50, END + 90, 17.0)  # but it has what there was at 16.0
    assert (found.in_sync(END + 100, 31.0), found.in_sync(END + 100, 31.1)) == (1, 0)
    replica.note_acknowledged(END + 100, END + 100, 40.0)
    assert found.in_sync(END + 100, 400.0) == 1
    assert (found.in_sync(END + 110, 55.0), found.in_sync(END + 110, 55.1)) == (1, 0), (
        "it was at the end at 40.0"
    )


def test_every_goal_that_is_reached_sets_the_next_one() -> None:
    """A slave that is always a little behind: each report has what the log had at the report
    before.
    """
    found = replicas(END - 10)
    for second in range(100):
        found.replicas[0].note_acknowledged(
            END + 10 * second, END + 10 * second + 10, float(second)
        )
    assert (found.in_sync(END + 1_000, 113.0), found.in_sync(END + 1_000, 113.1)) == (1, 0)


def test_what_k_slaves_have() -> None:
    found = replicas(5, 9, 7)
    assert [found.reached(k) for k in range(5)] == [0] * 5, (
        "a first report only shows how near a slave is"
    )
    for replica in found.replicas.values():
        replica.copied = replica.acknowledged
    assert [found.reached(k) for k in range(5)] == [0, 9, 7, 5, 0]
    assert kth_largest([], 1) == 0
    only = replicas(9)
    assert [only.reached(k) for k in range(3)] == [0, 0, 0]
    only.replicas[0].copied = 9
    assert [only.reached(k) for k in range(3)] == [0, 9, 0]


def test_a_token_bucket_gives_its_rate_in_the_long_run() -> None:
    pace, now, sent = TokenBucket(1_000_000), 0.0, 0
    while now < 10:
        count = min(70_000, pace.allowance(now))
        if count <= 0:
            now += pace.seconds_to_wait()
            continue
        pace.spend(count)
        sent += count
    assert sent == pytest.approx(10_000_000, rel=0.02)
    assert TokenBucket(3).allowance(0.0) == 1
