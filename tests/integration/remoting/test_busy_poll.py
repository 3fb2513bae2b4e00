"""Connections that spin before their loop sleeps."""

from __future__ import annotations

import errno
import itertools
import math
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from types import SimpleNamespace

import pytest
import trio
from serving import ECHO, ECHO_LATER, RawPeer, ping_pong, serving

from triomq.remoting.client.connector import Connector, ConnectorConfig
from triomq.remoting.core import busy_poll as module
from triomq.remoting.core.busy_poll import SPIN_SECONDS, BusyPoll, SpinBudget, busy_poll
from triomq.remoting.protocol.command import Command
from triomq.remoting.server.poller import open_poller


@pytest.fixture(autouse=True)
def two_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that there are two CPUs."""
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda _pid: {0, 1})


class Alarm(BaseException):
    """What a signal handler raises."""


@pytest.fixture
def interrupting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[signal.Signals], None]]:
    """Let a signal arrive in the middle of the next spin; the handler of SIGUSR1 raises."""

    def next_spin(number: signal.Signals) -> None:
        numbers = [number]

        def now() -> float:
            if numbers:
                signal.raise_signal(numbers.pop())
            return perf_counter()

        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=now))

    def handler(_number: int, _frame: object) -> None:
        raise Alarm

    before = signal.signal(signal.SIGUSR1, handler)
    yield next_spin
    signal.signal(signal.SIGUSR1, before)


@contextmanager
def watched(
    busy: BusyPoll, *, expecting: bool = True
) -> Iterator[tuple[socket.socket, socket.socket]]:
    here, there = socket.socketpair()
    with here, there:
        assert busy.watch(
            here.fileno(), lambda: expecting, trio.lowlevel.current_task().parent_nursery
        )
        yield here, there
        busy.unwatch(here.fileno())


async def test_a_spin_ends_when_the_answer_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = BusyPoll(SpinBudget(60))
    with watched(busy) as (_, there):
        clock = iter(range(100))

        def now() -> float:
            time = next(clock)
            if time == 10:
                there.send(b"x")
            return float(time)

        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=now))
        busy.before_io_wait(math.inf)
        assert (busy.budget.found, busy.budget.missed) == (1, 0)
        assert next(clock) == 12, "and no later"


async def test_no_spin_with_work_to_do_or_nothing_expected_or_input_already_there() -> None:
    busy = BusyPoll(SpinBudget(60))
    with watched(busy) as (_, there):
        busy.before_io_wait(0)
        busy.before_io_wait(-1)
        there.send(b"x")
        busy.before_io_wait(math.inf)
        assert (busy.budget.found, busy.budget.missed) == (0, 0)
    with watched(busy, expecting=False):
        busy.before_io_wait(math.inf)
        assert (busy.budget.found, busy.budget.missed) == (0, 0)


async def test_input_after_the_budget_counts_as_a_failed_spin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A yielded CPU may come back much later; a sleeping task regains it sooner."""
    busy = BusyPoll(SpinBudget(1))
    with watched(busy) as (_, there):
        clock = iter((0.0, 4.0))
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
        monkeypatch.setattr(module.os, "sched_yield", lambda: there.send(b"x"))
        busy.before_io_wait(math.inf)
        assert (busy.budget.found, busy.budget.missed) == (0, 1)


async def test_failed_spins_become_rare() -> None:
    busy = BusyPoll(SpinBudget(1e-9))
    with watched(busy):
        spins = []
        for sleep in range(5000):
            before = busy.budget.missed
            busy.before_io_wait(math.inf)
            if busy.budget.missed > before:
                spins.append(sleep)
        gaps = [later - earlier - 1 for earlier, later in itertools.pairwise(spins)]
        assert gaps == [1, 3, 7, 15, 31, 63, 127, 255, 511, 1023, 1023, 1023]


