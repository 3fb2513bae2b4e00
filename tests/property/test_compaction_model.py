"""The copies of a compaction topic against a list of its messages: any mixture of sends, passes,
restarts and forgotten log files; crashes at every operation on a file; and faults of the disk.

After each crash the copies are recovered, the messages that the commit log still has are copied
again, and readers must find the newest value of each key, and no other message than was sent.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterable
from pathlib import Path

import attrs
import pytest
from copied_queue import CopiedQueue
from simulated_disk import Fault, Image, Operation, SimulatedDisk

from triomq.broker.store.compaction import copy_file, replacement
from triomq.broker.store.compaction.compaction_log import CompactionLog
from triomq.broker.store.compaction.newest_by_key import NewestByKey
from triomq.broker.store.core.errors import FlushFailed, StoreError
from triomq.broker.store.io.disk import Disk

STEPS = 45
"""Of a run whose operations are numbered."""


@pytest.fixture(autouse=True)
def no_waiting_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is durable is for the simulated disk to say."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda fd: None)


@pytest.mark.parametrize("seed", range(8))
def test_readers_find_the_newest_value_of_each_key(tmp_path: Path, seed: int) -> None:
    play(tmp_path, seed)


def play(folder: Path, seed: int) -> CopiedQueue:
    choose = random.Random(seed)
    queue = CopiedQueue(folder, Disk())
    queue.open()
    for number in range(200):
        queue.act(choose)
        if number % 3 == 0:
            queue.check()
    queue.check()
    queue.log.close()
    return queue


@attrs.frozen
class Point:
    image: Image
    operation: Operation
    sent: int
    log_min: int
    since: int


def crash_points(folder: Path, seed: int) -> tuple[CopiedQueue, list[Point]]:
    """Play on a disk that keeps an image before each operation."""
    choose = random.Random(seed)
    folder.mkdir()
    disk = SimulatedDisk(folder)
    queue = CopiedQueue(folder, disk)
    points: list[Point] = []

    def note(operation: Operation) -> None:
        image = disk.image()
        points.append(Point(image, operation, len(queue.records), queue.log_min, queue.since))

    disk.before = note
    queue.open()
    for _ in range(STEPS):
        queue.act(choose)
    queue.check()
    return queue, points


def recover(queue: CopiedQueue, point: Point, target: Path, seed: int) -> None:
    """Recover what a crash left, on a disk that crashes again; then go on, and look."""
    choose = random.Random(seed)
    disk = SimulatedDisk(target)
    images: list[Image] = []
    disk.before = lambda _: images.append(disk.image())
    again = CopiedQueue(
        target, disk, queue.sizes, queue.records[: point.sent], point.log_min, 0, point.since
    )
    for life in (1, 2):
        try:
            again.open()
            again.copy()
            again.check()
            for _ in range(3):
                again.work(choose)
            again.check()
        except (AssertionError, StoreError) as error:
            error.add_note(f"life {life}, before {point.operation.kind} {point.operation.path}")
            raise
        again.log.close()
        if life == 1 and images:
            second = target.with_name(target.name + "-again")
            choose.choice(images).after_power_failure(second, seed)
            again = attrs.evolve(again, root=second, disk=SimulatedDisk(second))


def crash_everywhere(folder: Path, seed: int) -> int:
    """Recover one of the states after an operation; return the number of operations.

    Every second operation, so that two seeds take a few seconds.
    """
    folder.mkdir(exist_ok=True)
    queue, points = crash_points(folder / "run", seed)
    for number, point in enumerate(points[seed % 2 :: 2]):
        target = folder / str(number)
        if number % 4 == 0:
            point.image.after_kill(target)
        else:
            point.image.after_power_failure(target, seed + number)
        recover(queue, point, target, seed + number)
    return len(points)


@pytest.mark.parametrize("seed", range(2))
def test_a_crash_at_any_operation_loses_no_value(tmp_path: Path, seed: int) -> None:
    assert crash_everywhere(tmp_path, seed) > 100


def survive_faults(folder: Path, seed: int) -> int:
    """Let every third operation fail; the caller goes on as a broker would; the power fails."""
    folder.mkdir(exist_ok=True)
    _, points = crash_points(folder / "run", seed)
    tried = 0
    for point in points[::3]:
        if point.sent == 0:
            continue
        tried += 1
        number = point.operation.number
        root = folder / str(number)
        root.mkdir()
        disk = SimulatedDisk(root)
        disk.fault = failing_at(number)
        queue = CopiedQueue(root, disk)
        queue.open()
        choose = random.Random(seed)
        for _ in range(STEPS):
            try:
                queue.act(choose)
            except FlushFailed:  # fatal: the broker starts again
                queue.log.close()
                queue.open()
                queue.copy()
            except StoreError:
                queue.passing = None
        queue.copy()
        queue.check()
        image, last = disk.image(), Operation(number, "fault in", point.operation.path)
        queue.log.close()
        target = folder / f"{number}-power"
        image.after_power_failure(target, seed + number)
        end = Point(image, last, len(queue.records), queue.log_min, queue.since)
        recover(queue, end, target, seed + number)
    return tried


def failing_at(number: int) -> Callable[[Operation], Fault | None]:
    code = (errno.ENOSPC, errno.EIO)[number % 2]
    return lambda operation: (
        Fault(code, len(operation.data) // 2) if operation.number == number else None
    )


def test_a_fault_of_the_disk_loses_no_value(tmp_path: Path) -> None:
    assert survive_faults(tmp_path, 5) > 30


# Broken variants: each must be found.


def no_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = copy_file.CopyFile.load
    monkeypatch.setattr(
        copy_file.CopyFile, "load", lambda file, topic, queue_id, log_min: whole(file, topic, 0)
    )


def no_sync_of_new_files(monkeypatch: pytest.MonkeyPatch) -> None:
    real = replacement.sync_files

    def folders_only(disk: Disk, files: Iterable[Path], folders: list[Path]) -> None:
        real(disk, [path for path in files if path.suffix], folders)

    monkeypatch.setattr(replacement, "sync_files", folders_only)


def no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replacement.Replacement, "pending", lambda self: None)
    monkeypatch.setattr(replacement.Replacement, "decided", lambda self: False)
    real = CompactionLog.replace

    def without(self: CompactionLog, old: list[object], new: list[object]) -> None:
        monkeypatch.setattr(replacement.Replacement, "decided", lambda self: True)
        try:
            real(self, old, new)  # type: ignore[arg-type]
        finally:
            monkeypatch.setattr(replacement.Replacement, "decided", lambda self: False)

    monkeypatch.setattr(CompactionLog, "replace", without)


def durable_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    def sync(self: CompactionLog) -> None:
        self.durable_end = self.end_offset

    monkeypatch.setattr(CompactionLog, "sync", sync)


def newest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    real = NewestByKey.keeps
    monkeypatch.setattr(
        NewestByKey,
        "keeps",
        lambda self, key, offset, *, deletes: (
            real(self, key, offset - 1, deletes=deletes) and offset <= self.reached
        ),
    )


def tombstone_before_its_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tombstone goes although the table does not cover it, and older values stay."""
    real = NewestByKey.keeps
    monkeypatch.setattr(
        NewestByKey,
        "keeps",
        lambda self, key, offset, *, deletes: (
            not deletes and real(self, key, offset, deletes=deletes)
        ),
    )


@pytest.mark.parametrize(
    "break_it",
    [
        no_cut,
        no_sync_of_new_files,
        no_plan,
        durable_too_early,
        newest_goes,
        tombstone_before_its_values,
    ],
)
def test_the_checks_find_a_broken_variant(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    break_it: Callable[[pytest.MonkeyPatch], None],
) -> None:
    break_it(monkeypatch)

    def check() -> None:
        for seed in range(8):
            (tmp_path / f"model{seed}").mkdir()
            play(tmp_path / f"model{seed}", seed)
        for seed in range(2):
            crash_everywhere(tmp_path / f"crash{seed}", seed)

    with pytest.raises((AssertionError, StoreError)):
        check()
