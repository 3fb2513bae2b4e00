"""A save of a small file, interrupted after each of its operations by a kill and by a power
failure.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from triomq.remoting.core.atomic_file import (
    DamagedFile,
    SystemFiles,
    backup_of,
    read_file,
    replace_file,
    swap_file,
)


class Died(Exception):
    """The process has ended here."""


@attrs.define
class ModelFiles:
    """A file system that fails after some operations; knows what a power failure would leave."""

    budget: int
    names: dict[Path, bytes] = attrs.field(factory=dict)
    """What the process sees."""
    synced: set[bytes] = attrs.field(factory=set)
    """Contents that are on the disk."""
    history: list[dict[Path, bytes]] = attrs.field(factory=list)
    """The names as they were since the last sync of the directory: any of these may be what the
    disk has.
    """

    def __attrs_post_init__(self) -> None:
        self.synced |= set(self.names.values())
        self.history = [dict(self.names)]

    def _spend(self) -> None:
        if not self.budget:
            raise Died
        self.budget -= 1

    def make_durable_directory(self, path: Path) -> None:
        self._spend()

    def write_file(self, path: Path, data: bytes) -> None:
        self._spend()
        self.names[path] = data
        self.history.append(dict(self.names))

    def sync_path(self, path: Path) -> None:
        self._spend()
        self.synced.add(self.names[path])

    def rename(self, path: Path, target: Path) -> None:
        self._spend()
        self.names[target] = self.names.pop(path)
        self.history.append(dict(self.names))

    def sync_directory(self, path: Path) -> None:
        self._spend()
        self.history = [dict(self.names)]

    def left(self) -> Iterator[dict[Path, bytes]]:
        """Yield what a kill leaves, then what a power failure may leave."""
        yield self.names
        for names in self.history:
            yield {path: data if data in self.synced else b"" for path, data in names.items()}


def put(folder: Path, names: dict[Path, bytes]) -> None:
    for path in folder.iterdir():
        path.unlink()
    for path, data in names.items():
        path.write_bytes(data)


def saved_once(folder: Path) -> tuple[Path, dict[Path, bytes]]:
    path = folder / "table.json"
    replace_file(path, b"0")
    replace_file(path, b"1")
    return path, {path: b"1", backup_of(path): b"0"}


@pytest.mark.parametrize("operations", range(7))
def test_an_interrupted_save_leaves_the_old_or_the_new_content(
    tmp_path: Path, operations: int
) -> None:
    path, before = saved_once(tmp_path)
    files = ModelFiles(operations, dict(before))
    try:
        replace_file(path, b"2", files)
    except Died:
        assert operations < 6
    for names in list(files.left()):
        put(tmp_path, names)
        assert read_file(path, int) in ((1, 2) if operations < 6 else (2,)), names


@pytest.mark.parametrize("left_out", ["sync_path", "sync_directory", "rename"])
def test_that_test_can_fail(tmp_path: Path, left_out: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path, before = saved_once(tmp_path)
    files = ModelFiles(10, dict(before))

    def nothing(self: ModelFiles, *paths: Path) -> None:
        if left_out == "rename":  # the backup goes, and the name is given at once
            self.names.pop(paths[0], None)

    monkeypatch.setattr(ModelFiles, left_out, nothing)
    replace_file(path, b"2", files)
    found = []
    for names in list(files.left()):
        put(tmp_path, names)
        found.append(read_file(path, int))
    assert set(found) != {2}


def test_a_save_makes_its_directory_and_keeps_the_content_before(tmp_path: Path) -> None:
    path = tmp_path / "some" / "where" / "table.json"
    assert read_file(path, int) is None
    for number in range(3):
        replace_file(path, b"%d" % number)
    assert (path.read_bytes(), backup_of(path).read_bytes()) == (b"2", b"1")
    assert sorted(found.name for found in path.parent.iterdir()) == ["table.json", "table.json.bak"]


def test_every_step_forces_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the real file system: the content before the names, then the directory."""
    calls: list[str] = []

    def watch(name: str) -> None:
        real = getattr(SystemFiles, name)

        def watched(self: SystemFiles, *words: object) -> None:
            calls.append(name)
            real(self, *words)

        monkeypatch.setattr(SystemFiles, name, watched)

    for name in ("write_file", "sync_path", "rename", "sync_directory"):
        watch(name)
    replace_file(tmp_path / "t", b"1")
    replace_file(tmp_path / "t", b"2")
    assert calls == [
        "write_file",
        "sync_path",
        "rename",
        "sync_directory",
        "write_file",
        "sync_path",
        "rename",
        "rename",
        "sync_directory",
    ]


def test_a_damaged_file_gives_way_to_its_backup_and_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, _ = saved_once(tmp_path)
    path.write_bytes(b"torn")
    assert read_file(path, int) == 0
    assert "table.json cannot be read (invalid literal" in caplog.text
    assert path.with_name("table.json.damaged").read_bytes() == b"torn"
    backup_of(path).write_bytes(b"torn")
    with pytest.raises(DamagedFile, match=r"table\.json\.bak cannot be read"):
        read_file(path, int)


def test_a_swapped_file_is_private_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "secrets"
    path.write_bytes(b"old")
    swap_file(path, b"new", private=True)
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"new", 0o600)
    assert list(tmp_path.iterdir()) == [path]


def test_a_swap_that_fails_keeps_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_fd: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    path = tmp_path / "users"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="full"):
        swap_file(path, b"new")
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (b"old", [path])
