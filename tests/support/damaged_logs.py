"""Damages one record of a stopped broker's log, as a disk does that flips a bit."""

from __future__ import annotations

from pathlib import Path

from triomq.remoting.protocol.record import LOG_OFFSET_AT, QUEUE_OFFSET_AT, StoredMessage
from triomq.remoting.protocol.record_reader import read_record

BODY_LENGTH_AT = 84
FIELDS = {
    "length": 2,
    "queue offset": QUEUE_OFFSET_AT + 5,
    "log offset": LOG_OFFSET_AT + 3,
    "body length": BODY_LENGTH_AT + 2,
    "body": BODY_LENGTH_AT + 4,
}
"""What can be damaged, and where the byte with the flipped bit is in a record."""


def records(segment: Path) -> list[StoredMessage]:
    """Return all records of the first segment of a log."""
    data = segment.read_bytes()
    found = []
    position = 0
    while not isinstance(message := read_record(data, position, len(data)), str):
        found.append(message)
        position += message.size
    return found


def damage_record(store: Path, topic: str, number: int = 0, field: str = "length") -> None:
    """Flip a bit in a field of a topic's record; ``number`` counts its records."""
    segment = store / "commitlog" / f"{0:020}"
    found = [message for message in records(segment) if message.topic == topic]
    at = found[number].log_offset + FIELDS[field]
    with segment.open("r+b") as log:
        log.seek(at)
        (byte,) = log.read(1)
        log.seek(at)
        log.write(bytes([byte ^ 0x10]))
