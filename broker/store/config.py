"""StoreConfig: every setting of the store, with Java's property name in ``metadata["java"]``."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from pathlib import Path

import attrs

from triomq.broker.store.retention import RetentionRules

GIB = 1 << 30
QUEUE_ENTRY_BYTES = 20
BATCH_ENTRY_BYTES = 46
DELAY_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class FlushMode(enum.Enum):
    """When a message counts as stored. Values are Java's ``flushDiskType``."""

    ASYNC = "ASYNC_FLUSH"
    SYNC = "SYNC_FLUSH"


def _java(name: str) -> dict[str, str]:
    return {"java": name}


def _whole_entries(size_bytes: int) -> int:
    """Round up to whole entries, as Java does with ``mappedFileSizeConsumeQueue``."""
    return -(-size_bytes // QUEUE_ENTRY_BYTES) * QUEUE_ENTRY_BYTES


def _whole_batch_entries(size_bytes: int) -> int:
    return -(-size_bytes // BATCH_ENTRY_BYTES) * BATCH_ENTRY_BYTES


def parse_delay_levels(text: str | Iterable[int]) -> tuple[int, ...]:
    """``"1s 5s 2h"`` -> milliseconds of level 1, 2, 3. Raises ValueError with the word that is wrong."""
    if not isinstance(text, str):
        return tuple(text)
    levels = []
    for word in text.split():
        unit = DELAY_UNITS_MS.get(word[-1])
        if unit is None or not word[:-1].isdigit():
            raise ValueError(f"{word!r} is not a number followed by s, m, h or d; write for example 1s 5s 1m 2h")
        levels.append(int(word[:-1]) * unit)
    return tuple(levels)


def format_delay_levels(levels_ms: Iterable[int]) -> str:
    """The text of levels, each in the largest unit that is exact: (1000, 60_000) -> ``"1s 1m"``."""
    units = sorted(DELAY_UNITS_MS.items(), key=lambda unit: -unit[1])
    return " ".join(next(f"{level // size}{unit}" for unit, size in units if level % size == 0) for level in levels_ms)


DEFAULT_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


@attrs.frozen(kw_only=True)
class StoreConfig:
    """Settings of one store. Sizes are part of the format: they must match files that exist already."""

    root: Path = attrs.field(converter=Path, metadata=_java("storePathRootDir"))
    commitlog: Path | None = attrs.field(default=None, converter=attrs.converters.optional(Path), metadata=_java("storePathCommitLog"))
    """Directory of the log; None = ``commitlog`` under the root."""
    segment_size_bytes: int = attrs.field(default=GIB, validator=attrs.validators.ge(4096), metadata=_java("mappedFileSizeCommitLog"))
    queue_file_size_bytes: int = attrs.field(
        default=6_000_000, converter=_whole_entries, validator=attrs.validators.ge(QUEUE_ENTRY_BYTES), metadata=_java("mappedFileSizeConsumeQueue")
    )
    batch_queue_file_size_bytes: int = attrs.field(
        default=13_800_000, converter=_whole_batch_entries, validator=attrs.validators.ge(BATCH_ENTRY_BYTES), metadata=_java("mapperFileSizeBatchConsumeQueue")
    )
    multi_dispatch: bool = attrs.field(default=False, metadata=_java("enableMultiDispatch"))
    """Whether a message may lie in further queues, which its property INNER_MULTI_DISPATCH names."""
    light_queues_max: int | None = attrs.field(default=None, metadata=_java("maxLmqConsumeQueueNum"))
    """How many of those queues there may be; None: any number."""
    index_enabled: bool = attrs.field(default=True, metadata=_java("messageIndexEnable"))
    index_slot_count: int = attrs.field(default=5_000_000, validator=attrs.validators.ge(1), metadata=_java("maxHashSlotNum"))
    index_entry_count: int = attrs.field(default=20_000_000, validator=attrs.validators.ge(2), metadata=_java("maxIndexNum"))
    """Entries of one index file, the unused entry 0 included."""
    flush_mode: FlushMode = attrs.field(default=FlushMode.ASYNC, converter=FlushMode, metadata=_java("flushDiskType"))
    flush_interval_ms: int = attrs.field(default=500, validator=attrs.validators.ge(1), metadata=_java("flushIntervalCommitLog"))
    sync_flush_timeout_ms: int = attrs.field(default=5_000, validator=attrs.validators.ge(1), metadata=_java("syncFlushTimeout"))
    index_write_interval_ms: int = attrs.field(default=1_000, validator=attrs.validators.ge(1), metadata=_java("flushIntervalConsumeQueue"))
    """How often queue entries leave memory for their files. A crash loses none of them: recovery reads the log."""
    checkpoint_interval_ms: int = attrs.field(default=10_000, validator=attrs.validators.ge(1), metadata=_java("flushConsumeQueueThoroughInterval"))
    """How often queues and index are forced to the disk and the checkpoint moves: what recovery reads again after a crash."""
    append_stall_ms: int = attrs.field(default=1_000, validator=attrs.validators.ge(1), metadata=_java("osPageCacheBusyTimeOutMills"))
    """An append that takes longer is a stall: see ``triomq.broker.store.stall``."""
    message_size_bytes_max: int = attrs.field(default=4 * 1024 * 1024, validator=attrs.validators.ge(1), metadata=_java("maxMessageSize"))
    check_crc_on_recover: bool = attrs.field(default=True, metadata=_java("checkCRCOnRecover"))
    transfer_bytes_memory_max: int = attrs.field(default=262_144, metadata=_java("maxTransferBytesOnMessageInMemory"))
    transfer_count_memory_max: int = attrs.field(default=32, metadata=_java("maxTransferCountOnMessageInMemory"))
    transfer_bytes_disk_max: int = attrs.field(default=65_536, metadata=_java("maxTransferBytesOnMessageInDisk"))
    transfer_count_disk_max: int = attrs.field(default=8, metadata=_java("maxTransferCountOnMessageInDisk"))
    memory_percent_max: int = attrs.field(default=40, metadata=_java("accessMessageInMemoryMaxRatio"))
    """A record farther than this share of the machine's memory behind the end of the log counts as "on disk"."""
    filter_bytes_max: int = attrs.field(default=16_000, metadata=_java("maxFilterMessageSize"))
    """Queue bytes that one get scans at most, so that a filter that matches nothing comes back soon."""
    query_count_max: int = attrs.field(default=64, metadata=_java("maxMsgsNumBatch"))
    query_unique_count_max: int = attrs.field(default=32, metadata=_java("defaultQueryMaxNum"))
    delay_levels_ms: tuple[int, ...] = attrs.field(
        default=DEFAULT_DELAY_LEVELS,
        converter=parse_delay_levels,
        metadata=_java("messageDelayLevel"),
    )
    retention: RetentionRules = attrs.field(factory=RetentionRules)
    """When old messages are deleted, and when new ones are refused."""
    store_host: bytes = attrs.field(default=bytes([127, 0, 0, 1]) + (10911).to_bytes(4, "big"))
    """Address that goes into every record and message id: 4 or 16 bytes of IP, then the port as i4."""
    hot_bytes_max: int = attrs.field(default=256 * 1024 * 1024)
    """How much of what this process wrote last is read through a memory map; older data may have left the page cache."""
    backlog_bytes_max: int = attrs.field(default=64 * 1024 * 1024)
    """Messages kept in memory for an indexer that lags; beyond it the indexer reads the log instead."""
    open_files_max: int = attrs.field(default=512, validator=attrs.validators.ge(2))
    """Queue files open at the same time."""

    @store_host.validator
    def _check_store_host(self, _attribute: object, value: bytes) -> None:
        if len(value) not in (8, 20):
            raise ValueError(f"store_host has {len(value)} bytes, not 8 (IPv4) or 20 (IPv6)")

    @property
    def commitlog_directory(self) -> Path:
        return self.root / "commitlog" if self.commitlog is None else self.commitlog
