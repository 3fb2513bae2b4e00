"""Deleting queues: at once for callers; on the disk in a thread, some files at a time."""

from __future__ import annotations

import errno
import threading
from collections import deque
from collections.abc import Collection
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing
from stores import draft, read_all, tiny_config

from triomq.broker.store.core.config import FlushMode
from triomq.broker.store.io.disk import Disk
from triomq.broker.store.io.remover import FILES_A_STEP, Remover
from triomq.broker.store.opening import open_store
from triomq.broker.store.store import MessageStore


@attrs.define(eq=False)
class ThreadDisk(Disk):
    """Notes which thread removes files, and refuses what the test says."""

    removers: list[int] = attrs.field(factory=list)
    refused: bool = False
    """Nothing can be renamed."""
    kept: bool = False
    """No queue file can be removed."""
    gate: threading.Event | None = None

    def remove(self, path: Path) -> None:
        if self.kept and "consumequeue" in path.parts:
            raise PermissionError(errno.EACCES, "no", str(path))
        if "deleted" in path.parts or "consumequeue" in path.parts:
            self.removers.append(threading.get_ident())
            if self.gate is not None:
                self.gate.wait(10)
        super().remove(path)

    def rename(self, path: Path, target: Path) -> None:
        if self.refused:
            raise PermissionError(errno.EACCES, "no", str(path))
        super().rename(path, target)


async def fill(store: MessageStore, queues: int) -> None:
    for number in range(queues):
        store.append([draft(str(number), queue_id=number)])
    await store.index_syncer.save()


async def drained(store: MessageStore) -> None:
    with trio.fail_after(10):
        while store.queue_table.remover.waiting:
            await trio.sleep(0.01)


async def test_files_of_a_deleted_topic_are_removed_by_a_thread(tmp_path: Path) -> None:
    disk = ThreadDisk()
    async with open_store(tiny_config(tmp_path, segment_size_bytes=1 << 20), disk=disk) as store:
        await fill(store, 150)
        store.delete_topic("T")
        assert disk.removers == []
        assert store.append([draft("anew")])[0].queue_offset == 0
        await store.index_syncer.save()
        await drained(store)
        assert len(disk.removers) == 150
        assert threading.get_ident() not in disk.removers
        assert list((tmp_path / "deleted").iterdir()) == []
        assert [path.name for path in (tmp_path / "consumequeue/T").iterdir()] == ["0"]
        assert [message.body for message in await read_all(store, "T", 0)] == [b"anew"]


@pytest.mark.parametrize("batch_topics", [frozenset(), {"T"}], ids=["entries", "batches"])
async def test_a_message_confirmed_after_its_queue_was_deleted_leaves_no_entry(
    tmp_path: Path, batch_topics: Collection[str]
) -> None:
    """With SYNC_FLUSH a message may wait for the disk while its topic is deleted: otherwise its
    entry would be in the files of the next topic of that name.
    """
    async with open_store(
        tiny_config(tmp_path, flush_mode=FlushMode.SYNC), batch_topics=lambda: batch_topics
    ) as store:
        for _ in range(5):
            store.append([draft("old")])
        with trio.fail_after(5):
            await store.indexed.wait_reached(store.appended.value)
        deque(store.queue_table.write_out(), maxlen=0)
        gate = trio.CapacityLimiter(1)
        await gate.acquire()
        store.flusher.limiter = gate  # fsync waits for this
        store.append([draft("last")])
        await trio.testing.wait_all_tasks_blocked()
        store.delete_topic("T")
        gate.release()
        with trio.fail_after(5):
            await store.indexed.wait_reached(store.appended.value)
        assert not store.queue_table.dirty
        for number in range(3):
            store.append([draft(f"new{number}")])
        with trio.fail_after(5):
            await store.indexed.wait_reached(store.appended.value)
        deque(store.queue_table.write_out(), maxlen=0)
        assert store.queue_table.queues["T", 0].end_offset == 3
    async with open_store(tiny_config(tmp_path), batch_topics=lambda: batch_topics) as store:
        assert [message.body for message in await read_all(store, "T", 0)] == [
            b"new0",
            b"new1",
            b"new2",
        ]
        assert store.append([draft("next")])[0].queue_offset == 3


