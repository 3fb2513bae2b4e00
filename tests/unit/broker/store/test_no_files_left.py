"""Too many open files: the store refuses messages or waits, stops nothing, loses nothing, and goes
on when descriptors are back.
"""

from __future__ import annotations

import errno
import os
from contextlib import ExitStack, suppress
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing
from no_files import no_files_left
from stores import SteppingClock, draft, find_bodies, read_all, tiny_config, wait_durable

from triomq.broker.store import store as store_module
from triomq.broker.store.core.config import FlushMode, StoreConfig
from triomq.broker.store.core.errors import FlushFailed, NoFilesLeft
from triomq.broker.store.io.disk import Disk
from triomq.broker.store.io.open_files import OpenFiles
from triomq.broker.store.io.reads import ColdFetch
from triomq.broker.store.opening import open_store
from triomq.broker.store.store import MessageStore

QUEUES = 6


def quick_config(root: Path, mode: FlushMode, **more: int) -> StoreConfig:
    return tiny_config(
        root,
        flush_mode=mode,
        flush_interval_ms=5,
        index_write_interval_ms=5,
        checkpoint_interval_ms=10,
        open_files_max=4,
        **more,
    )


async def append(store: MessageStore, number: int) -> bool:
    """Append; return whether the message was stored."""
    try:
        store.append(
            [draft(b"%d" % number + b"x" * 500, queue_id=number % QUEUES, keys=f"k{number}")]
        )
    except NoFilesLeft:
        return False
    return True


@pytest.mark.parametrize(
    ("mode", "backlog", "left"),
    [
        (FlushMode.ASYNC, 1 << 20, 0),
        (FlushMode.SYNC, 1 << 20, 0),
        (FlushMode.ASYNC, 1, 0),
        (FlushMode.ASYNC, 1 << 20, 1),
    ],
    ids=["async", "sync", "indexed-from-the-log", "one-left"],
)
async def test_the_store_goes_on_when_descriptors_are_back(
    tmp_path: Path, mode: FlushMode, backlog: int, left: int, caplog: pytest.LogCaptureFixture
) -> None:
    config = quick_config(tmp_path, mode, backlog_bytes_max=backlog)
    stored: list[int] = []
    number = 0
    async with open_store(config, SteppingClock()) as store:
        await trio.testing.wait_all_tasks_blocked()
        for turn in (1, 2):
            for _ in range(40 * turn):
                number += 1
                stored += [number] if await append(store, number) else []
            before = len(stored)
            assert before > len(stored) // 2
            refused = 0
            with no_files_left(but=left):
                for _ in range(80):
                    number += 1
                    if await append(store, number):
                        stored.append(number)
                    else:
                        refused += 1
                    await trio.sleep(0.002)
                await trio.sleep(0.1)
                assert refused, "the log needs another file"
                assert not store.health.failed
            with trio.fail_after(20):
                while not await append(store, number + 1):
                    await trio.sleep(0.05)
                number += 1
                stored.append(number)
                end = store.appended.value
                await wait_durable(store.flusher, end)
                await store.indexed.wait_reached(end)
        with trio.fail_after(20):
            while (
                store.index_syncer.current.mark is None
                or store.index_syncer.current.mark.record_end < store.appended.value
            ):
                await trio.sleep(0.01)
        await everything_is_there(store, stored)
    async with open_store(config, SteppingClock()) as store:
        await everything_is_there(store, stored)
    assert not [record for record in caplog.records if record.exc_info]


async def test_the_first_append_and_the_first_read_after_a_start_may_come_too_early(
    tmp_path: Path,
) -> None:
    """They open existing files."""
    config = quick_config(tmp_path, FlushMode.ASYNC)
    async with open_store(config, SteppingClock()) as store:
        assert all([await append(store, number) for number in range(30)])
    async with open_store(config, SteppingClock()) as store:
        await trio.testing.wait_all_tasks_blocked()
        for number in (30, 31):
            for segment in store.log.segments.items:
                segment.close()
            store.queue_table.open_files.close()
            store.key_index.close()
            with no_files_left():
                assert not await append(store, number)
                with pytest.raises(NoFilesLeft):
                    await store.get_cold("T", 0, 0, messages_max=1, bytes_max=1000)
                with pytest.raises(NoFilesLeft):
                    await store.log_bytes_cold(0, 10)
            with trio.fail_after(30):  # first the indexer and the queues find out that they can
                while not await append(store, number):
                    await trio.sleep(0.01)
        await everything_is_there(store, list(range(32)))


