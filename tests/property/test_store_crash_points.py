"""Crashes at every operation on every file, of a store at full work: what had been promised by then
is what the next start finds.

One run of a store in virtual time numbers its operations and keeps an image of the disk before
each. From every image come the directory that ``kill -9`` leaves, the one that a kill in the middle
of a write leaves, and some that a power failure leaves; each is recovered, and recovered again, and
compared with the ledger.
"""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from simulated_disk import Image, Operation, SimulatedDisk
from store_ledger import Ledger, Moment, Promise, folder_contents
from store_simulation import CrashPoint, Simulation, deterministic, simulated_config
from stores import SteppingClock, draft

from triomq.broker.inspect.layout import Sizes
from triomq.broker.inspect.verify import verify
from triomq.broker.store import opening as store_module
from triomq.broker.store.core.config import FlushMode
from triomq.broker.store.core.errors import StoreError
from triomq.broker.store.indexing import index_syncer
from triomq.broker.store.indexing.indexer import Indexer
from triomq.broker.store.io.disk import Disk
from triomq.broker.store.keys.index import KeyIndex
from triomq.broker.store.log import flusher as durability
from triomq.broker.store.log.commit_log import CommitLog
from triomq.broker.store.log.durability import DurabilityResult, OnDurable
from triomq.broker.store.log.flusher import sync_files
from triomq.broker.store.opening import close_files, finish_store, load_store
from triomq.broker.store.queues.table import QueueTable
from triomq.broker.store.store import MessageStore

BATCHES = 5
DAYS_40 = 40 * 86_400_000


class Sampled:
    """One of the images of a disk's operations, each as likely as the others."""

    def __init__(self, disk: SimulatedDisk, choose: random.Random) -> None:
        self.disk, self.choose = disk, choose
        self.seen = 0
        self.image = disk.image()
        disk.before = self._before

    def _before(self, _: Operation) -> None:
        self.seen += 1
        if self.choose.random() < 1 / self.seen:
            self.image = self.disk.image()