async def test_a_successful_spin_halves_the_back_off(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = BusyPoll(SpinBudget(60))
    busy.budget._back_off = 1023
    with watched(busy) as (here, there):
        for _ in range(5):
            clock = iter((0.0, 1.0))
            answering = SimpleNamespace(perf_counter=lambda: there.send(b"x") + next(clock))  # noqa: B023 - used at once
            monkeypatch.setattr(module, "time", answering)
            busy.before_io_wait(math.inf)
            here.recv(100)
        assert (busy.budget.found, busy.budget._back_off) == (5, 31)


async def test_timers_come_first() -> None:
    busy = BusyPoll(SpinBudget(3600))
    with watched(busy):
        busy.before_io_wait(0.001)
        assert busy.budget.missed == 1


async def test_an_unknown_descriptor_is_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = BusyPoll()
    nursery = trio.lowlevel.current_task().parent_nursery
    assert not busy.watch(1_000_000, lambda: True, nursery)
    assert not busy.watched
    here, there = socket.socketpair()
    with here, there:
        monkeypatch.setattr(module.os, "sched_getaffinity", lambda _pid: {1})
        assert not busy.watch(here.fileno(), lambda: True, nursery)


async def test_a_process_without_free_descriptors_does_not_spin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none_left() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(module, "_epoll", none_left)
    async with serving() as server, Connector() as connector:
        assert (
            await connector.invoke(f"127.0.0.1:{server.port}", Command(ECHO, body=b"x"))
        ).body == b"x"
        assert not busy_poll().watched


async def test_a_server_s_poller_joins_in_while_others_are_watched() -> None:
    """Its own spins would not see the other connections; the shared spin sees its clients."""
    async with (
        serving(poller_factory=partial(open_poller, SPIN_SECONDS)) as server,
        await RawPeer.open(server) as other,
    ):
        _, frame = other.frame(ECHO, b"x" * 100)
        busy, done = busy_poll(), threading.Event()

        async def ping(rounds: int) -> None:
            await trio.to_thread.run_sync(
                ping_pong, ("127.0.0.1", server.port), frame, rounds, done
            )

        await ping(10)
        assert (busy.watched, busy.leads) == (0, False)
        for _ in range(2):
            before = busy.budget.found
            with watched(busy, expecting=False):
                for _ in range(20):  # on a busy machine most answers come after the spin
                    await ping(2000)
                    if busy.budget.found > before:
                        break
                assert (busy.watched, busy.leads) == (2, True)
                assert busy.budget.found > before, "input of a client of the server"
            await ping(10)
            assert (busy.watched, busy.leads) == (0, False)
            found = busy.budget.found
            await ping(1000)
            assert busy.budget.found == found


async def test_a_server_that_stops_leaves() -> None:
    with watched(busy_poll(), expecting=False):
        async with (
            serving(poller_factory=partial(open_poller, 20e-6)) as server,
            await RawPeer.open(server) as peer,
        ):
            assert (await peer.call(ECHO, b"x")).body == b"x"
            assert busy_poll().watched == 2
            assert busy_poll().budget.limit == 20e-6, "the server's setting"
        assert busy_poll().watched == 1


async def test_what_a_signal_handler_raises_in_a_spin_comes_out_of_the_connector(
    interrupting: Callable[[signal.Signals], None], caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as server:
        address = f"127.0.0.1:{server.port}"

        async def ask() -> None:
            async with Connector() as connector:
                for number in range(10):
                    answer = await connector.invoke(
                        address, Command(ECHO_LATER, body=b"%d" % number)
                    )
                    assert answer.body == b"%d" % number

        interrupting(signal.SIGUSR1)
        with pytest.raises(BaseExceptionGroup) as caught:
            await ask()
        assert caught.value.subgroup(Alarm) is not None, "beside the error of the request"
        assert not busy_poll().watched
        await ask()
        assert not [record for record in caplog.records if record.name == "trio.abc.Instrument"]


def test_ctrl_c_in_a_spin_is_for_the_main_task(
    interrupting: Callable[[signal.Signals], None],
) -> None:
    seen = []

    async def main() -> None:
        busy = busy_poll()
        with watched(busy):
            interrupting(signal.SIGINT)
            try:
                await trio.sleep(30)
            except KeyboardInterrupt:
                seen.append(busy.budget.missed)
                raise

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)
    assert seen == [1]


async def test_connections_close_after_trio_has_removed_the_instrument() -> None:
    """A signal handler may raise in Trio's own code just before or after a spin."""
    busy = BusyPoll()
    with watched(busy), watched(busy):
        trio.lowlevel.remove_instrument(busy)
        assert busy._sockets is not None
        epoll = busy._sockets
    assert epoll.closed
    with watched(busy):
        trio.lowlevel.remove_instrument(busy)
        trio.lowlevel.add_instrument(busy)


async def test_an_exception_that_no_connection_can_take_is_not_swallowed() -> None:
    with pytest.raises(Alarm):
        BusyPoll()._crash(Alarm())


async def test_connections_come_and_go_with_their_sockets() -> None:
    assert busy_poll() is busy_poll()
    async with serving() as server:
        address = f"127.0.0.1:{server.port}"
        async with Connector() as connector, Connector(ConnectorConfig(busy_poll=False)) as other:
            for _ in range(3):  # the next one has the same descriptor, mostly
                for number in range(30):
                    code = ECHO_LATER if number % 2 else ECHO
                    assert (
                        await connector.invoke(address, Command(code, body=b"%d" % number))
                    ).body == b"%d" % number
                    assert (
                        await other.invoke(address, Command(ECHO, body=b"other"))
                    ).body == b"other"
                assert busy_poll().watched == 1
                connector.close_address(address)
                assert not busy_poll().watched
            await connector.invoke(address, Command(ECHO))
        assert not busy_poll().watched


def test_every_run_has_its_own() -> None:
    async def mine() -> BusyPoll:
        return busy_poll()

    assert trio.run(mine) is not trio.run(mine)
