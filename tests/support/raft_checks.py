"""What must hold after each step of a simulated Raft group, whatever happens.

The checker sees all nodes at once. It compares only what a step has changed, so a check costs
little.
"""

from __future__ import annotations

import attrs
from raft_disk import RaftDisk

from triomq.namesrv.controller.raft.configuration import decode_configuration
from triomq.namesrv.controller.raft.events import (
    Apply,
    Persist,
    RaftEffect,
    RaftRole,
    Restore,
    RoleChanged,
    Send,
)
from triomq.namesrv.controller.raft.messages import EntryKind, LogEntry, RequestVoteAnswer
from triomq.namesrv.controller.raft.node import RaftNode


class RaftBroken(AssertionError):
    """A promise of Raft was broken. The message names the promise."""


@attrs.define
class RaftChecks:
    disks: dict[str, RaftDisk]
    leaders: dict[int, str] = attrs.field(factory=dict)
    votes: dict[tuple[str, int], str] = attrs.field(factory=dict)
    written: dict[tuple[int, int], tuple[LogEntry, int]] = attrs.field(factory=dict)
    """Index and term -> the entry, and the term of the entry before it."""
    committed: list[tuple[LogEntry, int]] = attrs.field(factory=list)
    """Entries from index 1 on, and the term in which each was first known as committed."""
    known_commit: dict[str, int] = attrs.field(factory=dict)
    applied: dict[str, int] = attrs.field(factory=dict)
    leading: set[str] = attrs.field(factory=set)
    """Nodes that led after their last step: one that commits its own removal leads no more."""

    def forget(self, node_id: str) -> None:
        """A node has crashed: it begins again."""
        self.known_commit.pop(node_id, None)
        self.applied.pop(node_id, None)

    def after_step(self, node: RaftNode, effects: list[RaftEffect]) -> None:
        known = self.known_commit.get(node.node_id, node.log.snapshot.index)
        if node.state.commit_index > known:
            self._committed_never_changes(node, known)
            self.known_commit[node.node_id] = node.state.commit_index
        self.leading.discard(node.node_id)
        if node.leadership is not None:
            self.leading.add(node.node_id)
        for effect in effects:
            match effect:
                case Persist():
                    self._log_matching(node, effect)
                    self._new_voters_have_the_log(node, effect)
                case Send(target, RequestVoteAnswer(term, True, False)):
                    self._one_vote(node.node_id, term, target)
                case RoleChanged(RaftRole.LEADER):
                    self._one_leader(node)
                    self._leader_completeness(node)
                case Restore(snapshot):
                    self.applied[node.node_id] = snapshot.index
                case Apply():
                    self._order_of_commands(node.node_id, effect.entries)

    def _log_matching(self, node: RaftNode, persist: Persist) -> None:
        """Equal index and term mean an equal entry behind an equal one, so equal logs before it."""
        before = persist.entries[0].index - 1 if persist.entries else 0
        previous = node.log.term_at(before)
        for entry in persist.entries:
            found = self.written.setdefault((entry.index, entry.term), (entry, previous))
            if found[0] != entry or (previous != -1 != found[1] and found[1] != previous):
                raise RaftBroken(f"log matching: {node.node_id} has {entry}, not {found}")
            previous = entry.term

    def _new_voters_have_the_log(self, node: RaftNode, persist: Persist) -> None:
        """A leader makes a voter of a learner that one message brings to the end of the log."""
        if node.leadership is None:
            return
        for entry in persist.entries:
            if entry.kind is EntryKind.CONFIGURATION:
                before = node.log.configuration_at(entry.index - 1).voters
                for voter in set(decode_configuration(entry.data).voters) - set(before):
                    has = self.disks[voter].last_index
                    if has + node.settings.batch_entries_max < entry.index - 1:
                        raise RaftBroken(f"new voter: {voter} has {has} of {entry.index} entries")

    def _one_vote(self, voter: str, term: int, candidate: str) -> None:
        if self.votes.setdefault((voter, term), candidate) != candidate:
            raise RaftBroken(f"one vote: {voter} votes twice in term {term}")

    def _one_leader(self, node: RaftNode) -> None:
        self._one_vote(node.node_id, node.term, node.node_id)
        if self.leaders.setdefault(node.term, node.node_id) != node.node_id:
            raise RaftBroken(f"one leader: {node.node_id} and {self.leaders[node.term]}")

    def _leader_completeness(self, node: RaftNode) -> None:
        for entry, term in reversed(self.committed):
            if term < node.term:
                if (
                    entry.index > node.log.snapshot.index
                    and node.log.term_at(entry.index) != entry.term
                ):
                    raise RaftBroken(f"leader completeness: {node.node_id} misses {entry}")
                return

    def _committed_never_changes(self, node: RaftNode, known: int) -> None:
        first = max(known, node.log.snapshot.index) + 1
        for entry in node.log.between(first, node.state.commit_index):
            if entry.index <= len(self.committed):
                if self.committed[entry.index - 1][0] != entry:
                    raise RaftBroken(f"committed entries: {node.node_id} has another {entry}")
                continue
            if entry.index != len(self.committed) + 1:
                raise RaftBroken(f"committed entries: {node.node_id} skips to {entry}")
            self.committed.append((entry, node.term))
            if node.leadership is None and node.node_id not in self.leading:
                raise RaftBroken(f"commit: {node.node_id} commits before the leader")
        last = node.log.term_at(node.state.commit_index)
        if node.leadership is not None:
            voters = node.log.configuration.voters
            having = sum(self.disks[one].has(node.state.commit_index, last) for one in voters)
            if having < node.log.configuration.majority:
                raise RaftBroken(f"durability: {node.state.commit_index} is on {having} disks")

    def _order_of_commands(self, node_id: str, entries: tuple[LogEntry, ...]) -> None:
        for entry in entries:
            if entry.index != self.applied.get(node_id, 0) + 1:
                raise RaftBroken(f"order: {node_id} applies {entry.index} out of order")
            self.applied[node_id] = entry.index
            if self.committed[entry.index - 1][0] != entry:
                raise RaftBroken(f"order: {node_id} applies another {entry}")
