"""What a leader does in its term: copy its log to the members, commit, prove that it still leads.

An object of this class lives as long as one leader in one term, so nothing of an earlier term can
be counted in a later one.
"""

from __future__ import annotations

import math

import attrs

from triomq.namesrv.controller.raft.configuration import (
    Configuration,
    ConfigurationChange,
    encode_configuration,
)
from triomq.namesrv.controller.raft.events import (
    ChangeConfiguration,
    ProposalAppended,
    Propose,
    ReadIndex,
    ReadReady,
    RefusalReason,
    RequestRefused,
    TransferBegun,
    TransferLeadership,
)
from triomq.namesrv.controller.raft.messages import (
    AppendEntries,
    AppendEntriesAnswer,
    EntryKind,
    InstallSnapshot,
    InstallSnapshotAnswer,
    LogEntry,
    TimeoutNow,
)
from triomq.namesrv.controller.raft.state import RaftState


@attrs.define
class FollowerProgress:
    """What the leader knows of one member. Invariant: ``match_index < next_index``."""

    next_index: int
    match_index: int = 0
    """The member's disk has the leader's log up to here."""
    answered_round: int = -1
    batch_in_flight: bool = False
    """Whether entries or a part of a snapshot are under way: one message at a time."""
    snapshot_index: int = 0
    snapshot_offset: int = 0


@attrs.frozen
class _WaitingRead:
    request: int
    round: int
    index: int


