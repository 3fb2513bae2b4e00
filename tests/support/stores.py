"""Small stores for tests: tiny files so that every roll happens, and disks that fail on purpose."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import trio

from triomq.broker.store.core.config import StoreConfig
from triomq.broker.store.core.draft import Draft
from triomq.broker.store.core.errors import DiskFull, FlushFailed
from triomq.broker.store.core.retention import RetentionRules
from triomq.broker.store.core.watermark import Watermark
from triomq.broker.store.follow.log_copy import LogCopy
from triomq.broker.store.io.disk import Disk, DiskFeatures
from triomq.broker.store.log.durability import Durability, DurabilityResult
from triomq.broker.store.store import MessageStore
from triomq.remoting.protocol.message_properties import decode_properties, encode_properties
from triomq.remoting.protocol.record import StoredMessage
from triomq.remoting.protocol.record_reader import decode_records

BORN_HOST = bytes([127, 0, 0, 1]) + (54_321).to_bytes(4, "big")
BORN_HOST_V6 = bytes(15) + b"\1" + (54_321).to_bytes(4, "big")
NOW_MS = 1_700_000_000_000
NO_FEATURES = DiskFeatures(
    nowait=False,
    datasync=False,
    allocate=False,
    seek_data=False,
    advise=False,
    sync_file_system=False,
)


def tiny_config(root: Path, **changes: Any) -> StoreConfig:
    """Segments of 4 KiB, 10 queue entries a file, 16 slots and 24 entries an index file; background
    work only when asked for.
    """
    settings: dict[str, Any] = {
        "root": root,
        "segment_size_bytes": 4096,
        "queue_file_size_bytes": 200,
        "index_slot_count": 16,
        "index_entry_count": 24,
        "flush_interval_ms": 3_600_000,
        "index_write_interval_ms": 3_600_000,
        "checkpoint_interval_ms": 3_600_000,
        "retention": RetentionRules(interval_ms=3_600_000, log_pause_ms=0, queue_pause_ms=0),
    }
    return StoreConfig(**{**settings, **changes})


def moved(config: StoreConfig, root: Path) -> StoreConfig:
    """Return the settings of a copy of the store in another folder, its log included."""
    return attrs.evolve(config, root=root, commitlog=root / "commitlog")


def empty_store() -> Any:
    """Stands in for the store of tables that only ask where its log ends."""
    return SimpleNamespace(disk=Disk(), appended=Watermark())


def golden_config(root: Path, **changes: Any) -> StoreConfig:
    """The geometry of the stores under tests/golden/store."""
    return tiny_config(
        root,
        segment_size_bytes=65_536,
        queue_file_size_bytes=1_200,
        index_slot_count=200,
        index_entry_count=60,
        **changes,
    )


def draft(
    body: bytes | str = b"hello", topic: str = "T", queue_id: int = 0, **changes: Any
) -> Draft:
    """A message; ``tags``, ``unique_key`` and ``keys`` go into the properties as well."""
    names = {
        "TAGS": changes.get("tags"),
        "UNIQ_KEY": changes.get("unique_key"),
        "KEYS": changes.get("keys"),
    }
    extra = changes.pop("extra", {})
    properties = encode_properties(
        {name: value for name, value in {**names, **extra}.items() if value}
    )
    settings = {
        "properties": properties,
        "flag": 0,
        "sys_flag": 0,
        "born_timestamp": NOW_MS - 5,
        "born_host": BORN_HOST,
        **changes,
    }
    return Draft(
        topic=topic,
        queue_id=queue_id,
        body=body.encode() if isinstance(body, str) else body,
        **settings,
    )


def draft_of(message: StoredMessage) -> Draft:
    """What a broker would have appended to get this record."""
    properties = decode_properties(message.properties_bytes)
    return Draft(
        message.topic,
        message.queue_id,
        message.body,
        message.properties_bytes,
        message.flag,
        message.sys_flag,
        message.born_timestamp,
        message.born_host_bytes,
        message.reconsume_times,
        message.prepared_transaction_offset,
        properties.get("TAGS"),
        properties.get("UNIQ_KEY"),
        properties.get("KEYS"),
    )


@attrs.define(eq=False)
class SteppingClock:
    """Wall time that moves by ``step_ms`` at every reading."""

    now_ms: int = NOW_MS
    step_ms: int = 1

    def __call__(self) -> int:
        self.now_ms += self.step_ms
        return self.now_ms


async def read_all(
    store: MessageStore, topic: str, queue_id: int, start: int = 0, messages_max: int = 32
) -> list[StoredMessage]:
    """Every message of a queue, by as many gets as it takes."""
    found: list[StoredMessage] = []
    offset = max(start, store.min_offset(topic, queue_id))
    while offset < store.max_offset(topic, queue_id):
        result = store.get(topic, queue_id, offset, messages_max=messages_max, bytes_max=1 << 20)
        if result is None:
            result = await store.get_cold(
                topic, queue_id, offset, messages_max=messages_max, bytes_max=1 << 20
            )
        found += decode_records(b"".join(result.chunks), check_crc=True)
        assert result.next_offset > offset
        offset = result.next_offset
    return found


async def find_bodies(store: MessageStore, topic: str, key: str, **changes: Any) -> list[bytes]:
    """Bodies of the records found by key, oldest first."""
    question = {"max_count": 64, "begin_ms": 0, "end_ms": 1 << 60, **changes}
    result = await store.query(topic, key, **question)
    return [decode_records(chunk)[0].body for chunk in result.chunks]


@attrs.define(eq=False)
class FaultyDisk(Disk):
    """A disk that is full, or fails to flush, when ``refuse`` says so about a path."""

    refuse_write: Callable[[Path], bool] = lambda path: False
    refuse_sync: Callable[[Path], bool] = lambda path: False
    torn_bytes: int = 0
    """How much of a refused write reaches the file first."""

    def write_at(
        self, fd: int, data: bytes | bytearray | memoryview, offset: int, path: Path
    ) -> None:
        if self.refuse_write(path):
            if self.torn_bytes:
                os.pwrite(fd, data[: self.torn_bytes], offset)
            raise DiskFull(path)
        super().write_at(fd, data, offset, path)

    def allocate(self, fd: int, offset: int, length: int, path: Path) -> None:
        if self.refuse_write(path):
            raise DiskFull(path)
        super().allocate(fd, offset, length, path)

    def sync_path(self, path: Path) -> None:
        if self.refuse_sync(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        super().sync_path(path)


def snapshot(directory: Path) -> dict[Path, int]:
    """Every path under a directory, and when it was last changed."""
    return {path: path.stat().st_mtime_ns for path in sorted(directory.rglob("*"))}


def take(copy: LogCopy, start: int, data: bytes | bytearray | memoryview) -> None:
    """Append bytes to a copy of a log, and show readers the records in them."""
    try:
        copy.take_unindexed(start, data)
    finally:
        copy.index_taken()


async def wait_durable(durability: Durability, log_end: int) -> DurabilityResult:
    """Wait until the log is safe up to ``log_end``, or until the time for that is over.

    Raises: FlushFailed. Checkpoint: always.
    """
    results: list[DurabilityResult | FlushFailed] = []
    ended = trio.Event()

    def on_durable(result: DurabilityResult | FlushFailed) -> None:
        results.append(result)
        ended.set()

    durability.when_durable(log_end, on_durable)
    await ended.wait()
    if isinstance(results[0], FlushFailed):
        raise results[0]
    return results[0]