async def test_maps_and_fsyncs_need_a_descriptor_too(tmp_path: Path) -> None:
    async with open_store(tiny_config(tmp_path), SteppingClock()) as store:
        await trio.testing.wait_all_tasks_blocked()
        assert await append(store, 0)
        end = store.appended.value
        (segment,) = store.log.segments.items
        segment._view = None
        with no_files_left():
            assert segment.fd
            with pytest.raises(NoFilesLeft):
                await store.log_bytes_cold(0, end)
            with pytest.raises(NoFilesLeft):
                ColdFetch(store.disk).fetch([(segment.path, 0, 10)])
        assert len(await store.log_bytes_cold(0, end)) == end
        segment.close()
        async with trio.open_nursery() as nursery:
            with no_files_left():
                nursery.start_soon(store.flusher.flush)
                await trio.sleep(0.1)
                assert store.flushed.value == 0
        assert store.flushed.value == end


@pytest.mark.parametrize("flushes", [False, True])
async def test_a_store_that_is_closed_does_not_wait_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flushes: bool
) -> None:
    """Then no file shows a clean stop, and the next start recovers."""
    monkeypatch.setattr(store_module, "CLOSING_WAIT_SECONDS", 0.1)
    disk = Disk()
    for number in range(2):
        try:
            with trio.fail_after(20), ExitStack() as stack:
                async with open_store(tiny_config(tmp_path), SteppingClock(), disk=disk) as store:
                    await trio.testing.wait_all_tasks_blocked()
                    assert disk.descriptor_wait_seconds == float("inf")
                    assert await append(store, number)
                    stack.enter_context(no_files_left())
                    if flushes:  # as a broker does before it stops
                        store.prepare_to_close()
                        with suppress(FlushFailed):
                            await store.flusher.flush()
        except* FlushFailed as failed:
            assert "Too many open files" in str(failed.exceptions[0])  # noqa: PT017  (a thread may have found its file open)
        assert disk.descriptor_wait_seconds == 0.1
        if flushes:  # otherwise the ended tasks leave descriptors for a clean end
            assert (tmp_path / "abort").exists()
    async with open_store(tiny_config(tmp_path), SteppingClock(), disk=disk) as store:
        await everything_is_there(store, [0, 1])


@attrs.define(eq=False)
class ReadsNothing(Disk):
    """A disk that opens no file for reading when the test says so."""

    refuses: bool = False

    def open(self, path: Path, *, writable: bool = True) -> int:
        if self.refuses:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
        return super().open(path, writable=writable)

    def read_path(self, path: Path, size: int, offset: int) -> bytes:
        os.close(self.open(path, writable=False))
        return super().read_path(path, size, offset)


async def test_messages_that_are_indexed_from_the_log_wait_for_a_descriptor(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, flush_mode=FlushMode.SYNC, backlog_bytes_max=1)
    disk = ReadsNothing()
    async with open_store(config, SteppingClock(), disk=disk) as store:
        await trio.testing.wait_all_tasks_blocked()
        for number in (0, 2):
            assert await append(store, number)
            with trio.fail_after(10):
                await store.indexed.wait_reached(store.appended.value)
                while not await append(store, number + 1):
                    await trio.sleep(0.01)
            disk.refuses = True
            with trio.fail_after(10):
                while store.health.index_fault is None:
                    await trio.sleep(0.01)
            assert isinstance(store.health.index_fault, NoFilesLeft)
            assert store.indexed.value < store.confirmed.value == store.appended.value
            disk.refuses = False
            with trio.fail_after(10):
                await store.indexed.wait_reached(store.appended.value)
                while store.health.index_fault is not None:
                    await trio.sleep(0.01)
        await everything_is_there(store, [0, 1, 2, 3])


def test_open_files_closes_some_to_open_another(tmp_path: Path) -> None:
    disk = Disk()
    files = OpenFiles(disk, 10)
    paths = [tmp_path / str(number) for number in range(4)]
    for path in paths[:3]:
        files.get(path, create_size=10)
    files.get(paths[0])
    with no_files_left():
        for path in (paths[3], paths[1], paths[2]):
            disk.write_at(files.get(path, create_size=0 if path.exists() else 10), b"x", 0, path)
            assert len(files) == 3
        files.close()
        with no_files_left(), pytest.raises(NoFilesLeft):
            files.get(tmp_path / "new", create_size=10)
        with no_files_left(), pytest.raises(OSError, match="Too many"):
            files.get(paths[0])
    assert files.get(paths[0])
    files.close()


async def everything_is_there(store: MessageStore, stored: list[int]) -> None:
    found = [
        int(message.body.partition(b"x")[0])
        for queue_id in range(QUEUES)
        for message in await read_all(store, "T", queue_id)
    ]
    assert sorted(found) == stored
    for number in (stored[0], stored[len(stored) // 2], stored[-1]):
        assert [
            int(body.partition(b"x")[0]) for body in await find_bodies(store, "T", f"k{number}")
        ] == [number]
