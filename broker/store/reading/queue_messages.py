"""Messages for the broker's own tasks: what cannot be read is skipped, counted and logged.

A request that meets damage may fail; a task that follows a queue must go on behind it, at every
start again. Lengths inside a damaged record are wrong, so where a record begins and ends is taken
from its queue entry.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import attrs

from triomq.broker.store.core.config import QUEUE_ENTRY_BYTES
from triomq.broker.store.io.reads import Reads
from triomq.broker.store.queues.consume_queue import ENTRY
from triomq.broker.store.queues.search import FILLER_SIZE
from triomq.broker.store.reading.reader import Reader
from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.protocol.record import StoredMessage
from triomq.remoting.protocol.record_reader import read_record

logger = logging.getLogger(__name__)

KNOWN_MAX = 10_000
"""Damaged records of which is known that they are counted; a task may read one several times."""


class DamagedRecord(NamedTuple):
    """A record that cannot be read: which message it is, its place, and why it cannot."""

    topic: str
    name: str
    log_offset: int
    reason: str


class QueueMessages(NamedTuple):
    """Messages of a queue in its order, and the queue offset behind what was read.

    ``records``: the bytes of each message.
    """

    messages: list[StoredMessage]
    records: list[bytes]
    next_offset: int
    damaged: Sequence[DamagedRecord] = ()


@attrs.define(eq=False)
class DamagedRecords:
    """Counts damaged records, each once, and logs them."""

    counts: Counter[str] = attrs.field(factory=Counter, init=False)
    """By topic."""
    _known: set[int] = attrs.field(factory=set, init=False)
    _limit: LogLimit = attrs.field(factory=LogLimit, init=False)

    def note(self, damaged: Sequence[DamagedRecord]) -> None:
        """Count and log records that are met for the first time. Checkpoint: never."""
        for record in damaged:
            if record.log_offset in self._known:
                continue
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known.add(record.log_offset)
            self.counts[record.topic] += 1
            self._limit.log(
                logger,
                logging.ERROR,
                "%s of %s cannot be read and is skipped: the record at log offset %d is damaged"
                " (%s); a copy of the log may have it (of a slave, or a backup)",
                record.name,
                record.topic,
                record.log_offset,
                record.reason,
            )


def read_queue(
    reader: Reader,
    topic: str,
    queue_id: int,
    offset: int,
    messages_max: int,
    bytes_max: int,
    tag_codes: frozenset[int] | None,
    reads: Reads,
) -> QueueMessages:
    """Return messages of a queue from ``offset`` on; each has a record of its own.

    At most ``messages_max`` with at most ``bytes_max``, but always the first one, and of
    ``tag_codes`` only. ``next_offset`` is ``offset`` if nothing is there yet, and smaller if the
    queue ends before it.

    Raises: Cold, StoreIoError.
    """
    queue = reader.queues.queues.get((topic, queue_id))
    if queue is None or offset >= queue.end_offset:
        return QueueMessages([], [], min(offset, queue.end_offset if queue is not None else 0))
    if offset < queue.min_offset:
        return QueueMessages([], [], queue.min_offset)
    scan_count = messages_max
    if tag_codes is not None:
        scan_count = max(reader.config.filter_bytes_max // QUEUE_ENTRY_BYTES, messages_max)
    count = max(1, min(scan_count, queue.end_offset - offset))
    log_min = reader.log.first_offset
    places: list[tuple[int, int, int]] = []
    following = offset
    for log_offset, size, code in ENTRY.iter_unpack(queue.entries_from(offset, count, reads)):
        if (
            size != FILLER_SIZE
            and log_offset >= log_min
            and (tag_codes is None or code in tag_codes)
        ):
            bytes_max -= size
            if places and (len(places) >= messages_max or bytes_max < 0):
                break
            places.append((following, log_offset, size))
        following += 1
    if following == offset:  # the file was deleted meanwhile
        return QueueMessages([], [], offset + 1)
    read = reader.records([(at, at + size) for _, at, size in places], reads)
    messages: list[StoredMessage] = []
    records: list[bytes] = []
    damaged: list[DamagedRecord] = []
    for (number, log_offset, _), data in zip(places, read, strict=True):
        record = bytes(data) if data is not None else b""
        found = read_record(record, 0, len(record))
        reason = _fault(found, len(record), topic, queue_id, number, log_offset)
        if isinstance(found, str) or reason:
            name = f"message {number} of queue {queue_id}"
            damaged.append(DamagedRecord(topic, name, log_offset, reason))
        else:
            messages.append(found)
            records.append(record)
    return QueueMessages(messages, records, following, damaged)


def _fault(
    found: StoredMessage | str, size: int, topic: str, queue_id: int, number: int, log_offset: int
) -> str:
    """Return why a record is not the message of its queue entry; empty if it is."""
    if isinstance(found, str):
        return found if size else "the log has no such record"
    if found.size != size:
        return f"it has {found.size} bytes, its queue entry says {size}"
    if (found.topic, found.queue_id, found.queue_offset) != (topic, queue_id, number):
        return f"it says that it is message {found.queue_offset} of another queue or another number"
    if found.log_offset != log_offset:
        return f"it says that it lies at log offset {found.log_offset}"
    return ""


def read_places(
    reader: Reader, topic: str, places: Sequence[tuple[int, int]], reads: Reads
) -> list[StoredMessage | DamagedRecord]:
    """Return the messages of a topic at (log offset, size), which ascend; not those deleted.

    Raises: Cold, StoreIoError.
    """
    found: list[StoredMessage | DamagedRecord] = []
    read = reader.records([(at, at + size) for at, size in places], reads)
    for (at, _), data in zip(places, read, strict=True):
        if data is None:
            continue
        record = bytes(data)
        message = read_record(record, 0, len(record))
        if isinstance(message, str):
            found.append(DamagedRecord(topic, "a message", at, message))
        elif (message.topic, message.log_offset, message.size) == (topic, at, len(record)):
            found.append(message)
        else:
            found.append(DamagedRecord(topic, "a message", at, "another message is there"))
    return found
