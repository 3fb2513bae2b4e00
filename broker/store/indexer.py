"""The indexer: gives every confirmed record its queue entry and its keys, in log order.

Law: one function, ``_apply``, feeds all indexes; its batches come straight from the append, or from the log, when those did not fit into memory or were left out. A batch is
applied in place right after its append if nothing else waits, so a message is readable before its sender has an answer; otherwise the task takes over.

What only queries need (the key index) is applied to many records at once: for a single record it costs ten times as much. Whoever asks or saves calls ``settle``
first, so that nobody can see the difference.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from contextlib import closing
from typing import Protocol

import attrs
import trio

from triomq.broker.store.blocks_ahead import BlocksAhead
from triomq.broker.store.draft import Batch, joined
from triomq.broker.store.errors import DiskFull
from triomq.broker.store.health import Health
from triomq.broker.store.log_scan import LogScan
from triomq.broker.store.queue_table import Arrival, QueueTable
from triomq.broker.store.watermark import Watermark

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
TURN_MESSAGES_MAX = 512
"""What one fsync may show at once before other tasks get their turn."""
DEFERRED_MESSAGES_MAX = 64
DEFERRED_BYTES_MAX = 1024 * 1024
FINISH_BYTES_MAX = 512 * 1024 * 1024
"""What closing indexes: a few seconds' work. Whoever stops a broker may kill it after ten."""


class Index(Protocol):
    """Something derived from the log.

    ``apply`` skips what it has already, and either takes a whole batch or, with DiskFull, may be called with it again.
    """

    def apply(self, batch: Batch) -> None: ...


