"""EntriesAhead: whoever reads a queue from entry to entry gets many entries from the file at once; the next reads find them in memory.

A get of 32 messages needs 640 bytes of its queue, and to fetch them costs as much as half of the rest of it. Entries in the files never change.
"""

from __future__ import annotations

import attrs

from triomq.broker.store.consume_queue import ConsumeQueue
from triomq.broker.store.errors import StoreIoError
from triomq.broker.store.reads import Buffer, Reads

ENTRIES = 512
QUEUES_MAX = 256
"""2.5 MiB at most; the queue that came first goes first."""


@attrs.define(eq=False)
class EntriesAhead:
    """For the loop only."""

    _found: dict[ConsumeQueue, tuple[int, int, Buffer]] = attrs.field(factory=dict, init=False)
    """Number of the first entry, one past the last, and their bytes."""

    def read(self, queue: ConsumeQueue, offset: int, count: int, reads: Reads) -> Buffer:
        """Entries from ``offset`` on, at most ``count`` and at least one, of those that the files have. Raises Cold, StoreIoError."""
        size = queue.entry_bytes
        known = self._found.get(queue)
        if known is not None:
            first, stop, data = known
            if first <= offset and offset + count <= stop:
                at = (offset - first) * size
                return data[at : at + count * size]
            if first < offset <= stop and count < ENTRIES:  # goes on where it was
                more = self._fetch(queue, offset, reads)
                if more is not None:
                    self._found[queue] = offset, offset + len(more) // size, more
                    return more[: count * size]
        data = reads.file(*queue.place(offset, count))
        if known is None and len(self._found) >= QUEUES_MAX:
            del self._found[next(iter(self._found))]
        self._found[queue] = offset, offset + len(data) // size, data
        return data

    def _fetch(self, queue: ConsumeQueue, offset: int, reads: Reads) -> Buffer | None:
        """Many entries, if the page cache has them."""
        path, position, length = queue.place(offset, ENTRIES)
        try:
            return reads.disk.read_nowait(reads.open_files.get(path), length, position)
        except OSError as error:
            raise StoreIoError(path, error) from error
