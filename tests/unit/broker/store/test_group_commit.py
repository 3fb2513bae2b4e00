"""Senders that wait for the disk by callback: order, deadlines, failures, and one fsync after the
other; and the kernel's queue that does the fsyncs.
"""

# ruff: noqa: PT012  (what must raise is leaving the block of a running store)

from __future__ import annotations

import errno
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import trio
import trio.testing
from stores import SteppingClock, draft, read_all, tiny_config, wait_durable

from triomq.broker.store.core.config import FlushMode
from triomq.broker.store.core.errors import FlushFailed
from triomq.broker.store.io import queued_sync
from triomq.broker.store.io.disk import Disk, DiskFeatures
from triomq.broker.store.io.queued_sync import QueuedSync
from triomq.broker.store.log.durability import DurabilityResult
from triomq.broker.store.log.flusher import Flusher
from triomq.broker.store.opening import close_files, load_store, open_store
from triomq.broker.store.store import MessageStore

DURABLE, TIMEOUT = DurabilityResult.DURABLE, DurabilityResult.FLUSH_DISK_TIMEOUT


def has_queue() -> bool:
    queue = Disk(DiskFeatures(queued_sync=True)).open_sync_queue()
    if queue is not None:
        queue.close()
    return queue is not None


needs_queue = pytest.mark.skipif(not has_queue(), reason="this system has no queue for fdatasync")


class HeldQueue:
    """Replaces the kernel's queue: succeeds or fails when the test lets it."""

    def __init__(self) -> None:
        self.begun = 0
        self.waited_for = False
        self.closed = False
        self.refusal: int = 0
        self.answers, self._answered = trio.open_memory_channel[int](100)

    def begin(self, fd: int) -> None:
        if self.refusal:
            raise OSError(self.refusal, os.strerror(self.refusal))
        self.begun += 1

    async def finished(self) -> None:
        self.waited_for = True
        with trio.CancelScope(shield=True):
            number = await self._answered.receive()
        self.waited_for = False
        if number:
            raise OSError(number, os.strerror(number))

    def answer(self) -> None:
        self.answers.send_nowait(0)

    def close(self) -> None:
        self.closed = True
        assert not self.waited_for, "the kernel's queue would never wake the task that waits"


