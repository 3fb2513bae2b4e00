"""StoreConfig: where and how messages are kept."""

# ruff: noqa: RUF009  (setting() and group() are attrs field specifiers)
from __future__ import annotations

import enum
from collections.abc import Iterable
from pathlib import Path

import attrs

from triomq.broker.store.core.retention import RetentionRules
from triomq.remoting.core import open_files
from triomq.remoting.core.settings import (
    INT_MAX,
    LONG_MAX,
    PATH,
    Kind,
    choice,
    flag,
    group,
    number,
    setting,
)

DEFAULT_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
DELAY_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Return the delays in ms of level 1, 2, 3, …: ``"1s 5s 2h"`` -> (1000, 5000, 7_200_000).

    Raises: ValueError, which names the wrong word.
    """
    levels = []
    for word in text.split():
        unit = DELAY_UNITS_MS.get(word[-1])
        if unit is None or not word[:-1].isdigit():
            raise ValueError(
                f"{word!r} is not a number followed by s, m, h or d; write for example 1s 5s 1m 2h"
            )
        levels.append(int(word[:-1]) * unit)
    return tuple(levels)


def format_delay_levels(levels_ms: Iterable[int]) -> str:
    """Return the text of levels, each in its largest exact unit: (1000, 60_000) -> ``"1s 1m"``."""
    units = sorted(DELAY_UNITS_MS.items(), key=lambda unit: -unit[1])
    return " ".join(
        next(f"{level // size}{unit}" for unit, size in units if level % size == 0)
        for level in levels_ms
    )


DELAY_LEVELS: Kind[tuple[int, ...]] = Kind(
    "times such as 10s, 5m, 2h or 1d, separated by spaces", parse_delay_levels, format_delay_levels
)


KEY_BYTES = 150
"""Memory that a key takes while a pass looks for its newest record."""
GIB = 1 << 30
QUEUE_ENTRY_BYTES = 20
BATCH_ENTRY_BYTES = 46
QUEUE_FILES_MAX = 512
"""Most files of consume queues that a store keeps open; fewer if the limit of open files is low."""


class FlushMode(enum.Enum):
    """When a message counts as stored. The values are those of Java's ``flushDiskType``."""

    ASYNC = "ASYNC_FLUSH"
    SYNC = "SYNC_FLUSH"


@attrs.frozen(kw_only=True)
class CompactionRules:
    """The topics with cleanup.policy=COMPACTION.

    enabled: keep the newest value of each key of topics with cleanup.policy=COMPACTION; false: such
        topics are like any others
    log_file_bytes: size of a file with the copies of such a topic, rounded to whole multiples of
        compactionCqMappedFileSize, five at least; must match files that exist
    queue_file_bytes: size of its file of queue entries; must match files that exist
    pass_interval_ms: pause between two searches for old values that can be removed (ms)
    key_table_bytes_max: memory for the keys of one search (bytes, 150 for a key); the next search
        goes on with further keys
    bytes_per_second: what the removal of old values may read and write together (bytes a second)
    tombstone_ms: how long a message with an empty body, which deletes its key, stays readable (ms)
    """

    enabled: bool = flag("enableCompaction", True)
    log_file_bytes: int = number(
        "compactionMappedFileSize", 100 * 1024 * 1024, low=4096, high=INT_MAX
    )
    queue_file_bytes: int = number(
        "compactionCqMappedFileSize", 10 * 1024 * 1024, low=2 * BATCH_ENTRY_BYTES, high=INT_MAX
    )
    pass_interval_ms: int = number("compactionScheduleInternal", 900_000, high=LONG_MAX)
    key_table_bytes_max: int = number(
        "maxOffsetMapSize", 100 * 1024 * 1024, low=KEY_BYTES, high=LONG_MAX
    )
    bytes_per_second: int = number(
        "compactionBytesPerSecond", 16 * 1024 * 1024, low=1024, high=LONG_MAX, own=True
    )
    tombstone_ms: int = number(
        "compactionTombstoneTime", 86_400_000, low=0, high=LONG_MAX, own=True
    )

    @property
    def keys_max(self) -> int:
        """Keys that a pass notes."""
        return self.key_table_bytes_max // KEY_BYTES


