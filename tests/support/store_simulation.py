"""A store with all its tasks, its senders and its readers, in one deterministic run: the same seed
does the same operations in the same order.

Time is virtual, threads run in place, and Trio's scheduler is seeded. While a "thread" waits for
the device, senders go on: an append happens in the middle of an fsync now and then.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from simulated_disk import Image, Operation, SimulatedDisk
from store_ledger import Ledger, Moment, Promise, Record, parse
from stores import NOW_MS, draft, tiny_config, wait_durable

from triomq.broker.store.core.config import FlushMode, StoreConfig
from triomq.broker.store.core.draft import Draft
from triomq.broker.store.core.errors import StoreIoError, StoreUnavailable
from triomq.broker.store.core.retention import RetentionRules
from triomq.broker.store.indexing import index_syncer
from triomq.broker.store.log.durability import DurabilityResult
from triomq.broker.store.log.flusher import sync_files
from triomq.broker.store.opening import open_store
from triomq.broker.store.store import MessageStore

TOPICS = ("A", "B")
QUEUES = 2
SENDERS = 3
BODY_BYTES_MAX = 600


DEVICE_SECONDS = 0.002


async def in_place(
    call: Callable[..., Any], *arguments: Any, limiter: trio.CapacityLimiter | None = None, **_: Any
) -> Any:
    """``trio.to_thread.run_sync`` without a thread: others run before and after, not meanwhile;
    what the device does takes its time.
    """
    async with limiter if limiter is not None else contextlib.AsyncExitStack():
        await trio.lowlevel.checkpoint()
        if call is sync_files:
            with trio.CancelScope(shield=True):  # a thread under way is not cancelled
                await trio.sleep(DEVICE_SECONDS)
        result = call(*arguments)
    await trio.lowlevel.checkpoint()
    return result


@contextlib.contextmanager
def deterministic(seed: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trio.to_thread, "run_sync", in_place)
        patch.setattr(index_syncer, "STEP_SECONDS", -1.0)  # others run after each queue
        patch.setattr(trio._core._run, "_ALLOW_DETERMINISTIC_SCHEDULING", True)
        trio._core._run._r.seed(seed)
        yield


def simulated_config(root: Path, mode: FlushMode) -> StoreConfig:
    """Background work many times in a run. With ASYNC_FLUSH also so few open files that a
    checkpoint forces out all files with one call.
    """
    return tiny_config(
        root,
        flush_mode=mode,
        flush_interval_ms=20,
        index_write_interval_ms=40,
        checkpoint_interval_ms=100,
        open_files_max=2 if mode is FlushMode.ASYNC else 512,
        retention=RetentionRules(interval_ms=3_600_000, log_pause_ms=0, queue_pause_ms=0),
    )


@attrs.frozen
class CrashPoint:
    """The disk just before an operation, and what had been promised by then."""

    operation: Operation
    image: Image
    moment: Moment


@attrs.define(eq=False)
class Simulation:
    """``run`` is one life of the store; several may follow each other on the same disk."""

    root: Path
    mode: FlushMode
    seed: int
    points: list[CrashPoint] = attrs.field(factory=list)
    ledger: Ledger = attrs.field(factory=Ledger)
    store: MessageStore | None = None
    record_points: bool = True
    """Whether to keep images; else only the operations are noted."""
    operations: list[Operation] = attrs.field(factory=list)
    disk: SimulatedDisk = attrs.field(init=False)
    choose: random.Random = attrs.field(init=False)
    counter: int = 0
    clock_ms: int = NOW_MS
    jumps_ms: Sequence[int] = ()
    """By how much the wall clock jumps in each life, one after the other."""

    def __attrs_post_init__(self) -> None:
        self.root.mkdir()
        self.choose = random.Random(self.seed)
        self.disk = SimulatedDisk(self.root)
        self.disk.before = self._before
        self.disk.during_sync = self._during_sync

    @property
    def config(self) -> StoreConfig:
        return simulated_config(self.root, self.mode)

    def clock(self) -> int:
        self.clock_ms += self.choose.randint(0, 2)
        return self.clock_ms

    def _before(self, operation: Operation) -> None:
        self.operations.append(operation)
        if self.record_points:
            self.points.append(
                CrashPoint(operation, self.disk.image(), self.ledger.moment(self.store))
            )

    def run(self, batches: int) -> None:
        """From start to an orderly end. Raises what the store raises."""
        with deterministic(self.choose.getrandbits(32)):
            trio.run(self._life, batches, clock=trio.testing.MockClock(autojump_threshold=0))

    async def _life(self, batches: int) -> None:
        crashed = (self.root / "abort").exists()
        try:
            async with open_store(self.config, self.clock, disk=self.disk) as self.store:
                if crashed:
                    self.ledger.after_crash(self.config)
                async with trio.open_nursery() as nursery:
                    for _ in range(SENDERS):
                        nursery.start_soon(self._send, self.store, batches)
                    nursery.start_soon(self._consume, self.store, batches)
                    nursery.start_soon(self._expire, self.store)
                    if self.jumps_ms:
                        nursery.start_soon(self._jump)
        finally:
            moment = self.ledger.moment(self.store)
            self.store = None
            if self.record_points:
                self.points.append(
                    CrashPoint(
                        Operation(self.disk.count, "end", self.root), self.disk.image(), moment
                    )
                )

    def _drafts(self) -> list[Draft]:
        drafts = []
        for _ in range(self.choose.choice((1, 1, 1, 2, 5))):
            self.counter += 1
            size = self.choose.randint(0, BODY_BYTES_MAX)
            drafts.append(
                draft(
                    f"{self.counter}:".encode() + b"x" * size,
                    self.choose.choice(TOPICS),
                    self.choose.randrange(QUEUES),
                    unique_key=f"U{self.counter}",
                    keys=self.choose.choice((None, "k1", "k1 k2")),
                    tags=self.choose.choice((None, "red")),
                )
            )
        return drafts

    def append(self, store: MessageStore) -> int:
        """Append some messages; where the log ends then. Raises StoreUnavailable."""
        drafts = self._drafts()
        self.ledger.attempted += drafts
        try:
            places = store.append(drafts)
        except (StoreUnavailable, StoreIoError):
            self.ledger.refused += drafts
            raise
        self.ledger.appended += [
            Promise(item, place) for item, place in zip(drafts, places, strict=True)
        ]
        return places[-1].log_offset + places[-1].size

    def _during_sync(self) -> None:
        if self.store is not None and self.choose.random() < 0.2:
            with contextlib.suppress(StoreUnavailable, StoreIoError):
                self.append(self.store)

    async def _send(self, store: MessageStore, batches: int) -> None:
        for _ in range(batches):
            first = len(self.ledger.appended)
            try:
                end = self.append(store)
            except (StoreUnavailable, StoreIoError):
                await trio.sleep(0.01)
                continue
            mine = self.ledger.appended[first:]
            waits = self.choose.random() < 0.9  # otherwise WAIT=false
            if waits and await wait_durable(store.flusher, end) is DurabilityResult.DURABLE:
                self.ledger.acknowledged += mine
            await trio.sleep(self.choose.choice((0, 0, 0.002, 0.03)))

    async def _consume(self, store: MessageStore, batches: int) -> None:
        offsets: dict[tuple[str, int], int] = {}
        for _ in range(5 * batches):
            for topic in TOPICS:
                for queue_id in range(QUEUES):
                    offset = max(
                        offsets.get((topic, queue_id), 0), store.min_offset(topic, queue_id)
                    )
                    got = await store.get_cold(
                        topic, queue_id, offset, messages_max=8, bytes_max=1 << 20
                    )
                    self.ledger.shown += shown_records(b"".join(got.chunks))
                    offsets[topic, queue_id] = got.next_offset
            await trio.sleep(0.004)

    async def _jump(self) -> None:
        for jump in self.jumps_ms:
            await trio.sleep(0.06)
            self.clock_ms += jump

    async def _expire(self, store: MessageStore) -> None:
        await trio.sleep(0.15)
        for segment in store.log.segments.items[:2]:
            os.utime(segment.path, (0, 0))
        store.cleaner.delete_expired_soon()


def shown_records(data: bytes) -> list[Record]:
    """The records of an answer to a pull."""
    records = []
    while data:
        size = int.from_bytes(data[:4])
        records.append(parse(data[:size], int.from_bytes(data[28:36])))
        data = data[size:]
    return records
