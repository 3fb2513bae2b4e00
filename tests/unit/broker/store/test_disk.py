"""The seam to the operating system: the calls of every system, and the fallbacks for missing
calls.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from stores import NO_FEATURES

from triomq.broker.store.core.errors import DiskFull, StoreIoError
from triomq.broker.store.io.disk import Disk, DiskFeatures
from triomq.broker.store.io.open_files import OpenFiles

BOTH = pytest.mark.parametrize("disk", [Disk(), Disk(NO_FEATURES)], ids=["all calls", "fallbacks"])


@BOTH
def test_a_file_has_its_full_size_from_creation_and_no_blocks(disk: Disk, tmp_path: Path) -> None:
    fd = disk.create(tmp_path / "f", 1 << 30)
    status = os.fstat(fd)
    disk.close(fd)
    assert status.st_size == 1 << 30
    assert status.st_blocks * 512 < 1 << 20


@BOTH
def test_allocating_gives_blocks_and_changes_no_byte(disk: Disk, tmp_path: Path) -> None:
    path = tmp_path / "f"
    fd = disk.create(path, 8 << 20)
    os.pwrite(fd, b"here", 1_000_000)
    disk.allocate(fd, 0, 3 << 20, path)
    assert os.fstat(fd).st_blocks * 512 >= 3 << 20
    assert os.fstat(fd).st_size == 8 << 20
    assert os.pread(fd, 3 << 20, 0).replace(b"\0", b"") == b"here"
    disk.close(fd)


@BOTH
@pytest.mark.parametrize("old", [0, 5, 4096, 1 << 21])
def test_zeroing_a_tail_leaves_what_lies_before_it(disk: Disk, tmp_path: Path, old: int) -> None:
    path = tmp_path / "f"
    fd = disk.create(path, 4 << 20)
    os.pwrite(fd, b"x" * (100 + old), 0)
    os.pwrite(fd, b"far", (4 << 20) - 3)
    disk.zero_tail(fd, 100, 4 << 20, path)
    data = os.pread(fd, 4 << 20, 0)
    disk.close(fd)
    assert data == b"x" * 100 + bytes((4 << 20) - 100)
    assert path.stat().st_size == 4 << 20


def test_zeroing_keeps_holes(tmp_path: Path) -> None:
    disk = Disk()
    if not disk.features.seek_data:
        pytest.skip("this system cannot tell holes")
    path = tmp_path / "f"
    fd = disk.create(path, 1 << 30)
    disk.zero_tail(fd, 4096, 1 << 30, path)
    assert os.fstat(fd).st_blocks * 512 < 1 << 20
    disk.close(fd)


def test_reading_without_waiting_returns_what_the_page_cache_has(tmp_path: Path) -> None:
    disk = Disk()
    (tmp_path / "f").write_bytes(b"abcdef")
    fd = disk.open(tmp_path / "f")
    data = disk.read_nowait(fd, 4, 1)
    assert data is None or data == b"bcde"  # None: this file system does not say
    assert disk.read_nowait(fd, 40, 1) is None  # short, so not complete
    assert disk.read(fd, 40, 1) == b"bcdef"
    disk.close(fd)


@pytest.mark.parametrize(
    ("number", "stays"), [(errno.EAGAIN, True), (errno.EOPNOTSUPP, False), (errno.EINVAL, False)]
)
def test_a_file_system_that_cannot_read_without_waiting_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, stays: bool
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    disk = Disk(DiskFeatures(nowait=True))
    monkeypatch.setattr(os, "preadv", refuse, raising=False)
    monkeypatch.setattr(os, "RWF_NOWAIT", 8, raising=False)
    assert disk.read_nowait(0, 4, 0) is None
    assert disk.nowait is stays


def test_other_read_errors_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    disk = Disk(DiskFeatures(nowait=True))
    monkeypatch.setattr(os, "preadv", refuse, raising=False)
    monkeypatch.setattr(os, "RWF_NOWAIT", 8, raising=False)
    with pytest.raises(OSError, match="nput/output"):
        disk.read_nowait(0, 4, 0)


def test_fallback_never_reads_in_the_loop(tmp_path: Path) -> None:
    disk = Disk(NO_FEATURES)
    (tmp_path / "f").write_bytes(b"abcdef")
    fd = disk.open(tmp_path / "f")
    assert disk.read_nowait(fd, 4, 0) is None
    disk.sync(fd)
    disk.sync_path(tmp_path / "f")
    disk.sync_directory(tmp_path)
    disk.close(fd)


def test_full_disk_and_other_faults_are_different_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk()
    path = tmp_path / "f"
    fd = disk.create(path, 100)
    for number, kind in (
        (errno.ENOSPC, DiskFull),
        (errno.EDQUOT, DiskFull),
        (errno.EIO, StoreIoError),
    ):

        def refuse(*_: object, number: int = number) -> int:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "pwrite", refuse)
        with pytest.raises(kind, match=str(path)):
            disk.write_at(fd, b"x", 0, path)
    monkeypatch.undo()
    disk.close(fd)
    with pytest.raises(StoreIoError):
        disk.create(tmp_path / "no" / "f", 1)


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk()
    path = tmp_path / "f"
    fd = disk.create(path, 100)
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: real(fd, bytes(data)[:3], offset))
    disk.write_at(fd, b"0123456789", 5, path)
    assert os.pread(fd, 10, 5) == b"0123456789"
    disk.close(fd)


@pytest.mark.parametrize("gather", [True, False])
@pytest.mark.parametrize("most", [1, 7, 1 << 20])
def test_pieces_are_written_one_behind_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gather: bool, most: int
) -> None:
    """More pieces than a system takes in one call; and a call may write any part of them."""
    disk = Disk(DiskFeatures(gather=gather))
    path = tmp_path / "f"
    fd = disk.create(path, 20_000)
    real = os.pwritev
    if most < 1 << 20:
        monkeypatch.setattr(
            os, "pwritev", lambda fd, pieces, offset: real(fd, [b"".join(pieces)[:most]], offset)
        )
    pieces: list[bytes | bytearray | memoryview] = [b"%d" % number for number in range(1_500)]
    pieces[3], pieces[700] = bytearray(b"three"), memoryview(b"")
    disk.write_all_at(fd, pieces, 5, path)
    whole = b"".join(pieces)
    assert os.pread(fd, len(whole) + 10, 0) == bytes(5) + whole + bytes(5)

    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for name in ("pwrite", "pwritev"):
        monkeypatch.setattr(os, name, refuse)
    with pytest.raises(DiskFull, match=str(path)):
        disk.write_all_at(fd, pieces, 5, path)
    disk.close(fd)


def test_open_files_close_the_least_recently_used(tmp_path: Path) -> None:
    files = OpenFiles(Disk(), 2)
    first, second, third = (tmp_path / name for name in "abc")
    fd = files.get(first, create_size=10)
    files.get(second, create_size=10)
    assert files.get(first) == fd
    files.get(third, create_size=10)
    assert len(files) == 2
    assert files.get(first) == fd  # the second one is closed
    files.forget(first)
    files.forget(first)
    assert len(files) == 1
    files.close()
    assert len(files) == 0
    with pytest.raises(FileNotFoundError):
        files.get(tmp_path / "d")


def test_a_directory_for_messages_is_durable_up_to_what_was_there_before(tmp_path: Path) -> None:
    """Without its name in its parent directory, and so on upwards, a power failure takes the whole
    store.
    """
    done: list[tuple[str, str]] = []

    class NotedDisk(Disk):
        def make_directory(self, path: Path) -> None:
            done.append(("make", path.name))
            super().make_directory(path)

        def sync_directory(self, path: Path) -> None:
            done.append(("sync", path.name))
            super().sync_directory(path)

    disk = NotedDisk()
    disk.make_durable_directory(tmp_path / "a" / "b")
    assert done == [("make", "a"), ("sync", tmp_path.name), ("make", "b"), ("sync", "a")]
    done.clear()
    disk.make_durable_directory(tmp_path / "a" / "b")
    assert done == []
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotADirectoryError):
        disk.make_durable_directory(tmp_path / "file" / "c")


@BOTH
def test_dropping_the_cache_changes_no_byte(disk: Disk, tmp_path: Path) -> None:
    path = tmp_path / "f"
    data = os.urandom(1 << 20)
    path.write_bytes(data)
    disk.drop_cache(path)
    disk.sync_path(path)
    disk.drop_cache(path)
    assert path.read_bytes() == data
    with pytest.raises(FileNotFoundError):
        Disk(DiskFeatures(advise=True)).drop_cache(tmp_path / "missing")
