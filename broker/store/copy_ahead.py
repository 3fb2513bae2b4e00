"""CopyAhead: a log that is far behind another is copied first, and indexed afterwards.

A record is safe as soon as it is checked and copied, and that takes half of the time; until all is indexed it takes about as long either way. So what a slave
missed comes in stretches: first to its log, then from there to its queues and key index, while the page cache still has it. Senders' new messages find a slave that
has the log before them in half the time, and a master that dies meanwhile leaves less behind.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from triomq.broker.store.indexer import Indexer

BYTES_MIN = 64 * 1024 * 1024
"""For a shorter way it is not worth the while: every record is read twice."""
BYTES_MAX = 8 * 1024 * 1024 * 1024


@attrs.define(eq=False)
class CopyAhead:
    """Of one log copy: which of its records are left for the indexer to read from the log."""

    indexer: Indexer
    bytes_max: int
    """So far behind may the indexes be at the end of a stretch; what the page cache does not keep is read from the disk again."""
    free_bytes: Callable[[], int]
    """Room on the disk: nothing that is not indexed can be deleted, so no stretch takes more than a quarter of it."""
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
        if self._goal - position < BYTES_MIN:
            return False
        until = min(self._goal, self.indexer.indexed.value + self._length())
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

    def room_from(self, position: int) -> int:
        """The log offset that the indexes must reach before another stretch can begin at ``position``; 0 if that changes nothing. No checkpoint."""
        if self._goal - position < BYTES_MIN or position < self._until:
            return 0
        length = self._length()
        return max(0, position + BYTES_MIN - length) if length else 0

    def _length(self) -> int:
        """Of a stretch that begins where the indexes end; 0 if the disk has no room for any."""
        least = 2 * BYTES_MIN
        length = min(max(self.bytes_max, least), BYTES_MAX, self.free_bytes() // 4)
        return length if length >= least else 0

    def stop(self) -> None:
        """Nothing more comes for now. No checkpoint."""
        self._goal = self._until = 0
        self.indexer.release(self._end)
