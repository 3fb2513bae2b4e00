"""How the log is copied and committed, and what each message waits for."""

import pytest
from raft_nodes import ELECTION, NodeUnderTest, all_of, entry, log_of, sent

from triomq.namesrv.controller.raft.events import (
    Apply,
    Persist,
    Persisted,
    ProposalAppended,
    Propose,
    RaftRole,
    RefusalReason,
    RequestRefused,
)
from triomq.namesrv.controller.raft.messages import (
    AppendEntries,
    AppendEntriesAnswer,
    EntryKind,
    RequestVoteAnswer,
)
from triomq.namesrv.controller.raft.settings import RaftSettings
from triomq.namesrv.controller.raft.state import RaftInvariantBroken


def terms(node: NodeUnderTest) -> list[int]:
    return [one.term for one in node.node.log.entries]


def test_entries_are_answered_when_the_disk_has_them() -> None:
    node = NodeUnderTest(term=1, disk=False)
    effects = node.append(1, None, *log_of(1, 1))
    assert [len(one.entries) for one in all_of(Persist, effects)] == [2]
    assert sent(effects, AppendEntriesAnswer) == []
    (answer,) = sent(node.step(Persisted(1)), AppendEntriesAnswer)
    assert (answer.accepted, answer.index) == (True, 2)


def test_a_heartbeat_is_answered_while_the_disk_is_slow() -> None:
    node = NodeUnderTest(terms=(1,), term=1, disk=False)
    node.append(1, entry(1, 1), entry(2, 1))
    (answer,) = sent(node.append(1, entry(1, 1)), AppendEntriesAnswer)
    assert (answer.accepted, answer.index) == (True, 1)


def test_a_message_that_does_not_continue_the_log_is_refused() -> None:
    node = NodeUnderTest(terms=(1, 1, 2), term=2)
    for previous in (entry(3, 3), entry(9, 3)):
        (answer,) = sent(
            node.append(3, previous, entry(previous.index + 1, 3)), AppendEntriesAnswer
        )
        assert not answer.accepted
        assert answer.index < previous.index
    assert terms(node) == [1, 1, 2]


def test_a_conflict_cuts_the_log_and_an_old_message_does_not() -> None:
    node = NodeUnderTest(terms=(1, 1, 1), term=1)
    node.append(2, entry(1, 1), entry(2, 2))
    assert terms(node) == [1, 2]
    node.append(2, entry(2, 2), entry(3, 2), entry(4, 2))
    node.append(2, entry(1, 1), entry(2, 2))
    assert terms(node) == [1, 2, 2, 2]


def test_an_entry_that_is_cut_while_it_is_written_is_not_durable() -> None:
    node = NodeUnderTest(term=1, disk=False)
    node.append(1, None, *log_of(1, 1))
    node.append(2, entry(1, 1), entry(2, 2))
    assert sent(node.step(Persisted(1)), AppendEntriesAnswer) == []
    assert node.node.state.durable_index == 1
    assert [one.index for one in sent(node.step(Persisted(2)), AppendEntriesAnswer)] == [2]


def test_committed_entries_are_never_cut() -> None:
    node = NodeUnderTest(terms=(1, 1), term=1)
    node.append(1, entry(2, 1), commit=2)
    with pytest.raises(RaftInvariantBroken):
        node.node.state.append([entry(2, 2)])


def test_a_follower_commits_no_more_than_is_equal() -> None:
    node = NodeUnderTest(terms=(1, 1, 1), term=1)
    effects = node.append(2, entry(1, 1), commit=3)
    assert all_of(Apply, effects) == [Apply((entry(1, 1),))]


def test_a_leader_commits_what_a_majority_has_on_its_disks() -> None:
    node = NodeUnderTest(disk=False)
    node.campaign()
    node.step(Persisted(1))
    node.hear("b", AppendEntriesAnswer(1, True, 0, 0, 0))
    for voter in "bc":
        node.hear(voter, RequestVoteAnswer(1, True))
    assert node.node.role is RaftRole.LEADER
    node.acknowledge("b")
    assert node.node.state.commit_index == 0, "its own disk does not have the entry yet"
    node.acknowledge("c")
    assert node.node.state.commit_index == 1, "two other disks are a majority"
    (applied,) = all_of(Apply, node.step(Persisted(2)))
    assert [one.kind for one in applied.entries] == [EntryKind.CONFIGURATION]


def test_an_entry_of_an_earlier_term_is_not_counted() -> None:
    """Figure 8 of the paper: entry 2 of term 2 is on a majority, and can still be replaced."""
    node = NodeUnderTest(terms=(1, 2), term=3)
    node.lead()
    assert node.node.term == 4
    node.acknowledge("b", 2)
    node.acknowledge("c", 2)
    assert node.node.state.commit_index == 0
    node.acknowledge("b", 3)
    assert node.node.state.commit_index == 3


def test_a_leader_finds_where_a_log_differs() -> None:
    node = NodeUnderTest(terms=(1, 1, 1, 1), term=1)
    node.lead()
    for index in (3, 1):
        previous = node.node.leadership.progress["b"].next_index - 1
        effects = node.hear("b", AppendEntriesAnswer(2, False, index, previous, 1))
    (message,) = sent(effects, AppendEntries)
    assert (message.previous_index, [one.index for one in message.entries]) == (1, [2, 3, 4, 5])


def test_one_batch_at_a_time_within_the_limits() -> None:
    settings = RaftSettings(batch_entries_max=3, batch_bytes_max=10)
    node = NodeUnderTest(settings=settings)
    node.lead()
    node.acknowledge("b")
    sizes = [1, 1, 1, 20, 6, 6]
    counts = []
    for number, size in enumerate(sizes):
        effects = node.step(Propose(number, b"x" * size))
        counts += [len(one.entries) for one in sent(effects, AppendEntries)]
    for last in (2, 4, 5, 6, 7):
        effects = node.acknowledge("b", last)
        counts += [len(one.entries) for one in sent(effects, AppendEntries)]
    assert counts == [1, 2, 1, 1, 1]


@pytest.mark.parametrize(
    ("settings", "command", "reason"),
    [
        (RaftSettings(command_bytes_max=3), b"long", RefusalReason.TOO_LARGE),
        (RaftSettings(uncommitted_entries_max=1), b"", RefusalReason.BUSY),
    ],
)
def test_limits_of_proposals(settings, command, reason) -> None:
    node = NodeUnderTest(settings=settings)
    assert node.step(Propose(1, b"")) == [RequestRefused(1, RefusalReason.NOT_LEADER, "")]
    node.lead()
    (refused,) = all_of(RequestRefused, node.step(Propose(2, command)))
    assert (refused.request, refused.reason) == (2, reason)


def test_a_proposal_has_its_place_at_once() -> None:
    node = NodeUnderTest()
    node.lead()
    assert all_of(ProposalAppended, node.step(Propose(8, b"x"))) == [ProposalAppended(8, 2, 1)]


def test_a_disk_that_hangs_does_not_fill_the_memory() -> None:
    node = NodeUnderTest(term=1, disk=False)
    for _ in range(100):
        node.append(1, None, entry(1, 1))
        node.now += ELECTION / 10
    assert len(node.node.state._held) == 1
    assert len(all_of(Persist, node.effects)) == 0
