"""Deleting old messages on real files: what is deleted, what stays, and readers do not notice."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from stores import NO_FEATURES, NOW_MS, SteppingClock, draft, find_bodies, read_all, tiny_config

from triomq.broker.store.cleaner import ASKED_ROUNDS
from triomq.broker.store.core.config import StoreConfig
from triomq.broker.store.core.disk_space import Usage
from triomq.broker.store.core.errors import DiskFull, DiskReserve, StoreIoError
from triomq.broker.store.core.results import GetStatus
from triomq.broker.store.core.retention import RetentionRules
from triomq.broker.store.io.disk import Disk
from triomq.broker.store.opening import open_store
from triomq.broker.store.store import MessageStore
from triomq.remoting.protocol.record_reader import decode_records

SEGMENT = 4096
QUIET = RetentionRules(interval_ms=3_600_000, delete_hours=(), log_pause_ms=0, queue_pause_ms=0)
BODY = "x" * 900
"""Four messages a segment."""


@attrs.define(eq=False)
class ShownDisk(Disk):
    """A disk as full as the test wants it; every deleted segment frees one hundredth."""

    percent: float = 10.0
    refuse_remove: Callable[[Path], bool] = lambda path: False
    before_read: Callable[[Path], None] = lambda path: None
    removed: list[str] = attrs.field(factory=list)

    def usage(self, path: Path) -> Usage:
        used = int(self.percent * SEGMENT)
        return Usage(used, 100 * SEGMENT - used)

    def read_path(self, path: Path, size: int, offset: int) -> bytes:
        self.before_read(path)
        return super().read_path(path, size, offset)

    def remove(self, path: Path) -> None:
        if self.refuse_remove(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        self.removed.append(f"{path.parent.name}/{path.name}")
        if path.parent.name == "commitlog":
            self.percent -= 1
        super().remove(path)


def config_of(root: Path, **changes: Any) -> StoreConfig:
    return tiny_config(root, **{"retention": QUIET, **changes})


async def fill(store: MessageStore, count: int = 24) -> None:
    """Message n goes to queue n % 2 of T; the checkpoint covers the last message."""
    for number in range(count):
        store.append(
            [draft(f"{number}:{BODY}", queue_id=number % 2, unique_key=f"U{number}", keys="k")]
        )
    await store.index_syncer.save()


def age(config: StoreConfig, *bases: int, hours: float = 73, now_ms: int = NOW_MS) -> None:
    for base in bases:
        seconds = now_ms / 1000 - hours * 3600
        os.utime(config.commitlog / f"{base:020d}", (seconds, seconds))


@asynccontextmanager
async def filled(
    root: Path, disk: Disk | None = None, **changes: Any
) -> AsyncIterator[MessageStore]:
    """Six segments of four messages; all files were written to just now."""
    config = config_of(root, **changes)
    async with open_store(config, SteppingClock(), disk=disk or ShownDisk()) as store:
        await fill(store)
        age(config, *range(0, store.log.segments.end, SEGMENT), hours=0)
        yield store


def segments_on_disk(config: StoreConfig) -> list[int]:
    return sorted(int(path.name) for path in config.commitlog.iterdir())


async def delete(store: MessageStore, *bases: int) -> None:
    age(store.config, *bases)
    store.cleaner._asked = 1  # delete_expired_soon without waking the task: the test runs the round
    await store.cleaner.round()


@pytest.mark.parametrize("features", [None, NO_FEATURES], ids=["all calls", "fallbacks"])
@pytest.mark.feature("52a", "52c")
async def test_expired_segments_are_deleted_and_queues_and_index_follow(
    tmp_path: Path, features: Any
) -> None:
    disk = ShownDisk() if features is None else ShownDisk(features)
    async with filled(tmp_path / "store", disk) as store:
        for _ in store.queue_table.write_out():
            pass
        await delete(store, 0, SEGMENT, 2 * SEGMENT)
        assert segments_on_disk(store.config) == [3 * SEGMENT, 4 * SEGMENT, 5 * SEGMENT]
        assert store.log.first_offset == store.log.first_offset == 3 * SEGMENT
        assert (store.min_offset("T", 0), store.max_offset("T", 0)) == (6, 12)
        assert (store.min_offset("T", 1), store.max_offset("T", 1)) == (6, 12)
        for queue_id in (0, 1):
            bodies = [
                message.body.split(b":")[0] for message in await read_all(store, "T", queue_id)
            ]
            assert bodies == [str(number).encode() for number in range(12 + queue_id, 24, 2)]
        old = await store.get_cold("T", 0, 2, messages_max=32, bytes_max=1 << 20)
        assert (old.status, old.next_offset) == (GetStatus.OFFSET_TOO_SMALL, 6)
        assert len(await find_bodies(store, "T", "k")) == 12
        assert await find_bodies(store, "T", "U3") == []
        assert await store.read_record(0) is None
        assert await store.offset_by_time("T", 0, 0) == 6
        assert await store.store_time_at("T", 0, 6) > NOW_MS
        assert [name for name in disk.removed if name.startswith("index/")] != []
        assert store.append([draft("goes on")])[0].queue_offset == 12
        await store.index_syncer.save()
        expected = len(store.key_index.files)
        config = store.config
    async with open_store(config, SteppingClock()) as store:  # the next start finds the same state
        assert (store.min_offset("T", 0), store.max_offset("T", 0), store.min_offset("T", 1)) == (
            6,
            13,
            6,
        )
        assert len(store.key_index.files) == expected


@pytest.mark.feature("40b", "52c")
async def test_queue_files_below_are_deleted_except_the_last_and_numbers_go_on(
    tmp_path: Path,
) -> None:
    config = config_of(tmp_path / "store")
    async with open_store(config, SteppingClock(), disk=ShownDisk()) as store:
        for _ in range(25):
            store.append([draft("idle", "Idle")])  # all in segment 0: three queue files
        for number in range(12):
            store.append([draft(f"{number}:{BODY}")])
        await store.index_syncer.save()
        last = store.log.segments.items[-1].base
        assert sorted(
            path.name for path in (config.root / "consumequeue" / "Idle" / "0").iterdir()
        ) == [f"{n:020d}" for n in (0, 200, 400)]
        await delete(store, *range(0, last, SEGMENT))
        assert [path.name for path in (config.root / "consumequeue" / "Idle" / "0").iterdir()] == [
            f"{400:020d}"
        ]
        assert (store.min_offset("Idle", 0), store.max_offset("Idle", 0)) == (25, 25)
        nothing = store.get("Idle", 0, 25, messages_max=1, bytes_max=100)
        assert nothing is not None
        assert nothing.status is GetStatus.OFFSET_OVERFLOW_ONE
    async with open_store(config, SteppingClock(), disk=ShownDisk()) as store:
        assert (store.min_offset("Idle", 0), store.max_offset("Idle", 0)) == (25, 25)
        assert store.append([draft("again", "Idle")])[0].queue_offset == 25
        assert [message.body for message in await read_all(store, "Idle", 0)] == [b"again"]


async def test_the_hour_the_age_and_the_last_segment(tmp_path: Path) -> None:
    async with filled(tmp_path / "store") as store:
        await store.cleaner.round()
        assert len(segments_on_disk(store.config)) == 6  # nothing is old
        age(store.config, *range(0, store.log.segments.end, SEGMENT))
        await store.cleaner.round()
        assert len(segments_on_disk(store.config)) == 6  # old, but at no time of the day
        store.files.config = attrs.evolve(
            store.config, retention=attrs.evolve(QUIET, delete_hours=tuple(range(24)))
        )
        await store.cleaner.round()
        assert segments_on_disk(store.config) == [
            5 * SEGMENT
        ]  # all except the one that is written to
        assert store.append([draft("goes on")])[0].log_offset > 5 * SEGMENT


async def test_an_operators_request_lasts_for_some_rounds(tmp_path: Path) -> None:
    async with filled(tmp_path / "store") as store:
        store.cleaner._asked = ASKED_ROUNDS
        for _ in range(ASKED_ROUNDS - 1):
            await store.cleaner.round()
        age(store.config, 0, SEGMENT)
        await store.cleaner.round()
        assert segments_on_disk(store.config)[0] == 2 * SEGMENT
        age(store.config, 2 * SEGMENT)
        await store.cleaner.round()
        assert segments_on_disk(store.config)[0] == 2 * SEGMENT


async def test_the_request_wakes_the_task(tmp_path: Path) -> None:
    async with filled(tmp_path / "store") as store:
        age(store.config, 0)
        store.cleaner.delete_expired_soon()
        with trio.fail_after(10):
            while (store.config.commitlog / f"{0:020d}").exists() or store.min_offset("T", 0) == 0:
                await trio.sleep(0.01)


async def test_a_full_disk_refuses_messages_deletes_and_recovers_by_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = ShownDisk()
    async with filled(tmp_path / "store", disk) as store:
        disk.percent = 91
        await store.cleaner.round()
        assert (
            store.log.first_offset == 5 * SEGMENT
        )  # forced: 91 -> 86, and no other segment may be deleted
        assert not store.health.writable
        with pytest.raises(
            DiskReserve,
            match=r"91\.0% full, more than diskSpaceWarningLevelRatio=90 allows; free some space",
        ):
            store.append([draft()])
        assert len(await read_all(store, "T", 0)) == 2  # reads go on
        await store.cleaner.round()
        assert not store.health.writable  # 86 is still above 85
        disk.percent = 85
        await store.cleaner.round()
        assert store.append([draft()])
        assert [record.levelno for record in caplog.records if "refused" in record.message] == [
            logging.ERROR
        ]
        assert "the disk has room again" in caplog.text


async def test_a_disk_that_is_full_at_the_start_is_noticed_at_once(tmp_path: Path) -> None:
    disk = ShownDisk(percent=99)
    async with open_store(config_of(tmp_path / "store"), SteppingClock(), disk=disk) as store:
        with trio.fail_after(10):
            while store.health.writable:
                await trio.sleep(0.01)


async def test_never_ahead_of_the_checkpoint_nor_of_a_slave_unless_forced(tmp_path: Path) -> None:
    disk = ShownDisk()
    config = config_of(tmp_path / "store")
    async with open_store(config, SteppingClock(), disk=disk) as store:
        for number in range(24):
            store.append([draft(f"{number}:{BODY}")])
            if number == 9:
                await store.index_syncer.save()
        await store.flusher.flush()
        await delete(store, *range(0, store.log.segments.end, SEGMENT))
        assert store.log.first_offset == 2 * SEGMENT  # the checkpoint's record lies in segment 2
        await store.index_syncer.save()
        store.cleaner.needed_from.append(lambda: 3 * SEGMENT + 5)
        await delete(store)
        assert store.log.first_offset == 3 * SEGMENT
        disk.percent = 86
        await store.cleaner.round()
        assert store.log.first_offset == 4 * SEGMENT


async def test_never_ahead_of_the_disk_the_indexes_or_the_checkpoint(tmp_path: Path) -> None:
    disk = ShownDisk(percent=99)
    config = config_of(tmp_path / "store")
    async with open_store(config, SteppingClock(), disk=disk) as store:
        store.health.disk_reserve = None
        store.append([draft(f"{number}:{BODY}") for number in range(24)])
        await store.cleaner.round()
        assert store.log.first_offset == 0
        await store.flusher.flush()
        await store.cleaner.round()
        assert store.log.first_offset == 0  # the checkpoint must move first ...
        store.health.queue_fault = DiskFull("x")  # ... unless it cannot, because the disk is full
        await store.cleaner.round()
        assert store.log.first_offset == 5 * SEGMENT


# Readers at that moment


async def test_an_answer_in_flight_keeps_its_bytes(tmp_path: Path) -> None:
    """A map whose file is deleted stays whole; only a shortened file would be a SIGBUS."""
    async with filled(tmp_path / "store") as store:
        hot = store.get("T", 0, 0, messages_max=2, bytes_max=1 << 20)
        assert hot is not None
        assert any(isinstance(chunk, memoryview) for chunk in hot.chunks)
        await delete(store, 0, SEGMENT)
        assert [
            message.body[:2] for message in decode_records(b"".join(hot.chunks), check_crc=True)
        ] == [b"0:", b"2:"]


async def test_a_cold_read_in_flight_finds_the_remaining_messages(tmp_path: Path) -> None:
    """The file is deleted while a thread is about to read it: the answer is that of a later
    read.
    """
    disk = ShownDisk(NO_FEATURES)
    async with filled(tmp_path / "store", disk, hot_bytes_max=0) as store:
        for _ in store.queue_table.write_out():
            pass
        entered, gone = trio.Event(), trio.Event()

        def wait(path: Path) -> None:
            if path.parent.name == "commitlog" and not gone.is_set():
                trio.from_thread.run_sync(entered.set)
                trio.from_thread.run(gone.wait)

        answers = []
        async with trio.open_nursery() as nursery:

            async def read() -> None:
                answers.append(await store.get_cold("T", 0, 0, messages_max=32, bytes_max=1 << 20))

            disk.before_read = wait
            nursery.start_soon(read)
            await entered.wait()
            await delete(store, 0, SEGMENT)
            gone.set()
        assert [(answer.status, answer.next_offset, list(answer.chunks)) for answer in answers] == [
            (GetStatus.OFFSET_TOO_SMALL, 4, [])
        ]


async def test_a_get_skips_deleted_records_before_the_queues_are_adjusted(tmp_path: Path) -> None:
    async with filled(tmp_path / "store") as store:
        store.log.segments.take_oldest()
        result = await store.get_cold("T", 0, 0, messages_max=32, bytes_max=1 << 20)
        assert decode_records(b"".join(result.chunks))[0].body.startswith(b"4:")
        assert result.next_offset > 2


# Errors, crashes


async def test_a_segment_that_cannot_be_deleted_keeps_its_successors(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = ShownDisk()
    async with filled(tmp_path / "store", disk) as store:
        disk.refuse_remove = lambda path: path.name == f"{SEGMENT:020d}"
        await delete(store, 0, SEGMENT, 2 * SEGMENT)
        assert segments_on_disk(store.config) == [n * SEGMENT for n in range(1, 6)]
        assert store.log.first_offset == SEGMENT
        assert "give the broker's user permission" in caplog.text
        assert len(await read_all(store, "T", 0)) == 10
        disk.refuse_remove = lambda path: False
        await delete(store)
        assert store.log.first_offset == 3 * SEGMENT


async def test_a_queue_file_that_cannot_be_deleted_keeps_its_successors(tmp_path: Path) -> None:
    disk = ShownDisk()
    config = config_of(tmp_path / "store")
    async with open_store(config, SteppingClock(), disk=disk) as store:
        store.append([draft("small") for _ in range(45)])
        await fill(store, 8)
        disk.refuse_remove = lambda path: path.name == f"{200:020d}"
        await delete(store, *range(0, store.log.segments.items[-1].base, SEGMENT))
        assert [base for base in store.queue_table.queues["T", 0].bases if base < 600] == [200, 400]
    async with open_store(config, SteppingClock(), disk=ShownDisk()) as store:
        assert store.min_offset("T", 0) > 45


async def test_a_queue_that_cannot_be_read_does_not_stop_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with filled(tmp_path / "store") as store:
        for _ in store.queue_table.write_out():
            pass
        queue = store.queue_table.queues["T", 0]
        store.queue_table.open_files.forget(queue.path(0))
        queue.path(0).unlink()
        await delete(store, 0, SEGMENT)
        assert "queue 0 of T keeps its smallest offset" in caplog.text
        assert store.min_offset("T", 1) == 4


@pytest.mark.parametrize("died_after", ["commitlog", "consumequeue"])
@pytest.mark.feature("52c")
async def test_a_crash_between_segments_and_queues(tmp_path: Path, died_after: str) -> None:
    """Segments are deleted, queues and index are not adjusted yet: the next start and its first
    round adjust them.
    """
    config = config_of(tmp_path / "store")
    async with filled(tmp_path / "store") as store:
        for _ in store.queue_table.write_out():
            pass
    for base in (0, SEGMENT, 2 * SEGMENT):
        (config.commitlog / f"{base:020d}").unlink()
    (config.root / "abort").touch()
    async with open_store(config, SteppingClock(), disk=ShownDisk()) as store:
        assert (store.min_offset("T", 0), store.max_offset("T", 0)) == (6, 12)
        index_files = len(store.key_index.files)
        if died_after == "consumequeue":
            store.cleaner._corrected_to = store.log.first_offset
        await store.cleaner.round()
        await store.cleaner.correct()
        assert len(store.key_index.files) < index_files
        assert len(await find_bodies(store, "T", "k")) == 12


# Queues without messages


async def test_queues_that_lost_all_messages_can_be_forgotten(tmp_path: Path) -> None:
    async with filled(tmp_path / "store") as store:
        store.append([draft("last", "Idle"), draft("last", "System")])
        for number in range(8):
            store.append([draft(f"{number}:{BODY}")])
        await store.index_syncer.save()
        assert await store.delete_expired_queues(lambda topic: False) == []
        await delete(store, *range(0, store.log.segments.items[-1].base, SEGMENT))
        assert await store.delete_expired_queues(lambda topic: topic == "System") == [
            ("T", 1),
            ("Idle", 0),
        ]
        assert store.queues() == {"System": [0], "T": [0]}
        assert not (store.config.root / "consumequeue" / "Idle").exists()
        assert store.append([draft("anew", "Idle")])[0].queue_offset == 0
        config = store.config
    async with open_store(config, SteppingClock()) as store:
        assert [message.body for message in await read_all(store, "Idle", 0)] == [b"anew"]


async def test_a_file_deleted_before_it_leaves_its_table_is_an_error(tmp_path: Path) -> None:
    """The order of the cleaner avoids this, but another program may delete files: an error names
    the file, and no answer is wrong.
    """
    async with filled(tmp_path / "store", ShownDisk(NO_FEATURES), hot_bytes_max=0) as store:
        store.log.segments.items[0].path.unlink()
        with pytest.raises(StoreIoError, match=f"{0:020d}.*are missing"):
            await store.get_cold("T", 0, 0, messages_max=1, bytes_max=1 << 20)


async def test_a_directory_that_cannot_be_synced_keeps_the_segments_behind_the_deleted_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The file is deleted, so the log begins behind it; no other segment is deleted until the names
    are on the disk.
    """

    class UnsyncedDisk(ShownDisk):
        failing = False

        def sync_directory(self, path: Path) -> None:
            if self.failing and path.name == "commitlog":
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
            super().sync_directory(path)

    disk = UnsyncedDisk()
    async with filled(tmp_path / "store", disk) as store:
        disk.failing = True
        await delete(store, 0, SEGMENT)
        assert segments_on_disk(store.config) == [number * SEGMENT for number in range(1, 6)]
        assert store.log.first_offset == SEGMENT
        assert len(await read_all(store, "T", 0)) == 10
        await delete(store, SEGMENT)
        assert store.log.first_offset == SEGMENT
        assert caplog.text.count("cannot be forced to the disk") == 2
        disk.failing = False
        await delete(store, SEGMENT)
        assert store.log.first_offset == 2 * SEGMENT


async def test_a_segment_of_the_future_expires_with_the_next_one(tmp_path: Path) -> None:
    """Written while the clock was ahead, it would stay for as long, and all behind it, too."""
    async with filled(tmp_path / "store") as store:
        config = store.config
        age(config, 0, SEGMENT, hours=-960)
        await delete(store)
        assert store.log.first_offset == 0
        await delete(store, 2 * SEGMENT)
        assert store.log.first_offset == 3 * SEGMENT


async def test_a_wall_clock_that_jumps_ahead_deletes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rules = attrs.evolve(QUIET, delete_hours=tuple(range(24)))
    async with filled(tmp_path / "store", retention=rules) as store:
        await store.cleaner.round()
        assert store.log.first_offset == 0
        clock = store.cleaner.clock
        store.cleaner.clock = lambda: clock() + 100 * 3_600_000
        for _ in range(3):
            await store.cleaner.round()
        assert store.log.first_offset == 0
        warning = (
            "the wall clock is 100.0 hours ahead of the newest message, or of its own earlier"
            " course: no file is deleted for its age"
        )
        assert caplog.text.count(warning) == 1
        await delete(store, 0)  # an operator's request counts
        assert store.log.first_offset > 0
