"""What a Raft node is told, and what it wants done."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import attrs

from triomq.namesrv.controller.raft.configuration import ConfigurationChange
from triomq.namesrv.controller.raft.messages import (
    AnyRaftMessage,
    HardState,
    LogEntry,
    RaftSnapshot,
)


class RaftRole(enum.Enum):
    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


# Events


@attrs.frozen
class Tick:
    """The time ``RaftNode.next_tick`` has come. A tick that comes early does no harm."""


@attrs.frozen
class MessageReceived:
    sender: str
    message: AnyRaftMessage


@attrs.frozen
class Persisted:
    """The disk has all that ``Persist`` effects up to this sequence number asked for."""

    sequence: int


@attrs.frozen
class Propose:
    """Append a command. ``request`` is the caller's number for the answer."""

    request: int
    command: bytes


@attrs.frozen
class ChangeConfiguration:
    """``addresses``: of members whose addresses the configuration does not have yet."""

    request: int
    change: ConfigurationChange
    node: str
    addresses: Mapping[str, str] = attrs.field(factory=dict)


@attrs.frozen
class TransferLeadership:
    request: int
    target: str


@attrs.frozen
class ReadIndex:
    """Ask for a linearizable read of the application's state. ``now`` of this step must be read
    from the clock after the reader's request has arrived.
    """

    request: int


@attrs.frozen
class SnapshotTaken:
    """The application's state after the applied entry ``index``."""

    index: int
    data: bytes


RaftEvent = (
    Tick
    | MessageReceived
    | Persisted
    | Propose
    | ChangeConfiguration
    | TransferLeadership
    | ReadIndex
    | SnapshotTaken
)


# Effects


@attrs.frozen
class Persist:
    """Write to the disk, force it out, then step with ``Persisted(sequence)``.

    Several may be written before one force. The order is that of the fields: the snapshot is
    durable before entries are dropped. Entries replace what the log has from the first of them on.
    An error of the disk ends the process: a second try could report success for lost pages.

    ``reset``: drop all entries, since they do not continue the snapshot; otherwise drop those that
    the snapshot covers.
    """

    sequence: int
    hard_state: HardState | None
    snapshot: RaftSnapshot | None
    reset: bool
    entries: tuple[LogEntry, ...]


@attrs.frozen
class Send:
    """Hand a message to the transport. It may be lost; all that it promises is on the disk."""

    target: str
    message: AnyRaftMessage


@attrs.frozen
class Restore:
    """Replace the application's state by that of the snapshot."""

    snapshot: RaftSnapshot


@attrs.frozen
class Apply:
    """Apply committed entries in order; each index comes once until the process ends."""

    entries: tuple[LogEntry, ...]


@attrs.frozen
class ProposalAppended:
    """The proposal has this place. It is committed if ``Apply`` brings this index with this term;
    if that index comes with another term, the proposal is lost.
    """

    request: int
    index: int
    term: int


@attrs.frozen
class ReadReady:
    """The application's state, as applied now, includes all that was acknowledged before."""

    request: int


@attrs.frozen
class TransferBegun:
    """The leader takes no proposals until another leads, or the election time is over."""

    request: int


class RefusalReason(enum.Enum):
    """The text names the cause, and what to do."""

    NOT_LEADER = "this controller is not the leader: ask the leader"
    LOST_LEADERSHIP = "the leader changed: read again at the new one"
    TRANSFERRING = "the leader hands over to another controller: retry there"
    TOO_LARGE = "the command is longer than command_bytes_max: split it"
    BUSY = "too many entries are not committed yet (uncommitted_entries_max): retry later"
    TOO_MANY_READS = "too many reads wait for the leader (reads_max): retry later"
    CHANGE_IN_PROGRESS = "another configuration change is not committed yet: retry later"
    NOT_CAUGHT_UP = "the controller does not have the log yet: retry when it has caught up"
    TOO_FEW_ANSWER = (
        "after this change too few of the controllers that count would answer: start them, or"
        " remove one that does not answer"
    )
    NO_SUCH_CHANGE = "the configuration allows no such change: read it again"


@attrs.frozen
class RequestRefused:
    """Nothing was done. ``leader``: where to ask instead, empty if unknown."""

    request: int
    reason: RefusalReason
    leader: str


@attrs.frozen
class RoleChanged:
    role: RaftRole
    term: int
    leader: str


RaftEffect = (
    Persist
    | Send
    | Restore
    | Apply
    | ProposalAppended
    | ReadReady
    | TransferBegun
    | RequestRefused
    | RoleChanged
)
