"""Snapshots in place of entries: taken here, sent in parts, read from the disk."""

import pytest
from raft_nodes import NodeUnderTest, all_of, entry, log_of, sent

from triomq.namesrv.controller.raft.configuration import Configuration
from triomq.namesrv.controller.raft.events import (
    Apply,
    Persist,
    Persisted,
    Restore,
    SnapshotTaken,
    Tick,
)
from triomq.namesrv.controller.raft.log import RaftLog
from triomq.namesrv.controller.raft.messages import (
    AppendEntriesAnswer,
    InstallSnapshot,
    InstallSnapshotAnswer,
    RaftSnapshot,
)
from triomq.namesrv.controller.raft.settings import RaftSettings
from triomq.namesrv.controller.raft.state import RaftInvariantBroken

MEMBERS = Configuration(("a", "b", "c"))


def part(index: int, term: int, offset: int, size: int, data: bytes) -> InstallSnapshot:
    return InstallSnapshot(9, index, term, MEMBERS, offset, size, data, 1)


def test_a_snapshot_replaces_applied_entries() -> None:
    node = NodeUnderTest(terms=(1, 1, 1), term=1)
    node.append(1, entry(3, 1), commit=2)
    with pytest.raises(RaftInvariantBroken):
        node.step(SnapshotTaken(3, b"s"))
    (persist,) = all_of(Persist, node.step(SnapshotTaken(2, b"s")))
    assert persist.snapshot == RaftSnapshot(2, 1, MEMBERS, b"s")
    assert (persist.reset, persist.entries) == (False, ())
    assert [one.index for one in node.node.log.entries] == [3]


def test_a_member_without_the_entries_gets_the_snapshot_in_parts() -> None:
    node = NodeUnderTest(settings=RaftSettings(batch_bytes_max=4))
    node.lead()
    node.acknowledge("b")
    node.step(SnapshotTaken(1, b"0123456789"))
    effects = node.wait(node.settings.heartbeat_seconds)
    for offset, data in ((0, b"0123"), (4, b"4567"), (8, b"89")):
        (message,) = sent(effects, InstallSnapshot)
        assert (message.offset, message.size, message.data) == (offset, 10, data)
        effects = node.hear("c", InstallSnapshotAnswer(1, 1, offset + 4, 1))
    node.hear("c", AppendEntriesAnswer(1, True, 1, 1, 1))
    assert node.node.leadership.progress["c"].match_index == 1


def test_a_snapshot_is_put_together_and_answered_when_the_disk_has_it() -> None:
    node = NodeUnderTest(terms=(1, 2), term=9, disk=False)
    (answer,) = sent(node.hear("b", part(5, 3, 0, 4, b"ab")), InstallSnapshotAnswer)
    assert answer.offset == 2
    (again,) = sent(node.hear("b", part(5, 3, 0, 4, b"ab")), InstallSnapshotAnswer)
    assert again.offset == 2
    effects = node.hear("b", part(5, 3, 2, 4, b"cd"))
    (persist,) = all_of(Persist, effects)
    assert persist.reset
    assert persist.snapshot == RaftSnapshot(5, 3, MEMBERS, b"abcd")
    assert sent(effects, AppendEntriesAnswer) == []
    effects = node.step(Persisted(persist.sequence))
    assert all_of(Restore, effects) == [Restore(persist.snapshot)]
    assert [one.index for one in sent(effects, AppendEntriesAnswer)] == [5]


def test_entries_behind_a_snapshot_of_the_same_history_stay() -> None:
    node = NodeUnderTest(terms=(1, 2, 2), term=9)
    node.hear("b", part(2, 2, 0, 0, b""))
    assert [one.index for one in node.node.log.entries] == [3]
    other = NodeUnderTest(terms=(1, 2, 2), term=9)
    other.hear("b", part(2, 3, 0, 0, b""))
    assert other.node.log.entries == []


def test_an_old_snapshot_is_not_installed() -> None:
    node = NodeUnderTest(terms=(1, 1), term=1)
    node.append(1, entry(2, 1), commit=2)
    (answer,) = sent(node.hear("b", part(1, 1, 0, 1, b"x")), AppendEntriesAnswer)
    assert (answer.accepted, answer.index) == (True, 2)
    assert node.node.log.snapshot.index == 0


def test_a_snapshot_has_a_limit() -> None:
    node = NodeUnderTest(term=9, settings=RaftSettings(snapshot_bytes_max=3))
    (answer,) = sent(node.hear("b", part(5, 3, 0, 9, b"abcd")), InstallSnapshotAnswer)
    assert answer.offset == 0


def test_a_node_starts_with_its_snapshot() -> None:
    snapshot = RaftSnapshot(2, 1, MEMBERS, b"s")
    node = NodeUnderTest(terms=(1, 1, 1), term=1, snapshot=snapshot)
    assert all_of(Restore, node.step(Tick())) == [Restore(snapshot)]
    assert all_of(Apply, node.append(1, entry(3, 1), commit=3)) == [Apply((entry(3, 1),))]


def test_entries_that_do_not_continue_the_stored_snapshot_leave_the_disk() -> None:
    """The crash came between the writing of the snapshot and the cut of the log."""
    snapshot = RaftSnapshot(2, 3, MEMBERS, b"s")
    node = NodeUnderTest(terms=(1, 1, 1), term=3, snapshot=snapshot)
    (persist,) = all_of(Persist, node.step(Tick()))
    assert (persist.reset, persist.entries) == (True, ())


def test_a_gap_behind_the_snapshot_is_an_error() -> None:
    with pytest.raises(ValueError, match="log begins at 4, behind a snapshot of 2"):
        RaftLog(RaftSnapshot(2, 1, MEMBERS), log_of(1, 1, 1, 1)[3:])