class LateQueue(QueuedSync):
    """The kernel's queue on a slow disk: the kernel gets the request when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = 0
        self.waited_for = False
        self.asked_for = -1

    def begin(self, fd: int) -> None:
        self.begun += 1
        self.asked_for = os.dup(fd)

    async def finished(self) -> None:
        self.waited_for = True
        await super().finished()
        self.waited_for = False

    def answer(self) -> None:
        super().begin(self.asked_for)
        os.close(self.asked_for)

    def close(self) -> None:
        assert not self.waited_for, "the task that waits is never woken"
        super().close()


class QueueDisk(Disk):
    def __init__(self, queue: Any) -> None:
        super().__init__()
        self.queue = queue

    def open_sync_queue(self) -> Any:
        return self.queue


@asynccontextmanager
async def held_store(
    folder: Path, **settings: Any
) -> AsyncIterator[tuple[MessageStore, HeldQueue]]:
    """A store whose log has a first message and a durable name, so that the queue does the next
    fsync.
    """
    queue = HeldQueue()
    config = tiny_config(folder, flush_mode=FlushMode.SYNC, segment_size_bytes=1 << 20, **settings)
    async with open_store(config, SteppingClock(), disk=QueueDisk(queue)) as store:
        store.append([draft("first")])
        with trio.fail_after(10):
            await store.indexed.wait_reached(store.appended.value)
        assert queue.begun == 0  # a thread forces the name of the new file out
        try:
            yield store, queue
        finally:
            for _ in range(10):
                queue.answers.send_nowait(0)


def send(store: MessageStore, body: str, answers: list[Any]) -> None:
    place = store.append([draft(body)])[-1]
    store.flusher.when_durable(
        place.log_offset + place.size, lambda result: answers.append((body, result))
    )


@pytest.mark.feature("37a")
async def test_the_next_fsync_has_begun_when_the_senders_of_the_last_one_get_their_answers(
    tmp_path: Path,
) -> None:
    async with held_store(tmp_path) as (store, queue):
        answers: list[Any] = []
        begun_when_answered: list[int] = []
        place = store.append([draft("a")])[0]
        store.flusher.when_durable(
            place.log_offset + place.size, lambda _: begun_when_answered.append(queue.begun)
        )
        send(store, "b", answers)
        await trio.testing.wait_all_tasks_blocked()
        assert queue.begun == 1
        send(store, "c", answers)
        send(store, "d", answers)
        await trio.testing.wait_all_tasks_blocked()
        assert (queue.begun, answers) == (1, [])  # one at a time
        queue.answers.send_nowait(0)
        await trio.testing.wait_all_tasks_blocked()
        assert begun_when_answered == [2]
        assert answers == [("b", DURABLE)]  # not the senders that came after it had begun
        assert len(await read_all(store, "T", 0)) == 3  # shown in the same step
        queue.answers.send_nowait(0)
        await trio.testing.wait_all_tasks_blocked()
        assert answers == [("b", DURABLE), ("c", DURABLE), ("d", DURABLE)]
        assert (queue.begun, store.flushed.value, store.indexed.value) == (
            2,
            store.appended.value,
            store.appended.value,
        )
        assert len(await read_all(store, "T", 0)) == 5


async def test_a_flusher_that_promises_too_much_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance = Flusher._advance
    monkeypatch.setattr(
        Flusher, "_advance", lambda self, target: advance(self, self.log.appended.value)
    )  # not `due.end`, which the fsync covers
    with pytest.raises((AssertionError, ExceptionGroup)):
        await test_the_next_fsync_has_begun_when_the_senders_of_the_last_one_get_their_answers(
            tmp_path
        )


async def test_each_sender_has_its_own_deadline_and_one_answer(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    store = await load_store(
        tiny_config(tmp_path, flush_mode=FlushMode.SYNC), SteppingClock(), Disk()
    )
    answers: list[Any] = []

    async def pass_by(seconds: float) -> None:
        mock_clock.jump(seconds)
        await trio.testing.wait_all_tasks_blocked()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.flusher.run_deadlines)
        await trio.testing.wait_all_tasks_blocked()
        for body in ("a", "b", "c"):  # after 0, 2 and 4 seconds
            send(store, body, answers)
            await pass_by(2)
        assert answers == [("a", TIMEOUT)]
        await pass_by(0.9)
        assert len(answers) == 1
        await pass_by(0.1)
        assert answers == [("a", TIMEOUT), ("b", TIMEOUT)]
        await store.flusher.flush()
        assert answers == [("a", TIMEOUT), ("b", TIMEOUT), ("c", DURABLE)]
        await pass_by(60)  # no sender waits, and then one does
        send(store, "d", answers)
        await pass_by(4.9)
        assert len(answers) == 3
        await pass_by(0.1)
        assert answers[3] == ("d", TIMEOUT)
        nursery.cancel_scope.cancel()
    close_files(store)


async def test_a_failed_fsync_of_the_queue_is_fatal_and_reported_to_all_senders(
    tmp_path: Path,
) -> None:
    answers: list[Any] = []
    with pytest.raises(ExceptionGroup) as caught:
        async with held_store(tmp_path) as (store, queue):
            send(store, "a", answers)
            await trio.testing.wait_all_tasks_blocked()
            send(store, "b", answers)  # no fsync for this one has begun
            flushed = store.flushed.value
            queue.answers.send_nowait(errno.EIO)
            await trio.sleep_forever()
    assert caught.group_contains(FlushFailed, match="Input/output error")
    assert [name for name, _ in answers] == ["a", "b"]
    assert all(isinstance(result, FlushFailed) for _, result in answers)
    assert (queue.begun, queue.closed, store.flushed.value) == (1, True, flushed)
    with pytest.raises(FlushFailed):
        store.flusher.when_durable(store.appended.value, answers.append)
    assert (tmp_path / "abort").exists()


async def test_a_queue_that_takes_nothing_is_replaced_by_the_thread(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with held_store(tmp_path) as (store, queue):
        queue.refusal = errno.EINVAL
        for body in ("a", "b"):
            place = store.append([draft(body)])[0]
            assert await wait_durable(store.flusher, place.log_offset + place.size) is DURABLE
        assert (queue.begun, queue.closed) == (0, True)
    assert caplog.text.count("a thread does it") == 1


async def test_a_stop_waits_for_the_fsync_in_flight(tmp_path: Path) -> None:
    answers: list[Any] = []
    async with held_store(tmp_path) as (store, _):
        send(store, "a", answers)
        await trio.testing.wait_all_tasks_blocked()
        send(store, "b", answers)
    assert answers == [("a", DURABLE), ("b", DURABLE)]
    assert not (tmp_path / "abort").exists()


@pytest.mark.parametrize("kind", [HeldQueue, pytest.param(LateQueue, marks=needs_queue)])
async def test_a_stop_waits_for_the_fsync_of_a_checkpoint(
    tmp_path: Path, kind: type[HeldQueue | LateQueue]
) -> None:
    """Not one of the flusher, whose task has nothing to do and ends at once."""
    queue = kind()
    disk = QueueDisk(queue)
    async with trio.open_nursery() as nursery:
        async with open_store(
            tiny_config(tmp_path, flush_interval_ms=1_000_000, segment_size_bytes=1 << 20),
            SteppingClock(),
            disk=disk,
        ) as store:
            store.append([draft("first")])
            await store.flusher.flush()  # a thread forces the name of the new file out
            store.append([draft("second")])
            store.index_syncer.save_soon()
            with trio.fail_after(30):
                while not queue.waited_for:
                    await trio.sleep(0.001)

            async def answer_at_last() -> None:
                await trio.testing.wait_all_tasks_blocked()
                queue.answer()

            nursery.start_soon(answer_at_last)
    assert queue.begun == 1
    assert store.flushed.value == store.appended.value
    assert not (tmp_path / "abort").exists()


async def test_a_deleted_file_does_not_end_the_use_of_the_queue(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with held_store(tmp_path) as (store, queue):
        place = store.append([draft("a")])[0]
        (segment,) = store.log.segments.items
        segment.close()
        gone = segment.path.rename(tmp_path / "gone")
        assert await wait_durable(store.flusher, place.log_offset + place.size) is DURABLE
        gone.rename(segment.path)
        answers: list[Any] = []
        send(store, "b", answers)
        await trio.testing.wait_all_tasks_blocked()
        assert queue.begun == 1
    assert answers == [("b", DURABLE)]
    assert "a thread does it" not in caplog.text


@needs_queue
async def test_the_real_queue_forces_the_log_out_across_segments(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, flush_mode=FlushMode.SYNC)
    answers: list[Any] = []
    async with open_store(
        config, SteppingClock(), disk=Disk(DiskFeatures(queued_sync=True))
    ) as store:
        assert store.flusher._queue is None  # the task has not begun
        for number in range(40):
            send(store, f"{number:0500d}", answers)
            with trio.fail_after(10):
                await store.flushed.wait_reached(store.appended.value)
        assert store.flusher._queue is not None
        assert len(store.log.segments.items) > 2
        assert [result for _, result in answers] == [DURABLE] * 40
        assert len(await read_all(store, "T", 0)) == 40


@needs_queue
async def test_the_queue_gives_the_error_of_an_fsync_and_goes_on(tmp_path: Path) -> None:
    before = psutil.Process().num_fds()
    queue = QueuedSync()
    reader, writer = os.pipe()
    fd = os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        queue.begin(1 << 20)
    with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
        queue.begin(writer)
        await queue.finished()
    os.write(fd, b"x" * 100_000)
    queue.begin(fd)
    os.close(fd)  # the kernel has its own reference to the file
    with trio.move_on_after(0) as scope:
        await queue.finished()  # waits all the same
    assert not scope.cancelled_caught
    queue.close()
    os.close(reader)
    os.close(writer)
    assert psutil.Process().num_fds() == before


@needs_queue
def test_a_queue_that_cannot_be_made_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def left() -> tuple[int, int]:
        """Return the numbers of descriptors and of queues: each queue has a ring mapped into this
        process.
        """
        return psutil.Process().num_fds(), Path("/proc/self/maps").read_text().count("[aio]")

    def full(initial: int, flags: int = 0) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    before = left()
    queue = QueuedSync()
    assert left() == (before[0] + 1, before[1] + 1)
    queue.close()
    for _ in range(3000):  # a thread ends the kernel's part
        if left() == before:
            break
        time.sleep(0.01)
    with monkeypatch.context() as patched:
        patched.setattr(os, "eventfd", full)
        with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
            QueuedSync()
    assert left() == before
    with monkeypatch.context() as patched:
        patched.setattr(queued_sync, "NUMBERS", dict.fromkeys(queued_sync.NUMBERS, (1 << 20,) * 4))
        with pytest.raises(OSError, match=os.strerror(errno.ENOSYS)):
            QueuedSync()
    assert left() == before
