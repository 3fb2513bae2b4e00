"""CompactionSettings: topics of which only the newest value of each key is kept."""

from __future__ import annotations

import attrs

from triomq.broker.store.core.config import BATCH_ENTRY_BYTES, KEY_BYTES, CompactionRules
from triomq.remoting.core.settings import INT_MAX, LONG_MAX, flag, number


@attrs.frozen(kw_only=True)
class CompactionSettings:
    """The topics with cleanup.policy=COMPACTION; the fields' names are from ``CompactionRules``."""

    enabled: bool = flag(
        "enableCompaction",
        True,
        "keep the newest value of each key of topics with cleanup.policy=COMPACTION; false: such"
        " topics are like any others",
    )
    log_file_bytes: int = number(
        "compactionMappedFileSize",
        100 * 1024 * 1024,
        "size of a file with the copies of such a topic, rounded to whole multiples of"
        " compactionCqMappedFileSize, five at least; must match files that exist",
        low=4096,
        high=INT_MAX,
    )
    queue_file_bytes: int = number(
        "compactionCqMappedFileSize",
        10 * 1024 * 1024,
        "size of its file of queue entries; must match files that exist",
        low=2 * BATCH_ENTRY_BYTES,
        high=INT_MAX,
    )
    pass_interval_ms: int = number(
        "compactionScheduleInternal",
        900_000,
        "pause between two searches for old values that can be removed (ms)",
        high=LONG_MAX,
    )
    key_table_bytes_max: int = number(
        "maxOffsetMapSize",
        100 * 1024 * 1024,
        f"memory for the keys of one search (bytes, {KEY_BYTES} for a key); the next search goes on"
        " with further keys",
        low=KEY_BYTES,
        high=LONG_MAX,
    )
    bytes_per_second: int = number(
        "compactionBytesPerSecond",
        16 * 1024 * 1024,
        "what the removal of old values may read and write together (bytes a second)",
        low=1024,
        high=LONG_MAX,
        own=True,
    )
    tombstone_ms: int = number(
        "compactionTombstoneTime",
        86_400_000,
        "how long a message with an empty body, which deletes its key, stays readable (ms)",
        low=0,
        high=LONG_MAX,
        own=True,
    )

    def rules(self) -> CompactionRules:
        return CompactionRules(**attrs.asdict(self, recurse=False))
