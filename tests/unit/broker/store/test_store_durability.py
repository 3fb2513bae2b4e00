"""Flush modes, group commit, and what happens when the disk is full or fails."""

# ruff: noqa: PT012  (what must raise is leaving the block of a running store)

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from simulated_disk import SimulatedDisk
from stores import (
    FaultyDisk,
    SteppingClock,
    draft,
    find_bodies,
    read_all,
    tiny_config,
    wait_durable,
)

from triomq.broker.store.core.config import FlushMode
from triomq.broker.store.core.errors import DiskFull, FlushFailed, StoreError
from triomq.broker.store.core.results import GetStatus
from triomq.broker.store.indexing import index_syncer
from triomq.broker.store.indexing.indexer import DEFERRED_MESSAGES_MAX
from triomq.broker.store.io.disk import Disk
from triomq.broker.store.log.durability import DurabilityResult
from triomq.broker.store.opening import close_files, finish_store, load_store, open_store

ALL = {"messages_max": 32, "bytes_max": 1 << 20}


async def until(condition: Callable[[], bool]) -> None:
    """Let the store's tasks run until the condition holds."""
    with trio.fail_after(10):
        while not condition():
            await trio.sleep(0.001)


class CountingDisk(Disk):
    """Counts fsyncs of log segments, and can hold them back."""

    def __init__(self) -> None:
        super().__init__()
        self.flushes = 0
        self.open = threading.Event()
        self.open.set()

    def sync_path(self, path: Path) -> None:
        if path.parent.name == "commitlog":
            self.open.wait(10)
            self.flushes += 1
        super().sync_path(path)


