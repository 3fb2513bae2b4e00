"""Linearizable reads: by a lease, or by a round of heartbeats."""

from raft_nodes import ELECTION, NodeUnderTest, all_of, sent

from triomq.namesrv.controller.raft.events import (
    ReadIndex,
    ReadReady,
    RefusalReason,
    RequestRefused,
    TransferLeadership,
)
from triomq.namesrv.controller.raft.messages import AppendEntries, AppendEntriesAnswer
from triomq.namesrv.controller.raft.settings import RaftSettings

LEASE = RaftSettings().lease_seconds


def leader() -> NodeUnderTest:
    node = NodeUnderTest()
    node.lead()
    return node


def test_a_read_under_the_lease_is_ready_at_once() -> None:
    node = leader()
    node.acknowledge("b")
    node.now += LEASE * 0.9
    assert ReadReady(1) in node.step(ReadIndex(1))


def test_a_read_waits_for_the_first_entry_of_the_term() -> None:
    node = leader()
    node.hear("b", AppendEntriesAnswer(1, True, 0, 0, 1))
    assert all_of(ReadReady, node.step(ReadIndex(1))) == []
    assert all_of(ReadReady, node.acknowledge("b")) == [ReadReady(1)]


def test_without_a_lease_a_read_waits_for_a_round_that_begins_after_it() -> None:
    node = leader()
    node.acknowledge("b")
    old = node.node.leadership.round
    node.now += LEASE * 1.01
    effects = node.step(ReadIndex(1))
    assert all_of(ReadReady, effects) == []
    node.hear("c", AppendEntriesAnswer(1, True, 1, 1, old))
    assert all_of(ReadReady, node.effects) == []
    effects += node.acknowledge("c")
    assert sent(effects, AppendEntries)
    while not all_of(ReadReady, node.effects):
        assert node.node.leadership.round <= old + 3
        node.acknowledge("c")


def test_the_lease_is_shorter_than_the_time_that_voters_wait() -> None:
    """Also if the leader's clock is slow by the part that clocks may differ in."""
    settings = RaftSettings()
    assert settings.lease_seconds / (1 - settings.clock_drift_max) <= settings.election_seconds


def test_the_votes_of_an_election_are_no_lease() -> None:
    node = leader()
    assert not node.node.leadership.has_lease(node.now)


def test_a_transfer_ends_the_lease() -> None:
    node = leader()
    node.acknowledge("b")
    node.acknowledge("c")
    node.step(TransferLeadership(1, "c"))
    assert all_of(ReadReady, node.step(ReadIndex(2))) == []


def test_reads_are_refused_when_leadership_is_lost() -> None:
    node = leader()
    node.step(ReadIndex(1))
    effects = node.wait(ELECTION * 2)
    assert [one.reason for one in all_of(RequestRefused, effects)] == [
        RefusalReason.LOST_LEADERSHIP
    ]


def test_waiting_reads_have_a_limit() -> None:
    node = NodeUnderTest(settings=RaftSettings(reads_max=2))
    node.lead()
    for number in range(2):
        assert all_of(RequestRefused, node.step(ReadIndex(number))) == []
    (refused,) = all_of(RequestRefused, node.step(ReadIndex(2)))
    assert refused.reason is RefusalReason.TOO_MANY_READS


def test_many_reads_share_a_round() -> None:
    node = leader()
    rounds = node.node.leadership.round
    for number in range(100):
        node.step(ReadIndex(number))
    assert node.node.leadership.round <= rounds + 1


def test_a_follower_names_the_leader() -> None:
    node = NodeUnderTest(term=1)
    node.append(1, None)
    assert node.step(ReadIndex(1)) == [RequestRefused(1, RefusalReason.NOT_LEADER, "b")]