@attrs.frozen(kw_only=True)
class LightQueueSettings:
    """Messages in several queues (LMQ).

    lmq: give a message a number in each of the light queues that its property INNER_MULTI_DISPATCH
        names
    multi_dispatch: keep those light queues, so that consumers can read them; both settings are
        needed, as in a Java broker
    quota: refuse messages for new light queues when there are maxLmqConsumeQueueNum
    count_max: most light queues with enableLmqQuota
    """

    lmq: bool = flag("enableLmq", False)
    multi_dispatch: bool = flag("enableMultiDispatch", False)
    quota: bool = flag("enableLmqQuota", False)
    count_max: int = number("maxLmqConsumeQueueNum", 20_000, low=0)

    @property
    def enabled(self) -> bool:
        return self.lmq and self.multi_dispatch


@attrs.frozen(kw_only=True)
class StoreConfig:
    """The settings of a store. Sizes are part of the format: they must match the existing files.

    The fields without a Java name are from ``opened_at``, or for tests.

    root: directory of everything that the broker keeps
    commitlog: directory of the commit log
    segment_size_bytes: size of a commit log file; must match files that exist
    queue_file_size_bytes: size of a consume queue file, rounded up to whole entries of 20 bytes;
        must match files that exist
    batch_queue_file_size_bytes: size of a batch consume queue file, rounded up to whole entries of
        46 bytes; must match files that exist
    index_enabled: keep the key index, so that messages are found by key
    index_slot_count: hash slots of a key index file; must match files that exist
    index_entry_count: entries of a key index file; must match files that exist
    flush_mode: when a send is answered: after the page cache has the message, or after the disk has
        it
    flush_interval_ms: pause between two flushes with ASYNC_FLUSH (ms)
    sync_flush_timeout_ms: wait after which a send with SYNC_FLUSH is answered FLUSH_DISK_TIMEOUT
        (ms)
    index_write_interval_ms: how often consume queue entries leave memory for their files (ms)
    checkpoint_interval_ms: how often indexes are forced to the disk and the checkpoint moves (ms):
        recovery reads the log from there after a crash
    append_stall_ms: a write to the log that takes longer (ms) is a stall: sends that wait, or
        arrive right after it, are refused as busy
    delay_levels_ms: delays of messages of level 1, 2, 3 …
    message_size_bytes_max: largest message body
    check_crc_on_recover: check the CRC of message bodies while recovering
    transfer_bytes_memory_max: bytes of one pull when the messages are in memory
    transfer_count_memory_max: messages of one pull when they are in memory
    transfer_bytes_disk_max: bytes of one pull when the messages must be read from the disk
    transfer_count_disk_max: messages of one pull when they must be read from the disk
    memory_percent_max: messages farther behind the end of the log than this share (%) of the
        machine's memory count as on disk
    filter_bytes_max: most consume queue bytes that one pull reads
    query_count_max: messages of one query by key
    query_unique_count_max: messages of one query by unique key
    """

    root: Path = setting(
        "storePathRootDir",
        PATH,
        attrs.Factory(lambda: Path.home() / "store"),
        default_text="~/store",
    )
    commitlog: Path = setting(
        "storePathCommitLog",
        PATH,
        attrs.Factory(lambda self: self.root / "commitlog", takes_self=True),
        default_text="commitlog under storePathRootDir",
    )
    segment_size_bytes: int = number("mappedFileSizeCommitLog", GIB, low=4096)
    queue_file_size_bytes: int = number(
        "mappedFileSizeConsumeQueue",
        300_000 * QUEUE_ENTRY_BYTES,
        low=QUEUE_ENTRY_BYTES,
        step=QUEUE_ENTRY_BYTES,
    )
    batch_queue_file_size_bytes: int = number(
        "mapperFileSizeBatchConsumeQueue",
        300_000 * BATCH_ENTRY_BYTES,
        low=BATCH_ENTRY_BYTES,
        step=BATCH_ENTRY_BYTES,
    )
    index_enabled: bool = flag("messageIndexEnable", True)
    index_slot_count: int = number("maxHashSlotNum", 5_000_000)
    index_entry_count: int = number("maxIndexNum", 20_000_000, low=2)
    flush_mode: FlushMode = setting("flushDiskType", choice(FlushMode), FlushMode.ASYNC)
    flush_interval_ms: int = number("flushIntervalCommitLog", 500)
    sync_flush_timeout_ms: int = number("syncFlushTimeout", 5_000)
    index_write_interval_ms: int = number("flushIntervalConsumeQueue", 1_000)
    checkpoint_interval_ms: int = number("flushConsumeQueueThoroughInterval", 10_000)
    append_stall_ms: int = number("osPageCacheBusyTimeOutMills", 1_000)
    delay_levels_ms: tuple[int, ...] = setting(
        "messageDelayLevel", DELAY_LEVELS, parse_delay_levels(DEFAULT_DELAY_LEVELS)
    )
    message_size_bytes_max: int = number("maxMessageSize", 4 * 1024 * 1024)
    check_crc_on_recover: bool = flag("checkCRCOnRecover", True)
    transfer_bytes_memory_max: int = number("maxTransferBytesOnMessageInMemory", 262_144)
    transfer_count_memory_max: int = number("maxTransferCountOnMessageInMemory", 32)
    transfer_bytes_disk_max: int = number("maxTransferBytesOnMessageInDisk", 65_536)
    transfer_count_disk_max: int = number("maxTransferCountOnMessageInDisk", 8)
    memory_percent_max: int = number("accessMessageInMemoryMaxRatio", 40, high=100)
    filter_bytes_max: int = number("maxFilterMessageSize", 16_000, low=QUEUE_ENTRY_BYTES)
    query_count_max: int = number("maxMsgsNumBatch", 64)
    query_unique_count_max: int = number("defaultQueryMaxNum", 32)
    light_queues: LightQueueSettings = group(LightQueueSettings)
    retention: RetentionRules = group(RetentionRules)
    compaction: CompactionRules = group(CompactionRules)
    multi_dispatch: bool = False
    """Whether messages lie in light queues too: ``light_queues.enabled``, for the hot path."""
    light_queues_max: int | None = None
    """Limit of the light queues; None: no limit."""
    store_host: bytes = attrs.field(default=bytes([127, 0, 0, 1]) + (10911).to_bytes(4, "big"))
    """Address in every record and message id: 4 or 16 bytes of IP, then the port as i4."""
    hot_bytes_max: int = 256 * 1024 * 1024
    """The newest bytes written by this process that are read through a memory map without asking
    the page cache; older data may have left it.
    """
    backlog_bytes_max: int = 64 * 1024 * 1024
    """Limit of the messages kept in memory for an indexer that lags; beyond it the indexer reads
    the log instead.
    """
    open_files_max: int = attrs.field(default=QUEUE_FILES_MAX, validator=attrs.validators.ge(2))
    """Limit of queue files that are open at the same time."""

    @store_host.validator
    def _check_store_host(self, _attribute: object, value: bytes) -> None:
        if len(value) not in (8, 20):
            raise ValueError(f"store_host has {len(value)} bytes, not 8 (IPv4) or 20 (IPv6)")

    def opened_at(self, store_host: bytes) -> StoreConfig:
        """Return the settings with the address that goes into every record."""
        light = self.light_queues
        return attrs.evolve(
            self,
            multi_dispatch=light.enabled,
            light_queues_max=light.count_max if light.quota else None,
            store_host=store_host,
            open_files_max=max(2, min(QUEUE_FILES_MAX, open_files.limit() // 8)),
        )