class HeldCheckpoints(Disk):
    """Holds back the fsync of the checkpoint file."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.open = threading.Event(), threading.Event()
        self.open.set()

    def sync_path(self, path: Path) -> None:
        if path.name == "checkpoint" and not self.open.is_set():
            self.reached.set()
            self.open.wait(10)
        super().sync_path(path)


@pytest.mark.feature("38a")
async def test_async_flush_answers_at_once_and_flushes_in_the_background(tmp_path: Path) -> None:
    disk = CountingDisk()
    async with open_store(tiny_config(tmp_path, flush_interval_ms=1), disk=disk) as store:
        (place,) = store.append([draft()])
        end = place.log_offset + place.size
        assert store.flusher.durable_now(end)
        assert await wait_durable(store.flusher, end) is DurabilityResult.DURABLE
        assert (await read_all(store, "T", 0))[0].body == b"hello"
        with trio.fail_after(10):
            await store.flushed.wait_reached(end)
        assert disk.flushes >= 1


@pytest.mark.feature("37a")
async def test_sync_flush_answers_and_shows_messages_after_the_disk_has_them(
    tmp_path: Path,
) -> None:
    disk = CountingDisk()
    config = tiny_config(tmp_path, flush_mode=FlushMode.SYNC)
    async with open_store(config, disk=disk) as store:
        disk.open.clear()
        (place,) = store.append([draft()])
        end = place.log_offset + place.size
        assert not store.flusher.durable_now(end)
        result = store.get("T", 0, 0, **ALL)
        assert result is not None
        assert result.status is GetStatus.NO_MESSAGE_IN_QUEUE  # not shown before it is safe
        assert (store.confirmed.value, store.appended.value) == (0, end)
        disk.open.set()
        assert await wait_durable(store.flusher, end) is DurabilityResult.DURABLE
        with trio.fail_after(10):
            await store.indexed.wait_reached(end)
        assert (await read_all(store, "T", 0))[0].body == b"hello"


async def test_one_flush_serves_all_senders_that_came_meanwhile(tmp_path: Path) -> None:
    disk = CountingDisk()
    async with open_store(
        tiny_config(tmp_path, flush_mode=FlushMode.SYNC, segment_size_bytes=1 << 20), disk=disk
    ) as store:
        disk.open.clear()
        results: list[DurabilityResult] = []

        async def send(number: int) -> None:
            place = store.append([draft(str(number))])[0]
            results.append(await wait_durable(store.flusher, place.log_offset + place.size))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, 0)
            while disk.flushes == 0 and store.flusher.limiter.borrowed_tokens == 0:
                await trio.lowlevel.checkpoint()
            for number in range(1, 50):
                nursery.start_soon(send, number)
            await trio.testing.wait_all_tasks_blocked()
            disk.open.set()
        assert results == [DurabilityResult.DURABLE] * 50
        assert disk.flushes <= 3


async def test_a_flush_that_takes_too_long_is_reported_and_the_message_is_stored(
    tmp_path: Path,
) -> None:
    disk = CountingDisk()
    async with open_store(
        tiny_config(tmp_path, flush_mode=FlushMode.SYNC, sync_flush_timeout_ms=10), disk=disk
    ) as store:
        disk.open.clear()
        (place,) = store.append([draft()])
        assert (
            await wait_durable(store.flusher, place.log_offset + place.size)
            is DurabilityResult.FLUSH_DISK_TIMEOUT
        )
        disk.open.set()
        with trio.fail_after(10):
            await store.indexed.wait_reached(store.appended.value)
        assert len(await read_all(store, "T", 0)) == 1


@pytest.mark.parametrize("mode", list(FlushMode))
async def test_a_failed_flush_is_fatal_and_the_next_start_recovers(
    tmp_path: Path, mode: FlushMode
) -> None:
    broken = [False]
    config = tiny_config(tmp_path, flush_mode=mode, flush_interval_ms=1)
    disk = FaultyDisk(refuse_sync=lambda path: broken[0] and path.parent.name == "commitlog")
    with pytest.raises(ExceptionGroup) as caught:
        async with open_store(config, disk=disk) as store:
            broken[0] = True
            store.append([draft("kept")])
            await trio.sleep_forever()
    (error,) = caught.value.exceptions
    assert isinstance(error, FlushFailed)
    assert "00000000000000000000" in str(error)
    assert "check the disk" in str(error)
    assert (tmp_path / "abort").exists()
    with pytest.raises(StoreError):
        store.append([draft("refused")])
    async with open_store(config) as again:
        assert [message.body for message in await read_all(again, "T", 0)] == [b"kept"]


async def test_a_failed_flush_of_an_index_is_fatal_too(tmp_path: Path) -> None:
    disk = FaultyDisk(refuse_sync=lambda path: path.parent.name == "index")
    with pytest.raises(ExceptionGroup) as caught:
        async with open_store(
            tiny_config(tmp_path, index_write_interval_ms=1, checkpoint_interval_ms=1), disk=disk
        ) as store:
            store.append([draft(unique_key="U")])
            await trio.sleep_forever()
    assert caught.group_contains(FlushFailed)


async def test_a_full_disk_refuses_messages_and_serves_readers(tmp_path: Path) -> None:
    full = [False]
    disk = FaultyDisk(refuse_write=lambda path: full[0] and path.parent.name == "commitlog")
    async with open_store(tiny_config(tmp_path), disk=disk) as store:
        store.append([draft("before")])
        full[0] = True
        with pytest.raises(DiskFull, match="free some space"):
            store.append([draft("refused")])
        assert [message.body for message in await read_all(store, "T", 0)] == [b"before"]
        full[0] = False
        assert store.append([draft("after")])[0].queue_offset == 1
        assert [message.body for message in await read_all(store, "T", 0)] == [b"before", b"after"]


async def test_an_index_that_cannot_grow_stops_appends_until_it_can(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    full = [True]
    disk = FaultyDisk(refuse_write=lambda path: full[0] and path.parent.name == "index")
    async with open_store(tiny_config(tmp_path), disk=disk) as store:
        store.append(
            [draft("stored", unique_key="U")]
        )  # the log has the message, so the send succeeds
        await trio.sleep(store.config.index_write_interval_ms / 1000 + 0.1)
        with pytest.raises(DiskFull):
            store.append([draft("refused")])
        assert not store.health.writable
        assert caplog.text.count("the key index cannot grow") == 1
        await trio.sleep(5)
        assert caplog.text.count("the key index cannot grow") == 1
        full[0] = False
        await trio.sleep(store.config.index_write_interval_ms / 1000 + 0.1)
        assert store.health.writable
        assert await find_bodies(store, "T", "U") == [b"stored"]
        store.append([draft("more")])
        assert [message.body for message in await read_all(store, "T", 0)] == [b"stored", b"more"]


async def test_the_indexer_itself_ends_the_refusals_when_the_index_can_grow(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Many messages at once are indexed by the task, which finds the disk full. No query and no
    checkpoint comes.
    """
    full = [False]
    disk = FaultyDisk(refuse_write=lambda path: full[0] and path.parent.name == "index")
    async with open_store(tiny_config(tmp_path), disk=disk) as store:
        full[0] = True
        for _ in range(DEFERRED_MESSAGES_MAX + 1):
            store.append([draft(unique_key="U")])
        await trio.sleep(2.5)
        assert isinstance(store.health.index_fault, DiskFull)
        full[0] = False
        await trio.sleep(1.5)
        assert store.health.index_fault is None
        store.append([draft("more")])
        assert store.indexed.value == store.appended.value