class Recoveries:
    """Recovers directories one after the other and compares each with the ledger of its run."""

    def __init__(self, simulation: Simulation, folder: Path) -> None:
        self.simulation = simulation
        self.folder = folder
        self.count = 0
        self.sync = simulation.mode is FlushMode.SYNC

    def next_folder(self) -> Path:
        self.count += 1
        return self.folder / str(self.count)

    def check(self, point: CrashPoint, how: str, seed: int, *, thorough: bool = True) -> None:
        """Raise an AssertionError that names the crash if a promise is broken.

        ``thorough``: recovery itself crashes, too, at one of its operations, and so does the next
        life.
        """
        target = self.next_folder()
        image, operation = point.image, point.operation
        if how == "torn write":
            image = image.torn(
                operation, self.simulation.root, 1 + seed % max(1, len(operation.data) - 1)
            )
        if how == "power":
            image.after_power_failure(target, seed)
        else:
            image.after_kill(target)
        try:
            with deterministic(seed):
                trio.run(self._recover, target, point.moment, how == "power", seed, thorough)
        except Exception as error:
            error.add_note(
                f"{how} before operation {operation.number}, {operation.kind}"
                f" {operation.path.name}; seed {seed}; the directory is {target}"
            )
            raise
        shutil.rmtree(target)

    async def _open(self, folder: Path, disk: SimulatedDisk | None = None) -> MessageStore:
        config = simulated_config(folder, self.simulation.mode)
        return await load_store(
            config, SteppingClock(self.simulation.clock_ms), disk or SimulatedDisk(folder)
        )

    async def _recover(
        self, target: Path, moment: Moment, power: bool, seed: int, thorough: bool
    ) -> None:
        choose, ledger = random.Random(seed), self.simulation.ledger
        disk = SimulatedDisk(target)
        interrupted = Sampled(disk, choose) if thorough else None
        store = await self._open(target, disk)
        await ledger.check(store.config, store, moment, power=power, sync=self.sync)
        found = folder_contents(store.config)
        close_files(store)
        store = await self._open(target)
        again = folder_contents(store.config)
        changed = [
            name
            for name in sorted(found.keys() | again.keys())
            if found.get(name) != again.get(name)
        ]
        assert not changed, f"a second recovery changes {', '.join(changed)}"
        close_files(store)
        if interrupted is not None:
            await self._stop_and_verify(target)
            await self._interrupt(interrupted.image, moment, power, seed, choose)

    async def _stop_and_verify(self, target: Path) -> None:
        """A second judge: after an orderly stop ``mqstore verify`` finds nothing to complain of."""
        store = await self._open(target)
        await finish_store(store)
        close_files(store)
        assert not (target / "abort").exists()
        config = store.config
        sizes = Sizes(
            segment_size=config.segment_size_bytes,
            queue_file_size=config.queue_file_size_bytes,
            index_slots=config.index_slot_count,
            index_entries=config.index_entry_count,
        )
        verdict = verify(target, sizes)
        assert verdict.clean, verdict.document()

    async def _interrupt(
        self, image: Image, moment: Moment, power: bool, seed: int, choose: random.Random
    ) -> None:
        """Power fails in the middle of recovery, a second one ends well; life goes on, and power
        fails once more: nothing comes back that was cut off.
        """
        target = self.next_folder()
        image.after_power_failure(target, seed)
        disk = SimulatedDisk(target)
        store = await self._open(target, disk)
        ledger = Ledger(attempted=self.simulation.ledger.attempted.copy())
        if self.sync or not power:
            ledger.acknowledged = self.simulation.ledger.acknowledged[: moment.acknowledged]
        records = await ledger.check(
            store.config, store, attrs.evolve(moment, appended=0, shown=0), power=True, sync=True
        )
        for number in range(choose.randint(1, 4)):
            item = draft(
                f"second life {number}:".encode() + b"y" * choose.randint(0, 400),
                "A",
                choose.randrange(2),
                unique_key=f"V{number}",
            )
            ledger.attempted.append(item)
            ledger.acknowledged.append(Promise(item, store.append([item])[0]))
        await store.flusher.flush()
        await store.indexer.catch_up()
        if choose.random() < 0.5:
            await store.index_syncer.save()
        moment = ledger.moment(store)
        last = self.next_folder()
        disk.image().after_power_failure(last, seed)
        close_files(store)
        store = await self._open(last)
        now = await ledger.check(store.config, store, moment, power=True, sync=True)
        assert {record.body for record in records} <= {record.body for record in now}
        close_files(store)
        shutil.rmtree(target)
        shutil.rmtree(last)


def lived(
    folder: Path, mode: FlushMode, seed: int, batches: int = BATCHES, jumps_ms: Sequence[int] = ()
) -> Simulation:
    """Two lives: the first from nothing, the second from a clean stop."""
    simulation = Simulation(folder / "store", mode, seed, jumps_ms=jumps_ms)
    simulation.run(batches)
    simulation.run(batches)
    return simulation


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", list(FlushMode))
@pytest.mark.feature("37b", "38c", "47b", "51c", "197b")
def test_every_operation_may_be_the_last(tmp_path: Path, mode: FlushMode) -> None:
    simulation = lived(tmp_path, mode, 1)
    recoveries = Recoveries(simulation, tmp_path)
    for point in simulation.points:
        number = point.operation.number
        recoveries.check(point, "power", number, thorough=number % 6 == 0)
        if mode is FlushMode.ASYNC:
            continue
        recoveries.check(point, "kill", number, thorough=number % 6 == 2)
        if point.operation.kind == "write":
            recoveries.check(point, "torn write", number, thorough=number % 6 == 4)
    kinds = {point.operation.kind for point in simulation.points}
    assert kinds >= {
        "create",
        "write",
        "allocate",
        "sync",
        "sync names",
        "remove",
        "make directory",
        "write file",
    }


