"""Calls into a portal's loop: batches of wake-ups, and tasks that are used again."""

from __future__ import annotations

import contextvars
import gc
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest
import trio

from triomq.client.core.call_queue import CallQueue
from triomq.client.core.portal import Portal, in_loop
from triomq.client.core.portal_calls import CallCancelled


@pytest.fixture
def portal() -> Iterator[Portal[None]]:
    @asynccontextmanager
    async def nothing() -> AsyncIterator[None]:
        yield

    made = Portal(nothing())
    made.start().result(10)
    yield made
    made.stop().result(10)
    made.join()


def test_many_calls_wake_the_loop_once() -> None:
    woken: list[Callable[[], None]] = []
    seen: list[int] = []
    queue = CallQueue(woken.append)
    for number in range(5):
        queue.put(seen.append, number)
    (wake,) = woken
    wake()
    assert seen == [0, 1, 2, 3, 4]
    queue.put(queue.put, seen.append, 6)  # what is put meanwhile gets a turn of its own
    woken.pop()()
    assert seen == [0, 1, 2, 3, 4]
    woken.pop()()
    assert seen[-1] == 6


def test_an_interrupted_wake_up_does_not_silence_the_queue() -> None:
    woken: list[Callable[[], None]] = []
    seen: list[int] = []

    def wake(run: Callable[[], None]) -> None:
        woken.append(run)
        if len(woken) == 1:
            woken.clear()
            queue._wake = woken.append
            raise KeyboardInterrupt

    queue = CallQueue(wake)
    with pytest.raises(KeyboardInterrupt):
        queue.put(seen.append, 1)
    queue.put(seen.append, 2)
    woken.pop()()
    assert seen == [1, 2]


def test_calls_share_tasks_and_each_has_the_context_of_its_caller(portal: Portal[None]) -> None:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable")

    async def look() -> tuple[trio.lowlevel.Task, int]:
        before = variable.get()
        await trio.lowlevel.checkpoint()
        assert variable.get() == before
        variable.set(-1)
        return trio.lowlevel.current_task(), before

    tasks = set()
    for number in range(20):
        variable.set(number)
        task, seen = portal.call(10, look)
        tasks.add(task)
        assert seen == number == portal.call(10, in_loop, variable.get)
    assert len(tasks) < 20


def test_a_call_is_cancelled_at_any_moment_and_no_other_one_with_it(portal: Portal[None]) -> None:
    """Also before the task that is used again has begun with it, and after its end."""

    async def quick() -> int:
        await trio.lowlevel.checkpoint()
        return 1

    portal.call(10, quick)  # leaves a task for the others
    for _ in range(50):
        waiting = portal.submit(trio.sleep_forever)
        waiting.cancel()
        with pytest.raises(CallCancelled):
            waiting.future.result(10)
        ended = portal.submit(quick)
        assert ended.future.result(10) == 1
        ended.cancel()
        assert portal.call(10, quick) == 1


def test_a_cancelled_call_with_an_error_reports_the_error(portal: Portal[None]) -> None:
    async def fail_when_cancelled() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("at the end")

    for _ in range(3):
        call = portal.submit(fail_when_cancelled)
        call.cancel()
        error = call.future.exception(10)
        assert isinstance(error, ExceptionGroup)
        assert [str(each) for each in error.exceptions] == ["at the end"]


def test_a_task_that_waits_keeps_nothing_of_its_last_call(portal: Portal[None]) -> None:
    class Body:
        pass

    async def take(body: Body) -> Body:
        await trio.lowlevel.checkpoint()
        return body

    body = Body()
    kept = weakref.ref(body)
    portal.call(10, take, body)
    del body
    portal.call(10, in_loop, gc.collect)
    assert kept() is None
