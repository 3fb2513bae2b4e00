"""Readers that are far behind: the loop never waits for their disk, and the page cache keeps a
window of their bytes.
"""

from __future__ import annotations

import threading
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing
from stores import SteppingClock, draft, read_all, tiny_config, wait_durable

from triomq.broker.store.core.results import GetResult
from triomq.broker.store.io.disk import Disk
from triomq.broker.store.io.reads import AHEAD_BYTES, CHUNK_BYTES, ColdFetch
from triomq.broker.store.opening import open_store

MIB = 1 << 20


@attrs.define(eq=False)
class BlockingDisk(Disk):
    """Has nothing of some files in memory, and blocks reads of them until the test lets them go."""

    slow: set[Path] = attrs.field(factory=set)
    fds: dict[int, Path] = attrs.field(factory=dict)
    go: threading.Event = attrs.field(factory=threading.Event)
    waiting: int = 0
    started: threading.Semaphore = attrs.field(factory=lambda: threading.Semaphore(0))

    def open(self, path: Path, *, writable: bool = True) -> int:
        fd = super().open(path, writable=writable)
        self.fds[fd] = path
        return fd

    def read_nowait(self, fd: int, size: int, offset: int) -> bytearray | None:
        return None if self.fds.get(fd) in self.slow else super().read_nowait(fd, size, offset)

    def read_path(self, path: Path, size: int, offset: int) -> bytes:
        if path in self.slow:
            self.waiting += 1
            self.started.release()
            assert self.go.wait(60)
        return super().read_path(path, size, offset)


@pytest.mark.feature("36b", "36c")
async def test_a_disk_that_hangs_stops_only_the_cold_reader(tmp_path: Path) -> None:
    async with open_store(tiny_config(tmp_path), SteppingClock()) as store:
        for number in range(40):
            store.append([draft(f"{number}" * 40, topic="Old")])
    disk = BlockingDisk()
    disk.slow.add(tmp_path / "commitlog" / f"{0:020d}")
    disk.go.set()  # recovery may read any file
    async with open_store(tiny_config(tmp_path), SteppingClock(), disk=disk) as store:
        disk.go.clear()
        assert store.get("Old", 0, 0, messages_max=32, bytes_max=MIB) is None
        results: list[GetResult] = []

        async def far_behind() -> None:
            results.append(await store.get_cold("Old", 0, 0, messages_max=2, bytes_max=MIB))

        async with trio.open_nursery() as nursery:
            for _ in range(6):  # more readers than threads
                nursery.start_soon(far_behind)
            with trio.fail_after(30):
                for _ in range(4):
                    await trio.to_thread.run_sync(disk.started.acquire)
            for number in range(50):  # the loop goes on: sends, hot gets, flushes
                (place,) = store.append([draft(f"{number}", topic="New")])
                result = await wait_durable(store.flusher, place.log_offset + place.size)
                assert result.value == "durable"
                assert store.max_offset("New", 0) == number + 1
                await trio.lowlevel.checkpoint()
            assert [message.body for message in await read_all(store, "New", 0)] == [
                str(number).encode() for number in range(50)
            ]
            assert not results
            assert disk.waiting == 4  # and no more threads hang than the limit of cold readers
            disk.go.set()
        assert [result.count for result in results] == [2] * 6


@attrs.define(eq=False)
class TellingDisk(Disk):
    ahead: list[tuple[str, int, int]] = attrs.field(factory=list)
    dropped: list[tuple[str, int, int]] = attrs.field(factory=list)

    def read_ahead(self, path: Path, offset: int, size: int) -> None:
        self.ahead.append((path.name, offset, size))
        super().read_ahead(path, offset, size)

    def drop_cache(self, path: Path, offset: int = 0, size: int = 0) -> None:
        self.dropped.append((path.name, offset, size))
        super().drop_cache(path, offset, size)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "00000000000000000000"
    path.write_bytes(bytes(range(256)) * (4 * 4096 * 8))
    return path


def test_far_bytes_stay_cached_for_a_window_only(log: Path) -> None:
    disk = TellingDisk()
    cold = ColdFetch(
        disk, lambda path, position: position <= 20 * MIB, window_bytes=4 * CHUNK_BYTES
    )
    data = log.read_bytes()
    for chunk in range(24):
        wanted = (log, chunk * CHUNK_BYTES, 8192)
        assert cold.fetch([wanted]) == {wanted: data[wanted[1] : wanted[1] + 8192]}
    assert disk.ahead == [
        (log.name, chunk * CHUNK_BYTES, 8192 + AHEAD_BYTES) for chunk in range(24)
    ]
    # A fetched chunk is dropped when four more have come; chunks near the end are never dropped.
    assert disk.dropped == [(log.name, chunk * CHUNK_BYTES, CHUNK_BYTES) for chunk in range(16)]


def test_a_single_record_is_read_without_read_ahead(log: Path) -> None:
    disk = TellingDisk()
    cold = ColdFetch(disk, lambda path, position: True)
    assert cold.fetch([(log, 5, 1000)]) == {(log, 5, 1000): log.read_bytes()[5:1005]}
    assert (disk.ahead, disk.dropped) == ([], [])


def test_chunks_that_are_used_again_stay(log: Path) -> None:
    disk = TellingDisk()
    cold = ColdFetch(disk, lambda path, position: True, window_bytes=4 * CHUNK_BYTES)
    for chunk in (0, 4, 0, 8):
        cold.fetch([(log, chunk * CHUNK_BYTES, 8192)])
    assert disk.dropped == [(log.name, chunk * CHUNK_BYTES, CHUNK_BYTES) for chunk in (4, 5)]


def test_a_file_deleted_meanwhile_is_empty(tmp_path: Path) -> None:
    gone = (tmp_path / "gone", 0, 8192)
    assert ColdFetch(Disk()).fetch([gone]) == {gone: b""}


async def test_which_bytes_of_a_store_are_far_back(tmp_path: Path) -> None:
    disk = TellingDisk()
    disk.nowait = False
    async with open_store(
        tiny_config(tmp_path, hot_bytes_max=0), SteppingClock(), disk=disk
    ) as store:
        store.reader.memory_bytes_max = 0
        for number in range(40):
            store.append([draft(f"{number:03d}" * 300, topic="Old")])
        assert len(await read_all(store, "Old", 0)) == 40
        assert not store._is_far(tmp_path / "commitlog" / f"{0:020d}", store.appended.value)
        assert store._is_far(tmp_path / "commitlog" / f"{0:020d}", 4096)
        assert not store._is_far(tmp_path / "consumequeue" / "Old" / "0" / f"{0:020d}", 0)
