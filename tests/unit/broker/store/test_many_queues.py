"""Thousands of queues: few descriptors, few writes, one call that forces all their files to the
disk; and nothing is forgotten when it fails or is cancelled.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from stores import NO_FEATURES, SteppingClock, draft, read_all, tiny_config

from triomq.broker.store.core.config import StoreConfig
from triomq.broker.store.core.errors import FlushFailed
from triomq.broker.store.io.disk import Disk, DiskFeatures
from triomq.broker.store.io.file_system import FileSystem
from triomq.broker.store.opening import open_store
from triomq.broker.store.store import MessageStore

QUEUES = 40


@attrs.define(eq=False)
class CountingDisk(Disk):
    """Counts the files forced out, and fails when the test says so."""

    synced: list[Path] = attrs.field(factory=list)
    whole: int = 0
    fail: bool = False

    def sync_path(self, path: Path) -> None:
        self.synced.append(path)
        super().sync_path(path)

    def sync_file_system(self, fd: int) -> None:
        self.whole += 1
        if self.fail:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync_file_system(fd)


def config(root: Path, **changes: Any) -> StoreConfig:
    return tiny_config(root, segment_size_bytes=65_536, open_files_max=8, **changes)


def fill(store: MessageStore, rounds: int = 1) -> None:
    for number in range(rounds):
        store.append(
            [
                draft(f"{number}", topic=f"T{queue // 4}", queue_id=queue % 4)
                for queue in range(QUEUES)
            ]
        )


needs_syncfs = pytest.mark.skipif(
    not DiskFeatures().sync_file_system, reason="syncfs tells no errors here"
)


@needs_syncfs
async def test_many_files_are_forced_out_by_one_call(tmp_path: Path) -> None:
    disk = CountingDisk()
    async with open_store(config(tmp_path), disk=disk) as store:
        fill(store)
        await store.index_syncer.save()
        assert disk.whole == 1
        assert not [path for path in disk.synced if "consumequeue" in path.parts]
        assert len(store.queue_table.open_files) <= 8
        store.append([draft(topic="T0")])
        await store.index_syncer.save()
        assert disk.whole == 1  # few files: one by one
        assert [path for path in disk.synced if "consumequeue" in path.parts] == [
            tmp_path / "consumequeue" / "T0" / "0" / f"{0:020d}"
        ]


@pytest.mark.parametrize("features", [DiskFeatures(sync_file_system=False), NO_FEATURES])
async def test_without_that_call_every_file_is_forced_out_and_other_tasks_get_their_turn(
    tmp_path: Path, features: DiskFeatures
) -> None:
    disk = CountingDisk(features)
    async with open_store(config(tmp_path), disk=disk) as store:
        fill(store)
        await store.index_syncer.save()
        assert disk.whole == 0
        assert len({path for path in disk.synced if "consumequeue" in path.parts}) == QUEUES


@needs_syncfs
async def test_an_error_of_that_call_is_fatal_like_any_other(tmp_path: Path) -> None:
    disk = CountingDisk()
    async with open_store(config(tmp_path), disk=disk) as store:
        before = store.index_syncer.current
        fill(store)
        disk.fail = True
        with pytest.raises(FlushFailed):
            await store.index_syncer.save()
        assert store.index_syncer.current == before
        disk.fail = False


@needs_syncfs
def test_files_on_another_file_system_are_left_to_the_caller(tmp_path: Path) -> None:
    other = next(
        (
            path
            for path in (Path("/dev/shm"), Path("/proc/self/status"))
            if path.exists() and path.stat().st_dev != tmp_path.stat().st_dev
        ),
        None,
    )
    if other is None:
        pytest.skip("there is no second file system")
    file_system = FileSystem(Disk(), tmp_path)
    try:
        (tmp_path / "here").touch()
        assert file_system.force_out([tmp_path / "here", other, tmp_path / "gone"], [tmp_path]) == (
            [other],
            [],
        )
    finally:
        file_system.close()


async def test_a_checkpoint_that_is_cancelled_has_forced_out_what_it_took(tmp_path: Path) -> None:
    """Otherwise the next checkpoint would count those files as forced out."""
    disk = CountingDisk(DiskFeatures(sync_file_system=False))
    async with open_store(config(tmp_path), disk=disk) as store:
        fill(store)
        await store.flusher.flush()
        async with trio.open_nursery() as nursery:
            await store.index_syncer.limiter.acquire_on_behalf_of("another fsync")
            nursery.start_soon(store.index_syncer.save)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
            store.index_syncer.limiter.release_on_behalf_of("another fsync")
        await store.index_syncer.save()
        assert len({path for path in disk.synced if "consumequeue" in path.parts}) == QUEUES


async def test_queues_with_few_new_entries_wait_for_the_checkpoint(tmp_path: Path) -> None:
    async with open_store(config(tmp_path, index_write_interval_ms=1), SteppingClock()) as store:
        fill(store)
        await trio.sleep(0.05)
        assert (
            len(store.queue_table.dirty) == QUEUES
        )  # more than descriptors: 20 bytes are not worth an open, a write and a close
        await store.index_syncer.save()
        assert not store.queue_table.dirty
        store.append([draft(topic="T1", queue_id=2)])
        await trio.sleep(0.05)
        assert not store.queue_table.dirty  # few queues: at once
        assert [message.body for message in await read_all(store, "T1", 2)] == [b"0", b"hello"]


async def test_entries_that_come_while_others_are_written_wait_for_the_next_time(
    tmp_path: Path,
) -> None:
    async with open_store(config(tmp_path), SteppingClock()) as store:
        fill(store)
        written = []
        for queue in store.queue_table.write_out():
            written.append(queue)
            store.append([draft(topic="T0", queue_id=0)])
        assert len(written) == QUEUES
        assert [(queue.topic, queue.queue_id) for queue in store.queue_table.dirty] == [("T0", 0)]


@pytest.mark.feature("51b")
async def test_many_queues_survive_a_crash_and_a_clean_stop(tmp_path: Path) -> None:
    for crash in (True, False):
        root = tmp_path / str(crash)
        async with open_store(config(root), SteppingClock()) as store:
            fill(store, 3)
            await store.index_syncer.save()
            fill(store, 3)
        if crash:
            (root / "abort").touch()
        async with open_store(config(root), SteppingClock()) as store:
            for queue in range(QUEUES):
                assert [
                    message.body for message in await read_all(store, f"T{queue // 4}", queue % 4)
                ] == [b"0", b"1", b"2"] * 2


@pytest.mark.parametrize("crash", [False, True])
async def test_a_start_opens_each_queue_once(tmp_path: Path, crash: bool) -> None:
    """With 50,000 queues the cost of each queue is the time of a start."""
    async with open_store(config(tmp_path)) as store:
        fill(store, 3)
    if crash:
        (tmp_path / "abort").touch()
    opened: list[Path] = []

    class OpeningDisk(Disk):
        def open(self, path: Path, *, writable: bool = True) -> int:
            opened.append(path)
            return super().open(path, writable=writable)

    async with open_store(config(tmp_path), disk=OpeningDisk()) as store:
        queue_files = [path for path in opened if "consumequeue" in path.parts]
        assert len(set(queue_files)) == len(queue_files) == QUEUES
        assert store.max_offset("T0", 0) == 3


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.feature("40a", "153a")
async def test_fifty_thousand_queues(tmp_path: Path) -> None:
    """One message each, a clean stop, a crash: all messages are there, with few descriptors and
    little room on the disk.
    """
    count = 50_000
    settings = StoreConfig(root=tmp_path, index_enabled=False, segment_size_bytes=64 << 20)
    keys = [(f"T{number // 8:05d}", number % 8) for number in range(count)]
    async with open_store(settings) as store:
        for start in range(0, count, 500):
            store.append(
                [
                    draft(f"{start}", topic=topic, queue_id=queue_id)
                    for topic, queue_id in keys[start : start + 500]
                ]
            )
            await trio.lowlevel.checkpoint()
        await store.index_syncer.save()
        assert len(store.queue_table.open_files) <= settings.open_files_max
    files = [
        tmp_path / "consumequeue" / topic / str(queue_id) / f"{0:020d}" for topic, queue_id in keys
    ]
    assert {file.stat().st_size for file in files} == {6_000_000}
    assert sum(file.stat().st_blocks * 512 for file in files) <= count * 8192
    for crash in (False, True):
        if crash:
            (tmp_path / "abort").touch()
        async with open_store(settings) as store:
            assert {store.max_offset(*key) for key in keys} == {1}
            assert {store.min_offset(*key) for key in keys} == {0}
            for topic, queue_id in keys[::1000]:
                assert len(await read_all(store, topic, queue_id)) == 1


async def test_a_hole_in_a_queue_file_is_its_end(tmp_path: Path) -> None:
    """After a power failure a block may be missing while later ones are there; recovery reads the
    log again from the hole on.
    """
    settings = {"queue_file_size_bytes": 20_480, "segment_size_bytes": 1 << 20}
    async with open_store(tiny_config(tmp_path, **settings)) as store:
        for number in range(10):
            store.append([draft(f"{number}-{part}") for part in range(100)])
    (tmp_path / "abort").touch()
    path = tmp_path / "consumequeue" / "T" / "0" / f"{0:020d}"
    data = path.read_bytes()
    with path.open("wb") as file:  # blocks 1 and 2 of 4 KiB are holes now
        file.write(data[:4096])
        file.seek(12_288)
        file.write(data[12_288:])
    (tmp_path / "checkpoint").unlink()
    async with open_store(tiny_config(tmp_path, **settings)) as store:
        bodies = [message.body for message in await read_all(store, "T", 0)]
    assert bodies == [f"{number}-{part}".encode() for number in range(10) for part in range(100)]


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("count", [1023, 1024, 1025, 2048])
async def test_a_queue_may_end_where_a_hole_begins(tmp_path: Path, count: int, crash: bool) -> None:
    """1,024 entries of 20 bytes are five blocks of 4 KiB."""
    settings = {"queue_file_size_bytes": 6_000_000, "segment_size_bytes": 1 << 20}
    async with open_store(tiny_config(tmp_path, **settings)) as store:
        for start in range(0, count, 100):
            store.append([draft(f"{number}") for number in range(start, min(count, start + 100))])
    if crash:
        (tmp_path / "abort").touch()
    async with open_store(tiny_config(tmp_path, **settings)) as store:
        assert (store.min_offset("T", 0), store.max_offset("T", 0)) == (0, count)
        store.append([draft("next")])
        assert (await read_all(store, "T", 0, count - 1))[-1].body == b"next"
    if crash:
        (tmp_path / "checkpoint").unlink()  # by Java's rules
    (tmp_path / "abort").touch()
    async with open_store(tiny_config(tmp_path, **settings)) as store:
        assert store.max_offset("T", 0) == count + 1
