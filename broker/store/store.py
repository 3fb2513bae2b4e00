"""MessageStore: append, get, query. The interface of the store for other packages."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import attrs
import trio

from triomq.broker.store.cleaner import Cleaner
from triomq.broker.store.compaction.compacted_queues import CompactedQueues
from triomq.broker.store.compaction.compactor import Compactor
from triomq.broker.store.core.config import FlushMode, StoreConfig
from triomq.broker.store.core.confirmations import Confirmations
from triomq.broker.store.core.draft import Appended, Draft, check_draft
from triomq.broker.store.core.errors import CopyRefused
from triomq.broker.store.core.health import Health
from triomq.broker.store.core.numbering import dispatch_names
from triomq.broker.store.core.results import GetResult, GetStatus, QueryResult
from triomq.broker.store.core.stall import Stall
from triomq.broker.store.core.watermark import Watermark
from triomq.broker.store.follow.deferred_indexing import DeferredIndexing
from triomq.broker.store.follow.log_copy import LogCopy
from triomq.broker.store.indexing.index_syncer import IndexSyncer
from triomq.broker.store.indexing.indexer import Indexer
from triomq.broker.store.indexing.store_files import OpenStoreFiles
from triomq.broker.store.io.disk import Disk
from triomq.broker.store.io.reads import Buffer, Cold, ColdFetch, Reads
from triomq.broker.store.keys.index import KeyIndex
from triomq.broker.store.log.commit_log import CommitLog
from triomq.broker.store.log.flusher import Flusher
from triomq.broker.store.queues.table import QueueTable
from triomq.broker.store.reading.queue_messages import (
    DamagedRecord,
    DamagedRecords,
    QueueMessages,
    read_places,
    read_queue,
)
from triomq.broker.store.reading.reader import Reader
from triomq.broker.store.recovery import Recovered
from triomq.remoting.protocol.record import StoredMessage
from triomq.remoting.protocol.record_reader import read_record

T = TypeVar("T")
CLOSING_WAIT_SECONDS = 5.0
"""Limit of the time that an fsync of a closing store waits for a descriptor: by then the
descriptors of connections are free.
"""
INDEXED_AT_ONCE = 1_024
"""Records of one append that are indexed at once: some milliseconds."""
QUEUES_A_STEP = 64


@attrs.define(eq=False)
class MessageStore:
    """Made by ``open_store``. Methods without ``async`` never checkpoint.

    Reads that requests need often have two forms: the plain one returns None if it would have to
    wait for the disk; ``…_cold`` waits, in a thread.
    """

    files: OpenStoreFiles
    clock: Callable[[], int]
    flusher: Flusher
    indexer: Indexer
    cleaner: Cleaner
    compactor: Compactor
    recovered: Recovered
    memory_bytes: int
    """Physical memory of this machine."""
    confirmations: Confirmations | None = None
    """In controller mode: what others have decides how far readers see the log."""
    config: StoreConfig = attrs.field(init=False)
    disk: Disk = attrs.field(init=False)
    log: CommitLog = attrs.field(init=False)
    queue_table: QueueTable = attrs.field(init=False)
    key_index: KeyIndex = attrs.field(init=False)
    index_syncer: IndexSyncer = attrs.field(init=False)
    reader: Reader = attrs.field(init=False)
    compacted: CompactedQueues = attrs.field(init=False)
    damaged: DamagedRecords = attrs.field(init=False)
    health: Health = attrs.field(init=False)
    _warm: Reads = attrs.field(init=False)
    _cold_fetch: ColdFetch = attrs.field(init=False)
    append_max_seconds: float = attrs.field(default=0.0, init=False)
    """The longest append since the start; shows stalls of the page cache."""
    stall: Stall = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        files = self.files
        self.config, self.disk, self.log = files.config, files.disk, files.log
        self.queue_table, self.key_index = files.queues, files.key_index
        self.index_syncer, self.reader = self.cleaner.index_syncer, self.cleaner.reader
        self.compacted, self.damaged = self.compactor.compacted, self.compactor.damaged
        self.health = self.cleaner.health
        self._warm = self._reads()
        self._cold_fetch = ColdFetch(self.disk, self._is_far)
        self.stall = Stall(self.config.append_stall_ms / 1000)

    def _reads(self) -> Reads:
        return Reads(self.disk, self.queue_table.open_files)

    async def _wait(self, read: Callable[[Reads], T]) -> T:
        return await self._cold_fetch.until_warm(read, self._reads())

    async def _read(self, read: Callable[[Reads], T]) -> T:
        """Read what is in memory at once, anything else in a thread."""
        try:
            return read(self._warm)
        except Cold:
            return await self._wait(read)

    def _is_far(self, path: Path, position: int) -> bool:
        """Return whether a byte is farther behind the log's end than ``memory_bytes_max``."""
        return (
            path.parent == self.config.commitlog
            and int(path.name) + position < self.log.appended.value - self.reader.memory_bytes_max
        )

    # Writing

    def check_draft(self, draft: Draft) -> None:
        """Check whether a draft can be stored. Must be called for every draft before ``append``.

        Raises: IllegalMessage.
        """
        self._mark_special(draft)  # a special message needs room for added properties
        check_draft(draft, self.config)

    def append(self, drafts: Sequence[Draft]) -> list[Appended]:
        """Store all drafts or none, in this order in log and queues.

        Afterwards the page cache has the messages, so they survive a crash of this process. With
        ASYNC_FLUSH readers see them already, or soon if there are more than ``INDEXED_AT_ONCE``.

        Raises: StoreUnavailable, DiskFull, StoreIoError, IllegalMessage.
        """
        for draft in drafts:
            self._mark_special(draft)
        places = self.append_unindexed(drafts)
        self.indexer.index_offered()
        return places

    def _mark_special(self, draft: Draft) -> None:
        """Mark a special message, for callers that do not know its kind; see ``numbering.py``."""
        if self.queue_table.has_batch_queues(draft.topic) or (
            self.config.multi_dispatch and dispatch_names(draft.properties)
        ):
            draft.special = True

    def append_unindexed(self, drafts: Sequence[Draft]) -> list[Appended]:
        """Append without indexing.

        The caller answers the sender and then calls ``indexer.index_offered``, before its next
        checkpoint.

        Raises: StoreUnavailable, DiskFull, StoreIoError, IllegalMessage.
        """
        if not self.health.writable:
            self.health.check_writable()
        if not drafts:
            return []
        begun = time.perf_counter()
        batch = self.log.append(drafts, self.queue_table, self.clock())
        self.log.appended.advance(batch.end)
        if len(drafts) <= INDEXED_AT_ONCE:
            self.indexer.offer(batch)
        else:  # its task indexes it in turns
            for part in batch.parts(INDEXED_AT_ONCE):
                self.indexer.offer(part)
        seconds = time.perf_counter() - begun
        if seconds > self.append_max_seconds:
            self.append_max_seconds = seconds
        if seconds > self.stall.limit_seconds:
            self.stall.note(seconds)
        return batch.places

    def follow(self) -> LogCopy:
        """Make the log another broker's copy: the ``LogCopy`` writes, ``append`` is refused."""
        self.health.following = True
        deferral = DeferredIndexing(self.indexer, self.memory_bytes // 4, self._free_bytes)
        return LogCopy(self.log, self.flusher, self.indexer, self.health, deferral)

    async def begin_writing(self) -> None:
        """Show the whole log, and number on behind it: this broker is the only one in its set.

        A broker in controller mode that becomes master calls it before its first message. On a full
        disk it waits until the queues can grow.

        Raises: FlushFailed. Checkpoint: always.
        """
        assert self.confirmations is not None
        await self.flusher.flush()
        end = self.appended.value
        self.confirmations.confirm(end)
        await self.indexer.indexed.wait_reached(end)
        self.queue_table.number_on()

    def _free_bytes(self) -> int:
        """Return the free bytes of the log's disk; 0 if the system does not say."""
        try:
            return self.disk.usage(self.config.commitlog).free
        except OSError:
            return 0

    # Reading the log as bytes, for slaves

    @property
    def first_offset(self) -> int:
        """The log offset where the log begins."""
        return self.log.first_offset

    def log_bytes(self, start: int, end: int) -> Buffer | None:
        """Return the bytes [start, end) of the log, which lie in one segment.

        None if some of them are not in memory or are deleted: then use ``log_bytes_cold``.

        Raises: StoreIoError.
        """
        if start < self.log.first_offset:  # deleted meanwhile
            return None
        try:
            return self._log_read(start, end, self._warm)
        except Cold:
            return None

    async def log_bytes_cold(self, start: int, end: int) -> Buffer:
        """Return the same, waiting for the disk in a thread.

        Raises: StoreIoError; CopyRefused if the bytes are deleted. Checkpoint: always.
        """

        def read(reads: Reads) -> Buffer:
            if start < self.log.first_offset:
                raise CopyRefused(
                    f"log offset {start} has been deleted, the log begins at"
                    f" {self.log.first_offset}"
                )
            return self._log_read(start, end, reads)

        return await self._wait(read)

    def _log_read(self, start: int, end: int, reads: Reads) -> Buffer:
        return self.log.read([(start, end)], reads)[0]

    # Reading messages

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        messages_max: int,
        bytes_max: int,
        tag_codes: frozenset[int] | None = None,
        is_range: bool = False,
    ) -> GetResult | None:
        """Return messages from ``offset`` on; None if some are not in memory: use ``get_cold``.

        ``is_range``: within ``RANGE_LIMITS`` instead of those of the settings.

        Raises: StoreIoError.
        """
        if self.compacted.with_copy_of(topic, queue_id, offset) is not None:
            return None
        try:
            return self.reader.get(
                topic, queue_id, offset, messages_max, bytes_max, tag_codes, is_range, self._warm
            )
        except Cold:
            return None

    def begins_near(self, topic: str, queue_id: int) -> bool | None:
        """Return whether a queue is empty, or its first message is near the log's end.

        Near is at most ``memory_bytes_max``: Java counts such a message as in memory. None: the
        entry of the message cannot be read at this moment; use ``begins_near_cold``.

        Raises: StoreIoError. Checkpoint: never.
        """
        if self.log.first_offset >= self.log.appended.value - self.reader.memory_bytes_max:
            return True
        first = self.get(topic, queue_id, 0, messages_max=1, bytes_max=0)
        return None if first is None else not first.far_behind

    async def begins_near_cold(self, topic: str, queue_id: int) -> bool:
        """Return the same, waiting for the disk in a thread.

        Raises: StoreIoError. Checkpoint: always.
        """
        first = await self.get_cold(topic, queue_id, 0, messages_max=1, bytes_max=0)
        return not first.far_behind

    async def get_cold(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        messages_max: int,
        bytes_max: int,
        tag_codes: frozenset[int] | None = None,
        is_range: bool = False,
    ) -> GetResult:
        """Return the same, waiting for the disk in a thread.

        Raises: StoreIoError. Checkpoint: always.
        """
        compacted = self.compacted.with_copy_of(topic, queue_id, offset)
        if compacted is not None:
            limits = self.reader.limits(is_range=is_range)
            return await compacted.get(offset, messages_max, bytes_max, tag_codes, limits)
        return await self._wait(
            lambda reads: self.reader.get(
                topic, queue_id, offset, messages_max, bytes_max, tag_codes, is_range, reads
            )
        )

    async def get_or_wait(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        messages_max: int,
        bytes_max: int,
        is_range: bool = False,
    ) -> GetResult:
        """Return messages from ``offset`` on, waiting for the disk only if that is needed.

        Raises: StoreIoError. Checkpoint: maybe.
        """
        found = self.get(
            topic,
            queue_id,
            offset,
            messages_max=messages_max,
            bytes_max=bytes_max,
            is_range=is_range,
        )
        if found is not None:
            return found
        return await self.get_cold(
            topic,
            queue_id,
            offset,
            messages_max=messages_max,
            bytes_max=bytes_max,
            is_range=is_range,
        )

    # Reading messages for tasks of the broker, which go on behind damage

    async def messages(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        messages_max: int,
        bytes_max: int,
        tag_codes: frozenset[int] | None = None,
    ) -> QueueMessages:
        """Return messages of one of the broker's own topics, without those that are damaged.

        ``next_offset`` is ``offset`` if nothing is there yet, and smaller if the queue ends before
        it.

        Raises: StoreIoError. Checkpoint: maybe, only to read the disk.
        """
        found = await self._read(
            lambda reads: read_queue(
                self.reader, topic, queue_id, offset, messages_max, bytes_max, tag_codes, reads
            )
        )
        self.damaged.note(found.damaged)
        return found

    async def message_at(self, topic: str, queue_id: int, offset: int) -> StoredMessage | None:
        """Return the message of any topic at ``offset``, or the next one; None: none, or damaged.

        Raises: StoreIoError. Checkpoint: maybe, only to read the disk.
        """
        found = await self.get_or_wait(
            topic, queue_id, offset, messages_max=1, bytes_max=0, is_range=True
        )
        if found.status is not GetStatus.FOUND:
            return None
        record = b"".join(found.chunks)
        message = read_record(record, 0, len(record))
        if not isinstance(message, str):
            return message
        name = f"message {offset} of queue {queue_id}"
        for log_offset, _, _ in await self.entries(topic, queue_id, offset, 1):
            self.damaged.note([DamagedRecord(topic, name, log_offset, message)])
        return None

    async def messages_at(
        self, topic: str, places: Sequence[tuple[int, int]]
    ) -> dict[int, StoredMessage]:
        """Return log offset -> message of a topic, of (log offset, size) of records, ascending.

        Those that are deleted or damaged are left out.

        Raises: StoreIoError. Checkpoint: maybe, only to read the disk.
        """
        found = await self._read(lambda reads: read_places(self.reader, topic, places, reads))
        self.damaged.note([item for item in found if isinstance(item, DamagedRecord)])
        return {item.log_offset: item for item in found if isinstance(item, StoredMessage)}

    async def read_record(self, log_offset: int) -> bytes | None:
        """Return the whole record that begins at ``log_offset``; None if there is none.

        Raises: StoreIoError. Checkpoint: maybe, only to read the disk.
        """
        return await self._read(lambda reads: self.reader.record(log_offset, reads))

    async def query(
        self,
        topic: str,
        key: str,
        *,
        max_count: int,
        begin_ms: int,
        end_ms: int,
        unique: bool = False,
    ) -> QueryResult:
        """Return records that carry the key. ``unique``: the key is a UNIQ_KEY.

        Among them may be records of another key with the same hash: the client compares the keys.

        Raises: StoreIoError. Checkpoint: always.
        """
        self.indexer.try_flush_deferred()
        return await self._wait(
            lambda reads: self.reader.query(topic, key, max_count, begin_ms, end_ms, unique, reads)
        )

    # Facts about queues

    def queues(self) -> dict[str, list[int]]:
        """Return topic -> ids of its queues, ascending."""
        found: dict[str, list[int]] = {}
        for topic, queue_id in sorted(self.queue_table.queues):
            found.setdefault(topic, []).append(queue_id)
        return found

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the smallest readable offset; 0 for a queue that does not exist."""
        compacted = self.compacted.queues.get((topic, queue_id))
        if compacted is not None:
            return compacted.min_offset
        queue = self.queue_table.queues.get((topic, queue_id))
        return queue.min_offset if queue is not None else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return one past the last readable offset; 0 for a queue that does not exist."""
        compacted = self.compacted.queues.get((topic, queue_id))
        if compacted is not None:
            return compacted.end_offset
        queue = self.queue_table.queues.get((topic, queue_id))
        return queue.end_offset if queue is not None else 0

    async def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool = False
    ) -> int:
        """Return the first offset stored at or after the time, within min and max offset.

        ``upper``: the last one at or before the time.

        Raises: StoreIoError. Checkpoint: maybe, only to read the disk.
        """
        self.indexer.try_flush_deferred()  # the key index knows where times go back
        compacted = self.compacted.queues.get((topic, queue_id))
        copy = await compacted.offset_by_time(timestamp_ms, upper=upper) if compacted else None
        if copy is not None and compacted is not None and compacted.has_copy_of(copy):
            return copy
        return await self._read(
            lambda reads: self.reader.offset_by_time(topic, queue_id, timestamp_ms, upper, reads)
        )

    async def entries(
        self, topic: str, queue_id: int, first: int, count: int
    ) -> list[tuple[int, int, int]]:
        """Return (log offset, size, tags code) of at most ``count`` messages from ``first`` on.

        No messages if ``first`` is deleted.

        Raises: StoreIoError. Checkpoint: always.
        """
        return await self._wait(
            lambda reads: self.reader.entries(topic, queue_id, first, count, reads)
        )

    async def store_time_at(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the store time (ms) of a message, -1 if there is none.

        Raises: StoreIoError. Checkpoint: maybe, only to read the disk.
        """
        compacted = self.compacted.with_copy_of(topic, queue_id, offset)
        if compacted is not None:
            return await compacted.store_time_at(offset)
        return await self._read(
            lambda reads: self.reader.store_time_at(topic, queue_id, offset, reads)
        )

    # The store as a whole

    @property
    def appended(self) -> Watermark:
        """The end of the log."""
        return self.log.appended

    @property
    def flushed(self) -> Watermark:
        """How far the log is forced to the disk."""
        return self.flusher.flushed

    @property
    def copyable(self) -> Watermark:
        """How far slaves may have the log: ``flushed`` with SYNC_FLUSH, otherwise ``appended``."""
        return self.flushed if self.config.flush_mode is FlushMode.SYNC else self.appended

    @property
    def confirmed(self) -> Watermark:
        """How far readers may see the log: as ``copyable``, or what ``confirmations`` say."""
        return self.indexer.confirmed

    @property
    def indexed(self) -> Watermark:
        """How far readers find messages in the queues."""
        return self.indexer.indexed

    def reconfigure(self, config: StoreConfig) -> None:
        """Change retention at once; intervals and time-outs, when the current ones are over."""
        self.config = self.files.config = self.flusher.config = config
        self.cleaner.begin_round_soon()

    def delete_topic(self, topic: str) -> None:
        """Remove a topic's queues. Records stay in the log until their segments are deleted.

        Raises: StoreError.
        """
        if all(name == topic for name, _ in self.queue_table.queues):
            self.index_syncer.forget_queues()
        self.queue_table.delete_topic(topic)
        self.index_syncer.save_soon()

    async def delete_expired_queues(self, keep: Callable[[str], bool]) -> list[tuple[str, int]]:
        """Forget queues whose messages are all deleted, with their numbers.

        Queues stay if ``keep`` is true for their topic, or if they get a message in the meantime.

        Returns: (topic, queue id) of each forgotten queue.
        Raises: StoreError.
        Checkpoint: always, also between queues.
        """
        await trio.lowlevel.checkpoint()
        table, log_min = self.queue_table, self.log.first_offset
        compacted = self.compacted.present()
        candidates = table.expired(log_min, lambda topic: keep(topic) or topic in compacted)
        if candidates:
            self.index_syncer.forget_queues()
        expired = []
        for number, key in enumerate(candidates, 1):
            queue = table.queues.get(key)
            if queue is not None and table.is_expired(queue, log_min):
                table.delete(key)
                expired.append(key)
            if number % QUEUES_A_STEP == 0:
                await trio.lowlevel.checkpoint()
        table.forget_empty_topics({topic for topic, _ in expired})
        self.index_syncer.save_soon()
        return expired

    def prepare_to_close(self) -> None:
        """Prepare for closing: from now on no fsync waits long for a descriptor."""
        self.disk.descriptor_wait_seconds = CLOSING_WAIT_SECONDS
