"""The entries of one batch consume queue, read in step with the records of its topic.

See ``queue_cursor``. Entries follow each other in the order of the log, whatever their queue
offsets, so an entry is found by its log offset.
"""

from __future__ import annotations

import struct
from typing import ClassVar

import attrs

from triomq.broker.inspect.layout import BATCH_QUEUES
from triomq.broker.inspect.queue_cursor import QueueCursor
from triomq.broker.store.queues.batch_queue import BATCH_ENTRY, BatchEntry


@attrs.define(eq=False)
class BatchCursor(QueueCursor):
    """``index`` counts entries, not messages."""

    folder: ClassVar[str] = BATCH_QUEUES
    layout: ClassVar[struct.Struct] = BATCH_ENTRY
    entry_bytes: ClassVar[int] = BATCH_ENTRY.size
    unnumbered: int = attrs.field(default=0, init=False)
    """single messages without queue offsets: Java's broker stores them so, and no consumer can read
    them
    """

    def batch(self, number: int) -> BatchEntry:
        """Return all fields of an entry that ``entry`` has found."""
        return BatchEntry.unpack(self._data, (number - self._data_start) * self.entry_bytes)

    def position(self, number: int) -> None:
        """Return None: ``number`` is a queue offset, and entries are counted without it."""

    def record_batch(self, expected: BatchEntry, *, numbered: bool) -> None:
        """Compare the next record of this queue with its entry, which must be ``expected``.

        ``numbered``: whether the record has its queue offsets.
        """
        while (found := self.entry(self.index)) is not None and found[1] > 0:
            entry_offset = found[0]
            if entry_offset == expected.log_offset:
                self._compare(expected, numbered=numbered)
                return
            if entry_offset > expected.log_offset:
                break
            if entry_offset < self.files.log_start:
                self.expired += 1
            elif self.log.is_lost(entry_offset):
                self.lost += 1
            else:
                self._wrong(f"points at {entry_offset}, where no record of this queue starts")
            self.index += 1
        if not numbered:
            self.unnumbered += 1
            return
        self.behind += 1
        self.behind_first = self.behind_first or (expected.base, expected.log_offset)

    def _compare(self, expected: BatchEntry, *, numbered: bool) -> None:
        names = (
            "log offset",
            "size",
            "tags code",
            "store time",
            "first queue offset",
            "number of messages",
        )
        for name, is_value, must in zip(names, self.batch(self.index), expected):
            if is_value != must and (numbered or name not in names[4:]):
                self._wrong(f"has the {name} {is_value}, but the record has {must}")
                break
        else:
            self.entries += 1
        self.earlier_incarnation += self.behind
        self.behind, self.behind_first = 0, None
        self.index += 1
