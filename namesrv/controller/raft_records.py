"""The bytes of a Raft node's file: records that are appended, and what a torn tail leaves of them.

A record is a head (length of its payload, CRC-32, length of the file that was durable when it was
written; 4, 4 and 8 bytes, big-endian) and a payload: a letter for its kind and MessagePack. The
file begins with a snapshot; what follows changes it.

A crash can leave any mixture of what was not durable, so the file ends at the first record that is
not whole. If a later record says that the file was durable beyond there, the disk has lost
something that may have been acknowledged: ``DamagedRaftFile``.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import attrs
import msgspec

from triomq.namesrv.controller.raft.events import Persist
from triomq.namesrv.controller.raft.messages import HardState, LogEntry, RaftSnapshot
from triomq.namesrv.controller.raft.state import StoredState

HEAD = struct.Struct(">IIQ")
HARD_STATE, SNAPSHOT, ENTRY, RESET = b"H", b"S", b"E", b"R"
_hard_states = msgspec.msgpack.Decoder(HardState)
_snapshots = msgspec.msgpack.Decoder(RaftSnapshot)
_entries = msgspec.msgpack.Decoder(LogEntry)


class DamagedRaftFile(Exception):
    """The file cannot be what this node has written. The message says where."""


def record(payload: bytes, durable_bytes: int) -> bytes:
    crc = zlib.crc32(payload, zlib.crc32(durable_bytes.to_bytes(8, "big")))
    return HEAD.pack(len(payload), crc, durable_bytes) + payload


def record_at(data: bytes, offset: int) -> tuple[bytes, int] | None:
    """Return payload and ``durable_bytes`` of the record at an offset, None if it is not whole."""
    if offset + HEAD.size > len(data):
        return None
    length, _, durable_bytes = HEAD.unpack_from(data, offset)
    payload = data[offset + HEAD.size : offset + HEAD.size + length]
    whole = length and len(payload) == length
    if not whole or record(payload, durable_bytes) != data[offset : offset + HEAD.size + length]:
        return None
    return payload, durable_bytes


def payloads(write: Persist) -> list[bytes]:
    """Return the payloads that a write without a snapshot appends."""
    found = [RESET] if write.reset else []
    if write.hard_state is not None:
        found.append(HARD_STATE + msgspec.msgpack.encode(write.hard_state))
    return found + [ENTRY + msgspec.msgpack.encode(entry) for entry in write.entries]


@attrs.define
class RaftFileImage:
    """What the file says, once all of its records are read."""

    snapshot: RaftSnapshot
    hard_state: HardState = attrs.field(factory=HardState)
    entries: list[LogEntry] = attrs.field(factory=list)

    def stored(self) -> StoredState:
        return StoredState(self.hard_state, self.snapshot, tuple(self.entries))

    def persist(self, write: Persist) -> None:
        """Change the image as the disk is to be changed."""
        if write.hard_state is not None:
            self.hard_state = write.hard_state
        if write.snapshot is not None:
            self.snapshot = write.snapshot
        if write.reset:
            self.entries = []
        elif write.snapshot is not None:
            at = write.snapshot.index
            self.entries = [entry for entry in self.entries if entry.index > at]
        for entry in write.entries:
            self.append(entry)

    def append(self, entry: LogEntry) -> None:
        """Add an entry in place of all from its index on."""
        while self.entries and self.entries[-1].index >= entry.index:
            self.entries.pop()
        self.entries.append(entry)

    def take(self, payload: bytes) -> None:
        """Read one record. Raises: msgspec.DecodeError."""
        kind, body = payload[:1], payload[1:]
        if kind == HARD_STATE:
            self.hard_state = _hard_states.decode(body)
        elif kind == ENTRY:
            self.append(_entries.decode(body))
        elif kind == RESET and not body:
            self.entries = []
        else:
            raise msgspec.DecodeError(f"no such record: {kind!r}")

    def encode(self) -> bytes:
        """Return the bytes of a new file that says the same."""
        contents: Sequence[bytes] = (
            SNAPSHOT + msgspec.msgpack.encode(self.snapshot),
            HARD_STATE + msgspec.msgpack.encode(self.hard_state),
            *(ENTRY + msgspec.msgpack.encode(entry) for entry in self.entries),
        )
        return b"".join(record(payload, 0) for payload in contents)


def read_raft_file(data: bytes) -> RaftFileImage:
    """Return what a file says up to its first record that is not whole.

    Raises: DamagedRaftFile.
    """
    first = record_at(data, 0)
    if first is None or first[0][:1] != SNAPSHOT:
        raise DamagedRaftFile("it does not begin with a snapshot")
    try:
        image = RaftFileImage(_snapshots.decode(first[0][1:]))
        offset = HEAD.size + len(first[0])
        while (found := record_at(data, offset)) is not None:
            image.take(found[0])
            offset += HEAD.size + len(found[0])
    except msgspec.DecodeError as error:
        raise DamagedRaftFile(f"a record cannot be read: {error}") from error
    for later in range(offset + 1, len(data) - HEAD.size):
        found = record_at(data, later)
        if found is not None and found[1] > offset:
            raise DamagedRaftFile(f"byte {offset} was durable, and is not what was written")
    return image
