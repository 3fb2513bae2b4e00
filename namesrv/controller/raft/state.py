"""What every role of a node has: term, vote, log, and the effects of the current step.

A message leaves only when the disk has what it promises: messages that speak for a term, a vote or
entries which are still on their way to the disk are held until ``Persisted``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import attrs

from triomq.namesrv.controller.raft.events import Apply, Persist, RaftEffect, Restore, Send
from triomq.namesrv.controller.raft.log import RaftLog
from triomq.namesrv.controller.raft.messages import (
    AnyRaftMessage,
    HardState,
    LogEntry,
    RaftSnapshot,
    RequestVote,
    RequestVoteAnswer,
)
from triomq.namesrv.controller.raft.settings import RaftSettings


class RaftInvariantBroken(AssertionError):
    """The log contradicts what is committed. The process must end: going on could lose more."""


@attrs.frozen
class StoredState:
    """What the disk of a node has when it starts.

    ``snapshot``: before the first one was taken, index 0 with the first configuration of the
    group; for a node that joins a running group, a configuration without voters.
    """

    hard_state: HardState
    snapshot: RaftSnapshot
    entries: Sequence[LogEntry] = ()


class RaftState:
    def __init__(self, node_id: str, settings: RaftSettings, stored: StoredState) -> None:
        self.node_id = node_id
        self.settings = settings
        self.log = RaftLog(stored.snapshot, stored.entries)
        self.hard_state = stored.hard_state
        if self.log.last_term > self.hard_state.term:
            # The entries reached the disk, their term did not: no vote of it was answered either.
            self.hard_state = HardState(self.log.last_term)
        self.commit_index = stored.snapshot.index
        self.applied_index = -1 if stored.snapshot.index else 0
        """-1: the application does not have the stored snapshot yet."""
        self.durable_index = self.log.last_index
        """As far as this disk has the log."""
        self.effects: list[RaftEffect] = []
        self._sequence = 0
        self._durable_sequence = 0
        self._hard_state_sequence = 0
        self._written: deque[tuple[int, int]] = deque()
        """Persist effects under way: their number, and the end of the log in them."""
        self._hard_state_changed = False
        self._snapshot_changed = False
        self._reset = self._begins_anew(stored)
        self._first_changed: int | None = None
        self._outgoing: list[tuple[str, AnyRaftMessage, int]] = []
        self._held: dict[tuple[str, type, bool], tuple[int, str, AnyRaftMessage]] = {}
        """Messages that wait for a Persist effect: the newest of each kind for each receiver, so a
        disk that hangs does not fill the memory.
        """

    def _begins_anew(self, stored: StoredState) -> bool:
        """Return whether the disk has only entries that do not continue its snapshot. They are
        dropped before new ones are written: behind the old ones, the next start would drop both.
        """
        return bool(stored.entries) and not self.log.entries

    @property
    def term(self) -> int:
        return self.hard_state.term

    @property
    def hard_state_is_durable(self) -> bool:
        return not self._hard_state_changed and (
            self._durable_sequence >= self._hard_state_sequence
        )

    # Changes that the disk must have

    def set_hard_state(self, term: int, voted_for: str) -> None:
        if term != self.term:
            self._held.clear()  # an answer of an earlier term helps nobody
        self.hard_state = HardState(term, voted_for)
        self._hard_state_changed = True

    def append(self, entries: Sequence[LogEntry]) -> None:
        """Add entries to the log. Raises: RaftInvariantBroken if that would cut committed ones."""
        first = entries[0].index
        if first <= self.commit_index:
            raise RaftInvariantBroken(f"entry {first} is committed up to {self.commit_index}")
        self.log.append(entries)
        self._not_durable_from(first)
        self._first_changed = min(first, self._first_changed or first)

    def compact(self, snapshot: RaftSnapshot) -> None:
        """Replace the log's entries by a snapshot that includes them."""
        if self.log.compact(snapshot):
            self._reset = True
            self._first_changed = None
            self._not_durable_from(self.commit_index + 1)
        elif self._first_changed is not None:
            self._first_changed = max(self._first_changed, snapshot.index + 1)
        self._snapshot_changed = True

    def _not_durable_from(self, index: int) -> None:
        self.durable_index = min(self.durable_index, index - 1)
        self._written = deque((at, min(last, index - 1)) for at, last in self._written)

    # Progress

    def commit_to(self, index: int) -> None:
        self.commit_index = max(self.commit_index, index)

    def persisted(self, sequence: int) -> None:
        """Note what the disk has now."""
        self._durable_sequence = max(self._durable_sequence, sequence)
        while self._written and self._written[0][0] <= sequence:
            self.durable_index = max(self.durable_index, self._written.popleft()[1])

    def apply(self) -> None:
        """Hand entries to the application that are committed and on this disk."""
        limit, snapshot = min(self.commit_index, self.durable_index), self.log.snapshot
        if limit <= self.applied_index or limit < snapshot.index:
            return  # in the second case the snapshot is still on its way to the disk
        if self.applied_index < snapshot.index:
            self.effects.append(Restore(snapshot))
            self.applied_index = snapshot.index
        if limit > self.applied_index:
            self.effects.append(Apply(self.log.between(self.applied_index + 1, limit)))
            self.applied_index = limit

    # Messages

    def send(self, target: str, message: AnyRaftMessage, *, index: int = 0) -> None:
        """Send a message; one that says that this node has the log up to ``index`` waits for it."""
        self._outgoing.append((target, message, index))

    def take_effects(self) -> list[RaftEffect]:
        """Return the effects of this step in the order in which they are to be done."""
        persist = self._persist()
        released = self._release()
        effects = [*persist, *released, *self.effects]
        self.effects = []
        return effects

    def _persist(self) -> list[RaftEffect]:
        if not (
            self._hard_state_changed
            or self._snapshot_changed
            or self._reset
            or self._first_changed is not None
        ):
            return []
        self._sequence += 1
        if self._hard_state_changed:
            self._hard_state_sequence = self._sequence
        last = self.log.last_index
        persist = Persist(
            self._sequence,
            self.hard_state if self._hard_state_changed else None,
            self.log.snapshot if self._snapshot_changed else None,
            self._reset,
            () if self._first_changed is None else self.log.between(self._first_changed, last),
        )
        self._written.append((self._sequence, last))
        self._hard_state_changed = self._snapshot_changed = self._reset = False
        self._first_changed = None
        return [persist]

    def _release(self) -> list[RaftEffect]:
        """Return the messages that may leave; hold those that must wait for the disk."""
        free: list[RaftEffect] = []
        for target, message, index in self._outgoing:
            needed = self._needed_sequence(index)
            if needed > self._durable_sequence:
                self._held[self._kind(target, message)] = (needed, target, message)
            else:
                free.append(Send(target, message))
        self._outgoing = []
        for kind, (needed, target, message) in list(self._held.items()):
            if needed <= self._durable_sequence:
                del self._held[kind]
                free.append(Send(target, message))
        return free

    def _needed_sequence(self, index: int) -> int:
        """Return the Persist effect that must be done before a message may leave."""
        return self._sequence if index > self.durable_index else self._hard_state_sequence

    @staticmethod
    def _kind(target: str, message: AnyRaftMessage) -> tuple[str, type, bool]:
        pre = isinstance(message, RequestVote | RequestVoteAnswer) and message.pre
        return target, type(message), pre