@pytest.mark.parametrize("jumps_ms", [(DAYS_40, -DAYS_40), (-DAYS_40, DAYS_40)], ids=["up", "down"])
def test_a_crash_while_the_clock_jumps(tmp_path: Path, jumps_ms: tuple[int, int]) -> None:
    """Store times go back to the clock; nothing is lost by it, and searches by time are right."""
    simulation = lived(tmp_path, FlushMode.SYNC, 3, batches=8, jumps_ms=jumps_ms)
    times = [promise.place.store_timestamp for promise in simulation.ledger.appended]
    back = [later for earlier, later in pairwise(times) if later < earlier - DAYS_40 / 2]
    assert back
    recoveries = Recoveries(simulation, tmp_path)
    for point in simulation.points[::12]:
        number = point.operation.number
        recoveries.check(point, "power", number, thorough=number % 4 == 0)


@pytest.mark.feature("37b", "51c", "197a")
def test_the_last_record_is_torn_at_every_byte(tmp_path: Path) -> None:
    """Nobody was answered for it yet: any part of it may be there, and none of it harms what was
    acknowledged before.
    """
    simulation = lived(tmp_path, FlushMode.SYNC, 2, batches=1)
    recoveries = Recoveries(simulation, tmp_path)
    writes = [
        point
        for point in simulation.points
        if point.operation.kind == "write" and point.operation.path.parent.name == "commitlog"
    ]
    point = min(
        (point for point in writes[len(writes) // 2 :] if len(point.operation.data) > 100),
        key=lambda point: len(point.operation.data),
    )
    assert point.moment.acknowledged > 0
    for kept in range(len(point.operation.data) - 1):
        recoveries.check(point, "torn write", kept, thorough=False)


# The checkers themselves: each of these stores breaks one rule, and must be found out.


def durable_at_once(_: object, log_end: int, on_durable: OnDurable) -> None:
    on_durable(DurabilityResult.DURABLE)


def only_the_checkpoint(disk: Disk, files: Sequence[Path], directories: Sequence[Path]) -> None:
    sync_files(disk, [path for path in files if path.name == "checkpoint"], [])


def no_names(disk: Disk, files: Sequence[Path], directories: Sequence[Path]) -> None:
    sync_files(disk, files, [])


class Hasty(Indexer):
    """Shows what was appended, not what is safe."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**{**parts, "confirmed": LOGS[-1].appended})


LOGS: list[CommitLog] = []


def noted_log(*arguments: Any) -> CommitLog:
    LOGS.append(CommitLog(*arguments))
    return LOGS[-1]


MUTANTS: dict[str, list[tuple[Any, str, Any]]] = {
    "acknowledge before fsync": [(durability.Flusher, "when_durable", durable_at_once)],
    "show before fsync": [(store_module, "Indexer", Hasty), (store_module, "CommitLog", noted_log)],
    "checkpoint before the data": [(index_syncer, "sync_files", only_the_checkpoint)],
    "names are never forced out": [(durability, "sync_files", no_names)],
    "queues ahead of the log": [(QueueTable, "truncate", lambda *_, **__: None)],
    "index ahead of the log": [(KeyIndex, "truncate", lambda *_, **__: None)],
    "old records behind the end stay": [(CommitLog, "erase_from", lambda *_: None)],
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_store_with_one_rule_broken_is_found_out(
    tmp_path: Path, mutant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, name, replacement in MUTANTS[mutant]:
        monkeypatch.setattr(place, name, replacement)
    with pytest.raises((AssertionError, StoreError, struct.error, BaseExceptionGroup)):
        check_powerless(tmp_path)


def check_powerless(folder: Path) -> None:
    for seed in range(1, 5):
        (folder / str(seed)).mkdir()
        simulation = lived(folder / str(seed), FlushMode.SYNC, seed, 5)
        recoveries = Recoveries(simulation, folder / str(seed))
        for point in simulation.points:
            recoveries.check(
                point,
                "power",
                point.operation.number + seed,
                thorough=point.operation.number % 4 == 0,
            )
