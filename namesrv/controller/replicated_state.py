"""One controller's copy of the state: a Raft node, and the state that its commands make. Pure.

``step`` takes an event of the node and returns what is left to do: writes, messages, answers.
"""

from __future__ import annotations

import attrs
import msgspec

from triomq.namesrv.controller.commands import Command
from triomq.namesrv.controller.raft.events import (
    Apply,
    Persist,
    ProposalAppended,
    RaftEvent,
    RaftRole,
    ReadReady,
    RefusalReason,
    RequestRefused,
    Restore,
    RoleChanged,
    Send,
    SnapshotTaken,
)
from triomq.namesrv.controller.raft.messages import EntryKind
from triomq.namesrv.controller.raft.node import RaftNode
from triomq.namesrv.controller.state import ControllerState, restore
from triomq.namesrv.controller.transitions import Applied, apply

SNAPSHOT_ENTRIES = 1000
"""Entries between two snapshots: the log stays short, and a snapshot of 1,000 groups costs 10 ms"""

_decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)


def encode_command(command: Command) -> bytes:
    """Return the data of the log entry of a command."""
    return msgspec.msgpack.encode(command)


Answer = Applied | RefusalReason | None
"""To a command: what it did, or why it was not done. To a read or a change of the members: None, or
why it must not be.
"""


@attrs.define(eq=False)
class StepResult:
    """What the caller does after a step. ``answers``: number of a request -> its answer."""

    writes: list[Persist] = attrs.field(factory=list)
    sends: list[Send] = attrs.field(factory=list)
    answers: dict[int, Answer] = attrs.field(factory=dict)


@attrs.define(eq=False)
class ReplicatedState:
    """``state``: what the commands up to ``applied_index`` have made; they survive a crash."""

    node: RaftNode
    state: ControllerState = attrs.field(factory=ControllerState)
    applied_index: int = 0
    _proposals: dict[tuple[int, int], int] = attrs.field(factory=dict, init=False)
    """Index and term of an entry -> number of the request that it belongs to."""

    def step(self, event: RaftEvent, now: float) -> StepResult:
        """Take one event. ``now``: seconds of a steady clock, read after the event came.

        Raises: RaftInvariantBroken, msgspec.ValidationError, ValueError: the process must end.
        """
        outcome = StepResult()
        self._take(event, now, outcome)
        if self.applied_index - self.node.log.snapshot.index >= SNAPSHOT_ENTRIES:
            taken = SnapshotTaken(self.applied_index, self.state.snapshot())
            self._take(taken, now, outcome)
        return outcome

    def _take(self, event: RaftEvent, now: float, outcome: StepResult) -> None:
        for effect in self.node.step(event, now):
            match effect:
                case Persist():
                    outcome.writes.append(effect)
                case Send():
                    outcome.sends.append(effect)
                case Restore(snapshot):
                    self.state = restore(snapshot.data)
                    self.applied_index = snapshot.index
                case Apply():
                    self._apply(effect, outcome)
                case ProposalAppended(request, index, term):
                    self._proposals[index, term] = request
                case ReadReady(request):
                    outcome.answers[request] = None
                case RequestRefused(request, reason):
                    outcome.answers[request] = reason
                case RoleChanged(role) if role is not RaftRole.LEADER:
                    # They may still be committed by the next leader: their makers ask again there.
                    for request in self._proposals.values():
                        outcome.answers[request] = RefusalReason.LOST_LEADERSHIP
                    self._proposals.clear()

    def _apply(self, effect: Apply, outcome: StepResult) -> None:
        for entry in effect.entries:
            request = self._proposals.pop((entry.index, entry.term), None)
            self.applied_index = entry.index
            if entry.kind is not EntryKind.COMMAND:
                if request is not None:
                    outcome.answers[request] = None
                continue
            applied = apply(self.state, _decoder.decode(entry.data))
            self.state = applied.state
            if request is not None:
                outcome.answers[request] = applied
