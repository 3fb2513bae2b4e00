"""The bytes of messages between controllers, and what no member could have sent."""

import msgspec
import pytest
from raft_messages import MEMBERS, RAFT_MESSAGES

from triomq.namesrv.controller.raft.messages import (
    AppendEntries,
    EntryKind,
    InstallSnapshot,
    LogEntry,
    TimeoutNow,
)
from triomq.namesrv.controller.raft_wire import decode_message, encode_message
from triomq.remoting.core.errors import RemoteProtocolError


@pytest.mark.parametrize("message", RAFT_MESSAGES, ids=lambda message: type(message).__name__)
def test_messages_are_read_as_they_were_written(message) -> None:
    assert decode_message(encode_message(message)) == message


def test_the_bytes_are_an_array_with_its_name() -> None:
    assert encode_message(TimeoutNow(3)) == msgspec.msgpack.encode(["TimeoutNow", 3])


@pytest.mark.parametrize(
    "message",
    [
        TimeoutNow(-1),
        TimeoutNow(1 << 62),
        AppendEntries(3, 7, 2, (LogEntry(9, 3, EntryKind.NO_OP),), 6, 1),
        AppendEntries(3, 7, 2, (LogEntry(8, 1, EntryKind.NO_OP),), 6, 1),
        AppendEntries(3, 7, 2, (LogEntry(8, 4, EntryKind.NO_OP),), 6, 1),
        AppendEntries(3, 7, 2, (LogEntry(8, 3, EntryKind.CONFIGURATION, b"?"),), 6, 1),
        InstallSnapshot(3, 7, 2, MEMBERS, 10, 12, b"567", 1),
        InstallSnapshot(3, 0, 0, MEMBERS, 0, 0, b"", 1),
    ],
)
def test_what_no_member_sends_is_refused(message) -> None:
    with pytest.raises(RemoteProtocolError, match="the same version"):
        decode_message(msgspec.msgpack.encode(message))
