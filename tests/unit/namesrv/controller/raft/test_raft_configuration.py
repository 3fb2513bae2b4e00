"""Changes of the members, one at a time, and the transfer of leadership."""

import pytest
from raft_nodes import ELECTION, NodeUnderTest, all_of, entry, sent

from triomq.namesrv.controller.raft.configuration import (
    Configuration,
    ConfigurationChange,
    decode_configuration,
    encode_configuration,
)
from triomq.namesrv.controller.raft.events import (
    ChangeConfiguration,
    Persist,
    ProposalAppended,
    Propose,
    RaftRole,
    RefusalReason,
    RequestRefused,
    TransferBegun,
    TransferLeadership,
)
from triomq.namesrv.controller.raft.messages import (
    AnyRaftMessage,
    AppendEntries,
    AppendEntriesAnswer,
    EntryKind,
    HardState,
    InstallSnapshot,
    LogEntry,
    RaftSnapshot,
    RequestVote,
    RequestVoteAnswer,
    TimeoutNow,
)

ADD, PROMOTE, REMOVE = ConfigurationChange


def leader(**kwargs) -> NodeUnderTest:
    """A leader whose first entry is committed."""
    node = NodeUnderTest(**kwargs)
    node.lead()
    node.acknowledge("b")
    return node


def change(node: NodeUnderTest, kind: ConfigurationChange, target: str) -> RefusalReason | None:
    effects = node.step(ChangeConfiguration(1, kind, target))
    refused = all_of(RequestRefused, effects)
    assert len(refused) + len(all_of(ProposalAppended, effects)) == 1
    return refused[0].reason if refused else None


@pytest.mark.parametrize(
    ("kind", "node", "expected"),
    [
        (ADD, "d", Configuration(("a", "b"), ("c", "d"))),
        (ADD, "a", None),
        (ADD, "c", None),
        (PROMOTE, "c", Configuration(("a", "b", "c"))),
        (PROMOTE, "a", None),
        (PROMOTE, "d", None),
        (REMOVE, "a", Configuration(("b",), ("c",))),
        (REMOVE, "c", Configuration(("a", "b"))),
        (REMOVE, "d", None),
    ],
)
def test_changes(kind, node, expected) -> None:
    assert Configuration(("a", "b"), ("c",)).changed(kind, node) == expected


def test_the_last_voter_stays() -> None:
    assert Configuration(("a",), ("b",)).changed(REMOVE, "a") is None


def test_one_change_at_a_time_and_none_before_the_first_entry_of_the_term() -> None:
    node = NodeUnderTest()
    node.lead()
    assert change(node, ADD, "d") is RefusalReason.CHANGE_IN_PROGRESS
    node.acknowledge("b")
    assert change(node, ADD, "d") is None
    assert change(node, ADD, "e") is RefusalReason.CHANGE_IN_PROGRESS
    node.acknowledge("b")
    assert change(node, ADD, "e") is None


def test_a_learner_is_sent_the_log_and_does_not_count() -> None:
    node = leader()
    change(node, ADD, "d")
    assert {type(one) for one in sent(node.effects, AppendEntries)} == {AppendEntries}
    node.acknowledge("d")
    assert node.node.state.commit_index == 1
    node.acknowledge("b")
    assert node.node.state.commit_index == 2


def test_a_learner_becomes_a_voter_when_it_has_caught_up() -> None:
    node = leader()
    change(node, ADD, "d")
    node.acknowledge("b")
    assert change(node, PROMOTE, "d") is RefusalReason.NOT_CAUGHT_UP
    node.acknowledge("d")
    assert change(node, PROMOTE, "d") is None
    assert node.node.log.configuration.voters == ("a", "b", "c", "d")


def test_no_change_makes_a_majority_of_nodes_that_do_not_answer() -> None:
    """``c`` is dead: with ``a`` alone left beside it, nothing could be committed any more."""
    node = leader()
    assert change(node, REMOVE, "b") is RefusalReason.TOO_FEW_ANSWER
    node.acknowledge("c")
    assert change(node, REMOVE, "b") is None
    node = leader()
    node.acknowledge("c")
    for _ in range(5):
        node.wait(ELECTION / 4)
        node.acknowledge("b")
    assert change(node, REMOVE, "b") is RefusalReason.TOO_FEW_ANSWER, "c answered too long ago"
    assert change(node, REMOVE, "c") is None


def test_the_log_says_who_votes_from_its_first_entry_on() -> None:
    node = leader()
    (first,) = node.node.log.between(1, 1)
    assert decode_configuration(first.data) == Configuration(("a", "b", "c"))


def test_addresses_come_with_the_first_change_and_go_with_their_node() -> None:
    known = {"a": "a:1", "b": "b:1", "c": "c:1", "x": "x:1"}
    added = Configuration(("a", "b", "c")).changed(ADD, "d", {**known, "d": "d:1"})
    assert added is not None
    assert added.addresses == {"a": "a:1", "b": "b:1", "c": "c:1", "d": "d:1"}
    removed = added.changed(REMOVE, "d", {"a": "other:1"})
    assert removed is not None
    assert removed.addresses == {"a": "a:1", "b": "b:1", "c": "c:1"}
    assert decode_configuration(encode_configuration(removed)) == removed
    assert decode_configuration(b'[["a"],["b"]]') == Configuration(("a",), ("b",)), "as before"


