"""Batch consume queue: an entry of 46 bytes for each record, of one message or an inner batch.

=========  ====  ======================================================================
position   type  field
=========  ====  ======================================================================
0          i8    log offset of the record
8          i4    size of the record; 0 = nothing was ever written here
12         i8    tags code: hash of the record's TAGS
20         i8    store time of the record
28         i8    queue offset of its first message ("base")
36         i2    number of its messages
38         i4    compacted offset; -1: none
42         i4    reserved, 0
=========  ====  ======================================================================

Entries follow each other without gaps whatever their bases, in files named by the byte offset of
their first entry. So the entry of a queue offset is found by binary search. A topic has such queues
if its attribute ``queue.type`` is ``BatchCQ``; they lie under ``batchconsumequeue``.

Source: store/…/queue/BatchConsumeQueue.java.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import attrs

from triomq.broker.store.core.config import BATCH_ENTRY_BYTES
from triomq.broker.store.queues.consume_queue import ConsumeQueue, IsRecord, QueueFiles

BATCH_ENTRY = struct.Struct(">qiqqqhii")
NOT_COMPACTED = -1
BATCH_MESSAGES_MAX = 32_767
assert BATCH_ENTRY.size == BATCH_ENTRY_BYTES


class BatchEntry(NamedTuple):
    """An entry without its last two fields."""

    log_offset: int
    size: int
    tags_code: int
    store_timestamp: int
    base: int
    messages: int

    @property
    def end(self) -> int:
        """One past the queue offset of the last message."""
        return self.base + self.messages

    @classmethod
    def unpack(cls, data: bytes | bytearray | memoryview, at: int = 0) -> BatchEntry:
        return cls(*BATCH_ENTRY.unpack_from(data, at)[:6])


@attrs.define(eq=False)
class BatchQueue(ConsumeQueue):
    """Queue offsets count messages; ``entries`` counts records.

    The table of queues treats it like any other queue, except for ``add_batch``.
    """

    entries: ConsumeQueue = attrs.field(init=False)
    """The files, and the entries that are not in them yet, addressed by the number of the entry."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        files = QueueFiles(
            self.files.disk, self.files.open_files, self.files.file_size, BATCH_ENTRY
        )
        self.entries = ConsumeQueue(self.topic, self.queue_id, self.directory, files)
        # The same objects, so that the index syncer need not know about `entries`.
        self.bases, self.unsynced = self.entries.bases, self.entries.unsynced
        self.batched = self.special = True

    # Writing

    def add_batch(
        self,
        base: int,
        count: int,
        log_offset: int,
        size: int,
        tags_code: int,
        store_timestamp: int,
    ) -> bool:
        """Add the entry of the next record; return False if the queue has it already.

        Checkpoint: never.
        """
        entries = self.entries
        if (
            log_offset + size <= self.log_end
            or base < self.end_offset
            or not 0 < count <= BATCH_MESSAGES_MAX
        ):
            return False
        if not entries.end_offset:
            self.min_offset = base
        entries.tail += BATCH_ENTRY.pack(
            log_offset, size, tags_code, store_timestamp, base, count, NOT_COMPACTED, 0
        )
        entries.end_offset += 1
        entries.log_end = self.log_end = log_offset + size
        self.end_offset = base + count
        return True

    def add(self, queue_offset: int, log_offset: int, size: int, tags_code: int) -> bool:
        raise AssertionError("a batch queue takes entries by add_batch")

    @property
    def unwritten_bytes(self) -> int:
        return len(self.entries.tail)

    def write_out(self) -> None:
        """Move the entries in memory to the files. After an error all of them are still in memory.

        Raises: DiskFull, StoreIoError. Checkpoint: never.
        """
        self.entries.write_out()
        self._note_names()

    def _note_names(self) -> None:
        self.names_durable = self.names_durable and self.entries.names_durable
        self.entries.names_durable = True

    # Reading (before the store serves: these calls may wait for the disk)

    def batch(self, number: int) -> BatchEntry:
        """Return an entry by its number. Raises: OSError."""
        return BatchEntry.unpack(self.entries.read_entries(number, 1))

    # Loading and truncating (before the store serves)

    def load(self) -> None:
        """Find the files. Raises: StoreDamaged, OSError."""
        self.entries.load()

    def find_end_by_scan(self) -> None:
        """Set the end of the queue at the first entry that was never written.

        Source: BatchConsumeQueue.java#recover.
        """
        self.entries.find_end_by_scan()
        self._after_cut()

    def truncate(
        self, log_offset: int, *, clean: bool = False, is_record: IsRecord | None = None
    ) -> None:
        """Drop the entries of records at or after ``log_offset``; see ``ConsumeQueue.truncate``."""
        entries = self.entries
        wrapped = None if is_record is None else self._by_base(is_record)
        entries.truncate(log_offset, clean=clean, is_record=wrapped)
        self._after_cut()

    def _by_base(self, is_record: IsRecord) -> IsRecord:
        """Wrap ``is_record``, which takes queue offsets of records, for the numbers of entries."""
        return lambda queue_id, number, log_offset, size: is_record(
            queue_id, self.batch(number).base, log_offset, size
        )

    def _after_cut(self) -> None:
        entries = self.entries
        self.log_end = entries.log_end
        last = (
            self.batch(entries.end_offset - 1)
            if entries.end_offset > entries.first_offset
            else None
        )
        self.end_offset = self.next_offset = last.end if last is not None else 0
        self._note_names()

    def find_min(self, log_min: int) -> None:
        """Set ``min_offset`` to the first message whose record still exists.

        Source: BatchConsumeQueue.java#correctMinOffset.
        """
        self.entries.find_min(log_min)
        number = self.entries.min_offset
        self.min_offset = (
            self.batch(number).base if number < self.entries.end_offset else self.end_offset
        )

    # Expiry (while the store serves)

    def take_expired(self) -> int | None:
        """See ``ConsumeQueue.take_expired``; entries are kept from ``entries.min_offset`` on."""
        return self.entries.take_expired()

    def forget(self) -> None:
        super().forget()
        self.entries.forget()
