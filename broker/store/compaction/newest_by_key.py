"""Which record of a key is the newest: what a pass over the copies of a queue decides by."""

from __future__ import annotations

from hashlib import md5

import attrs


def key_digest(key: str) -> bytes:
    """Return what stands for a key in the table: keys may be long, and there may be many.

    Source: store/kv/CompactionLog.java#OffsetMap.
    """
    return md5(key.encode(), usedforsecurity=False).digest()


@attrs.define(eq=False)
class NewestByKey:
    """The newest queue offset of each key, among records that come in queue order."""

    keys_max: int = attrs.field(validator=attrs.validators.ge(1))
    """Limit of the table; an entry takes about 150 bytes."""
    reached: int = -1
    """The last queue offset that the table covers. Later records are none of its business."""
    full: bool = attrs.field(default=False, init=False)
    """Whether a record did not fit; nothing is added any more."""
    _offsets: dict[bytes, int] = attrs.field(factory=dict, init=False)

    def add(self, key: str, queue_offset: int) -> bool:
        """Note the next record of the queue; return False, and note nothing, if there is no room.

        Checkpoint: never.
        """
        digest = key_digest(key)
        if self.full or (digest not in self._offsets and len(self._offsets) >= self.keys_max):
            self.full = True
            return False
        assert queue_offset > self.reached, "records come in the order of the queue"
        self._offsets[digest] = self.reached = queue_offset
        return True

    def keeps(self, key: str, queue_offset: int, *, deletes: bool) -> bool:
        """Return whether a record stays.

        ``deletes``: whether the record is a tombstone that has been readable for long enough. Only
        a tombstone that the table covers goes, since the values before it go in the same pass.
        """
        if queue_offset > self.reached:
            return True
        return not deletes and queue_offset >= self._offsets.get(key_digest(key), -1)
