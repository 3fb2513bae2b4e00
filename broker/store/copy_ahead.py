"""CopyAhead: a log that is far behind another is copied first, and indexed afterwards.

A record is safe as soon as it is copied, and to check and copy it costs a third of what indexing costs; until both are done it takes as long either way. So what
a slave missed comes in stretches: first to its log, then from there to its queues and key index, while the page cache still has it. Senders' new messages find a
slave that has the log before them much sooner, and a master that dies meanwhile leaves less behind.
"""

from __future__ import annotations

import attrs

from triomq.broker.store.indexer import Indexer

BYTES_MIN = 64 * 1024 * 1024
"""For a shorter way it is not worth the while: every record is read twice."""


@attrs.define(eq=False)
class CopyAhead:
    """Of one log copy: which of its records are left for the indexer to read from the log."""

    indexer: Indexer
    bytes_max: int
    """A stretch is as long as this, and at least twice ``BYTES_MIN``: so far behind are the indexes at its end."""
    _goal: int = attrs.field(default=0, init=False)
    """Where the other log ended, when it was last heard of."""
    _until: int = attrs.field(default=0, init=False)
    """End of the stretch: what begins before is left."""
    _end: int = attrs.field(default=0, init=False)
    """Where the last ends that was left."""

    def aim(self, goal: int) -> None:
        """The other log goes on to here. No checkpoint."""
        self._goal = goal

    def leaves(self, position: int) -> bool:
        """Whether records from this log offset on are left; a new stretch begins here if there is room for one. No checkpoint."""
        if position < self._until:
            return True
        until = min(self._goal, self.indexer.indexed.value + max(self.bytes_max, 2 * BYTES_MIN))
        if until - position < BYTES_MIN:
            return False
        self._until = until
        self.indexer.hold()
        return True

    def note_left(self, end: int) -> None:
        """What is left is in the log up to here. No checkpoint."""
        self._end = end
        if end >= self._until:
            self.indexer.release(end)

    def is_spent(self, position: int) -> bool:
        """Whether the way on from this log offset, the end of whole records, is far, and the indexes are too far behind for another stretch."""
        return self._goal - position >= BYTES_MIN and position >= self._until

    def stop(self) -> None:
        """Nothing more comes for now. No checkpoint."""
        self._goal = self._until = 0
        self.indexer.release(self._end)
