"""Who may lead: votes, pre-votes, terms, and the end of a leader that nobody answers."""

import pytest
from raft_nodes import ELECTION, NodeUnderTest, all_of, sent

from triomq.namesrv.controller.raft.events import Persist, Persisted, RaftRole, Tick
from triomq.namesrv.controller.raft.messages import (
    AppendEntries,
    HardState,
    RequestVote,
    RequestVoteAnswer,
    TimeoutNow,
)


def quiet(**kwargs) -> NodeUnderTest:
    """A node that has not heard of a leader for long."""
    node = NodeUnderTest(**kwargs)
    node.now += ELECTION
    return node


def granted(node: NodeUnderTest, candidate: str, request: RequestVote) -> bool:
    (answer,) = sent(node.hear(candidate, request), RequestVoteAnswer)
    return answer.granted


def test_a_vote_leaves_only_when_the_disk_has_it() -> None:
    node = quiet(disk=False)
    effects = node.hear("b", RequestVote(1, 0, 0))
    (persist,) = all_of(Persist, effects)
    assert persist.hard_state == HardState(1, "b")
    assert sent(effects, RequestVoteAnswer) == []
    assert sent(node.step(Persisted(1)), RequestVoteAnswer) == [RequestVoteAnswer(1, True)]


def test_one_vote_in_a_term_also_after_a_restart() -> None:
    node = quiet()
    assert granted(node, "b", RequestVote(1, 0, 0))
    assert granted(node, "b", RequestVote(1, 0, 0)), "the same candidate may ask again"
    assert not granted(node, "c", RequestVote(1, 0, 0))
    again = quiet(term=1, voted_for="b")
    assert not granted(again, "c", RequestVote(1, 0, 0))


@pytest.mark.parametrize(
    ("last_index", "last_term", "expected"),
    [(2, 2, True), (3, 2, True), (1, 3, True), (1, 2, False), (9, 1, False)],
)
def test_a_vote_goes_to_a_log_that_is_as_good(last_index, last_term, expected) -> None:
    for pre in (False, True):
        node = quiet(terms=(1, 2), term=2)
        assert granted(node, "b", RequestVote(3, last_index, last_term, pre)) is expected


def test_a_candidate_counts_its_own_vote_when_its_disk_has_it() -> None:
    node = NodeUnderTest(disk=False)
    node.campaign()
    assert sent(node.effects, RequestVote) == []
    for voter in "bc":
        node.hear(voter, RequestVoteAnswer(1, True))
    assert node.node.role is RaftRole.CANDIDATE
    node.step(Persisted(1))
    assert node.node.role is RaftRole.LEADER


def test_a_pre_vote_changes_nothing() -> None:
    node = quiet(term=4)
    effects = node.hear("b", RequestVote(9, 0, 0, True))
    assert sent(effects, RequestVoteAnswer) == [RequestVoteAnswer(9, True, True)]
    assert all_of(Persist, effects) == []
    assert node.node.term == 4


def test_a_node_without_a_majority_of_pre_votes_keeps_its_term() -> None:
    node = NodeUnderTest(term=4)
    for _ in range(5):
        node.wait(ELECTION * 2)
        node.hear("b", RequestVoteAnswer(4, False, True))
    assert node.node.term == 4


def test_a_refused_pre_vote_brings_the_newer_term() -> None:
    node = NodeUnderTest(term=4)
    node.wait(ELECTION * 2)
    node.hear("b", RequestVoteAnswer(7, False, True))
    assert (node.node.term, node.node.role) == (7, RaftRole.FOLLOWER)


@pytest.mark.parametrize("pre", [False, True])
def test_no_vote_while_a_leader_is_heard_but_for_a_transfer(pre: bool) -> None:
    node = NodeUnderTest(term=1)
    node.append(1, None)
    node.now += ELECTION * 0.99
    assert node.hear("c", RequestVote(2, 5, 1, pre)) == []
    assert node.node.term == 1
    assert sent(node.hear("c", RequestVote(2, 5, 1, pre, True)), RequestVoteAnswer)[0].granted


def test_a_node_that_has_just_started_may_have_heard_a_leader() -> None:
    node = NodeUnderTest(term=1)
    assert node.hear("c", RequestVote(2, 5, 1)) == []


def test_a_leader_without_a_majority_steps_down() -> None:
    node = NodeUnderTest()
    node.lead()
    node.acknowledge("c")
    node.wait(ELECTION * 0.9)
    assert node.node.role is RaftRole.LEADER
    node.wait(ELECTION * 0.2)
    assert node.node.role is RaftRole.FOLLOWER


def test_a_leader_that_stood_still_does_not_lead_when_it_goes_on() -> None:
    node = NodeUnderTest()
    node.lead()
    node.acknowledge("b")
    node.now += ELECTION * 2
    node.step(Tick())
    assert node.node.role is RaftRole.FOLLOWER


def test_a_leader_of_an_earlier_term_is_told() -> None:
    node = NodeUnderTest(term=5)
    (answer,) = node.append(4, None)
    assert answer.message.term == 5
    assert not answer.message.accepted


def test_a_higher_term_ends_a_leader() -> None:
    node = NodeUnderTest()
    node.lead()
    node.append(7, None)
    assert (node.node.role, node.node.term, node.node.leader) == (RaftRole.FOLLOWER, 7, "b")


def test_a_sole_voter_leads_at_once() -> None:
    node = NodeUnderTest(voters=("a",))
    node.step(Tick())
    assert node.node.role is RaftRole.LEADER
    assert node.node.is_ready
    node.wait(ELECTION * 5)
    assert node.node.role is RaftRole.LEADER


def test_the_target_of_a_transfer_campaigns_at_once() -> None:
    node = NodeUnderTest(term=1)
    node.append(1, None)
    effects = node.hear("b", TimeoutNow(1))
    assert {(one.pre, one.transfer, one.term) for one in sent(effects, RequestVote)} == {
        (False, True, 2)
    }


def test_a_term_of_the_log_counts_if_the_disk_lost_the_hard_state() -> None:
    assert NodeUnderTest(terms=(1, 4), term=1).node.term == 4


def test_a_node_outside_of_the_configuration_does_not_campaign() -> None:
    node = NodeUnderTest(voters=("b", "c"))
    assert node.wait(ELECTION * 3) == []


def test_answers_of_an_earlier_campaign_do_not_count() -> None:
    node = NodeUnderTest(terms=(1,), term=1)
    node.campaign()
    node.wait(ELECTION * 2)
    node.hear("b", RequestVoteAnswer(3, True, True))
    assert node.node.term == 3
    node.hear("c", RequestVoteAnswer(2, True))
    assert node.node.role is RaftRole.CANDIDATE
    assert sent(node.effects, AppendEntries) == []