async def test_the_loop_runs_while_files_are_deleted(tmp_path: Path) -> None:
    gate = threading.Event()
    disk = ThreadDisk()
    async with open_store(tiny_config(tmp_path), disk=disk) as store:
        await fill(store, 3)
        disk.gate = gate
        store.delete_topic("T")
        with trio.fail_after(10):
            while not disk.removers:
                await trio.sleep(0.001)
        assert store.append([draft("meanwhile")])[0].queue_offset == 0
        assert [message.body for message in await read_all(store, "T", 0)] == [b"meanwhile"]
        gate.set()
        await drained(store)


async def test_expired_queues_are_forgotten_a_few_at_a_time(tmp_path: Path) -> None:
    """Other tasks run in between, and a queue that gets a message meanwhile stays."""
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            if turns == 2:
                store.append([draft("still wanted", queue_id=299)])
            await trio.lowlevel.checkpoint()

    async with open_store(tiny_config(tmp_path)) as store:
        await fill(store, 300)
        for number in range(40):
            store.append([draft(f"{number}" * 40, topic="other")])
        while store.log.first_offset <= store.queue_table.queues["T", 299].log_end:
            await store.cleaner._delete_segment(store.log.segments.first_offset, "a test")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(count_turns)
            gone = await store.delete_expired_queues(lambda topic: False)
            nursery.cancel_scope.cancel()
        assert turns >= 300 // 64
        assert gone == [("T", number) for number in range(299)]
        await drained(store)
        assert [message.body for message in await read_all(store, "T", 299)] == [b"still wanted"]


async def test_files_left_by_a_crash_are_removed_after_the_next_start(tmp_path: Path) -> None:
    left = tmp_path / "deleted/7/3"
    left.mkdir(parents=True)
    for number in range(FILES_A_STEP * 2 + 1):
        (left / f"{number:020d}").touch()
    async with open_store(tiny_config(tmp_path)) as store:
        await drained(store)
        assert not (tmp_path / "deleted/7").exists()
        await fill(store, 1)
        store.delete_topic("T")
        assert store.queue_table.remover._number == 8
        await drained(store)


async def test_foreign_files_are_kept_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_store(tiny_config(tmp_path)) as store:
        await fill(store, 1)
        (tmp_path / "consumequeue/T/0/notes.txt").write_text("mine")
        store.delete_topic("T")
        await drained(store)
        assert (tmp_path / "deleted/1/0/notes.txt").read_text() == "mine"
        assert not (tmp_path / "deleted/1/0/00000000000000000000").exists()
    assert "deleted/1 cannot be deleted" in caplog.text


async def test_a_directory_that_cannot_be_moved_is_emptied_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = ThreadDisk()
    async with open_store(tiny_config(tmp_path), disk=disk) as store:
        await fill(store, 1)
        disk.refused = True
        store.delete_topic("T")
        assert store.queues() == {}
        assert not (tmp_path / "consumequeue/T").exists()
    assert "consumequeue/T cannot be moved" in caplog.text


