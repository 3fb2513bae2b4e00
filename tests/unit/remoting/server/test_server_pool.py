"""Admission and order of a pool, without sockets: connections that remember what was written."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from pool_bench import Paper, bench, ok

from triomq.remoting.core.errors import Rejected
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.server.requests import Deferred, Request, Response


async def test_an_idle_pool_runs_in_place_and_a_busy_one_queues(nursery: trio.Nursery) -> None:
    made = bench(nursery, workers=1)
    gate = trio.Event()

    async def slow(request: Request) -> Response:
        await gate.wait()
        return Response(0, remark="slow")

    made.add(1, ok)
    made.add(2, slow)
    made.pool.submit(made.requests(1), in_place=True)
    assert made.pool.statistics().requests_queued == 1  # the worker is not parked yet
    await trio.testing.wait_all_tasks_blocked()
    made.pool.submit(made.requests(1, 1), in_place=True)
    assert [answer.opaque for answer in made.paper.answers()] == [1, 2, 3]
    made.pool.submit(made.requests(1))  # not from a codec: never in place
    assert len(made.pool) == 1
    await trio.testing.wait_all_tasks_blocked()
    made.pool.submit(made.requests(2, 1), in_place=True)  # the second waits behind the first
    assert [answer.opaque for answer in made.paper.answers()] == [1, 2, 3, 4]
    made.pool.submit(made.requests(1), in_place=True)
    await trio.testing.wait_all_tasks_blocked()
    assert (len(made.pool), made.pool.statistics().idle_workers) == (2, 0)
    gate.set()
    await made.pool.wait_quiet()
    assert [answer.opaque for answer in made.paper.answers()] == [1, 2, 3, 4, 5, 6, 7]
    assert made.pool.queued_bytes == 0


async def test_coroutines_begin_in_order_and_before_what_came_later(nursery: trio.Nursery) -> None:
    made = bench(nursery, workers=4)
    begun: list[int] = []

    async def later(request: Request) -> Response:
        begun.append(request.opaque)
        await trio.lowlevel.checkpoint()
        return Response(0)

    def at_once(request: Request) -> Response:
        begun.append(request.opaque)
        return Response(0)

    made.add(1, later)
    made.add(2, at_once)
    await trio.testing.wait_all_tasks_blocked()
    for codes in ((1,), (2, 1), (1, 2, 2), (2,), (1, 1, 1, 1, 1), (2, 2)):
        made.pool.submit(made.requests(*codes), in_place=True)
    await made.pool.wait_quiet()
    assert begun == list(range(1, 15))
    assert len(made.paper.answers()) == 14


async def test_a_turn_is_bounded(nursery: trio.Nursery) -> None:
    made = bench(nursery, workers=1)
    made.add(1, ok)
    await trio.testing.wait_all_tasks_blocked()
    made.pool.submit(made.requests(*[1] * 1000), in_place=True)
    statistics = made.pool.statistics()
    assert (statistics.requests_in_place, statistics.requests_queued) == (256, 744)
    await made.pool.wait_quiet()
    assert [answer.opaque for answer in made.paper.answers()] == list(range(1, 1001))


async def test_batches_are_bounded_in_bytes(nursery: trio.Nursery) -> None:
    made = bench(nursery, workers=1)
    sizes: list[int] = []

    def count(requests: list[Request]) -> list[Response | None]:
        sizes.append(len(requests))
        return [None] * len(requests)

    made.add(1, count, batch=True)
    made.pool.submit(made.requests(*[1] * 10, size=400_000))
    await made.pool.wait_quiet()
    assert sizes == [3, 3, 3, 1]


async def test_one_write_for_each_connection_of_a_batch(nursery: trio.Nursery) -> None:
    made = bench(nursery, workers=1)
    made.add(1, lambda requests: [Response(0, body=b"b") for _ in requests], batch=True)
    await trio.testing.wait_all_tasks_blocked()
    papers = [Paper(f"10.0.0.{number}:5") for number in range(3)]
    requests = [made.requests(1, paper=papers[number])[0] for number in (0, 1, 0, 2, 1, 0, 0)]
    made.pool.submit(requests, in_place=True)
    assert [len(paper.written) for paper in papers] == [1, 1, 1]
    assert [[answer.opaque for answer in paper.answers()] for paper in papers] == [
        [1, 3, 6, 7],
        [2, 5],
        [4],
    ]


async def test_oneway_and_deferred_answers_write_nothing(nursery: trio.Nursery) -> None:
    made = bench(nursery, workers=1, queue_requests_max=1)

    def refuse(request: Request) -> Response:
        raise Rejected(17, "no")

    made.add(1, ok)
    made.add(2, refuse)
    made.add(3, lambda request: Deferred((request,)))
    made.pool.submit(made.requests(1, 2, 3, 1, oneway=True))  # three of them overloaded
    await made.pool.wait_quiet()
    made.pool.submit(made.requests(1, 2, 3, oneway=True), in_place=True)
    made.pool.submit(made.requests(3), in_place=True)
    await made.pool.wait_quiet()
    assert made.paper.written == []
    assert made.pool.statistics().overloaded == 3


async def test_too_old_on_submission(nursery: trio.Nursery) -> None:
    made = bench(nursery, workers=1, wait_ms_max=50)
    made.add(1, ok)
    requests = made.requests(1, 1, 1)
    for request in requests[:2]:
        request.arrived -= 0.2
    made.pool.submit(requests)
    await made.pool.wait_quiet()
    answers = made.paper.answers()
    assert [(answer.opaque, answer.code) for answer in answers] == [(1, 2), (2, 2), (3, 0)]
    assert (answers[0].remark or "").startswith(
        "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: 2"
    )
    assert (answers[0].remark or "").endswith("ms, size of queue: 0")


async def test_the_sweep_stops_at_the_first_young_request() -> None:
    made = bench(workers=1, wait_ms_max=50)
    made.add(1, ok)
    requests = made.requests(1, 1, 1)
    made.pool.submit(requests)
    made.pool.sweep()
    assert len(made.pool) == 3
    requests[0].arrived -= 0.2
    requests[2].arrived -= 0.2
    made.pool.sweep()
    assert [answer.opaque for answer in made.paper.answers()] == [1]
    assert len(made.pool) == 2


async def test_handlers_that_never_began_are_closed_at_the_end(nursery: trio.Nursery) -> None:
    made = bench(nursery, workers=1)

    async def never(request: Request) -> Response:
        raise AssertionError

    made.add(1, never)
    await trio.testing.wait_all_tasks_blocked()
    made.pool.submit(made.requests(1, 1), in_place=True)
    nursery.cancel_scope.cancel()
    made.pool.abandon()  # a coroutine left open would warn, and warnings are errors here
    assert len(made.pool) == 0


async def test_errors_of_a_batch_affect_no_other(
    nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    made = bench(nursery, workers=1)

    def explode(requests: list[Request]) -> list[Response | None]:
        raise ValueError("a \ud800 surrogate")

    async def explode_later(request: Request) -> Response:
        raise ValueError("later")

    made.add(1, explode, batch=True)
    made.add(2, explode_later)
    await trio.testing.wait_all_tasks_blocked()
    made.pool.submit(made.requests(1, 1, 2, 1), in_place=True)
    await made.pool.wait_quiet()
    answers = made.paper.answers()
    assert [(answer.opaque, answer.code) for answer in answers] == [(1, 1), (2, 1), (3, 1), (4, 1)]
    assert (answers[0].remark or "").startswith("ValueError: a ? surrogate, test_server_pool.py:")
    assert [record.levelname for record in caplog.records] == [
        "ERROR"
    ] * 2  # one for each code, the others are counted
    assert {code: made.destinations[code].counters.failed for code in (1, 2)} == {1: 3, 2: 1}


async def test_nonsense_from_a_handler_affects_its_requests_only(
    nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    made = bench(nursery, workers=1)

    async def later(requests: list[Request]) -> Any:
        return ["nonsense"] * len(requests)

    def unsure() -> bool:
        raise ValueError("cannot tell")

    made.add(1, lambda requests: [Response(0, body=7)], batch=True)  # type: ignore[arg-type]
    made.add(2, later, batch=True)
    made.add(3, lambda request: Response(0, body=["text"]))  # type: ignore[list-item]
    made.add(4, ok, reject=unsure)
    await trio.testing.wait_all_tasks_blocked()
    for code in (1, 2, 3, 4):
        made.pool.submit(made.requests(code), in_place=True)
        await made.pool.wait_quiet()
    assert [(answer.opaque, answer.code) for answer in made.paper.answers()] == [
        (1, 1),
        (2, 1),
        (3, 1),
        (4, 2),
    ]
    assert len(caplog.records) == 4


async def test_a_stall_refuses_queued_and_new_requests(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    made = bench(nursery, workers=1)
    gate = trio.Event()

    async def slow(request: Request) -> Response:
        await gate.wait()
        return Response(0)

    made.add(1, slow)
    await trio.testing.wait_all_tasks_blocked()
    made.pool.submit(made.requests(1, 1, 1))
    made.pool.submit(made.requests(1, oneway=True))
    await trio.sleep(0.05)
    assert made.pool.head_wait_seconds() == pytest.approx(0.05)
    made.pool.hold_off(0.2)
    assert len(made.pool) == 0
    assert made.pool.head_wait_seconds() == 0
    made.pool.submit(made.requests(1), in_place=True)
    refused = made.paper.answers()
    assert [(answer.opaque, answer.code) for answer in refused] == [(2, 2), (3, 2), (5, 2)]
    assert [answer.remark for answer in refused] == [
        (
            "[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue:"
            " 50ms, size of queue: 2"
        ),
        (
            "[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue:"
            " 50ms, size of queue: 1"
        ),
        "[REJECTREQUEST]system busy, start flow control for a while",
    ]
    await trio.sleep(0.2)
    gate.set()
    made.pool.submit(made.requests(1))
    await made.pool.wait_quiet()
    assert [answer.code for answer in made.paper.answers()[3:]] == [0, 0]
    statistics = made.pool.statistics()
    assert (statistics.stalled, statistics.rejected) == (3, 1)


async def test_a_stall_without_fast_failure_only_refuses(nursery: trio.Nursery) -> None:
    made = bench(workers=1)
    made.add(1, lambda request: Response(0))
    made.pool.submit(made.requests(1))
    made.pool.hold_off(0.2, drain=False)
    made.pool.submit(made.requests(1))
    assert len(made.pool) == 1
    assert [answer.opaque for answer in made.paper.answers()] == [2]


async def test_batches_that_wait_without_a_worker_count_as_busy_workers(
    nursery: trio.Nursery,
) -> None:
    waiting: list[tuple[list[Request], Deferred]] = []

    def handle(requests: list[Request]) -> Deferred:
        waiting.append((requests, Deferred(requests)))
        return waiting[-1][1]

    made = bench(nursery, workers=2)
    made.add(10, handle, batch=True)
    await trio.testing.wait_all_tasks_blocked()
    for _ in range(5):
        made.pool.submit(made.requests(10, 10), in_place=True)
        await trio.testing.wait_all_tasks_blocked()
    assert [len(requests) for requests, _ in waiting] == [2, 2]
    assert len(made.pool) == 6
    assert (made.pool.statistics().requests_in_place, made.pool.statistics().requests_queued) == (
        4,
        6,
    )
    waiting[1][1].finish(lambda: [Response(0), None])  # the second before the first
    assert [answer.opaque for answer in made.paper.answers()] == [3]
    await trio.testing.wait_all_tasks_blocked()
    assert [len(requests) for requests, _ in waiting] == [
        2,
        2,
        6,
    ]  # the requests that waited are one batch
    assert len(made.pool) == 0
    quiet: list[int] = []

    async def wait_quiet() -> None:
        await made.pool.wait_quiet()
        quiet.append(1)

    nursery.start_soon(wait_quiet)
    await trio.testing.wait_all_tasks_blocked()
    waiting[2][1].finish(lambda: [None] * 6)
    await trio.testing.wait_all_tasks_blocked()
    assert quiet == []
    waiting[0][1].finish(lambda: [None, None])
    await trio.testing.wait_all_tasks_blocked()
    assert quiet == [1]
    assert made.destinations[10].counters.answered == 10


@pytest.mark.parametrize("in_place", [True, False])
async def test_no_more_batches_wait_than_there_are_workers_within_a_turn(
    nursery: trio.Nursery, in_place: bool
) -> None:
    """Requests that cannot share a batch: each begins its own."""
    waiting: list[Deferred] = []
    begun: list[int] = []

    def handle(requests: list[Request]) -> Deferred:
        begun.extend(request.opaque for request in requests)
        waiting.append(Deferred(requests))
        return waiting[-1]

    made = bench(nursery, workers=3)
    for code in (10, 11):
        made.add(code, handle, batch=True)
    await trio.testing.wait_all_tasks_blocked()
    made.pool.submit(made.requests(*[10, 11] * 200), in_place=in_place)
    for done in range(400):
        await trio.testing.wait_all_tasks_blocked()
        assert len(waiting) == min(done + 3, 400)
        waiting[done].finish(lambda: [Response(0)])
    await made.pool.wait_quiet()
    assert begun == list(range(1, 401))
    assert [answer.opaque for answer in made.paper.answers()] == begun
    assert made.pool.queued_bytes == 0


async def test_errors_in_finishing_a_batch_affect_its_requests_only(
    nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    deferred: list[Deferred] = []

    def handle(requests: list[Request]) -> Deferred:
        deferred.append(Deferred(requests))
        return deferred[-1]

    def bug() -> list[Response | None]:
        raise ZeroDivisionError("a bug")

    def refusal() -> list[Response | None]:
        raise Rejected(ResponseCode.FLUSH_DISK_TIMEOUT, "slow")

    made = bench(nursery, workers=4)
    made.add(10, handle, batch=True)
    await trio.testing.wait_all_tasks_blocked()
    for make in (bug, refusal, lambda: [Response(0)]):  # the last: one answer for two requests
        made.pool.submit(made.requests(10, 10), in_place=True)
        deferred[-1].finish(make)
    codes = [answer.code for answer in made.paper.answers()]
    assert (
        codes
        == [ResponseCode.SYSTEM_ERROR] * 2
        + [ResponseCode.FLUSH_DISK_TIMEOUT] * 2
        + [ResponseCode.SYSTEM_ERROR] * 2
    )
    assert "a bug" in caplog.text
    await made.pool.wait_quiet()


async def test_large_answers_are_sent_before_the_next_are_made(nursery: trio.Nursery) -> None:
    made = bench(nursery, workers=1)
    sent: list[int] = []

    def large(request: Request) -> Response:
        sent.append(len(made.paper.written))
        return Response(0, body=[b"x" * 50_000, b"y" * 50_000], body_size=100_000)

    def small(request: Request) -> Response:
        sent.append(len(made.paper.written))
        return Response(0, body=b"z")

    made.add(1, large)
    made.add(2, small)
    await trio.testing.wait_all_tasks_blocked()
    made.pool.submit(made.requests(1, 1, 2, 2, 1, 2), in_place=True)
    assert sent == [0, 0, 1, 1, 1, 1]
    assert [answer.opaque for answer in made.paper.answers()] == [1, 2, 3, 4, 5, 6]
    assert [len(answer.body) for answer in made.paper.answers()] == [
        100_000,
        100_000,
        1,
        1,
        100_000,
        1,
    ]
    assert len(made.paper.written) == 2
    assert sum(destination.counters.answered for destination in made.destinations.values()) == 6
