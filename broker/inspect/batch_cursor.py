"""The entries of one batch consume queue, in step with the records of its topic: see queue_cursor.py.

Entries lie one behind the other whatever their queue offsets, so an entry is found by the log offset it names.
"""

from __future__ import annotations

import attrs

from triomq.broker.inspect.queue_cursor import QueueCursor
from triomq.broker.store.batch_queue import BATCH_ENTRY, BatchEntry


@attrs.define(eq=False)
class BatchCursor(QueueCursor):
    """``index`` counts entries, not messages."""

    unnumbered: int = attrs.field(default=0, init=False)
    """Single messages without numbers: Java's broker stores them so, and nobody ever reads them."""

    def __attrs_post_init__(self) -> None:
        self.layout, self.entry_bytes = BATCH_ENTRY, BATCH_ENTRY.size

    def batch(self, number: int) -> BatchEntry:
        """All of an entry that ``entry`` has found."""
        return BatchEntry.unpack(self._data, (number - self._data_start) * self.entry_bytes)

    def record_batch(self, expected: BatchEntry, *, numbered: bool) -> None:
        """The next record of this queue in the log, and what its entry must be. ``numbered``: whether the record says which queue offsets it has."""
        while (found := self.entry(self.index)) is not None and found[1] > 0:
            entry_offset = found[0]
            if entry_offset == expected.log_offset:
                self._compare(expected, numbered=numbered)
                return
            if entry_offset > expected.log_offset:
                break
            if entry_offset < self.log_start:
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
        names = ("log offset", "size", "tags code", "store time", "first queue offset", "number of messages")
        for name, is_value, must in zip(names, self.batch(self.index), expected):
            if is_value != must and (numbered or name not in names[4:]):
                self._wrong(f"has the {name} {is_value}, but the record has {must}")
                break
        else:
            self.entries += 1
        self.earlier_life, self.behind, self.behind_first = self.earlier_life + self.behind, 0, None
        self.index += 1