@attrs.define(eq=False)
class Indexer:
    """``indexed`` is the end of the last record that the queues have; the ``others`` have it after ``settle``."""

    queues: QueueTable
    others: tuple[Index, ...]
    confirmed: Watermark
    """How far records may be shown to readers."""
    health: Health
    scan: Callable[[int, int], LogScan]
    """Makes a scan of the log from one offset to another."""
    backlog_bytes_max: int
    limiter: trio.CapacityLimiter
    on_arrival: Callable[[list[Arrival]], None] | None = None
    indexed: Watermark = attrs.field(factory=Watermark, init=False)
    last: tuple[int, int, int] | None = attrs.field(default=None, init=False)
    """(log offset, end, store time) of the last record applied."""
    _backlog: deque[Batch] = attrs.field(factory=deque, init=False)
    _backlog_bytes: int = attrs.field(default=0, init=False)
    _work: Watermark = attrs.field(factory=Watermark, init=False)
    """End of what the task has to do: grows only when something is left for it."""
    overruns: int = attrs.field(default=0, init=False)
    _held: bool = attrs.field(default=False, init=False)
    _released: trio.Event = attrs.field(factory=trio.Event, init=False)
    _deferred: list[Batch] = attrs.field(factory=list, init=False)
    """Batches that the ``others`` do not have yet."""
    _deferred_messages: int = attrs.field(default=0, init=False)
    _deferred_bytes: int = attrs.field(default=0, init=False)

    def start_at(self, log_offset: int, last: tuple[int, int, int] | None) -> None:
        """Tell what recovery has indexed."""
        self.indexed.advance(log_offset)
        self.last = last

    @property
    def backlog_bytes(self) -> int:
        return self._backlog_bytes

    def offer(self, batch: Batch) -> None:
        """Take the batch just appended. Atomic: no checkpoint. ``index_offered`` comes next, before anybody else can run."""
        self._backlog.append(batch)
        self._backlog_bytes += batch.end - batch.start

    def index_offered(self) -> None:
        """Index now what was offered, if that is possible, else leave it for ``index_confirmed`` or the task. Atomic: no checkpoint.

        If an index fails with a bug, the exception goes to the sender now and to the store's nursery as soon as the task tries again.
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
            pass  # the message is stored; the task tries again and says so
        finally:
            if backlog:
                if self._backlog_bytes > self.backlog_bytes_max:
                    logger.warning("the indexer is %s bytes behind; it reads the log instead of memory", self._backlog_bytes)
                    backlog.clear()
                    self._backlog_bytes = 0
                    self.overruns += 1
                if confirmed:  # else whoever confirms them calls `index_confirmed`
                    self._work.advance(end)

    def index_confirmed(self) -> None:
        """``confirmed`` has moved: index now what lies in memory, up to a bound, and leave the rest for the task. Atomic: no checkpoint."""
        backlog, confirmed = self._backlog, self.confirmed.value
        messages_left = TURN_MESSAGES_MAX
        try:
            while backlog and backlog[0].start == self.indexed.value and backlog[0].end <= confirmed and messages_left > 0:
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
        self._backlog_bytes -= batch.end - batch.start
        self._tell()

    def _apply(self, batch: Batch) -> None:
        """The one way into the indexes. Raises DiskFull, before anything has changed."""
        if self.others:
            self._defer(batch)
        self.queues.apply(batch)
        if batch.places:
            place = batch.places[-1]
            self.last = (place.log_offset, place.log_offset + place.size, place.store_timestamp)
        self.indexed.advance(batch.end)

    def _defer(self, batch: Batch) -> None:
        count, size = len(batch.places), batch.end - batch.start
        if self._deferred and (
            self._deferred_messages + count > DEFERRED_MESSAGES_MAX or self._deferred_bytes + size > DEFERRED_BYTES_MAX
        ):
            self.settle()
        self._deferred.append(batch)
        self._deferred_messages += count
        self._deferred_bytes += size

    def settle(self) -> None:
        """Bring the ``others`` to where the queues are. Atomic: no checkpoint. Raises DiskFull, and then nothing is lost: call it again."""
        if not self._deferred:
            return
        batch = joined(self._deferred)
        for index in self.others:
            index.apply(batch)
        self._deferred.clear()
        self._deferred_messages = self._deferred_bytes = 0

    @property
    def settled(self) -> bool:
        """Whether the ``others`` are where the queues are."""
        return not self._deferred

    def try_settle(self) -> None:
        """``settle``; on a full disk say so once, and refuse appends until a later call succeeds. No checkpoint."""
        try:
            self.settle()
        except DiskFull as error:
            self._note_fault(error)
        else:
            if not self._backlog:  # else the task decides
                self.health.index_fault = None

    def _note_fault(self, error: DiskFull) -> None:
        if self.health.index_fault is None:
            logger.error("the key index cannot grow, messages are refused until it can: %s", error)
        self.health.index_fault = error

    def _tell(self) -> None:
        """Report what has arrived. The last thing done: whoever is woken may append in turn."""
        arrivals = self.queues.take_arrivals()
        if self.on_arrival is not None and arrivals:
            self.on_arrival(arrivals)

    def hold(self) -> None:
        """Leave what is not indexed yet until ``release``: somebody who copies much needs the loop now. No checkpoint."""
        self._held = True

    def release(self, end: int) -> None:
        """Go on: all up to this log offset is to be read from the log, as far as it was not offered. No checkpoint."""
        if self._held:
            self._held = False
            event, self._released = self._released, trio.Event()
            event.set()
        self._work.advance(end)

    async def run(self) -> None:
        """The task "store-indexer": do what ``offer`` could not."""
        while True:
            await self._work.wait_beyond(self.indexed.value)
            await self.confirmed.wait_beyond(self.indexed.value)
            while self._held:
                await self._released.wait()
            await self.catch_up()

    async def catch_up(self) -> None:
        """Index all that is confirmed now. On a full disk: again every second, appends are refused meanwhile. Checkpoint: always."""
        await trio.lowlevel.checkpoint()
        while self.indexed.value < self.confirmed.value and not self._held:
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
        """Apply one batch; False if the next one is not confirmed as a whole."""
        position = self.indexed.value
        while self._backlog and self._backlog[0].end <= position:
            batch = self._backlog.popleft()
            self._backlog_bytes -= batch.end - batch.start
        first = self._backlog[0] if self._backlog else None
        if first is not None and first.start <= position:
            if first.end > self.confirmed.value:
                return False
            self._apply_oldest()
            return True
        end = min(first.start, self.confirmed.value) if first is not None else self.confirmed.value
        return end > position and await self._apply_from_log(position, end)

    async def _apply_from_log(self, start: int, end: int) -> bool:
        """Read the log between ``start`` and ``end``, or as much of it as a hold lets pass; the disk's part in a thread."""
        scan = self.scan(start, end)
        with closing(BlocksAhead(scan.disk, scan.segments, start, end)) as blocks:
            while scan.position < end and not scan.stopped_by and not self._held:
                block = await blocks.next()
                if block is None:  # the disk has a fault, which the scan meets, too
                    scan.take_over()
                else:
                    scan.give(*block)
                while True:
                    batch = scan.next_batch(fetch=False) or await trio.to_thread.run_sync(scan.next_batch, limiter=self.limiter)
                    if batch is None:
                        break
                    self._apply(batch)
                    self._tell()
                    await trio.lowlevel.checkpoint()
        assert scan.position == end or self._held, f"the log cannot be read at {scan.position}, before its end {end}: {scan.stopped_by}"
        return True

    async def finish(self) -> None:
        """Closing: index what is confirmed, but do not wait for a full disk, nor for much: the next start does it. Raises DiskFull."""
        self._held = False
        missing = self.confirmed.value - self.indexed.value
        if missing > FINISH_BYTES_MAX:
            logger.warning("the indexes are %s bytes behind the log: the next start indexes these", missing)
        else:
            while self.indexed.value < self.confirmed.value and await self._step():
                pass
        self.settle()
