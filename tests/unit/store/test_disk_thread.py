"""The thread that forces files to the disk: results, errors, cancellation, its end."""

from __future__ import annotations

import threading
import time

import psutil
import pytest
import trio
import trio.testing

from triomq.broker.store.disk_thread import DiskThread


async def test_calls_run_one_after_the_other_in_one_thread() -> None:
    names: list[str] = []
    async with DiskThread() as thread:
        for _ in range(3):
            await thread.run(lambda: names.append(threading.current_thread().name))
    assert names == ["store-disk"] * 3


async def test_what_a_call_raises_reaches_its_caller_and_the_next_call_works() -> None:
    def fail() -> None:
        raise OSError(5, "the disk says no")

    done: list[int] = []
    async with DiskThread() as thread:
        with pytest.raises(OSError, match="the disk says no"):
            await thread.run(fail)
        await thread.run(lambda: done.append(1))
    assert done == [1]


async def test_the_loop_goes_on_while_the_thread_waits() -> None:
    released = threading.Event()
    turns = 0

    def wait() -> None:
        released.wait(5)

    async with DiskThread() as thread, trio.open_nursery() as nursery:
        nursery.start_soon(thread.run, wait)
        for _ in range(100):
            await trio.lowlevel.checkpoint()
            turns += 1
        released.set()
    assert turns == 100


async def test_a_cancelled_caller_waits_for_the_end_of_its_call() -> None:
    done: list[int] = []

    def slow() -> None:
        time.sleep(0.05)
        done.append(1)

    async with DiskThread() as thread:
        with trio.move_on_after(0.001):
            await thread.run(slow)
        assert done == [1]


async def test_its_end_waits_for_another_task_s_call_and_leaves_nothing() -> None:
    before = psutil.Process().num_fds(), threading.active_count()
    done: list[int] = []

    def slow() -> None:
        time.sleep(0.05)
        done.append(1)

    async with trio.open_nursery() as nursery:
        async with DiskThread() as thread:
            nursery.start_soon(thread.run, slow)
            await trio.testing.wait_all_tasks_blocked()
        assert done == [1]
    assert (psutil.Process().num_fds(), threading.active_count()) == before
