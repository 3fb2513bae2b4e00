"""The lock of a store directory: between processes, within one, and against Java (the same byte of
the same file).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from stores import snapshot, tiny_config

from triomq.broker.store.core.errors import StartError, StoreDenied, StoreLocked
from triomq.broker.store.lock import BSD_FLOCK, LINUX_FLOCK, StoreLock
from triomq.broker.store.opening import open_store

HOLDER = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held_elsewhere(path: Path) -> Iterator[int]:
    """Another process holds the lock; its pid."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    try:
        yield process.pid
    finally:
        process.communicate()


@pytest.mark.feature(49)
async def test_a_store_locked_by_another_process_is_refused_with_its_pid(tmp_path: Path) -> None:
    with held_elsewhere(tmp_path / "lock") as pid:
        with pytest.raises(StoreLocked) as caught:
            async with open_store(tiny_config(tmp_path)):
                pass
        assert caught.value.pid == pid
        text = str(caught.value)
        assert str(tmp_path) in text
        assert f"process {pid}" in text
        assert "storePathRootDir" in text
    async with open_store(tiny_config(tmp_path)) as store:
        assert store.health.writable


async def test_nothing_is_touched_before_the_lock_is_held(tmp_path: Path) -> None:
    async with open_store(tiny_config(tmp_path)):
        pass
    before = snapshot(tmp_path)
    with held_elsewhere(tmp_path / "lock"), pytest.raises(StoreLocked):
        async with open_store(tiny_config(tmp_path)):
            pass
    assert snapshot(tmp_path) == before


async def test_a_store_open_in_this_process_is_refused_too(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "store")
    async with open_store(tiny_config(tmp_path / "store")):
        with pytest.raises(StoreLocked) as caught:
            async with open_store(tiny_config(tmp_path / "link")):
                pass
        assert caught.value.pid == os.getpid()


def test_the_file_reads_as_java_writes_it(tmp_path: Path) -> None:
    lock = StoreLock(tmp_path / "lock")
    lock.take()
    assert (tmp_path / "lock").read_bytes() == b"lock"
    lock.release()
    lock.release()


def test_a_directory_that_may_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str, *_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StoreDenied, match="write permission"):
        StoreLock(tmp_path / "lock").take()
    assert issubclass(StoreDenied, StartError)


def test_layouts_of_struct_flock() -> None:
    assert (LINUX_FLOCK.size, BSD_FLOCK.size) == (32, 24)