async def test_files_that_could_not_even_be_deleted_do_not_get_into_the_next_queue(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk refuses both for a while: the topic is created again, and after a restart it has
    only its own messages.
    """
    disk = ThreadDisk()
    async with open_store(tiny_config(tmp_path), disk=disk) as store:
        store.append([draft(f"old{number}") for number in range(35)])  # four files
        await store.index_syncer.save()
        disk.refused = disk.kept = True
        store.delete_topic("T")
        assert len(list((tmp_path / "consumequeue/T/0").iterdir())) == 4
        disk.refused = disk.kept = False
        store.append([draft("new")])
        await store.index_syncer.save()
        assert len(list((tmp_path / "consumequeue/T/0").iterdir())) == 1
    assert "consumequeue/T cannot be deleted" in caplog.text
    (tmp_path / "abort").touch()
    async with open_store(tiny_config(tmp_path)) as store:
        assert [message.body for message in await read_all(store, "T", 0)] == [b"new"]
        assert store.append([draft("next")])[0].queue_offset == 1


@pytest.mark.parametrize("batch_topics", [frozenset(), {"T"}], ids=["entries", "batches"])
@pytest.mark.parametrize("new_first", [False, True])
async def test_an_indexer_that_reads_the_log_keeps_deleted_and_new_queues_apart(
    tmp_path: Path, batch_topics: Collection[str], new_first: bool
) -> None:
    """With SYNC_FLUSH, and more messages waiting for the disk than memory has room for: meanwhile
    the topic is deleted, and created again before or after their turn.
    """
    async with open_store(
        tiny_config(tmp_path, flush_mode=FlushMode.SYNC), batch_topics=lambda: batch_topics
    ) as store:
        store.append([draft("old0"), draft("other", "Other")])
        with trio.fail_after(5):
            await store.indexed.wait_reached(store.appended.value)
        gate = trio.CapacityLimiter(1)
        await gate.acquire()
        store.flusher.limiter = gate  # fsync waits for this
        store.indexer.backlog_bytes_max = 0
        store.append([draft("old1"), draft("old2"), draft("other", "Other")])
        assert store.indexer.backlog_bytes == 0
        await trio.testing.wait_all_tasks_blocked()
        store.delete_topic("T")
        if new_first:
            assert store.append([draft("new0")])[0].queue_offset == 0
        gate.release()
        with trio.fail_after(5):
            await store.indexed.wait_reached(store.appended.value)
        store.append([draft(f"new{number}") for number in range(new_first, 3)])
        with trio.fail_after(5):
            await store.indexed.wait_reached(store.appended.value)
        assert [message.body for message in await read_all(store, "T", 0)] == [
            b"new0",
            b"new1",
            b"new2",
        ]
        assert store.max_offset("Other", 0) == 2
        assert store.append([draft("next")])[0].queue_offset == 3
    async with open_store(tiny_config(tmp_path), batch_topics=lambda: batch_topics) as store:
        assert [message.body for message in await read_all(store, "T", 0)] == [
            b"new0",
            b"new1",
            b"new2",
            b"next",
        ]


@pytest.mark.parametrize("batch_topics", [frozenset(), {"T"}], ids=["entries", "batches"])
@pytest.mark.parametrize("overrun", [False, True])
async def test_a_topic_deleted_twice_while_its_messages_wait_for_the_disk(
    tmp_path: Path, batch_topics: Collection[str], overrun: bool
) -> None:
    """Three topics of one name in the log, none of them indexed: only messages of the last one get
    entries, and its numbers begin at 0.
    """
    async with open_store(
        tiny_config(tmp_path, flush_mode=FlushMode.SYNC), batch_topics=lambda: batch_topics
    ) as store:
        gate = trio.CapacityLimiter(1)
        await gate.acquire()
        store.flusher.limiter = gate  # fsync waits for this
        if overrun:
            store.indexer.backlog_bytes_max = 0
        for generation in range(3):
            if generation:
                store.delete_topic("T")
            places = store.append(
                [draft(f"{generation}.{number}") for number in range(3 - generation)]
            )
            assert places[0].queue_offset == 0
        gate.release()
        with trio.fail_after(5):
            await store.indexed.wait_reached(store.appended.value)
        assert [message.body for message in await read_all(store, "T", 0)] == [b"2.0"]
        assert store.append([draft("2.1")])[0].queue_offset == 1
    async with open_store(tiny_config(tmp_path), batch_topics=lambda: batch_topics) as store:
        assert [message.body for message in await read_all(store, "T", 0)] == [b"2.0", b"2.1"]


async def test_a_queue_whose_new_message_waits_for_the_disk_is_not_expired(tmp_path: Path) -> None:
    """All its messages have expired except one, which has a number and no entry yet."""
    async with open_store(tiny_config(tmp_path, flush_mode=FlushMode.SYNC)) as store:
        store.append([draft("old")])
        for number in range(40):
            store.append([draft(f"{number}" * 40, topic="other")])
        with trio.fail_after(5):
            await store.indexed.wait_reached(store.appended.value)
        while store.log.first_offset <= store.queue_table.queues["T", 0].log_end:
            await store.cleaner._delete_segment(store.log.segments.first_offset, "a test")
        gate = trio.CapacityLimiter(1)
        await gate.acquire()
        store.flusher.limiter = gate  # fsync waits for this
        assert store.append([draft("new")])[0].queue_offset == 1
        assert await store.delete_expired_queues(lambda topic: False) == []
        gate.release()
        with trio.fail_after(5):
            await store.indexed.wait_reached(store.appended.value)
        assert [message.body for message in await read_all(store, "T", 0)] == [b"new"]


def test_nothing_to_move(tmp_path: Path) -> None:
    remover = Remover(Disk(), tmp_path / "deleted", trio.CapacityLimiter(1))
    remover.take(tmp_path / "consumequeue/never written")
    assert remover.waiting == 0
