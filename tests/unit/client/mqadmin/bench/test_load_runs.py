"""The load of benchmarks: when requests are due, and what is counted. In virtual time."""

from __future__ import annotations

import pytest
import trio

from triomq.client.core.errors import ConnectionFailed, TrioMQError
from triomq.client.mqadmin.bench.bench_report import ProgressLines, latency_fields, send_document
from triomq.client.mqadmin.bench.load_plan import LoadPlan
from triomq.client.mqadmin.bench.load_run import LoadCounts, run_load
from triomq.client.mqadmin.bench.received_counts import ReceivedCounts, RecentIds


class StallingServer:
    """Answers after 1 ms, except in a stall, whose requests it answers at its end."""

    def __init__(self, begin: float, end: float) -> None:
        self.begin, self.end = begin, end
        self.begun: list[float] = []
        self.zero = trio.current_time()

    async def send(self, number: int) -> None:
        now = trio.current_time() - self.zero
        self.begun.append(now)
        await trio.sleep(self.end - now if self.begin <= now < self.end else 0.001)


async def run(plan: LoadPlan, server: StallingServer) -> LoadCounts:
    counts = LoadCounts()
    await run_load(plan, server.send, counts, trio.Event())
    return counts


def test_requests_are_due_at_their_times() -> None:
    plan = LoadPlan(seconds=2.0, rate=10.0, requests_max=15)
    assert [plan.due_after(number) for number in (0, 1, 14)] == [0.0, 0.1, 1.4]
    assert [plan.due_count(elapsed) for elapsed in (0.0, 0.05, 0.1, 1.0, 9.0)] == [0, 1, 1, 10, 15]
    assert plan.wants(14, 1.4)
    assert not plan.wants(15, 1.4)
    endless = LoadPlan(seconds=2.0, rate=10.0)
    assert (endless.wants(19, 1.9), endless.wants(20, 1.9), endless.wants(0, 2.0)) == (
        True,
        False,
        False,
    )
    assert endless.due_count(9.0) == 20
    assert LoadPlan(seconds=1.0).due_after(7) is None


async def test_a_stall_shows_in_all_messages_that_were_due_in_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """One second of four, with five requests in flight: a quarter of the messages was late, not
    only those five. Measured from the send, the 90 % would be 1 ms.
    """
    server = StallingServer(2.0, 3.0)
    counts = await run(LoadPlan(seconds=4.0, rate=100.0, in_flight_max=5), server)
    assert (counts.sent, counts.overdue, counts.begun) == (400, 0, 400)
    assert counts.latency.quantile(0.5) == pytest.approx(0.001, rel=0.05)
    assert counts.latency.quantile(0.9) == pytest.approx(0.6, abs=0.05)
    assert counts.latency.quantile(1.0) == pytest.approx(1.0, abs=0.02)


async def test_without_a_rate_only_the_requests_in_flight_see_the_stall(
    autojump_clock: trio.testing.MockClock,
) -> None:
    counts = await run(LoadPlan(seconds=4.0, in_flight_max=5), StallingServer(2.0, 3.0))
    assert counts.sent == pytest.approx(5 * 3000, rel=0.01)
    assert counts.overdue == 0
    assert counts.latency.quantile(0.999) == pytest.approx(0.001, rel=0.05)
    assert counts.latency.quantile(1.0) == pytest.approx(1.0, abs=0.02)


