"""The bytes of messages between controllers: MessagePack, an array that begins with its name.

A message that no member could have sent is refused here, so the core need not doubt what it reads.
"""

from __future__ import annotations

from itertools import pairwise

import msgspec

from triomq.namesrv.controller.raft.configuration import decode_configuration
from triomq.namesrv.controller.raft.messages import (
    AnyRaftMessage,
    AppendEntries,
    EntryKind,
    InstallSnapshot,
)
from triomq.remoting.core.errors import RemoteProtocolError

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyRaftMessage)
MESSAGE_BYTES_MAX = 512 * 1024
"""Twice ``batch_bytes_max``: room for one entry more, and for what is around the entries."""
FIX = "check that all controllers of the group run the same version"


def encode_message(message: AnyRaftMessage) -> bytes:
    """Return the bytes of a message."""
    return _encoder.encode(message)


def decode_message(data: bytes) -> AnyRaftMessage:
    """Return the message. Raises: RemoteProtocolError."""
    if len(data) > MESSAGE_BYTES_MAX:
        raise RemoteProtocolError(
            f"a controller's message has {len(data)} bytes, {MESSAGE_BYTES_MAX} are allowed", FIX
        )
    try:
        message: AnyRaftMessage = _decoder.decode(data)
        if isinstance(message, AppendEntries):
            _check_entries(message)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"a controller's message is invalid: {error}", FIX) from error
    if isinstance(message, InstallSnapshot) and (
        message.offset + len(message.data) > message.size or not message.snapshot_index
    ):
        raise RemoteProtocolError("a part of a snapshot is not within it", FIX)
    return message


def _check_entries(message: AppendEntries) -> None:
    """Check that the entries could continue a log. Raises: RemoteProtocolError, DecodeError."""
    places = [(message.previous_index, message.previous_term)]
    places += [(entry.index, entry.term) for entry in message.entries]
    for (index, term), (next_index, next_term) in pairwise(places):
        if next_index != index + 1 or next_term < term:
            raise RemoteProtocolError(f"entry {next_index} cannot follow entry {index}", FIX)
    if places[-1][1] > message.term:
        raise RemoteProtocolError("an entry is of a later term than its leader", FIX)
    for entry in message.entries:
        if entry.kind is EntryKind.CONFIGURATION:
            decode_configuration(entry.data)