@pytest.mark.feature("51b")
async def test_no_checkpoint_while_the_key_index_is_behind(tmp_path: Path) -> None:
    """The disk of the index is full: the checkpoint must not reach beyond the index, or recovery
    would begin too late to add the missing keys.
    """
    full = [False]
    disk = FaultyDisk(refuse_write=lambda path: full[0] and path.parent.name == "index")
    living, killed = tmp_path / "living", tmp_path / "killed"
    async with open_store(tiny_config(living), SteppingClock(), disk=disk) as store:
        store.append(
            [draft("without a key")]
        )  # so the index has no file yet, and needs room for the first one
        await store.index_syncer.save()
        before = store.index_syncer.current
        full[0] = True
        store.append([draft("first", unique_key="U1")])
        store.append([draft("second", unique_key="U2")])
        await store.index_syncer.save()
        assert store.index_syncer.current == before
        shutil.copytree(living, killed)
        full[0] = False
        await store.index_syncer.save()
        assert store.index_syncer.current.mark != before.mark
    async with open_store(tiny_config(killed), SteppingClock()) as store:
        assert store.recovered.trusted
        assert store.recovered.records == 2
        assert [await find_bodies(store, "T", key) for key in ("U1", "U2")] == [
            [b"first"],
            [b"second"],
        ]


async def test_a_checkpoint_that_is_asked_for_during_another_one_is_made(tmp_path: Path) -> None:
    """A topic is deleted while the disk writes an older checkpoint: otherwise a crash would bring
    the topic back.
    """
    disk = HeldCheckpoints()
    async with open_store(tiny_config(tmp_path), disk=disk) as store:
        store.append([draft(topic="other"), draft()])
        disk.open.clear()
        store.index_syncer.save_soon()
        await until(disk.reached.is_set)
        store.append([draft("last")])
        store.delete_topic("T")
        disk.open.set()
        await until(
            lambda: (
                store.index_syncer.current.mark is not None
                and store.index_syncer.current.mark.record_end == store.appended.value
            )
        )


async def test_queue_entries_that_cannot_be_written_stay_in_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    full = [True]
    disk = FaultyDisk(refuse_write=lambda path: full[0] and "consumequeue" in str(path))
    async with open_store(
        tiny_config(tmp_path, index_write_interval_ms=1, checkpoint_interval_ms=3), disk=disk
    ) as store:
        store.append([draft("one"), draft("two", queue_id=1)])
        await until(lambda: not store.health.writable)
        with pytest.raises(DiskFull):
            store.append([draft("refused")])
        assert len(await read_all(store, "T", 0)) == 1
        full[0] = False
        await until(lambda: store.health.writable)
        assert caplog.text.count("queue entries cannot be written") == 1
        assert store.append([draft("three")])[0].queue_offset == 1
        assert [message.body for message in await read_all(store, "T", 1)] == [b"two"]