async def test_messages_that_were_due_and_never_sent_are_counted(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The broker stalls until after the end of the load; nothing hides that time's messages."""
    counts = await run(LoadPlan(seconds=4.0, rate=100.0, in_flight_max=5), StallingServer(2.0, 6.0))
    assert (counts.sent, counts.overdue) == (205, 195)
    assert counts.seconds(trio.current_time()) == pytest.approx(6.0)


async def test_the_rate_is_kept(autojump_clock: trio.testing.MockClock) -> None:
    server = StallingServer(9.0, 9.0)
    counts = await run(LoadPlan(seconds=9.0, rate=50.0, requests_max=20), server)
    assert counts.sent == 20
    assert server.begun == pytest.approx([number / 50 for number in range(20)])


async def test_no_more_requests_are_in_flight_than_allowed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    most = 0
    counts = LoadCounts()

    async def send(number: int) -> None:
        nonlocal most
        most = max(most, counts.in_flight)
        await trio.sleep(0.01)

    await run_load(LoadPlan(seconds=1.0, in_flight_max=3), send, counts, trio.Event(), messages=10)
    assert (most, counts.in_flight) == (3, 0)
    assert counts.sent == counts.begun * 10 == counts.latency.count


async def test_failures_are_counted_by_reason_and_do_not_end_the_run(
    autojump_clock: trio.testing.MockClock,
) -> None:
    counts = LoadCounts()

    async def send(number: int) -> None:
        await trio.sleep(0.001)
        if number % 2:
            raise TrioMQError("odd") if number % 3 else ConnectionFailed("b:1", "refused")

    await run_load(LoadPlan(seconds=1.0, rate=60.0), send, counts, trio.Event())
    assert counts.sent == 30
    assert counts.failed == {"TrioMQError": 20, "ConnectionFailed": 10}
    assert counts.examples["TrioMQError"] == "odd"
    document = send_document("t", counts, 100, interrupted=False, now=trio.current_time())
    assert (document["failed"], document["failedBy"]["ConnectionFailed"]) == (30, 10)


async def test_a_broker_that_refuses_at_once_is_not_asked_all_the_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    counts = LoadCounts()

    async def send(number: int) -> None:
        await trio.lowlevel.checkpoint()
        raise TrioMQError("refused")

    await run_load(LoadPlan(seconds=0.95, in_flight_max=4), send, counts, trio.Event())
    assert counts.failed.total() == 40
    assert counts.seconds(trio.current_time()) == pytest.approx(0.9)


async def test_a_stop_ends_the_load_and_waits_for_answers(
    autojump_clock: trio.testing.MockClock,
) -> None:
    counts, stop = LoadCounts(), trio.Event()

    async def send(number: int) -> None:
        await trio.sleep(0.5)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            run_load, LoadPlan(seconds=60.0, rate=10.0, in_flight_max=9), send, counts, stop
        )
        await trio.sleep(1.05)
        stop.set()
    assert (counts.begun, counts.sent, counts.in_flight, counts.overdue) == (11, 11, 0, 0)
    assert trio.current_time() - counts.began_at == pytest.approx(1.5)


def test_a_run_without_messages_has_no_figures_instead_of_zeros() -> None:
    counts = LoadCounts(ended_at=0.0)
    document = send_document("t", counts, 100, interrupted=True, now=1.0)
    assert (document["rate"], document["mbPerSecond"], document["sent"]) == (None, None, 0)
    assert set(latency_fields("latency", counts.latency).values()) == {None}


def test_lines_of_progress_show_what_changed() -> None:
    lines = ProgressLines()
    assert lines.line(1.0, 500, "0 failed") == "   1.0 s: 500.0 msg/s, 0 failed"
    assert lines.line(3.0, 700) == "   3.0 s: 100.0 msg/s"
    assert lines.line(3.0, 700) == "   3.0 s: 0.0 msg/s"


def test_duplicates_are_found_and_memory_is_bounded() -> None:
    ids = RecentIds(size_max=3)
    assert [ids.note(one) for one in "aabcb"] == [False, True, False, False, True]
    assert [ids.note(one) for one in "defgha"] == [False] * 6, "a is forgotten"
    assert len(ids._young) + len(ids._old) <= 6


def test_received_messages_are_counted_with_their_ages() -> None:
    counts = ReceivedCounts()
    for message_id in ("one", "two", "one"):
        counts.note(message_id, 10, born_ms=1000, stored_ms=1200, now_ms=1500.0)
    assert (counts.received, counts.duplicates, counts.size_bytes) == (3, 1, 30)
    assert counts.since_born.max_seconds == 0.5
    assert counts.since_stored.max_seconds == 0.3


async def test_a_stop_in_a_stall_counts_what_was_due_until_then(
    autojump_clock: trio.testing.MockClock,
) -> None:
    counts, stop, server = LoadCounts(), trio.Event(), StallingServer(0.0, 3.0)
    plan = LoadPlan(seconds=60.0, rate=10.0, in_flight_max=4)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_load, plan, server.send, counts, stop)
        await trio.sleep(1.05)
        stop.set()
    assert (counts.sent, counts.overdue) == (4, 7)
