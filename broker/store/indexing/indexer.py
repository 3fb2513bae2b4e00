"""The indexer: gives every confirmed record its queue entry and its keys, in log order.

Law: one function, ``_apply``, feeds all indexes. Its batches come straight from the append, or from
the log if they did not fit into memory or their indexing was deferred. A batch is applied right
after its append if no other batch waits, before any other task runs; the sender's answer may be
written just before. Otherwise the task takes over.

The key index, which only queries read, takes many records at once: a single record would cost ten
times as much. Queries and checkpoints call ``flush_deferred`` first, so the delay is invisible.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from pathlib import Path

import attrs
import trio

from triomq.broker.store.core.errors import DiskFull
from triomq.broker.store.core.health import Health
from triomq.broker.store.core.watermark import Watermark
from triomq.broker.store.io.log_blocks import LogBlocks
from triomq.broker.store.keys.index import KeyIndex
from triomq.broker.store.log.scan import LogScan
from triomq.broker.store.queues.batch import Batch, joined
from triomq.broker.store.queues.table import Arrival, QueueTable

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
TURN_MESSAGES_MAX = 512
"""Limit of the messages that one fsync shows before other tasks get their turn."""
DEFERRED_MESSAGES_MAX = 64
DEFERRED_BYTES_MAX = 1024 * 1024
FINISH_BYTES_MAX = 512 * 1024 * 1024
"""Limit of the bytes that closing indexes: a few seconds of work. A service manager may kill a
broker that takes ten.
"""


@attrs.define(eq=False)
class Indexer:
    """Feeds the indexes. An index skips records that it has already.

    ``indexed`` is the end of the last record that the queues have. The key index has it after
    ``flush_deferred``.
    """

    queues: QueueTable
    key_index: KeyIndex | None
    confirmed: Watermark
    """Log offset up to which records may be shown to readers."""
    health: Health
    scan: Callable[[int, int], LogScan]
    """Returns a scan of the log from one offset to another."""
    backlog_bytes_max: int
    limiter: trio.CapacityLimiter
    on_arrival: list[Callable[[list[Arrival]], None]] = attrs.field(factory=list, init=False)
    """Called after each indexed batch with (topic, queue id, new end offset, tags code) tuples, one
    for each queue and tags code.
    """
    indexed: Watermark = attrs.field(factory=Watermark, init=False)
    last: tuple[int, int, int] | None = attrs.field(default=None, init=False)
    """(log offset, end, store time) of the last applied record."""
    _backlog: deque[Batch] = attrs.field(factory=deque, init=False)
    backlog_bytes: int = attrs.field(default=0, init=False)
    _work: Watermark = attrs.field(factory=Watermark, init=False)
    """Log offset up to which the task has to index. Grows only when work is left for the task."""
    _paused: bool = attrs.field(default=False, init=False)
    _resumed: trio.Event = attrs.field(factory=trio.Event, init=False)
    _deferred: list[Batch] = attrs.field(factory=list, init=False)
    """Batches that the queues have and the key index does not have yet."""
    _deferred_messages: int = attrs.field(default=0, init=False)
    _deferred_bytes: int = attrs.field(default=0, init=False)

    def start_at(self, log_offset: int, last: tuple[int, int, int] | None) -> None:
        """Set what recovery has indexed."""
        self.indexed.advance(log_offset)
        self.last = last

    def offer(self, batch: Batch) -> None:
        """Take the batch just appended. ``index_offered`` follows before the next checkpoint.

        Checkpoint: never.
        """
        self._backlog.append(batch)
        self.backlog_bytes += batch.end - batch.start

    def index_offered(self) -> None:
        """Index the offered batch now, or leave it for ``index_confirmed`` or for the task.

        If an index fails with a bug, the exception goes to the sender now, and to the store's
        nursery when the task tries again.

        Checkpoint: never.
        """
        backlog = self._backlog
        if not backlog:
            return
        end = backlog[-1].end
        confirmed = end <= self.confirmed.value
        try:
            if confirmed and backlog[0].start == self.indexed.value and len(backlog) == 1:
                self._apply_oldest()
        except DiskFull:
            pass  # the message is stored; the task tries again and logs the error
        finally:
            if backlog:
                if self.backlog_bytes > self.backlog_bytes_max:
                    logger.warning(
                        "the indexer is %s bytes behind; it reads the log instead of memory",
                        self.backlog_bytes,
                    )
                    backlog.clear()
                    self.backlog_bytes = 0
                if confirmed:  # otherwise the flusher calls `index_confirmed` later
                    self._work.advance(end)

    def index_confirmed(self) -> None:
        """Index up to ``TURN_MESSAGES_MAX`` newly confirmed messages; leave the rest for the task.

        Checkpoint: never.
        """
        backlog, confirmed = self._backlog, self.confirmed.value
        messages_left = TURN_MESSAGES_MAX
        try:
            while (
                backlog
                and backlog[0].start == self.indexed.value
                and backlog[0].end <= confirmed
                and messages_left > 0
            ):
                messages_left -= len(backlog[0].places)
                self._apply_oldest()
        except DiskFull:
            pass
        finally:
            if self.indexed.value < confirmed:
                self._work.advance(confirmed)

    def _apply_oldest(self) -> None:
        batch = self._backlog[0]
        self._apply(batch)
        self._backlog.popleft()
        self.backlog_bytes -= batch.end - batch.start
        self._report_arrivals()

    def _apply(self, batch: Batch) -> None:
        """Apply a batch: the only way into the indexes.

        Raises: DiskFull, before anything has changed.
        """
        if self.key_index is not None:
            self._defer(batch)
        self.queues.apply(batch)
        if batch.places:
            place = batch.places[-1]
            self.last = (place.log_offset, place.log_offset + place.size, place.store_timestamp)
        self.indexed.advance(batch.end)

    def _defer(self, batch: Batch) -> None:
        count, size = len(batch.places), batch.end - batch.start
        if self._deferred and (
            self._deferred_messages + count > DEFERRED_MESSAGES_MAX
            or self._deferred_bytes + size > DEFERRED_BYTES_MAX
        ):
            self.flush_deferred()
        self._deferred.append(batch)
        self._deferred_messages += count
        self._deferred_bytes += size

    def flush_deferred(self) -> None:
        """Apply the deferred batches to the key index. After an error, call it again.

        Raises: DiskFull. Checkpoint: never.
        """
        if self.key_index is None or not self._deferred:
            return
        self.key_index.apply(joined(self._deferred))
        self._deferred.clear()
        self._deferred_messages = self._deferred_bytes = 0

    @property
    def has_deferred(self) -> bool:
        """Whether some records are in the queues, but not in the key index yet."""
        return bool(self._deferred)

    def try_flush_deferred(self) -> None:
        """Flush the deferred batches; while the disk is full, refuse appends and log an error once.

        Checkpoint: never.
        """
        try:
            self.flush_deferred()
        except DiskFull as error:
            self._note_fault(error)
        else:
            if self.indexed.value >= self.confirmed.value:  # otherwise the task decides
                self.health.index_fault = None

    def _note_fault(self, error: DiskFull) -> None:
        if self.health.index_fault is None:
            logger.error("the key index cannot grow, messages are refused until it can: %s", error)
        self.health.index_fault = error

    def _report_arrivals(self) -> None:
        """Report the new entries. Called last, because a callback may append messages itself."""
        arrivals = self.queues.take_arrivals()
        if arrivals:
            for callback in self.on_arrival:
                callback(arrivals)

    def pause(self) -> None:
        """Stop indexing until ``resume``: a long copy needs the loop now. Checkpoint: never."""
        self._paused = True

    def resume(self, end: int) -> None:
        """Go on indexing. Records up to ``end`` that were not offered are read from the log.

        Checkpoint: never.
        """
        if self._paused:
            self._paused = False
            event, self._resumed = self._resumed, trio.Event()
            event.set()
        self._work.advance(end)

    async def index_backlog(self) -> None:
        """Run the task "store-indexer": index what could not be indexed in place."""
        while True:
            await self._work.wait_beyond(self.indexed.value)
            await self.confirmed.wait_beyond(self.indexed.value)
            while self._paused:
                await self._resumed.wait()
            await self.catch_up()

    async def catch_up(self) -> None:
        """Index all records that are confirmed now; on a full disk retry every second.

        Checkpoint: always.
        """
        await trio.lowlevel.checkpoint()
        while self.indexed.value < self.confirmed.value and not self._paused:
            try:
                if not await self._step():
                    return
            except DiskFull as error:
                self._note_fault(error)
                await trio.sleep(RETRY_SECONDS)
            else:
                self.health.index_fault = None
                await trio.lowlevel.checkpoint()

    async def _step(self) -> bool:
        """Apply a batch; return False if the next batch is not confirmed as a whole."""
        position = self.indexed.value
        while self._backlog and self._backlog[0].end <= position:
            batch = self._backlog.popleft()
            self.backlog_bytes -= batch.end - batch.start
        first = self._backlog[0] if self._backlog else None
        if first is not None and first.start <= position:
            if first.end > self.confirmed.value:
                return False
            self._apply_oldest()
            return True
        end = min(first.start, self.confirmed.value) if first is not None else self.confirmed.value
        return end > position and await self._apply_from_log(position, end)

    async def _apply_from_log(self, start: int, end: int) -> bool:
        """Index the log from ``start`` to ``end``, or until a pause. A thread reads the disk."""
        scan = self.scan(start, end)
        try:
            await self._apply_scan(scan, start, end)
        except OSError as error:
            raise scan.disk.write_error(Path(error.filename or "the log"), error) from error
        assert scan.position == end or self._paused, (
            f"the log cannot be read at {scan.position}, before its end {end}: {scan.stopped_by}"
        )
        return True

    async def _apply_scan(self, scan: LogScan, start: int, end: int) -> None:
        blocks = LogBlocks(scan.disk, scan.segments, start, end)
        while scan.position < end and not scan.stopped_by and not self._paused:
            block = await blocks.next()
            if block is None:  # an error of the disk, which the scan then raises itself
                scan.take_over()
            else:
                scan.give(*block)
            while True:
                batch = scan.next_batch(fetch=False) or await trio.to_thread.run_sync(
                    scan.next_batch, limiter=self.limiter
                )
                if batch is None:
                    break
                self._apply(batch)
                self._report_arrivals()
                await trio.lowlevel.checkpoint()

    async def finish(self) -> None:
        """Index all confirmed records before the store closes.

        Waits neither for a full disk nor for a long backlog: the next start indexes the rest.

        Raises: DiskFull.
        """
        self._paused = False
        missing = self.confirmed.value - self.indexed.value
        if missing > FINISH_BYTES_MAX:
            logger.warning(
                "the indexes are %s bytes behind the log: the next start indexes these", missing
            )
        else:
            while self.indexed.value < self.confirmed.value and await self._step():
                pass
        self.flush_deferred()
