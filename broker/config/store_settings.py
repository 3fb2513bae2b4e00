"""StoreSettings: where and how messages are kept."""

# ruff: noqa: RUF009  (setting() and group() are attrs field specifiers)
from __future__ import annotations

from pathlib import Path

import attrs

from triomq.broker.config.compaction_settings import CompactionSettings
from triomq.broker.config.retention_settings import RetentionSettings
from triomq.broker.store.core.config import (
    BATCH_ENTRY_BYTES,
    QUEUE_ENTRY_BYTES,
    FlushMode,
    StoreConfig,
)
from triomq.broker.store.core.delay_levels import (
    DEFAULT_DELAY_LEVELS,
    format_delay_levels,
    parse_delay_levels,
)
from triomq.remoting.core import open_files
from triomq.remoting.core.settings import PATH, Kind, choice, flag, group, number, setting

DELAY_LEVELS: Kind[tuple[int, ...]] = Kind(
    "times such as 10s, 5m, 2h or 1d, separated by spaces", parse_delay_levels, format_delay_levels
)
QUEUE_FILES_MAX = 512
"""Most files of consume queues that a store keeps open; fewer if the limit of open files is low."""


@attrs.frozen(kw_only=True)
class LightQueueSettings:
    """Messages in several queues (LMQ)."""

    lmq: bool = flag(
        "enableLmq",
        False,
        "give a message a number in each of the light queues that its property INNER_MULTI_DISPATCH"
        " names",
    )
    multi_dispatch: bool = flag(
        "enableMultiDispatch",
        False,
        "keep those light queues, so that consumers can read them; both settings are needed, as in"
        " a Java broker",
    )
    quota: bool = flag(
        "enableLmqQuota",
        False,
        "refuse messages for new light queues when there are maxLmqConsumeQueueNum",
    )
    count_max: int = number(
        "maxLmqConsumeQueueNum", 20_000, "most light queues with enableLmqQuota", low=0
    )

    @property
    def enabled(self) -> bool:
        return self.lmq and self.multi_dispatch


@attrs.frozen(kw_only=True)
class StoreSettings:
    """Where and how messages are kept; the names of the fields are those of ``StoreConfig``."""

    root: Path = setting(
        "storePathRootDir",
        PATH,
        attrs.Factory(lambda: Path.home() / "store"),
        "directory of everything that the broker keeps",
        default_text="~/store",
    )
    commitlog: Path = setting(
        "storePathCommitLog",
        PATH,
        attrs.Factory(lambda self: self.root / "commitlog", takes_self=True),
        "directory of the commit log",
        default_text="commitlog under storePathRootDir",
    )
    segment_size_bytes: int = number(
        "mappedFileSizeCommitLog",
        1 << 30,
        "size of a commit log file; must match files that exist",
        low=4096,
    )
    queue_file_size_bytes: int = number(
        "mappedFileSizeConsumeQueue",
        300_000 * QUEUE_ENTRY_BYTES,
        "size of a consume queue file, rounded up to whole entries of 20 bytes; must match files"
        " that exist",
        low=QUEUE_ENTRY_BYTES,
        step=QUEUE_ENTRY_BYTES,
    )
    batch_queue_file_size_bytes: int = number(
        "mapperFileSizeBatchConsumeQueue",
        300_000 * BATCH_ENTRY_BYTES,
        "size of a batch consume queue file, rounded up to whole entries of 46 bytes; must match"
        " files that exist",
        low=BATCH_ENTRY_BYTES,
        step=BATCH_ENTRY_BYTES,
    )
    index_enabled: bool = flag(
        "messageIndexEnable", True, "keep the key index, so that messages are found by key"
    )
    index_slot_count: int = number(
        "maxHashSlotNum", 5_000_000, "hash slots of a key index file; must match files that exist"
    )
    index_entry_count: int = number(
        "maxIndexNum", 20_000_000, "entries of a key index file; must match files that exist", low=2
    )
    flush_mode: FlushMode = setting(
        "flushDiskType",
        choice(FlushMode),
        FlushMode.ASYNC,
        "when a send is answered: after the page cache has the message, or after the disk has it",
    )
    flush_interval_ms: int = number(
        "flushIntervalCommitLog", 500, "pause between two flushes with ASYNC_FLUSH (ms)"
    )
    sync_flush_timeout_ms: int = number(
        "syncFlushTimeout",
        5_000,
        "wait after which a send with SYNC_FLUSH is answered FLUSH_DISK_TIMEOUT (ms)",
    )
    index_write_interval_ms: int = number(
        "flushIntervalConsumeQueue",
        1_000,
        "how often consume queue entries leave memory for their files (ms)",
    )
    checkpoint_interval_ms: int = number(
        "flushConsumeQueueThoroughInterval",
        10_000,
        "how often indexes are forced to the disk and the checkpoint moves (ms): recovery reads the"
        " log from there after a crash",
    )
    append_stall_ms: int = number(
        "osPageCacheBusyTimeOutMills",
        1_000,
        "a write to the log that takes longer (ms) is a stall: sends that wait, or arrive right"
        " after it, are refused as busy",
    )
    delay_levels_ms: tuple[int, ...] = setting(
        "messageDelayLevel",
        DELAY_LEVELS,
        parse_delay_levels(DEFAULT_DELAY_LEVELS),
        "delays of messages of level 1, 2, 3 …",
    )
    message_size_bytes_max: int = number("maxMessageSize", 4 * 1024 * 1024, "largest message body")
    check_crc_on_recover: bool = flag(
        "checkCRCOnRecover", True, "check the CRC of message bodies while recovering"
    )
    transfer_bytes_memory_max: int = number(
        "maxTransferBytesOnMessageInMemory",
        262_144,
        "bytes of one pull when the messages are in memory",
    )
    transfer_count_memory_max: int = number(
        "maxTransferCountOnMessageInMemory", 32, "messages of one pull when they are in memory"
    )
    transfer_bytes_disk_max: int = number(
        "maxTransferBytesOnMessageInDisk",
        65_536,
        "bytes of one pull when the messages must be read from the disk",
    )
    transfer_count_disk_max: int = number(
        "maxTransferCountOnMessageInDisk",
        8,
        "messages of one pull when they must be read from the disk",
    )
    memory_percent_max: int = number(
        "accessMessageInMemoryMaxRatio",
        40,
        "messages farther behind the end of the log than this share (%) of the machine's memory"
        " count as on disk",
        high=100,
    )
    filter_bytes_max: int = number(
        "maxFilterMessageSize",
        16_000,
        "most consume queue bytes that one pull reads",
        low=QUEUE_ENTRY_BYTES,
    )
    query_count_max: int = number("maxMsgsNumBatch", 64, "messages of one query by key")
    query_unique_count_max: int = number(
        "defaultQueryMaxNum", 32, "messages of one query by unique key"
    )
    light_queues: LightQueueSettings = group(LightQueueSettings)
    retention: RetentionSettings = group(RetentionSettings)
    compaction: CompactionSettings = group(CompactionSettings)

    def store_config(self, store_host: bytes) -> StoreConfig:
        """Return the store's settings. ``store_host``: the address that goes into every record."""
        values = attrs.asdict(
            self, recurse=False, filter=lambda attribute, _: "group" not in attribute.metadata
        )
        light = self.light_queues
        return StoreConfig(
            **values,
            retention=self.retention.rules(),
            compaction=self.compaction.rules(),
            multi_dispatch=light.enabled,
            light_queues_max=light.count_max if light.quota else None,
            open_files_max=max(2, min(QUEUE_FILES_MAX, open_files.limit() // 8)),
            store_host=store_host,
        )
