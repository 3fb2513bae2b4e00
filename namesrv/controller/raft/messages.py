"""Entries of the log, and what Raft's members send to each other: the names of the Raft paper.

Source: Ongaro and Ousterhout, "In Search of an Understandable Consensus Algorithm" (2014), figures
2 and 13; pre-vote, transfer and rounds of heartbeats from Ongaro's thesis, 9.6, 3.10 and 6.4.
"""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec

from triomq.namesrv.controller.raft.configuration import Configuration

Natural = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
ENTRIES_MAX = 1024
"""In one message. More are refused before they are read, so no message stops the loop for long."""


class EntryKind(enum.IntEnum):
    """What the data of a log entry is."""

    NO_OP = 0
    """Nothing: a leader's first entry, which commits all entries before it."""
    COMMAND = 1
    """Opaque bytes of the application."""
    CONFIGURATION = 2


class LogEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One place of the log. Index and term together name it: they are used once in a group."""

    index: Natural
    term: Natural
    kind: EntryKind
    data: bytes = b""


class HardState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a node must remember beside its log; ``voted_for`` is empty before it votes."""

    term: Natural = 0
    voted_for: str = ""


class RaftSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """The application's state after the entry ``index``, in place of all entries up to it."""

    index: Natural
    term: Natural
    configuration: Configuration
    data: bytes = b""


class RaftMessage(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """``term``: of the sender; in a pre-vote, the term that the sender would campaign in."""

    term: Natural


class RequestVote(RaftMessage, frozen=True, array_like=True):
    """``pre``: ask only whether a campaign could succeed. ``transfer``: the leader itself asked
    for this campaign, so a voter that hears the leader votes all the same.
    """

    last_index: Natural
    last_term: Natural
    pre: bool = False
    transfer: bool = False


class RequestVoteAnswer(RaftMessage, frozen=True, array_like=True):
    granted: bool
    pre: bool = False


class AppendEntries(RaftMessage, frozen=True, array_like=True):
    """``round``: number of the leader's newest round of heartbeats; the answer repeats it."""

    previous_index: Natural
    previous_term: Natural
    entries: Annotated[tuple[LogEntry, ...], msgspec.Meta(max_length=ENTRIES_MAX)]
    commit_index: Natural
    round: Natural
    learner: bool = False
    """Whether the leader's configuration has the receiver as a learner."""


class AppendEntriesAnswer(RaftMessage, frozen=True, array_like=True):
    """``index``: if accepted, as far as the logs are equal; otherwise where they may be."""

    accepted: bool
    index: Natural
    previous_index: Natural
    round: Natural


class InstallSnapshot(RaftMessage, frozen=True, array_like=True):
    """``data``: bytes of the snapshot from ``offset`` on; ``size``: bytes of all of it."""

    snapshot_index: Natural
    snapshot_term: Natural
    configuration: Configuration
    offset: Natural
    size: Natural
    data: bytes
    round: Natural
    learner: bool = False


class InstallSnapshotAnswer(RaftMessage, frozen=True, array_like=True):
    """``offset``: the first byte that is missing."""

    snapshot_index: Natural
    offset: Natural
    round: Natural


class TimeoutNow(RaftMessage, frozen=True, array_like=True):
    """The receiver has the leader's whole log and shall campaign at once."""


AnyRaftMessage = (
    RequestVote
    | RequestVoteAnswer
    | AppendEntries
    | AppendEntriesAnswer
    | InstallSnapshot
    | InstallSnapshotAnswer
    | TimeoutNow
)
