"""One member of a Raft group: ``step(event, now)`` returns what is to be done.

The clock is the caller's steady clock, in seconds; chance is an argument. The caller does the
effects in their order, forces what ``Persist`` asks for out to the disk, and calls ``step`` with
``Tick`` at ``next_tick``. While a ``Persist`` is under way, other effects and later steps go on;
``Persist`` effects are done one after the other, or several with one fsync.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from triomq.namesrv.controller.raft.configuration import Configuration
from triomq.namesrv.controller.raft.events import (
    ChangeConfiguration,
    MessageReceived,
    Persisted,
    Propose,
    RaftEffect,
    RaftEvent,
    RaftRole,
    ReadIndex,
    RefusalReason,
    RequestRefused,
    RoleChanged,
    SnapshotTaken,
    Tick,
    TransferLeadership,
)
from triomq.namesrv.controller.raft.leadership import Leadership
from triomq.namesrv.controller.raft.messages import (
    AnyRaftMessage,
    AppendEntries,
    AppendEntriesAnswer,
    InstallSnapshot,
    InstallSnapshotAnswer,
    RaftSnapshot,
    RequestVote,
    RequestVoteAnswer,
    TimeoutNow,
)
from triomq.namesrv.controller.raft.settings import RaftSettings
from triomq.namesrv.controller.raft.state import (
    RaftInvariantBroken,
    RaftState,
    StoredState,
)


class RaftNode:
    """``jitter``: returns a random number in [0, 1), which spreads the campaigns of the members."""

    def __init__(
        self,
        node_id: str,
        settings: RaftSettings,
        stored: StoredState,
        now: float,
        jitter: Callable[[], float],
    ) -> None:
        self.node_id = node_id
        self.settings = settings
        self.state = RaftState(node_id, settings, stored)
        self.log = self.state.log
        self.role = RaftRole.FOLLOWER
        self.leader = ""
        self.leadership: Leadership | None = None
        self._jitter = jitter
        self._votes: set[str] = set()
        self._heard_leader_at = now
        """A node that starts may have heard of a leader just before it ended."""
        self._election_at = 0.0
        self.waits_to_be_added = False
        """Whether this node keeps out of a group that has begun: its disk is empty."""
        self._snapshot_part = bytearray()
        self._snapshot_part_of = (0, 0)
        self._wait_for_election(now)
        if self.log.configuration.voters == (node_id,):
            self._election_at = now

    @property
    def term(self) -> int:
        return self.state.term

    @property
    def is_ready(self) -> bool:
        """Return whether this node leads, and has applied all that earlier leaders committed."""
        leadership = self.leadership
        return leadership is not None and self.state.applied_index >= leadership.start_index

    @property
    def next_tick(self) -> float:
        """Return the time of the steady clock at which ``step`` is next called with ``Tick``."""
        return self._election_at if self.leadership is None else self.leadership.next_tick

    def step(self, event: RaftEvent, now: float) -> list[RaftEffect]:
        """Take one event; return its effects in the order in which they are to be done.

        ``now``: seconds of the steady clock, read after the event came.

        Raises: RaftInvariantBroken, msgspec.ValidationError (an entry of a configuration that
        nothing can read).
        """
        before = self.role, self.term, self.leader
        self._tick(now)
        match event:
            case Tick():
                pass
            case MessageReceived():
                self._receive(event.sender, event.message, now)
            case Persisted():
                self._persisted(event.sequence, now)
            case SnapshotTaken():
                self._snapshot_taken(event)
            case Propose() | ChangeConfiguration() | TransferLeadership() | ReadIndex():
                self._request(event, now)
            case _:
                assert_never(event)
        self._advance()
        if (self.role, self.term, self.leader) != before:
            self.state.effects.append(RoleChanged(self.role, self.term, self.leader))
        return self.state.take_effects()

    def _advance(self) -> None:
        """Apply what is committed, and let the leader send what is new."""
        leadership = self.leadership
        if leadership is not None:
            leadership.advance_commit()
        self.state.apply()
        if leadership is not None:
            leadership.answer_reads()
            leadership.replicate()
            if leadership.is_removed:
                self._become_follower(self.term, "")

    def _tick(self, now: float) -> None:
        if self.leadership is not None:
            if self.leadership.lost_quorum(now):
                self._become_follower(self.term, "")
                self._wait_for_election(now)
            else:
                self.leadership.tick(now)
        elif now >= self._election_at:
            self._wait_for_election(now)
            if self._may_campaign():
                self._campaign(now, pre=True)

    def _request(
        self,
        event: Propose | ChangeConfiguration | TransferLeadership | ReadIndex,
        now: float,
    ) -> None:
        leadership = self.leadership
        if leadership is None:
            self.state.effects.append(
                RequestRefused(event.request, RefusalReason.NOT_LEADER, self.leader)
            )
        elif isinstance(event, Propose):
            leadership.propose(event)
        elif isinstance(event, ChangeConfiguration):
            leadership.change_configuration(event, now)
        elif isinstance(event, TransferLeadership):
            leadership.transfer(event, now)
        else:
            leadership.read(event, now)

    # Elections

    def _wait_for_election(self, now: float) -> None:
        self._election_at = now + self.settings.election_seconds * (1 + self._jitter())

    def _may_campaign(self) -> bool:
        """Return whether this node votes, or did in the newest configuration that is committed: it
        may be the only one that has the entry which removes it.
        """
        committed = self.log.configuration_at(self.state.commit_index)
        return self.node_id in self.log.configuration.voters + committed.voters

    def _campaign(self, now: float, *, pre: bool, transfer: bool = False) -> None:
        """Ask the voters. A pre-vote changes nothing, so a node that was cut off and comes back
        does not depose a leader that works.
        """
        self.role = RaftRole.PRE_CANDIDATE if pre else RaftRole.CANDIDATE
        self.leader = ""
        self._votes = {self.node_id} if pre else set()
        if not pre:
            self.state.set_hard_state(self.term + 1, self.node_id)
        request = RequestVote(
            self.term + 1 if pre else self.term,
            self.log.last_index,
            self.log.last_term,
            pre,
            transfer,
        )
        for voter in self.log.configuration.voters:
            if voter != self.node_id:
                self.state.send(voter, request)
        self._count_votes(now)

    def _count_votes(self, now: float) -> None:
        voters = self.log.configuration.voters
        if sum(voter in self._votes for voter in voters) < self._votes_needed():
            return
        if self.role is RaftRole.PRE_CANDIDATE:
            self._campaign(now, pre=False)
        elif self.role is RaftRole.CANDIDATE:
            self.role = RaftRole.LEADER
            self.leader = self.node_id
            self.leadership = Leadership(self.state, now)

    def _votes_needed(self) -> int:
        """Return a majority; all voters while the log is empty. Once a group has begun, each of
        them has been in a term, so one that has not has lost its disk.
        """
        configuration = self.log.configuration
        return configuration.majority if self.log.last_index else len(configuration.voters)

    @property
    def is_new(self) -> bool:
        """Return whether the disk of this voter is empty: before the group begins, or since it was
        lost with votes and entries that others count on.
        """
        empty = not self.term and not self.log.last_index
        return empty and self.node_id in self.log.configuration.voters

    def _keeps_out(self, sender: str, message: AnyRaftMessage) -> bool:
        """Return whether a node with an empty disk must not take a message of a group that has
        begun. As a learner it may: it promises nothing until the leader has it as a voter.
        """
        match message:
            case RequestVote():
                keeps_out = message.last_index > 0
            case RequestVoteAnswer():
                keeps_out = not message.granted
            case AppendEntries() | InstallSnapshot():
                keeps_out = not message.learner
            case _:
                keeps_out = True
        self.waits_to_be_added |= keeps_out
        if isinstance(message, AppendEntries | InstallSnapshot) and message.learner:
            # Whom it voted for in this term is lost: it votes for no other than who leads.
            self.state.set_hard_state(message.term, sender)
            self.state.compact(RaftSnapshot(0, 0, Configuration(())))
            self.waits_to_be_added = False
        return keeps_out

    def _become_follower(self, term: int, leader: str) -> None:
        if self.leadership is not None:
            self.leadership.refuse_reads()
            self.leadership = None
        self.role = RaftRole.FOLLOWER
        self.leader = leader
        if term > self.term:
            self.state.set_hard_state(term, "")

    def _hears_a_leader(self, now: float) -> bool:
        """Return whether a leader may still have its lease with the help of this node."""
        return self.leadership is not None or (
            now - self._heard_leader_at < self.settings.election_seconds
        )

    def _on_request_vote(self, candidate: str, request: RequestVote, now: float) -> None:
        granted = self.log.is_up_to_date(request.last_index, request.last_term) and (
            request.term > self.term if request.pre else self._may_vote_for(candidate)
        )
        if granted and not request.pre:
            self.state.set_hard_state(self.term, candidate)
            self._wait_for_election(now)
        term = request.term if granted else self.term
        self.state.send(candidate, RequestVoteAnswer(term, granted, request.pre))

    def _may_vote_for(self, candidate: str) -> bool:
        return self.state.hard_state.voted_for in ("", candidate)

    # Messages

    def _receive(self, sender: str, message: AnyRaftMessage, now: float) -> None:
        if isinstance(message, RequestVote) and not message.transfer and self._hears_a_leader(now):
            return  # a leader works: neither the vote nor the term of a candidate counts
        if self.is_new and self._keeps_out(sender, message):
            return
        if message.term < self.term:
            self._answer_old_term(sender, message)
            return
        is_pre_vote = isinstance(message, RequestVote | RequestVoteAnswer) and message.pre
        is_refused_pre_vote = isinstance(message, RequestVoteAnswer) and not message.granted
        if message.term > self.term and (not is_pre_vote or is_refused_pre_vote):
            self._become_follower(message.term, "")
        leadership = self.leadership
        match message:
            case RequestVote():
                self._on_request_vote(sender, message, now)
            case RequestVoteAnswer():
                self._on_vote(sender, message, now)
            case AppendEntries():
                self._follow(sender, now)
                self._on_append_entries(sender, message)
            case InstallSnapshot():
                self._follow(sender, now)
                self._on_install_snapshot(sender, message)
            case AppendEntriesAnswer():
                if leadership is not None:
                    leadership.on_append_answer(sender, message, now)
            case InstallSnapshotAnswer():
                if leadership is not None:
                    leadership.on_snapshot_answer(sender, message, now)
            case TimeoutNow():
                if leadership is None and self.node_id in self.log.configuration.voters:
                    self._wait_for_election(now)
                    self._campaign(now, pre=False, transfer=True)
            case _:
                assert_never(message)

    def _answer_old_term(self, sender: str, message: AnyRaftMessage) -> None:
        """Tell a leader or candidate of an earlier term that its term is over."""
        if isinstance(message, RequestVote):
            self.state.send(sender, RequestVoteAnswer(self.term, False, message.pre))
        elif isinstance(message, AppendEntries | InstallSnapshot):
            self.state.send(sender, AppendEntriesAnswer(self.term, False, 0, 0, message.round))

    def _on_vote(self, voter: str, answer: RequestVoteAnswer, now: float) -> None:
        asked = RaftRole.PRE_CANDIDATE if answer.pre else RaftRole.CANDIDATE
        term = self.term + 1 if answer.pre else self.term
        if self.role is asked and answer.granted and answer.term == term:
            self._votes.add(voter)
            self._count_votes(now)

    def _follow(self, leader: str, now: float) -> None:
        if self.leadership is not None:
            raise RaftInvariantBroken(f"{leader} and {self.node_id} lead in term {self.term}")
        self._become_follower(self.term, leader)
        self._heard_leader_at = now
        self._wait_for_election(now)

    def _on_append_entries(self, leader: str, message: AppendEntries) -> None:
        previous = message.previous_index
        if previous < self.state.commit_index:
            # What is committed is equal at the leader: go on behind it.
            self._answer(leader, True, self.state.commit_index, previous, message.round)
        elif not self._has_previous(previous, message.previous_term):
            hint = min(previous - 1, self.log.last_index)
            while hint > self.state.commit_index and (
                self.log.term_at(hint) > message.previous_term
            ):
                hint -= 1
            self._answer(leader, False, hint, previous, message.round)
        else:
            self._take_entries(message)
            last = previous + len(message.entries)
            self.state.commit_to(self._surely_committed(message.commit_index, last))
            self._answer(leader, True, last, previous, message.round)

    def _has_previous(self, index: int, term: int) -> bool:
        return self.log.term_at(index) == term

    @staticmethod
    def _surely_committed(commit_index: int, equal_up_to: int) -> int:
        """Return as far as this log has what the leader committed: behind ``equal_up_to`` this log
        may have entries of another leader.
        """
        return min(commit_index, equal_up_to)

    def _take_entries(self, message: AppendEntries) -> None:
        """Add the entries that this log does not have. Only an entry of another term cuts the log:
        a delayed message with fewer entries must not drop later ones.
        """
        for position, entry in enumerate(message.entries):
            if self.log.term_at(entry.index) != entry.term:
                self.state.append(message.entries[position:])
                return

    def _answer(
        self, leader: str, accepted: bool, index: int, previous: int, heard_round: int
    ) -> None:
        answer = AppendEntriesAnswer(self.term, accepted, index, previous, heard_round)
        self.state.send(leader, answer, index=index if accepted else 0)

    # Snapshots and the disk

    def _on_install_snapshot(self, leader: str, message: InstallSnapshot) -> None:
        index, committed = message.snapshot_index, self.state.commit_index
        if index <= committed:
            self._answer(leader, True, committed, index, message.round)
            return
        if self._snapshot_part_of != (index, message.snapshot_term):
            self._snapshot_part_of = (index, message.snapshot_term)
            self._snapshot_part = bytearray()
        part = self._snapshot_part
        end = message.offset + len(message.data)
        if message.offset == len(part) and end <= self.settings.snapshot_bytes_max:
            part += message.data
        if len(part) < message.size:
            answer = InstallSnapshotAnswer(self.term, index, len(part), message.round)
            self.state.send(leader, answer)
            return
        snapshot = RaftSnapshot(index, message.snapshot_term, message.configuration, bytes(part))
        self._snapshot_part, self._snapshot_part_of = bytearray(), (0, 0)
        self.state.compact(snapshot)
        self.state.commit_to(index)
        self._answer(leader, True, index, index, message.round)

    def _snapshot_taken(self, event: SnapshotTaken) -> None:
        """Drop the entries that the application's snapshot covers."""
        if event.index > self.state.applied_index:
            raise RaftInvariantBroken(
                f"snapshot at {event.index}, applied is {self.state.applied_index}"
            )
        if event.index > self.log.snapshot.index:
            self.state.compact(
                RaftSnapshot(
                    event.index,
                    self.log.term_at(event.index),
                    self.log.configuration_at(event.index),
                    event.data,
                )
            )

    def _persisted(self, sequence: int, now: float) -> None:
        """Note what is durable. A candidate counts its own vote only now: a node that forgot its
        vote in a crash could otherwise vote twice in one term.
        """
        self.state.persisted(sequence)
        if self.role is RaftRole.CANDIDATE and self.state.hard_state_is_durable:
            self._votes.add(self.node_id)
            self._count_votes(now)
