"""How far each delay level is delivered, written with every delivery: a kill repeats none.

delayOffset.json is replaced as a whole and forced to the disk, so it is some seconds old. After a
kill all deliveries since then would come again, and a message that is retried would double with
each kill. This file, ``delayDelivered``, has a slot of 32 bytes for each level, which is written in
place and not forced out: what a process has written outlives its kill.

::

    next offset i64 | log end i64 | crc32 of both u32 | 12 unused bytes

A slot counts only if the log has all bytes before ``log end``, the copies among them: after a power
failure the log may have lost them. Our own; a Java broker neither reads nor writes it.
"""

from __future__ import annotations

import logging
import struct
import zlib
from pathlib import Path

import attrs

from triomq.broker.store.core.errors import StoreError
from triomq.broker.store.io.disk import Disk
from triomq.remoting.core.log_limit import LogLimit

logger = logging.getLogger(__name__)

SLOT_BYTES = 32
"""No slot lies in two sectors."""
_FIELDS, _CRC = struct.Struct(">qq"), struct.Struct(">I")


@attrs.define(eq=False)
class DelaySlots:
    """The file. Calls block only as long as a write to the page cache."""

    disk: Disk
    path: Path
    _limit: LogLimit = attrs.field(factory=LogLimit, init=False)

    def load(self, log_end: int) -> dict[int, int]:
        """Return level -> next offset, of the slots whose copies a log up to ``log_end`` has.

        The others are erased durably: a log that has grown again must not make them count.

        Raises: OSError.
        """
        if not self.path.exists():
            return {}
        data = self.path.read_bytes()
        found: dict[int, int] = {}
        kept = b""
        for at in range(0, len(data), SLOT_BYTES):
            slot = data[at : at + SLOT_BYTES]
            read = _decode(slot)
            if read is not None and read[1] <= log_end:
                found[at // SLOT_BYTES + 1] = read[0]
                kept += slot
            else:
                kept += bytes(len(slot))
        if kept != data:
            self.disk.write_file(self.path, kept)
            self.disk.sync_path(self.path)
        return found

    def write(self, offsets: dict[int, int], log_end: int) -> None:
        """Write the next offsets of some levels; the copies of all before lie before ``log_end``.

        If that fails, deliveries since the last save of delayOffset.json come again after a kill.
        """
        try:
            if self.path.exists():
                fd = self.disk.open(self.path)
            else:
                self.disk.make_directory(self.path.parent)
                fd = self.disk.create(self.path, SLOT_BYTES)
            try:
                for level, offset in offsets.items():
                    slot = _encode(offset, log_end)
                    self.disk.write_at(fd, slot, (level - 1) * SLOT_BYTES, self.path)
            finally:
                self.disk.close(fd)
        except (StoreError, OSError) as error:
            self._limit.warning(
                logger,
                "%s cannot be written: %s; after a kill of this broker delayed messages of the"
                " last seconds come again",
                self.path,
                error,
            )


def _encode(offset: int, log_end: int) -> bytes:
    fields = _FIELDS.pack(offset, log_end)
    return (fields + _CRC.pack(zlib.crc32(fields))).ljust(SLOT_BYTES, b"\0")


def _decode(slot: bytes) -> tuple[int, int] | None:
    """Return (next offset, log end); None for a slot that was never written whole."""
    if len(slot) < SLOT_BYTES:
        return None
    fields = slot[: _FIELDS.size]
    (crc,) = _CRC.unpack_from(slot, _FIELDS.size)
    return _FIELDS.unpack(fields) if any(slot) and crc == zlib.crc32(fields) else None