async def test_a_store_closed_with_a_full_disk_leaves_the_work_to_the_next_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    full = [False]
    config = tiny_config(tmp_path)
    disk = FaultyDisk(refuse_write=lambda path: full[0] and path.parent.name != "commitlog")
    async with open_store(config, disk=disk) as store:
        full[0] = True
        store.append([draft("stored", unique_key="U")])
    assert "the next start does the rest" in caplog.text
    assert (tmp_path / "abort").exists()
    async with open_store(config) as store:
        assert [message.body for message in await read_all(store, "T", 0)] == [b"stored"]
        assert await find_bodies(store, "T", "U") == [b"stored"]


async def test_queue_entries_reach_their_files_and_the_checkpoint_follows(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, index_write_interval_ms=1, checkpoint_interval_ms=1)
    async with open_store(config, SteppingClock()) as store:
        for number in range(100):
            store.append([draft(str(number), queue_id=number)])
        assert len(store.queue_table.dirty) == 100
        await until(lambda: not store.queue_table.dirty)

        def followed() -> bool:
            mark = store.index_syncer.current.mark
            return mark is not None and mark.record_end == store.appended.value

        await until(followed)
        assert store.flushed.value == store.appended.value  # the log first
        await until(
            lambda: (tmp_path / "checkpoint").read_bytes() == store.index_syncer.current.encode()
        )
        await store.index_syncer.save()  # nothing has changed
        assert (tmp_path / "checkpoint").read_bytes() == store.index_syncer.current.encode()


async def test_an_error_of_the_body_closes_the_store_cleanly(tmp_path: Path) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with open_store(tiny_config(tmp_path)) as store:
            store.append([draft()])
            raise ValueError("mine")
    assert caught.group_contains(ValueError)
    assert not (tmp_path / "abort").exists()


async def test_cancelling_the_body_closes_the_store_cleanly(tmp_path: Path) -> None:
    with trio.CancelScope() as scope:
        async with open_store(tiny_config(tmp_path)) as store:
            store.append([draft()])
            scope.cancel()
            await trio.sleep_forever()
    assert not (tmp_path / "abort").exists()
    async with open_store(tiny_config(tmp_path)) as store:
        assert store.recovered.records == 0
        assert len(await read_all(store, "T", 0)) == 1


async def test_no_descriptor_and_no_lock_is_left(tmp_path: Path) -> None:
    def descriptors() -> set[str]:  # of this process, if the system lists them
        if not os.path.isdir("/proc/self/fd"):
            return set()
        return {
            os.readlink(f"/proc/self/fd/{fd}")
            for fd in os.listdir("/proc/self/fd")
            if os.path.lexists(f"/proc/self/fd/{fd}")
        }

    for _ in range(3):
        async with open_store(tiny_config(tmp_path)) as store:
            store.append(
                [draft(b"x" * 900, queue_id=number, unique_key=str(number)) for number in range(30)]
            )
            await read_all(store, "T", 0)
    assert not [path for path in descriptors() if str(tmp_path) in path]


def test_loggers_are_ours() -> None:
    assert logging.getLogger("triomq.broker.store.opening").name in logging.root.manager.loggerDict


async def test_a_stop_in_the_middle_of_a_checkpoint_omits_no_file(tmp_path: Path) -> None:
    """The last checkpoint must not count files as safe that an interrupted checkpoint has taken and
    not forced out.
    """
    await stop_in_the_middle_of_a_checkpoint(tmp_path)


async def test_a_checkpoint_that_can_be_cancelled_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unshielded:
        CancelScope = staticmethod(lambda **_: trio.CancelScope())

        def __getattr__(self, name: str) -> object:
            return getattr(trio, name)

    monkeypatch.setattr(index_syncer, "trio", Unshielded())
    with pytest.raises((AssertionError, ExceptionGroup)):
        await stop_in_the_middle_of_a_checkpoint(tmp_path)


