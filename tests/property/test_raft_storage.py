"""Crashes at every operation on a Raft node's file: what was reported as durable is there, and what
else is there was written.
"""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
from simulated_disk import Fault, Image, Operation, SimulatedDisk

from triomq.namesrv.controller.raft.configuration import Configuration
from triomq.namesrv.controller.raft.events import Persist
from triomq.namesrv.controller.raft.messages import EntryKind, HardState, LogEntry, RaftSnapshot
from triomq.namesrv.controller.raft.state import StoredState
from triomq.namesrv.controller.raft_records import (
    HEAD,
    DamagedRaftFile,
    RaftFileImage,
    payloads,
    read_raft_file,
    record,
)
from triomq.namesrv.controller.raft_storage import FILE_NAME, RaftStorage

FIRST = RaftSnapshot(0, 0, Configuration(("a", "b", "c")))


def writes_of(choose: random.Random) -> list[Persist]:
    """Return what a node could ask its disk for."""
    writes: list[Persist] = []
    image, term = RaftFileImage(FIRST), 0
    for sequence in range(1, choose.randint(8, 16)):
        hard_state = snapshot = None
        entries: tuple[LogEntry, ...] = ()
        kind = choose.random()
        last = image.entries[-1].index if image.entries else image.snapshot.index
        if kind < 0.4 or not term:
            term += 1
            hard_state = HardState(term, choose.choice("abc"))
        if 0.2 < kind < 0.9:
            first = choose.randint(max(image.snapshot.index, last - 2), last) + 1
            entries = tuple(
                LogEntry(index, term, EntryKind.COMMAND, choose.randbytes(choose.randint(0, 200)))
                for index in range(first, first + choose.randint(1, 4))
            )
        elif kind >= 0.9 and last > image.snapshot.index:
            at = choose.randint(image.snapshot.index + 1, last + 3)
            snapshot = RaftSnapshot(at, term, FIRST.configuration, choose.randbytes(300))
        reset = snapshot is not None and snapshot.index > last
        writes.append(Persist(sequence, hard_state, snapshot, reset, entries))
        image.persist(writes[-1])
    return writes


def possible(image: RaftFileImage, writes: list[Persist]) -> list[StoredState]:
    """Return the states that a crash in the course of some writes may leave."""
    states = [image.stored()]
    for write in writes:
        if write.snapshot is None:
            for payload in payloads(write):
                image.take(payload)
                states.append(image.stored())
        else:
            image.persist(write)
            states.append(image.stored())
    return states


@attrs.frozen
class CrashPoint:
    operation: Operation
    image: Image
    states: list[StoredState]
    """Any of which the next start may find."""


def play(folder: Path, seed: int) -> list[CrashPoint]:
    choose = random.Random(seed)
    folder.mkdir()
    disk = SimulatedDisk(folder)
    points: list[CrashPoint] = []
    states = [StoredState(HardState(), FIRST)]
    disk.before = lambda operation: points.append(CrashPoint(operation, disk.image(), states))
    storage = RaftStorage.open(folder / "node", FIRST, disk)
    writes, image = writes_of(choose), RaftFileImage(FIRST)
    while writes:
        count = choose.randint(1, 3)
        batch, writes = writes[:count], writes[count:]
        states = possible(image, batch)
        assert storage.persist(batch) == batch[-1].sequence
        states = states[-1:]
        assert storage.stored() == states[0]
    storage.close()
    return points


def recovered(folder: Path) -> StoredState:
    """Start twice, since a start writes too."""
    for _ in range(2):
        storage = RaftStorage.open(folder / "node", FIRST)
        storage.close()
    return storage.stored()