@pytest.mark.parametrize(
    "message",
    [
        RequestVote(3, 1, 1),
        RequestVote(3, 1, 1, True),
        RequestVoteAnswer(3, False),
        RequestVoteAnswer(3, False, True),
        AppendEntries(3, 0, 0, (entry(1, 3),), 0, 1),
        InstallSnapshot(3, 7, 2, Configuration(("a", "b", "c")), 0, 1, b"x", 1),
        TimeoutNow(3),
    ],
    ids=lambda message: type(message).__name__,
)
def test_an_empty_disk_keeps_out_of_a_group_that_has_begun(message: AnyRaftMessage) -> None:
    node, seen = NodeUnderTest(), NodeUnderTest(term=1)
    node.now += ELECTION * 1.1
    seen.now += ELECTION * 1.1
    assert node.hear("b", message) == []
    assert (node.node.term, node.node.log.last_index) == (0, 0)
    assert node.node.waits_to_be_added
    assert seen.hear("b", message), "its disk was in a term: it has what it promised"


def test_an_empty_disk_follows_as_a_learner_and_votes_for_no_other() -> None:
    node = NodeUnderTest()
    effects = node.hear("b", AppendEntries(3, 0, 0, (entry(1, 3),), 0, 1, learner=True))
    assert [one.accepted for one in sent(effects, AppendEntriesAnswer)] == [True]
    (persist, *_) = all_of(Persist, effects)
    assert persist.hard_state == HardState(3, "b")
    assert persist.snapshot == RaftSnapshot(0, 0, Configuration(()))
    node.wait(ELECTION * 3)
    assert node.node.role is RaftRole.FOLLOWER, "it is no voter as far as it knows"
    (answer,) = sent(node.hear("c", RequestVote(3, 9, 3)), RequestVoteAnswer)
    assert not answer.granted


def test_a_group_begins_when_all_of_its_voters_are_there() -> None:
    node = NodeUnderTest()
    node.wait(ELECTION * 2)
    node.hear("b", RequestVoteAnswer(1, True, True))
    assert node.node.role is RaftRole.PRE_CANDIDATE
    node.hear("c", RequestVoteAnswer(1, True, True))
    assert node.node.role is RaftRole.CANDIDATE
    node.hear("b", RequestVoteAnswer(1, True))
    assert node.node.role is RaftRole.CANDIDATE
    node.hear("c", RequestVoteAnswer(1, True))
    assert node.node.role is RaftRole.LEADER


def test_a_configuration_is_valid_at_once_and_no_more_when_it_is_cut() -> None:
    node = NodeUnderTest(terms=(1,), term=1)
    added = encode_configuration(Configuration(("a", "b", "c"), ("d",)))
    node.append(1, entry(1, 1), LogEntry(2, 1, EntryKind.CONFIGURATION, added))
    assert node.node.log.configuration.learners == ("d",)
    node.append(2, entry(1, 1), entry(2, 2))
    assert node.node.log.configuration.learners == ()


def test_a_leader_that_is_removed_leads_until_that_is_committed() -> None:
    node = leader()
    node.acknowledge("c")
    assert change(node, REMOVE, "a") is None
    assert node.node.role is RaftRole.LEADER
    node.acknowledge("b")
    assert node.node.role is RaftRole.LEADER, "it does not count itself any more"
    node.acknowledge("c")
    assert node.node.role is RaftRole.FOLLOWER
    assert node.wait(ELECTION * 3) == []


def test_a_node_whose_removal_is_not_committed_campaigns() -> None:
    """The thesis, 4.2.2: it may be the only one with the entry that removes it."""
    node = NodeUnderTest(terms=(1,), term=1)
    removed = encode_configuration(Configuration(("b", "c")))
    node.append(1, entry(1, 1), LogEntry(2, 1, EntryKind.CONFIGURATION, removed))
    node.wait(ELECTION * 2)
    assert node.node.role is RaftRole.PRE_CANDIDATE


def test_leadership_goes_to_a_member_that_has_the_whole_log() -> None:
    node = leader()
    node.step(Propose(1, b"x"))
    assert all_of(TransferBegun, node.step(TransferLeadership(2, "c"))) == [TransferBegun(2)]
    (refused,) = all_of(RequestRefused, node.step(Propose(3, b"y")))
    assert refused.reason is RefusalReason.TRANSFERRING
    assert sent(node.acknowledge("c", 1), TimeoutNow) == []
    assert sent(node.acknowledge("c"), TimeoutNow) == [TimeoutNow(1)]


def test_a_transfer_that_does_not_come_about_ends() -> None:
    node = leader()
    node.step(TransferLeadership(1, "c"))
    for _ in range(4):
        node.acknowledge("b")
        node.wait(ELECTION / 3)
    assert all_of(ProposalAppended, node.step(Propose(2, b"x")))


@pytest.mark.parametrize("target", ["a", "d", ""])
def test_leadership_goes_to_another_voter_only(target: str) -> None:
    (refused,) = leader().step(TransferLeadership(1, target))
    assert refused.reason is RefusalReason.NO_SUCH_CHANGE
