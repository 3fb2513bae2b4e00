"""DeferredIndexing: a log that is far behind its master's is copied first and indexed afterwards.

A record is safe when it is checked and copied, which takes half of the time; the total time until
everything is indexed is about the same. So a slave takes the records that it missed in stretches:
first to its log, then from the log to its queues and key index, while the page cache still has
them. New messages are acknowledged by the slave after half the time, and a master that fails
meanwhile takes fewer messages with it.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from triomq.broker.store.indexing.indexer import Indexer

BYTES_MIN = 64 * 1024 * 1024
"""A shorter stretch is not worth it, because every record is read twice."""
BYTES_MAX = 8 * 1024 * 1024 * 1024


@attrs.define(eq=False)
class DeferredIndexing:
    """Decides for a log copy which records the indexer reads from the log later."""

    indexer: Indexer
    bytes_max: int
    """Limit of the distance between log and indexes at the end of a stretch: records that left the
    page cache are read from the disk again.
    """
    free_bytes: Callable[[], int]
    """Returns the free bytes of the disk. A stretch takes at most a quarter of them, because
    records that are not indexed cannot be deleted.
    """
    _goal: int = attrs.field(default=0, init=False)
    """The last known end of the master's log."""
    _until: int = attrs.field(default=0, init=False)
    """End of the stretch: the indexing of records that begin before it is deferred."""
    _end: int = attrs.field(default=0, init=False)
    """End of the last record whose indexing was deferred."""

    def aim(self, goal: int) -> None:
        """Set the end of the master's log. Checkpoint: never."""
        self._goal = goal

    def defers(self, position: int) -> bool:
        """Return whether the indexing of records from this log offset on is deferred.

        Begins a new stretch if it is worth it and there is room.

        Checkpoint: never.
        """
        if position < self._until:
            return True
        if self._goal - position < BYTES_MIN:
            return False
        until = min(self._goal, self.indexer.indexed.value + self._length())
        if until - position < BYTES_MIN:
            return False
        self._until = until
        self.indexer.pause()
        return True

    def note_deferred(self, end: int) -> None:
        """Note that deferred records are in the log up to ``end``. Checkpoint: never."""
        self._end = end
        if end >= self._until:
            self.indexer.resume(end)

    def room_from(self, position: int) -> int:
        """Return the log offset that the indexes must reach before another stretch can begin.

        ``position``: where the stretch would begin. 0 if waiting does not help.

        Checkpoint: never.
        """
        if self._goal - position < BYTES_MIN or position < self._until:
            return 0
        length = self._length()
        return max(0, position + BYTES_MIN - length) if length else 0

    def _length(self) -> int:
        """Return the length of a stretch from where the indexes end; 0 if the disk has no room."""
        least = 2 * BYTES_MIN
        length = min(max(self.bytes_max, least), BYTES_MAX, self.free_bytes() // 4)
        return length if length >= least else 0

    def stop(self) -> None:
        """End the stretch: nothing more comes for now. Checkpoint: never."""
        self._goal = self._until = 0
        self.indexer.resume(self._end)
