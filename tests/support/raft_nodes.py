"""One Raft node under test: what it is told, and what it does, without a cluster around it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import attrs

from triomq.namesrv.controller.raft.configuration import Configuration
from triomq.namesrv.controller.raft.events import (
    MessageReceived,
    Persist,
    Persisted,
    RaftEffect,
    RaftEvent,
    RaftRole,
    Send,
    Tick,
)
from triomq.namesrv.controller.raft.messages import (
    AnyRaftMessage,
    AppendEntries,
    AppendEntriesAnswer,
    EntryKind,
    HardState,
    LogEntry,
    RaftSnapshot,
    RequestVoteAnswer,
)
from triomq.namesrv.controller.raft.node import RaftNode
from triomq.namesrv.controller.raft.settings import RaftSettings
from triomq.namesrv.controller.raft.state import StoredState

T = TypeVar("T")
ELECTION = RaftSettings().election_seconds


def entry(index: int, term: int, data: bytes = b"") -> LogEntry:
    return LogEntry(index, term, EntryKind.COMMAND, data or b"%d in %d" % (index, term))


def log_of(*terms: int) -> tuple[LogEntry, ...]:
    """Return entries from index 1 on with these terms."""
    return tuple(entry(index, term) for index, term in enumerate(terms, 1))


@attrs.define(eq=False)
class NodeUnderTest:
    """A node with id ``a``. ``now``: its clock; ``disk``: whether writes are durable at once."""

    terms: Sequence[int] = ()
    term: int = 0
    voted_for: str = ""
    voters: tuple[str, ...] = ("a", "b", "c")
    settings: RaftSettings = RaftSettings()  # noqa: RUF009
    snapshot: RaftSnapshot | None = None
    now: float = 100.0
    disk: bool = True
    node: RaftNode = attrs.field(init=False)
    effects: list[RaftEffect] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        stored = StoredState(
            HardState(self.term, self.voted_for),
            self.snapshot or RaftSnapshot(0, 0, Configuration(self.voters)),
            log_of(*self.terms),
        )
        self.node = RaftNode("a", self.settings, stored, self.now, lambda: 0.5)

    def step(self, event: RaftEvent) -> list[RaftEffect]:
        """Step, and with a fast disk also with what it then says; return all effects."""
        effects = self.node.step(event, self.now)
        for effect in list(effects):
            if isinstance(effect, Persist) and self.disk:
                effects += self.step(Persisted(effect.sequence))
        self.effects = effects
        return effects

    def hear(self, sender: str, message: AnyRaftMessage) -> list[RaftEffect]:
        return self.step(MessageReceived(sender, message))

    def wait(self, seconds: float) -> list[RaftEffect]:
        self.now += seconds
        return self.step(Tick())

    def campaign(self) -> None:
        """Let the election time pass, and grant the pre-vote."""
        self.wait(ELECTION * 2)
        assert self.node.role is RaftRole.PRE_CANDIDATE
        term = self.node.term + 1
        for voter in self._needed:
            self.hear(voter, RequestVoteAnswer(term, True, True))

    @property
    def _needed(self) -> tuple[str, ...]:
        """The others whose votes make a leader: all of them before the first entry."""
        return ("b",) if self.node.log.last_index else self.voters[1:]

    def lead(self) -> None:
        """Win an election, with one other vote if the log has entries."""
        self.campaign()
        for voter in self._needed:
            self.hear(voter, RequestVoteAnswer(self.node.term, True))
        assert self.node.role is RaftRole.LEADER

    def acknowledge(self, peer: str, index: int | None = None) -> list[RaftEffect]:
        """Let a member answer the newest round: it has the log up to ``index``, or all of it."""
        leadership = self.node.leadership
        assert leadership is not None
        index = self.node.log.last_index if index is None else index
        return self.hear(
            peer, AppendEntriesAnswer(self.node.term, True, index, index, leadership.round)
        )

    def append(
        self, term: int, previous: LogEntry | None, *entries: LogEntry, commit: int = 0
    ) -> list[RaftEffect]:
        """Let the leader ``b`` of a term send entries behind ``previous``."""
        before = (0, 0) if previous is None else (previous.index, previous.term)
        return self.hear("b", AppendEntries(term, *before, entries, commit, 1))


def all_of(kind: type[T], effects: Sequence[RaftEffect]) -> list[T]:
    return [effect for effect in effects if isinstance(effect, kind)]


def sent(effects: Sequence[RaftEffect], kind: type[T]) -> list[T]:
    """Return the messages of a kind that leave."""
    return [one.message for one in all_of(Send, effects) if isinstance(one.message, kind)]