class Leadership:
    def __init__(self, state: RaftState, now: float) -> None:
        self.state = state
        self.started_at = now
        self.progress: dict[str, FollowerProgress] = {}
        self._configuration: Configuration | None = None
        """That of ``progress``."""
        self.round = 0
        self.round_started: dict[int, float] = {}
        """When each round of heartbeats of the last ``election_seconds`` began."""
        self.heartbeat_at = now
        self.transfer_target = ""
        self.transfer_until = 0.0
        self.lease_is_broken = False
        """Whether another member was asked to campaign in spite of the lease."""
        self.reads: list[_WaitingRead] = []
        self.start_index = state.log.last_index + 1
        if state.log.last_index:
            self._append(EntryKind.NO_OP, b"")
        else:  # from here on the log says who votes, whatever the settings of others say
            data = encode_configuration(state.log.configuration)
            self._append(EntryKind.CONFIGURATION, data)
        self.broadcast(now)

    # Time

    def tick(self, now: float) -> None:
        if self.transfer_target and now >= self.transfer_until:
            self.transfer_target = ""
        if now >= self.heartbeat_at:
            self.broadcast(now)

    @property
    def next_tick(self) -> float:
        times = [self.heartbeat_at, self._quorum_ends_at]
        return min(times + ([self.transfer_until] if self.transfer_target else []))

    @property
    def quorum_round(self) -> int:
        """Return the newest round that a majority of voters, this one included, has answered."""
        rounds = {peer: progress.answered_round for peer, progress in self.progress.items()}
        rounds[self.state.node_id] = self.round
        return self.state.log.configuration.quorum_value(rounds)

    @property
    def quorum_time(self) -> float:
        """Return when that round began: until then this node surely was the only leader. Minus
        infinity if no majority answered a round of the last ``election_seconds``.
        """
        return self.round_started.get(self.quorum_round, -math.inf)

    def lost_quorum(self, now: float) -> bool:
        """Return whether a majority may have another leader by now."""
        if self.state.log.configuration.voters == (self.state.node_id,):
            return False
        return now >= self._quorum_ends_at

    @property
    def _quorum_ends_at(self) -> float:
        """Return ``election_seconds`` after the newest round, before the first after the election.

        ``next_tick`` and ``lost_quorum`` need the same number: with a rounding between them, a tick
        would come and change nothing, again and again.
        """
        return max(self.started_at, self.quorum_time) + self.state.settings.election_seconds

    def has_lease(self, now: float) -> bool:
        """Return whether no other node can have been elected yet."""
        lease = self.state.settings.lease_seconds
        return not self.lease_is_broken and now < self.quorum_time + lease

    @property
    def is_removed(self) -> bool:
        """Return whether a committed entry has taken this node out of the voters."""
        state = self.state
        return (
            state.log.configurations[-1][0] <= state.commit_index
            and state.node_id not in state.log.configuration.voters
        )

    # Copying the log

    def broadcast(self, now: float) -> None:
        """Begin a round of heartbeats; what is under way to a member is sent again."""
        self.round += 1
        self.round_started[self.round] = now
        oldest = now - self.state.settings.election_seconds
        for old in [at for at, began in self.round_started.items() if began < oldest]:
            del self.round_started[old]
        self.heartbeat_at = now + self.state.settings.heartbeat_seconds
        self._update_members()
        for peer, progress in self.progress.items():
            progress.batch_in_flight = False
            self._send_log(peer, progress)

    def replicate(self) -> None:
        """Send new entries to the members that have nothing under way."""
        self._update_members()
        for peer, progress in self.progress.items():
            if not progress.batch_in_flight and progress.next_index <= self.state.log.last_index:
                self._send_log(peer, progress)

    def _update_members(self) -> None:
        configuration = self.state.log.configuration
        if configuration is not self._configuration:
            self._configuration = configuration
            self.progress = {
                member: self.progress.get(member) or FollowerProgress(next_index=self.start_index)
                for member in configuration.members
                if member != self.state.node_id
            }

    def _send_log(self, peer: str, progress: FollowerProgress) -> None:
        log, settings = self.state.log, self.state.settings
        previous = progress.next_index - 1
        if previous < log.snapshot.index:
            self._send_snapshot(peer, progress)
            return
        entries = log.batch(
            progress.next_index, settings.batch_entries_max, settings.batch_bytes_max
        )
        progress.batch_in_flight = bool(entries)
        self.state.send(
            peer,
            AppendEntries(
                self.state.term,
                previous,
                log.term_at(previous),
                entries,
                self.state.commit_index,
                self.round,
                peer in log.configuration.learners,
            ),
        )

    def _send_snapshot(self, peer: str, progress: FollowerProgress) -> None:
        snapshot = self.state.log.snapshot
        if progress.snapshot_index != snapshot.index:
            progress.snapshot_index, progress.snapshot_offset = snapshot.index, 0
        offset = progress.snapshot_offset
        progress.batch_in_flight = True
        self.state.send(
            peer,
            InstallSnapshot(
                self.state.term,
                snapshot.index,
                snapshot.term,
                snapshot.configuration,
                offset,
                len(snapshot.data),
                snapshot.data[offset : offset + self.state.settings.batch_bytes_max],
                self.round,
                peer in self.state.log.configuration.learners,
            ),
        )

    def on_append_answer(self, peer: str, answer: AppendEntriesAnswer, now: float) -> None:
        progress = self._heard(peer, answer.round)
        if progress is None:
            return
        if answer.accepted:
            progress.match_index = max(progress.match_index, answer.index)
            if progress.next_index <= answer.index + 1:
                progress.next_index = answer.index + 1
                progress.batch_in_flight = False
            self.advance_commit()
        elif (
            answer.previous_index == progress.next_index - 1
            and answer.round == progress.answered_round
        ):
            # A member that begins empty lacks what it once had. To count less of it is safe.
            progress.match_index = min(progress.match_index, answer.index)
            progress.next_index = answer.index + 1
            progress.batch_in_flight = False
            self._send_log(peer, progress)
        self._continue(peer, progress, now)

    def on_snapshot_answer(self, peer: str, answer: InstallSnapshotAnswer, now: float) -> None:
        progress = self._heard(peer, answer.round)
        if progress is None:
            return
        if (
            answer.snapshot_index == progress.snapshot_index
            and answer.offset != progress.snapshot_offset
            and progress.next_index <= progress.snapshot_index
        ):
            progress.snapshot_offset = answer.offset
            self._send_snapshot(peer, progress)
        self._continue(peer, progress, now)

    def _heard(self, peer: str, answered_round: int) -> FollowerProgress | None:
        progress = self.progress.get(peer)
        if progress is not None:
            progress.answered_round = max(progress.answered_round, answered_round)
        return progress

    def _continue(self, peer: str, progress: FollowerProgress, now: float) -> None:
        """Do what an answer makes possible."""
        newest = self.quorum_round
        if self.transfer_target == peer and progress.match_index == self.state.log.last_index:
            self.lease_is_broken = True
            self.state.send(peer, TimeoutNow(self.state.term))
        if newest == self.round and any(read.round > newest for read in self.reads):
            self.broadcast(now)

    def advance_commit(self) -> None:
        """Commit what a majority has on its disks, if its last entry is of this leader's term: an
        entry of an earlier term can be on a majority and still be replaced (figure 8 of the paper).
        """
        state = self.state
        matched = {peer: progress.match_index for peer, progress in self.progress.items()}
        matched[state.node_id] = self._own_match_index
        index = state.log.configuration.quorum_value(matched)
        if index > state.commit_index and self._is_of_own_term(index):
            state.commit_to(index)

    @property
    def _own_match_index(self) -> int:
        """Return how far this node's own disk has the log: it counts like any other."""
        return self.state.durable_index

    def _is_of_own_term(self, index: int) -> bool:
        return self.state.log.term_at(index) == self.state.term

    # Requests

    def propose(self, event: Propose) -> None:
        if self.transfer_target:
            self._refuse(event.request, RefusalReason.TRANSFERRING)
        elif len(event.command) > self.state.settings.command_bytes_max:
            self._refuse(event.request, RefusalReason.TOO_LARGE)
        elif self._is_full():
            self._refuse(event.request, RefusalReason.BUSY)
        else:
            self._accept(event.request, EntryKind.COMMAND, event.command)

    def change_configuration(self, event: ChangeConfiguration, now: float) -> None:
        """Append a new configuration, which is valid at once.

        An entry of this term must be committed first: otherwise two leaders could each work with a
        change that the other does not know, and their majorities would not overlap.
        Source: Ongaro on raft-dev, "bug in single-server membership changes" (2015).
        """
        state = self.state
        changed = state.log.configuration.changed(event.change, event.node, event.addresses)
        if self.transfer_target:
            self._refuse(event.request, RefusalReason.TRANSFERRING)
        elif self._change_is_open():
            self._refuse(event.request, RefusalReason.CHANGE_IN_PROGRESS)
        elif changed is None:
            self._refuse(event.request, RefusalReason.NO_SUCH_CHANGE)
        elif event.change is ConfigurationChange.PROMOTE and not self._has_caught_up(event.node):
            self._refuse(event.request, RefusalReason.NOT_CAUGHT_UP)
        elif not self._is_answered_by(changed):
            self._refuse(event.request, RefusalReason.TOO_FEW_ANSWER)
        elif self._is_full():
            self._refuse(event.request, RefusalReason.BUSY)
        else:
            self._accept(event.request, EntryKind.CONFIGURATION, encode_configuration(changed))
            self.broadcast(now)

    def _change_is_open(self) -> bool:
        state = self.state
        return state.commit_index < max(self.start_index, state.log.configurations[-1][0])

    def _is_answered_by(self, configuration: Configuration) -> bool:
        """Return whether a majority of a configuration has answered in ``election_seconds``:
        otherwise nothing would be committed after the change, not even a change back.
        """
        heard = {
            peer: progress.answered_round in self.round_started
            for peer, progress in self.progress.items()
        }
        heard[self.state.node_id] = True
        return configuration.quorum_value(heard) > 0

    def _has_caught_up(self, node: str) -> bool:
        """Return whether one batch brings a learner to the end of the log."""
        progress = self.progress.get(node)
        gap = self.state.settings.batch_entries_max
        return (
            progress is not None
            and progress.match_index + gap >= self.state.log.last_index
            and progress.answered_round >= self.quorum_round
        )

    def _is_full(self) -> bool:
        uncommitted = self.state.log.last_index - self.state.commit_index
        return uncommitted >= self.state.settings.uncommitted_entries_max

    def transfer(self, event: TransferLeadership, now: float) -> None:
        """Stop taking proposals, and let the target campaign as soon as it has the whole log."""
        progress = self.progress.get(event.target)
        if self.transfer_target:
            self._refuse(event.request, RefusalReason.TRANSFERRING)
        elif progress is None or event.target not in self.state.log.configuration.voters:
            self._refuse(event.request, RefusalReason.NO_SUCH_CHANGE)
        else:
            self.transfer_target = event.target
            self.transfer_until = now + self.state.settings.election_seconds
            self.state.effects.append(TransferBegun(event.request))
            self._continue(event.target, progress, now)

    def read(self, event: ReadIndex, now: float) -> None:
        """Answer at once under a lease, otherwise after a round of heartbeats that begins now.

        The first entry of this term must be applied: before that, this node does not know how much
        of its log earlier leaders have committed.
        """
        if len(self.reads) >= self.state.settings.reads_max:
            self._refuse(event.request, RefusalReason.TOO_MANY_READS)
            return
        index = self._read_index
        in_round = 0 if self.has_lease(now) else self.round + 1
        self.reads.append(_WaitingRead(event.request, in_round, index))
        if in_round and self.quorum_round == self.round:
            self.broadcast(now)
        self.answer_reads()

    @property
    def _read_index(self) -> int:
        return max(self.state.commit_index, self.start_index)

    def answer_reads(self) -> None:
        if not self.reads:
            return
        answered, applied = self.quorum_round, self.state.applied_index
        waiting = []
        for read in self.reads:
            if read.round <= answered and read.index <= applied:
                self.state.effects.append(ReadReady(read.request))
            else:
                waiting.append(read)
        self.reads = waiting

    def refuse_reads(self) -> None:
        """Refuse the waiting reads: this node leads no more."""
        for read in self.reads:
            self._refuse(read.request, RefusalReason.LOST_LEADERSHIP)
        self.reads = []

    def _accept(self, request: int, kind: EntryKind, data: bytes) -> None:
        index = self._append(kind, data)
        self.state.effects.append(ProposalAppended(request, index, self.state.term))
        self.replicate()

    def _append(self, kind: EntryKind, data: bytes) -> int:
        index = self.state.log.last_index + 1
        self.state.append([LogEntry(index, self.state.term, kind, data)])
        return index

    def _refuse(self, request: int, reason: RefusalReason) -> None:
        self.state.effects.append(RequestRefused(request, reason, self.state.node_id))
