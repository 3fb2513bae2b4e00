"""StoreConfig: every setting of the store. Java's names: ``broker/config/store_settings.py``."""

from __future__ import annotations

import enum
from pathlib import Path

import attrs

from triomq.broker.store.core.delay_levels import DEFAULT_DELAY_LEVELS, parse_delay_levels
from triomq.broker.store.core.retention import RetentionRules

KEY_BYTES = 150
"""Memory that a key takes while a pass looks for its newest record."""


@attrs.frozen(kw_only=True)
class CompactionRules:
    """The settings of all compaction topics. Java's names: ``compaction_settings.py``."""

    enabled: bool = True
    """False: such topics are like any others."""
    log_file_bytes: int = 100 * 1024 * 1024
    """Size of a file of copies; part of the format, as is that of its queue file."""
    queue_file_bytes: int = 10 * 1024 * 1024
    pass_interval_ms: int = attrs.field(default=900_000, validator=attrs.validators.ge(1))
    """Pause between two rounds of passes."""
    key_table_bytes_max: int = attrs.field(
        default=100 * 1024 * 1024, validator=attrs.validators.ge(KEY_BYTES)
    )
    """Limit of the memory in which a pass notes keys; the next pass goes on with further ones."""
    bytes_per_second: int = attrs.field(
        default=16 * 1024 * 1024, validator=attrs.validators.ge(1024)
    )
    """What passes may read and write together."""
    tombstone_ms: int = attrs.field(default=86_400_000, validator=attrs.validators.ge(0))
    """How long a message that deletes a key stays readable."""

    @property
    def keys_max(self) -> int:
        """Keys that a pass notes."""
        return self.key_table_bytes_max // KEY_BYTES


GIB = 1 << 30
QUEUE_ENTRY_BYTES = 20
BATCH_ENTRY_BYTES = 46


class FlushMode(enum.Enum):
    """When a message counts as stored. The values are those of Java's ``flushDiskType``."""

    ASYNC = "ASYNC_FLUSH"
    SYNC = "SYNC_FLUSH"


def _whole_entries(size_bytes: int) -> int:
    """Return the size rounded up to whole entries, as Java rounds mappedFileSizeConsumeQueue."""
    return -(-size_bytes // QUEUE_ENTRY_BYTES) * QUEUE_ENTRY_BYTES


def _whole_batch_entries(size_bytes: int) -> int:
    return -(-size_bytes // BATCH_ENTRY_BYTES) * BATCH_ENTRY_BYTES


@attrs.frozen(kw_only=True)
class StoreConfig:
    """The settings of a store. Sizes are part of the format: they must match the existing files."""

    root: Path = attrs.field(converter=Path)
    commitlog: Path | None = attrs.field(default=None, converter=attrs.converters.optional(Path))
    """Directory of the log; None: ``commitlog`` under the root."""
    segment_size_bytes: int = attrs.field(default=GIB, validator=attrs.validators.ge(4096))
    queue_file_size_bytes: int = attrs.field(
        default=6_000_000,
        converter=_whole_entries,
        validator=attrs.validators.ge(QUEUE_ENTRY_BYTES),
    )
    batch_queue_file_size_bytes: int = attrs.field(
        default=13_800_000,
        converter=_whole_batch_entries,
        validator=attrs.validators.ge(BATCH_ENTRY_BYTES),
    )
    multi_dispatch: bool = False
    """Whether a message may lie in further queues, which its property INNER_MULTI_DISPATCH
    names.
    """
    light_queues_max: int | None = None
    """Limit of such further queues; None: no limit."""
    index_enabled: bool = True
    index_slot_count: int = attrs.field(default=5_000_000, validator=attrs.validators.ge(1))
    index_entry_count: int = attrs.field(default=20_000_000, validator=attrs.validators.ge(2))
    """Entries of one index file, including the unused entry 0."""
    flush_mode: FlushMode = attrs.field(default=FlushMode.ASYNC, converter=FlushMode)
    flush_interval_ms: int = attrs.field(default=500, validator=attrs.validators.ge(1))
    sync_flush_timeout_ms: int = attrs.field(default=5_000, validator=attrs.validators.ge(1))
    index_write_interval_ms: int = attrs.field(default=1_000, validator=attrs.validators.ge(1))
    """Interval in which queue entries are moved from memory to their files. A crash loses no entry:
    recovery reads the log.
    """
    checkpoint_interval_ms: int = attrs.field(default=10_000, validator=attrs.validators.ge(1))
    """Interval in which queues and key index are forced to the disk and the checkpoint moves. After
    a crash recovery reads the log from the checkpoint on.
    """
    append_stall_ms: int = attrs.field(default=1_000, validator=attrs.validators.ge(1))
    """An append that takes longer is a stall; see ``stall.py``."""
    message_size_bytes_max: int = attrs.field(
        default=4 * 1024 * 1024, validator=attrs.validators.ge(1)
    )
    check_crc_on_recover: bool = True
    transfer_bytes_memory_max: int = 262_144
    transfer_count_memory_max: int = 32
    transfer_bytes_disk_max: int = 65_536
    transfer_count_disk_max: int = 8
    memory_percent_max: int = 40
    """A record counts as "on disk" if it is farther behind the end of the log than this share of
    the machine's memory.
    """
    filter_bytes_max: int = 16_000
    """Limit of queue bytes that a get scans, so that a get whose filter matches nothing ends
    soon.
    """
    query_count_max: int = 64
    query_unique_count_max: int = 32
    delay_levels_ms: tuple[int, ...] = attrs.field(
        default=DEFAULT_DELAY_LEVELS, converter=parse_delay_levels
    )
    retention: RetentionRules = attrs.field(factory=RetentionRules)
    """When old messages are deleted, and when new messages are refused."""
    compaction: CompactionRules = attrs.field(factory=CompactionRules)
    """How topics are kept that have the newest value of each key only."""
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
    open_files_max: int = attrs.field(default=512, validator=attrs.validators.ge(2))
    """Limit of queue files that are open at the same time."""

    @store_host.validator
    def _check_store_host(self, _attribute: object, value: bytes) -> None:
        if len(value) not in (8, 20):
            raise ValueError(f"store_host has {len(value)} bytes, not 8 (IPv4) or 20 (IPv6)")

    @property
    def commitlog_directory(self) -> Path:
        return self.root / "commitlog" if self.commitlog is None else self.commitlog
