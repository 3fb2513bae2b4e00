"""The checkpoint file: Java's fields in their places, our mark where Java does not read."""

from __future__ import annotations

import threading
from pathlib import Path

import attrs
import pytest
import trio
from stores import SteppingClock, draft, tiny_config

from triomq.broker.store.io.checkpoint import MARK_POSITION, Checkpoint, CheckpointFile, Mark
from triomq.broker.store.io.disk import Disk
from triomq.broker.store.opening import open_store

FULL = Checkpoint(
    log_timestamp=1,
    queue_timestamp=2,
    index_timestamp=3,
    master_flushed=4,
    confirmed=5,
    queue_log_offset=6,
    mark=Mark(record_offset=6, record_end=60, index_position=5, has_queues=True),
)


@pytest.mark.feature("47a")
def test_bytes_of_the_fact_sheet() -> None:
    data = attrs.evolve(FULL, queue_log_offset=0, mark=None).encode()
    assert (
        data[:40].hex(" ", 8)
        == "0000000000000001 0000000000000002 0000000000000003 0000000000000004 0000000000000005"
    )
    assert data[40:] == bytes(4056)


def test_round_trip(tmp_path: Path) -> None:
    assert Checkpoint.decode(FULL.encode()) == FULL
    file = CheckpointFile(Disk(), tmp_path / "checkpoint")
    assert file.load() == Checkpoint()
    file.write(FULL)
    file.close()
    assert (tmp_path / "checkpoint").stat().st_size == 4096
    again = CheckpointFile(Disk(), tmp_path / "checkpoint")
    assert again.load() == FULL
    again.close()
    again.close()


@pytest.mark.parametrize("size", [0, 8, 47, 48, 4095])
def test_a_short_file_knows_less(size: int) -> None:
    known = Checkpoint.decode(FULL.encode()[:size])
    assert known.mark is None
    assert known.log_timestamp == (1 if size else 0)


def test_a_mark_counts_only_while_java_has_not_moved_on() -> None:
    data = bytearray(FULL.encode())
    data[47] = 7
    assert Checkpoint.decode(bytes(data)).mark is None


def test_a_mark_of_another_version_does_not_count() -> None:
    data = bytearray(FULL.encode())
    data[MARK_POSITION + 6] = ord("2")
    assert Checkpoint.decode(bytes(data)).mark is None


def test_java_s_safe_time_has_a_margin() -> None:
    assert Checkpoint(log_timestamp=10_000, queue_timestamp=9_000).safe_timestamp == 6_000
    assert Checkpoint(log_timestamp=10_000).safe_timestamp == 0


@attrs.define(eq=False)
class HeldDisk(Disk):
    """Holds back the first fsync in a folder of the store."""

    folder: str = attrs.field(kw_only=True)
    reached: threading.Event = attrs.field(factory=threading.Event)
    go_on: threading.Event = attrs.field(factory=threading.Event)

    def sync_path(self, path: Path) -> None:
        if self.folder in path.parts:
            self.reached.set()
            assert self.go_on.wait(10)
        super().sync_path(path)


@pytest.mark.parametrize("folder", ["commitlog", "consumequeue", "index"])
async def test_what_comes_during_an_fsync_is_not_in_its_checkpoint(
    tmp_path: Path, folder: str
) -> None:
    """A time that is too late would make Java skip records that a power failure has taken."""
    disk = HeldDisk(folder=folder)
    async with open_store(tiny_config(tmp_path), clock=SteppingClock(), disk=disk) as store:
        before = store.append([draft(b"before", keys="a")])[0]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.index_syncer.save)
            with trio.fail_after(10):
                while not disk.reached.is_set():
                    await trio.sleep(0.001)
            for number in range(40):  # the first file of the key index is full then
                last = store.append([draft(b"%d" % number, keys="b")])[0]
            store.indexer.flush_deferred()
            full = store.key_index.full_timestamp
            assert full > before.store_timestamp
            disk.go_on.set()
        written = Checkpoint.decode((tmp_path / "checkpoint").read_bytes())
        assert written == Checkpoint(
            log_timestamp=before.store_timestamp,
            queue_timestamp=before.store_timestamp,
            index_timestamp=0,
            confirmed=before.log_offset,
            queue_log_offset=before.log_offset,
            mark=Mark(before.log_offset, before.log_offset + before.size, before.log_offset, True),
        )
        await store.index_syncer.save()
        written = Checkpoint.decode((tmp_path / "checkpoint").read_bytes())
        times = written.log_timestamp, written.queue_timestamp, written.index_timestamp
        assert times == (last.store_timestamp, last.store_timestamp, full)


class ThreadsOnly(HeldDisk):
    """Has no queue in the kernel, so that each fsync can be held back."""

    def open_sync_queue(self) -> None:
        return None


async def test_the_time_of_the_log_is_that_of_the_last_finished_fsync(tmp_path: Path) -> None:
    """A checkpoint may be written while a later fsync of the log is under way."""
    disk = ThreadsOnly(folder="commitlog")
    disk.go_on.set()
    async with open_store(tiny_config(tmp_path), clock=SteppingClock(), disk=disk) as store:
        first = store.append([draft(b"first")])[0]
        await store.flusher.flush()
        disk.go_on.clear()
        disk.reached.clear()
        second = store.append([draft(b"second")])[0]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.flusher.flush)
            with trio.fail_after(30):
                while not disk.reached.is_set():
                    await trio.sleep(0.001)
            during = store.flusher.flushed_timestamp
            disk.go_on.set()
        assert during == first.store_timestamp
        assert store.flusher.flushed_timestamp == second.store_timestamp > first.store_timestamp
