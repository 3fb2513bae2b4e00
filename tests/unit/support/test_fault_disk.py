"""The disk that forgets: what an fsync has reached stays, everything else may go."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing
from fault_disk import BLOCK_BYTES, Controls, ForgetfulDisk, Lost
from fault_disk import cut_power as cut_power_of


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    return tmp_path / "store"


def disk_of(root: Path) -> ForgetfulDisk:
    return ForgetfulDisk(
        journal_of(root), root.parent / "removed", Controls(root.parent / "controls")
    )


def journal_of(root: Path) -> Path:
    return root.parent / "journal"


def cut_power(root: Path, seed: int, *, everything: bool = False) -> Lost:
    return cut_power_of(journal_of(root), root.parent / "removed", seed, everything=everything)


def written(disk: ForgetfulDisk, path: Path, text: bytes, offset: int = 0) -> None:
    fd = disk.create(path, BLOCK_BYTES)
    disk.write_at(fd, text, offset, path)
    disk.close(fd)


def content(path: Path) -> bytes:
    return path.read_bytes().rstrip(b"\0")


def test_what_was_forced_out_stays_and_what_came_later_goes(root: Path) -> None:
    disk, path = disk_of(root), root / "log"
    written(disk, path, b"first")
    disk.sync_path(path)
    disk.sync_directory(root)
    written(disk, path, b"second", 10)
    written(disk, path, b"FIRST")
    assert content(path) == b"FIRST" + bytes(5) + b"second"
    lost = cut_power(root, 1, everything=True)
    assert content(path) == b"first"
    assert (lost.bytes, lost.writes, lost.names) == (11, 2, 0)
    assert cut_power(root, 1, everything=True).writes == 0, "all that is left is on the disk"


def test_an_fsync_covers_what_was_written_before_it_began(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, path = disk_of(root), root / "log"
    written(disk, path, b"early")
    disk.sync_directory(root)
    monkeypatch.setattr(disk, "sync", lambda fd: written(disk, path, b"late", 20))
    disk.sync_path(path)
    cut_power(root, 1, everything=True)
    assert content(path) == b"early"


async def test_the_queue_for_fsyncs_covers_the_same(
    root: Path, autojump_clock: trio.testing.MockClock
) -> None:
    disk, path = disk_of(root), root / "log"
    disk.controls.set(sync_seconds=0.5)
    fd = disk.create(path, BLOCK_BYTES)
    disk.write_at(fd, b"early", 0, path)
    disk.sync_directory(root)
    queue = disk.open_sync_queue()
    queue.begin(fd)
    disk.write_at(fd, b"late", 20, path)
    await queue.finished()
    assert trio.current_time() >= 0.5
    disk.write_at(fd, b"never", 30, path)
    queue.begin(fd)
    queue.close()
    disk.close(fd)
    cut_power(root, 1, everything=True)
    assert content(path) == b"early"


def test_a_new_life_inherits_what_the_former_one_has_not_forced_out(root: Path) -> None:
    path = root / "log"
    written(disk_of(root), path, b"one")
    with journal_of(root).open("ab") as file:
        file.write(b'["write", "to')  # the process died in the middle of a line
    disk = disk_of(root)
    written(disk, path, b"two", 10)
    disk.sync_path(path)
    disk.sync_directory(root)
    written(disk, path, b"three", 20)
    cut_power(root, 1, everything=True)
    assert content(path) == b"one" + bytes(7) + b"two"


def test_names_go_from_the_youngest_on(root: Path) -> None:
    disk = disk_of(root)
    disk.make_directory(root / "a" / "b")
    disk.sync_directory(root)
    written(disk, root / "a" / "b" / "file", b"x")
    disk.sync_path(root / "a" / "b" / "file")
    cut_power(root, 1, everything=True)
    assert [path.name for path in root.rglob("*")] == ["a"], (
        "a file's fsync says nothing about its name"
    )


def test_removed_and_renamed_files_come_back(root: Path) -> None:
    disk = disk_of(root)
    for name in ("old", "table", "table.new"):
        written(disk, root / name, name.encode())
        disk.sync_path(root / name)
    disk.sync_directory(root)
    disk.remove(root / "old")
    disk.rename(root / "table.new", root / "table")
    assert (content(root / "table"), (root / "old").exists()) == (b"table.new", False)
    cut_power(root, 1, everything=True)
    assert {path.name: content(path) for path in root.iterdir()} == {
        name: name.encode() for name in ("old", "table", "table.new")
    }


def test_some_of_it_may_be_there(root: Path) -> None:
    """By seed: everything gone, everything there, or a mixture."""
    results = set()
    for seed in range(40):
        disk, path = disk_of(root), root / f"log{seed}"
        written(disk, path, b"")
        disk.sync_path(path)
        disk.sync_directory(root)
        for place in range(4):
            written(disk, path, b"x", place * 10)
        cut_power(root, seed)
        results.add(content(path).count(b"x"))
    assert {0, 2} <= results


def test_controls_are_shared(tmp_path: Path) -> None:
    mine, theirs = Controls(tmp_path / "controls"), Controls(tmp_path / "controls")
    mine.set(delay_seconds=0.25)
    mine.set(sync_seconds=0.5)
    assert theirs.values == (0.5, 0.25)
    with pytest.raises(AssertionError):
        mine.set(clock=1.0)
