"""The state of a pool after an event: requests that were put back, a stall that ended, a worker
that waits.
"""

from __future__ import annotations

import pytest
import trio
import trio.testing
from pool_bench import bench, ok

from triomq.remoting.server.requests import Deferred, Request, Response


async def test_requests_that_are_put_back_count_with_their_bytes(nursery: trio.Nursery) -> None:
    made = bench(nursery, workers=1, queue_bytes_max=1000)
    gates = [trio.Event(), trio.Event()]
    waiting = iter(gates)

    async def slow(request: Request) -> Response:
        await next(waiting).wait()
        return Response(0)

    made.add(1, slow)
    for gate in gates:
        made.pool.submit(made.requests(1, size=100))
        made.pool.submit(made.requests(*[1] * 8, size=100) if gate is gates[0] else [])
        await trio.testing.wait_all_tasks_blocked()
        left = made.pool.statistics()
        assert (left.queued_requests, left.queued_bytes) == (
            8,
            800,
        )  # the worker took all, and put back all but one
        if gate is gates[0]:
            made.pool.submit(made.requests(1, 1, size=100))
            made.pool.submit(made.requests(1, size=100))
            assert made.pool.statistics().overloaded == 1, "not more bytes than the queue may have"
            made.pool.hold_off(0, drain=True)
            assert made.pool.queued_bytes == 0
            made.pool.submit(made.requests(*[1] * 8, size=100))
        gate.set()


async def test_requests_behind_a_batch_that_waits_without_a_worker_are_put_back_with_their_bytes(
    nursery: trio.Nursery,
) -> None:
    waiting: list[Deferred] = []

    def handle(requests: list[Request]) -> Deferred:
        waiting.append(Deferred(requests))
        return waiting[-1]

    made = bench(nursery, workers=1)
    for code in (10, 11):
        made.add(code, handle, batch=True)
    await trio.testing.wait_all_tasks_blocked()
    made.pool.submit(made.requests(10, 11, 10, 11, size=50))
    for left in (3, 2, 1, 0):
        await trio.testing.wait_all_tasks_blocked()
        assert (len(made.pool), made.pool.queued_bytes) == (left, 50 * left)
        waiting.pop().finish(lambda: [Response(0)])
    await made.pool.wait_quiet()


async def test_a_worker_that_must_wait_leaves_the_rest_to_another(nursery: trio.Nursery) -> None:
    made = bench(nursery, workers=2)
    gate = trio.Event()

    async def slow(request: Request) -> Response:
        await gate.wait()
        return Response(0)

    made.add(1, slow)
    made.add(2, ok)
    await trio.testing.wait_all_tasks_blocked()
    made.pool.submit(made.requests(1, 2, 2))  # one call wakes one worker
    await trio.testing.wait_all_tasks_blocked()
    assert [answer.opaque for answer in made.paper.answers()] == [2, 3]
    gate.set()
    await made.pool.wait_quiet()


async def test_after_a_stall_handlers_are_asked_again_whether_they_are_busy(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    busy = True
    made = bench(nursery, workers=1)
    made.add(1, ok, reject=lambda: busy)
    await trio.testing.wait_all_tasks_blocked()
    for stall in (1, 2):
        made.pool.hold_off(0.2)
        await trio.sleep(0.3)
        for _ in range(2):  # the first request notices that the stall is over
            made.pool.submit(made.requests(1))
        assert made.pool.statistics().rejected == 2 * stall
    busy = False
    made.pool.submit(made.requests(1))
    await made.pool.wait_quiet()
    assert made.paper.answers()[-1].code == 0


@pytest.mark.parametrize("size", [0, 100])
async def test_nothing_is_left_of_an_abandoned_queue(size: int) -> None:
    made = bench(workers=1)
    made.add(1, ok)
    made.pool.submit(made.requests(1, 1, size=size))
    made.pool.abandon()
    assert (made.pool.statistics().queued_requests, made.pool.statistics().queued_bytes) == (0, 0)


async def test_the_longest_wait_stays_the_longest() -> None:
    made = bench(workers=1)
    made.add(1, ok)
    destination = made.destinations[1]
    for count, seconds in ((2, 0.1), (1, 0.5), (4, 0.2)):
        destination.counters.note_wait(count, seconds)
    statistics = destination.counters
    assert (statistics.queued, statistics.wait_seconds_max) == (7, 0.5)
    assert statistics.wait_seconds_mean == pytest.approx(1.5 / 7)


async def test_a_free_worker_begins_no_request_that_is_too_old(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """The worker may check before the sweeper does."""
    made = bench(nursery, workers=1, wait_ms_max=50)
    gates: list[trio.Event] = []
    begun: list[int] = []

    async def slow(request: Request) -> Response:
        await gates[-1].wait()
        return Response(0)

    def quick(request: Request) -> Response:
        begun.append(request.opaque)
        return Response(0)

    made.add(1, slow)
    made.add(2, quick)
    await trio.testing.wait_all_tasks_blocked()
    for _ in range(2):
        gates.append(trio.Event())
        made.pool.submit(made.requests(1))
        made.pool.submit(made.requests(2, size=10))
        await trio.sleep(0.1)
        made.pool.submit(made.requests(2, size=10))
        gates[-1].set()
        await made.pool.wait_quiet()
    assert begun == [3, 6]
    assert sorted((answer.opaque, answer.code) for answer in made.paper.answers()) == [
        (1, 0),
        (2, 2),
        (3, 0),
        (4, 0),
        (5, 2),
        (6, 0),
    ]
    assert (made.pool.statistics().expired, made.pool.queued_bytes) == (2, 0)


async def test_an_awaited_batch_may_be_deferred_again(nursery: trio.Nursery) -> None:
    waiting: list[Deferred] = []

    def defer(requests: list[Request]) -> Deferred:
        waiting.append(Deferred(requests))
        return waiting[-1]

    async def handle(requests: list[Request]) -> Deferred:
        await trio.lowlevel.checkpoint()
        return defer(requests)

    made = bench(nursery, workers=1)
    made.add(10, handle, batch=True)
    await trio.testing.wait_all_tasks_blocked()
    made.pool.submit(made.requests(10, 10), in_place=True)
    await trio.testing.wait_all_tasks_blocked()
    waiting[0].finish(lambda: defer(list(waiting[0].requests)))
    made.pool.submit(made.requests(10), in_place=True)
    assert len(made.pool) == 1, "the deferred batch still occupies the worker"
    waiting[1].finish(lambda: [Response(0), Response(0)])
    assert [answer.opaque for answer in made.paper.answers()] == [1, 2]
    await trio.testing.wait_all_tasks_blocked()
    waiting[2].fail(ValueError("no"))
    await made.pool.wait_quiet()
    assert [answer.code for answer in made.paper.answers()] == [0, 0, 1]
    assert made.destinations[10].counters.answered == 3


async def test_a_handler_that_returns_none_gave_no_response(
    nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    async def later(request: Request) -> None:
        await trio.lowlevel.checkpoint()

    made = bench(nursery, workers=1)
    made.add(1, lambda request: None)
    made.add(2, later)
    await trio.testing.wait_all_tasks_blocked()
    made.pool.submit(made.requests(1, 2), in_place=True)
    await made.pool.wait_quiet()
    assert [answer.code for answer in made.paper.answers()] == [1, 1]
    assert "neither a response nor a deferred one" in caplog.text
