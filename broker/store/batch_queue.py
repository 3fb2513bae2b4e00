"""One batch consume queue: an entry of 46 bytes for each record, which holds one message or many (an *inner batch*).

=========  ====  ======================================================================
position   type  field
=========  ====  ======================================================================
0          i8    log offset of the record
8          i4    size of the record; 0 = nothing was ever written here
12         i8    tags code: hash of the record's TAGS
20         i8    store time of the record
28         i8    queue offset of its first message ("base")
36         i2    how many messages it holds
38         i4    compacted offset, -1: none
42         i4    reserved, 0
=========  ====  ======================================================================

Entries lie one behind the other whatever their bases, in files named by the byte offset of their first entry: the entry of a queue offset is found by binary
search. A topic has such queues if its attribute ``queue.type`` is ``BatchCQ``; they lie under ``batchconsumequeue``.

Source: store/…/queue/BatchConsumeQueue.java.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import attrs

from triomq.broker.store.config import BATCH_ENTRY_BYTES
from triomq.broker.store.consume_queue import ConsumeQueue, IsRecord, QueueFiles

BATCH_ENTRY = struct.Struct(">qiqqqhii")
NOT_COMPACTED = -1
BATCH_MESSAGES_MAX = 32_767
assert BATCH_ENTRY.size == BATCH_ENTRY_BYTES


class BatchEntry(NamedTuple):
    """One entry without its last two fields."""

    log_offset: int
    size: int
    tags_code: int
    store_timestamp: int
    base: int
    messages: int

    @property
    def end(self) -> int:
        """One past the last queue offset."""
        return self.base + self.messages

    @classmethod
    def unpack(cls, data: bytes | bytearray | memoryview, at: int = 0) -> BatchEntry:
        return cls(*BATCH_ENTRY.unpack_from(data, at)[:6])


@attrs.define(eq=False)
class BatchQueue(ConsumeQueue):
    """Queue offsets are those of messages; ``entries`` counts records.

    To the table of queues it is a queue like any other, but for ``add_batch`` and for reading (``number_of``).
    """

    entries: ConsumeQueue = attrs.field(init=False)
    """The files and what is not in them yet, addressed by the number of the entry."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        files = QueueFiles(self.files.disk, self.files.open_files, self.files.file_size, BATCH_ENTRY)
        self.entries = ConsumeQueue(self.topic, self.queue_id, self.directory, files)
        self.bases, self.unsynced = self.entries.bases, self.entries.unsynced  # the same objects: who forces files to the disk need not know
        self.batched = self.special = True

    # Writing

    def add_batch(self, base: int, count: int, log_offset: int, size: int, tags_code: int, store_timestamp: int) -> bool:
        """Add the entry of the next record; False if it is there already. Atomic: no checkpoint."""
        entries = self.entries
        if log_offset + size <= self.log_end or base < self.end_offset or not 0 < count <= BATCH_MESSAGES_MAX:
            return False
        if not entries.end_offset:
            self.min_offset = base
        entries.tail += BATCH_ENTRY.pack(log_offset, size, tags_code, store_timestamp, base, count, NOT_COMPACTED, 0)
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
        """Move what is in memory to the files. Raises DiskFull or StoreIoError; then all is still in memory. Atomic: no checkpoint."""
        self.entries.write_out()
        self._note_names()

    def _note_names(self) -> None:
        self.names_durable = self.names_durable and self.entries.names_durable
        self.entries.names_durable = True

    # Reading (waiting for the disk: before the store serves)

    def batch(self, number: int) -> BatchEntry:
        """An entry by its number. Raises OSError."""
        return BatchEntry.unpack(self.entries.read_entries(number, 1))

    # Loading and truncating (before the store serves)

    def load(self) -> None:
        """Find the files. Raises StoreDamaged, OSError."""
        self.entries.load()

    def find_end_by_scan(self) -> None:
        """Read entries until the first one never written: that is the end. Source: BatchConsumeQueue.java#recover."""
        self.entries.find_end_by_scan()
        self._after_cut()

    def truncate(self, log_offset: int, *, clean: bool = False, is_record: IsRecord | None = None) -> None:
        """Drop the entries of all records that start at or after ``log_offset``."""
        entries = self.entries
        wrapped = None if is_record is None else self._by_base(is_record)
        entries.truncate(log_offset, clean=clean, is_record=wrapped)
        self._after_cut()

    def _by_base(self, is_record: IsRecord) -> IsRecord:
        """Entries are numbered, records have queue offsets."""
        return lambda queue_id, number, log_offset, size: is_record(queue_id, self.batch(number).base, log_offset, size)

    def _after_cut(self) -> None:
        entries = self.entries
        self.log_end = entries.log_end
        last = self.batch(entries.end_offset - 1) if entries.end_offset > entries.first_offset else None
        self.end_offset = self.next_offset = last.end if last is not None else 0
        self._note_names()

    def find_min(self, log_min: int) -> None:
        """Set ``min_offset``: the first message whose record still exists. Source: BatchConsumeQueue.java#correctMinOffset."""
        self.entries.find_min(log_min)
        number = self.entries.min_offset
        self.min_offset = self.batch(number).base if number < self.entries.end_offset else self.end_offset

    # Expiry (while the store serves)

    def take_expired(self) -> int | None:
        """As in ConsumeQueue; ``entries.min_offset`` says from which entry on they are kept."""
        return self.entries.take_expired()

    def forget(self) -> None:
        super().forget()
        self.entries.forget()