async def stop_in_the_middle_of_a_checkpoint(folder: Path) -> None:
    root = folder / "store"
    root.mkdir()
    disk = SimulatedDisk(root)
    store = await load_store(tiny_config(root), SteppingClock(), disk)
    store.append(
        [draft(str(number), queue_id=number % 2, unique_key=f"U{number}") for number in range(30)]
    )
    with trio.CancelScope() as scope:
        disk.during_sync = scope.cancel  # the log is being forced out; queues and index come next
        await store.index_syncer.save()
    disk.during_sync = None
    await finish_store(store)
    image = disk.image()
    close_files(store)
    assert Path("abort") not in image.cached
    for seed in range(20):
        image.after_power_failure(folder / str(seed), seed)
        async with open_store(tiny_config(folder / str(seed)), SteppingClock()) as again:
            found = [
                message.body
                for queue_id in (0, 1)
                for message in await read_all(again, "T", queue_id)
            ]
            assert len(found) == 30
            for number in range(30):
                assert await find_bodies(again, "T", f"U{number}") == [b"%d" % number]


@pytest.mark.feature("37a")
async def test_senders_get_the_error_of_a_failed_fsync_at_once_and_it_is_never_retried(
    tmp_path: Path,
) -> None:
    asked: list[Path] = []

    def fails(path: Path) -> bool:
        if path.parent.name != "commitlog":
            return False
        asked.append(path)
        return True

    store = await load_store(
        tiny_config(tmp_path, flush_mode=FlushMode.SYNC),
        SteppingClock(),
        FaultyDisk(refuse_sync=fails),
    )
    outcomes: list[str] = []

    async def send(number: int) -> None:
        (place,) = store.append([draft(str(number))])
        with pytest.raises(FlushFailed, match="check the disk"):
            await wait_durable(store.flusher, place.log_offset + place.size)
        outcomes.append("refused")

    async def flush() -> None:
        with pytest.raises(FlushFailed, match="Input/output error"):
            await store.flusher.flush()
        outcomes.append("failed")

    with trio.fail_after(4):  # not after the timeout of five seconds
        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(send, number)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(flush)
            nursery.start_soon(flush)  # waits for its turn meanwhile
    assert sorted(outcomes) == ["failed"] * 2 + ["refused"] * 3
    assert len(asked) == 1
    with pytest.raises(FlushFailed):
        await wait_durable(store.flusher, store.appended.value)
    assert store.flushed.value == 0
    close_files(store)


@pytest.mark.parametrize("fault", ["_write_out", "save"])
async def test_a_checkpoint_that_met_a_full_disk_is_tried_again_once_in_an_interval(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: trio.testing.MockClock,
    fault: str,
) -> None:
    """Recovery would bring a deleted topic back, so its checkpoint does not wait for the next."""
    tried: dict[str, list[float]] = {"_follow_clock": [], "_write_out": [], "save": []}
    began = trio.current_time()

    def call(name: str) -> Callable[..., Awaitable[None]]:
        async def called(*_: object) -> None:
            await trio.lowlevel.checkpoint()
            passed = trio.current_time() - began
            tried[name].append(passed)
            if name == fault and passed < 60:
                raise DiskFull("consumequeue")

        return called

    for name in tried:
        monkeypatch.setattr(index_syncer.IndexSyncer, name, call(name))
    config = tiny_config(tmp_path, index_write_interval_ms=1_000)
    queues: Any = SimpleNamespace(dirty={})
    health: Any = SimpleNamespace(queue_fault=None)
    nothing: Any = None
    files = index_syncer.OpenStoreFiles(config, Disk(), nothing, queues, nothing)
    syncer = index_syncer.IndexSyncer(files, *[nothing] * 3, health, nothing, nothing, lambda: 0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(syncer.sync_in_rounds)
        syncer.save_soon()
        await trio.sleep(30)
        assert 10 <= len(tried[fault]) <= 40
        assert health.queue_fault is not None
        await trio.sleep(40)
        assert health.queue_fault is None
        assert 60 <= tried["save"][-1] <= 63
        nursery.cancel_scope.cancel()
