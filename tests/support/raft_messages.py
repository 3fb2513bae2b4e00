"""A message of each kind between controllers."""

from triomq.namesrv.controller.raft.configuration import Configuration, encode_configuration
from triomq.namesrv.controller.raft.messages import (
    AppendEntries,
    AppendEntriesAnswer,
    EntryKind,
    InstallSnapshot,
    InstallSnapshotAnswer,
    LogEntry,
    RequestVote,
    RequestVoteAnswer,
    TimeoutNow,
)

MEMBERS = Configuration(("n0", "n1"), ("n2",), {"n0": "a:1", "n2": "b:1"})
RAFT_MESSAGES = (
    RequestVote(3, 7, 2, True, False),
    RequestVoteAnswer(3, True, True),
    AppendEntries(
        3,
        7,
        2,
        (
            LogEntry(8, 2, EntryKind.COMMAND, b"command"),
            LogEntry(9, 3, EntryKind.NO_OP),
            LogEntry(10, 3, EntryKind.CONFIGURATION, encode_configuration(MEMBERS)),
        ),
        6,
        41,
        True,
    ),
    AppendEntriesAnswer(3, True, 10, 7, 41),
    InstallSnapshot(3, 7, 2, MEMBERS, 4, 12, b"5678", 41, True),
    InstallSnapshotAnswer(3, 7, 8, 41),
    TimeoutNow(3),
)