def crash_everywhere(folder: Path, seeds: range) -> None:
    for seed in seeds:
        for number, point in enumerate(play(folder / str(seed), seed)):
            images = [point.image]
            if point.operation.kind == "write":
                data = point.operation.data
                torn = (len(data) // 3, len(data) // 2, len(data))
                images += [point.image.torn(point.operation, folder / str(seed), at) for at in torn]
            for how, image in enumerate(images):
                crashes: list[Callable[[Path], None]] = [image.after_kill]
                crashes += [
                    lambda target, image=image, chance=chance: image.after_power_failure(
                        target, chance
                    )
                    for chance in range(number, number + 2)
                ]
                for crash in crashes:
                    after = folder / "after"
                    shutil.rmtree(after, ignore_errors=True)
                    crash(after)
                    found = recovered(after)
                    assert found in point.states, f"seed {seed}, {point.operation}, image {how}"


def test_every_crash_leaves_what_was_durable(tmp_path: Path) -> None:
    crash_everywhere(tmp_path, range(3))


def _without_sync(storage: RaftStorage, contents: list[bytes]) -> None:
    data = b"".join(record(payload, storage.durable_bytes) for payload in contents)
    storage.files.write_at(storage._fd, data, storage.durable_bytes, storage.path)
    storage.durable_bytes += len(data)


def _in_place(storage: RaftStorage) -> None:
    data = storage.image.encode()
    storage.files.write_file(storage.path, data)
    storage.files.sync_path(storage.path)
    storage._fd = storage.files.open(storage.path)
    storage.durable_bytes = len(data)


@pytest.mark.parametrize(
    ("owner", "attribute", "broken"),
    [
        (RaftStorage, "_append", _without_sync),
        (RaftStorage, "_replace", _in_place),
        (SimulatedDisk, "sync_path", lambda disk, path: None),
        (SimulatedDisk, "sync_directory", lambda disk, path: None),
    ],
)
def test_a_broken_storage_is_found(owner, attribute, broken, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(owner, attribute, broken)
    with pytest.raises((AssertionError, DamagedRaftFile, FileNotFoundError)):
        crash_everywhere(tmp_path, range(3))


@pytest.mark.parametrize("kind", ["write", "sync", "rename", "write file", "sync names"])
def test_after_an_error_of_the_disk_nothing_more_is_promised(kind: str, tmp_path: Path) -> None:
    disk = SimulatedDisk(tmp_path)
    storage = RaftStorage.open(tmp_path / "node", FIRST, disk)
    disk.fault = lambda operation: Fault(5) if operation.kind == kind else None
    snapshot = kind not in ("write", "sync")
    write = Persist(1, HardState(1, "a"), FIRST if snapshot else None, False, ())
    with pytest.raises(Exception, match=r"."):
        storage.persist([write])
    disk.fault = lambda operation: None
    with pytest.raises(OSError, match="an earlier write failed"):
        storage.persist([write])


def test_damage_in_what_was_durable_is_an_error(tmp_path: Path) -> None:
    storage = RaftStorage.open(tmp_path, FIRST)
    for term in range(1, 6):
        storage.persist([Persist(term, HardState(term, "a"), None, False, ())])
    storage.close()
    path = tmp_path / FILE_NAME
    data = path.read_bytes()
    size = len(record(payloads(Persist(1, HardState(1, "a"), None, False, ()))[0], 0))
    path.write_bytes(data[: -3 * size] + b"\xff" + data[-3 * size + 1 :])
    with pytest.raises(DamagedRaftFile, match=r"while all other controllers run"):
        RaftStorage.open(tmp_path, FIRST)
    path.write_bytes(data[:-size] + b"\xff" + data[-size + 1 :])
    assert RaftStorage.open(tmp_path, FIRST).stored().hard_state.term == 4, "a torn tail"


@pytest.mark.parametrize("data", [b"", b"\0" * 100, record(b"H\x92\x01\xa1a", 0), b"text"])
def test_a_file_of_something_else_is_an_error(data: bytes) -> None:
    with pytest.raises(DamagedRaftFile):
        read_raft_file(data)


def test_every_cut_and_every_flipped_byte_is_seen() -> None:
    image = RaftFileImage(FIRST, HardState(3, "b"), [LogEntry(1, 3, EntryKind.COMMAND, b"x")])
    data = image.encode()
    assert read_raft_file(data) == image
    head = HEAD.size + int.from_bytes(data[:4], "big")
    for cut in range(head, len(data)):
        assert read_raft_file(data[:cut]) != image
    for at in range(head, len(data)):
        flipped = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        assert read_raft_file(flipped) != image
