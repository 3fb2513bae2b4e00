"""Raft with one rule broken, in many ways: the simulation must find each of them.

A mutant replaces one attribute of one class. ``MUTANTS`` gives the rule that is broken.
"""

from __future__ import annotations

import math
from typing import Any

import attrs

from triomq.namesrv.controller.raft.configuration import Configuration
from triomq.namesrv.controller.raft.leadership import Leadership
from triomq.namesrv.controller.raft.log import RaftLog
from triomq.namesrv.controller.raft.messages import HardState
from triomq.namesrv.controller.raft.node import RaftNode
from triomq.namesrv.controller.raft.state import RaftState


@attrs.frozen
class RaftMutant:
    owner: type
    attribute: str
    broken: Any
    also: RaftMutant | None = None


def _always(value: object) -> Any:
    return lambda *args, **kwargs: value


def _answers_before_entries_are_durable(state: Any, index: int) -> int:
    return int(state._hard_state_sequence)


def _answers_before_votes_are_durable(state: Any, index: int) -> int:
    return int(state._sequence if index > state.durable_index else 0)


def _keeps_a_higher_term_in_memory(state: Any, term: int, voted_for: str) -> None:
    state.hard_state = HardState(term, voted_for)


def _has_any_previous(node: Any, index: int, term: int) -> bool:
    return bool(index <= node.log.last_index)


def _cuts_behind_every_message(node: Any, message: Any) -> None:
    if message.entries:
        node.state.append(message.entries)


_campaign, _init, _append = RaftNode._campaign, RaftNode.__init__, RaftLog.append
_keeps_out, _commit_to = RaftNode._keeps_out, RaftState.commit_to


def _campaigns_at_once(node: Any, now: float, *, pre: bool, transfer: bool = False) -> None:
    _campaign(node, now, pre=False, transfer=transfer)


def _forgets_the_leader_at_a_start(node: Any, *args: Any) -> None:
    _init(node, *args)
    node._heard_leader_at = -math.inf


def _ignores_the_first_entry(leadership: Any) -> bool:
    state = leadership.state
    return bool(state.commit_index < state.log.configurations[-1][0])


def _keeps_cut_configurations(log: Any, entries: Any) -> None:
    before = list(log.configurations)
    _append(log, entries)
    log.configurations = before + [at for at in log.configurations if at not in before]


def _keeps_entries_behind_any_snapshot(log: Any, snapshot: Any) -> bool:
    log.entries = log.entries[snapshot.index - log.snapshot.index :]
    later = [at for at in log.configurations if at[0] > snapshot.index]
    log.configurations = [(snapshot.index, snapshot.configuration), *later]
    log.snapshot = snapshot
    return False


def _forgets_whom_it_voted_for(node: Any, sender: str, message: Any) -> bool:
    kept_out: bool = _keeps_out(node, sender, message)
    if not kept_out and node.state.hard_state.voted_for == sender:
        node.state.set_hard_state(message.term, "")
    return kept_out


def _counts_learners(configuration: Any, values: dict[str, int]) -> int:
    reached = sorted((values.get(one, -1) for one in configuration.members), reverse=True)
    return reached[configuration.majority - 1]


def _counts_one_less(configuration: Any, values: dict[str, int]) -> int:
    reached = sorted((values.get(one, -1) for one in configuration.voters), reverse=True)
    return reached[max(0, configuration.majority - 2)]


def _notes_what_is_committed(state: Any, index: int) -> None:
    _commit_to(state, index)
    state.log.seen_commit = state.commit_index


def _valid_when_committed(log: Any) -> Configuration:
    at = max(log.snapshot.index, getattr(log, "seen_commit", 0))
    return RaftLog.configuration_at(log, at)


MUTANTS = {
    "a voter has one vote in a term": RaftMutant(RaftNode, "_may_vote_for", _always(True)),
    "a voter refuses a shorter log": RaftMutant(RaftLog, "is_up_to_date", _always(True)),
    "votes are durable before they are answered": RaftMutant(
        RaftState, "_needed_sequence", _answers_before_votes_are_durable
    ),
    "entries are durable before they are answered": RaftMutant(
        RaftState, "_needed_sequence", _answers_before_entries_are_durable
    ),
    "terms are durable": RaftMutant(RaftState, "set_hard_state", _keeps_a_higher_term_in_memory),
    "a leader counts itself when its disk has the entry": RaftMutant(
        Leadership, "_own_match_index", property(lambda self: self.state.log.last_index)
    ),
    "an entry that is cut is not durable": RaftMutant(
        RaftState, "_not_durable_from", _always(None)
    ),
    "only entries of the own term are counted": RaftMutant(
        Leadership, "_is_of_own_term", _always(True)
    ),
    "a majority commits": RaftMutant(Configuration, "quorum_value", _counts_one_less),
    "learners do not count": RaftMutant(Configuration, "quorum_value", _counts_learners),
    "entries continue an equal one": RaftMutant(RaftNode, "_has_previous", _has_any_previous),
    "only a conflict cuts the log": RaftMutant(
        RaftNode, "_take_entries", _cuts_behind_every_message
    ),
    "a follower commits what is equal": RaftMutant(
        RaftNode, "_surely_committed", staticmethod(lambda commit_index, equal: commit_index)
    ),
    "a pre-vote comes before a term": RaftMutant(RaftNode, "_campaign", _campaigns_at_once),
    "no vote while a leader is heard": RaftMutant(RaftNode, "_hears_a_leader", _always(False)),
    "no vote soon after a start": RaftMutant(RaftNode, "__init__", _forgets_the_leader_at_a_start),
    "a leader without a majority steps down": RaftMutant(Leadership, "lost_quorum", _always(False)),
    "a transfer ends the lease": RaftMutant(
        Leadership, "lease_is_broken", property(_always(False), _always(None))
    ),
    "a read needs a lease or a round": RaftMutant(Leadership, "has_lease", _always(True)),
    "a read needs the first entry of the term": RaftMutant(
        Leadership, "_read_index", property(lambda self: self.state.commit_index)
    ),
    "one change of the configuration at a time": RaftMutant(
        Leadership, "_change_is_open", _always(False)
    ),
    "a change needs a committed entry of the term": RaftMutant(
        Leadership, "_change_is_open", _ignores_the_first_entry
    ),
    "a learner counts when it has caught up": RaftMutant(
        Leadership, "_has_caught_up", _always(True)
    ),
    "a configuration is valid when it is appended": RaftMutant(
        RaftLog,
        "configuration",
        property(_valid_when_committed),
        RaftMutant(RaftState, "commit_to", _notes_what_is_committed),
    ),
    "an empty disk keeps out of a group that has begun": RaftMutant(
        RaftNode, "_keeps_out", _always(False)
    ),
    "a group begins with all of its voters": RaftMutant(
        RaftNode, "_votes_needed", lambda node: node.log.configuration.majority
    ),
    "a learner with a new disk has voted for its leader": RaftMutant(
        RaftNode, "_keeps_out", _forgets_whom_it_voted_for
    ),
    "a configuration that is cut is not valid": RaftMutant(
        RaftLog, "append", _keeps_cut_configurations
    ),
    "a snapshot replaces a log of another history": RaftMutant(
        RaftLog, "compact", _keeps_entries_behind_any_snapshot
    ),
    "a log that does not continue its snapshot is dropped": RaftMutant(
        RaftState, "_begins_anew", _always(False)
    ),
}
