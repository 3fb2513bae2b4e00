"""The same server on every kind of poller."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Callable

import pytest
import trio
from serving import ECHO, STAGES, RawPeer, ping_pong, serving, until

from triomq.remoting.core import busy_poll
from triomq.remoting.core.busy_poll import SpinBudget
from triomq.remoting.server import poller
from triomq.remoting.server.poller import EpollPoller, Poller, SelectorPoller, open_poller

SPIN_LIMIT = 0.05


FACTORIES: dict[str, Callable[[], Poller]] = {
    "default": open_poller,
    "busy": lambda: EpollPoller(SpinBudget(SPIN_LIMIT)),
    "selector": lambda: SelectorPoller(selectors.DefaultSelector()),
}


@pytest.mark.feature("24b")
@pytest.mark.parametrize("stages", STAGES, ids=["1-1", "3-8"])
@pytest.mark.parametrize("kind", list(FACTORIES))
async def test_everything_a_poller_must_notice(kind: str, stages: tuple[int, int]) -> None:
    factory = FACTORIES[kind]
    body = b"x" * 100_000
    async with serving(stages=stages, poller_factory=factory, outbox_high_bytes=150_000) as server:
        async with await RawPeer.open(server) as first:
            for number in range(20):
                assert (await first.call(ECHO, b"%d" % number)).body == b"%d" % number
            # A socket added while the selector waits; then write interest, a paused reader, and its
            # end.
            async with await RawPeer.open(server, receive_buffer=4096) as second:
                frames = [second.frame(ECHO, body) for _ in range(40)]
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(second.send, b"".join(data for _, data in frames))
                    for number in range(20):
                        assert (await first.call(ECHO, b"%d" % number)).body == b"%d" % number
                    for opaque, _ in frames:
                        assert (await second.answer(opaque)).body == body
            await until(lambda: server.statistics().connections <= 1)
            assert (await first.call(ECHO, b"still")).body == b"still"
            others = [await RawPeer.open(server) for _ in range(30)]
            for each in others:
                assert (await each.call(ECHO, b"many")).body == b"many"
            for each in others:
                await each.stream.aclose()
        await until(lambda: not server.statistics().connections)


@pytest.mark.feature("24a", "24b")
def test_epoll_where_there_is_epoll(monkeypatch: pytest.MonkeyPatch) -> None:
    made = open_poller()
    assert isinstance(made, EpollPoller)
    made.close()
    monkeypatch.delattr(poller.select, "epoll")
    other = open_poller()
    assert isinstance(other, SelectorPoller)
    other.close()


async def test_input_after_the_budget_counts_as_a_failed_spin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A yielded CPU may come back much later; a sleeping task regains it sooner. The input is
    served all the same.
    """
    budget = SpinBudget(SPIN_LIMIT)
    made = EpollPoller(budget)
    here, there = socket.socketpair()
    with here, there:
        made.register(here, poller.READABLE)

        def late() -> None:
            there.send(b"x")
            time.sleep(2 * SPIN_LIMIT)

        monkeypatch.setattr(busy_poll.os, "sched_yield", late)
        with trio.fail_after(5):
            await made.wait()
        assert made.poll() == [(here.fileno(), poller.READABLE)]
        assert (budget.found, budget.missed) == (0, 1)
        assert budget.seconds == SPIN_LIMIT
        made.close()


@pytest.mark.parametrize("busy", [True, False], ids=["spinning", "sleeping"])
async def test_a_client_that_never_pauses_keeps_no_other_waiting(busy: bool) -> None:
    """A selector whose spins all succeed never sleeps: other sockets, threads and deadlines must be
    served all the same.
    """
    rounds, spins = 20_000, 0
    done = threading.Event()

    class Counting(EpollPoller):
        async def _spin(self) -> bool:
            nonlocal spins
            found = await super()._spin()
            spins += found
            return found

    def factory() -> Poller:
        return Counting(SpinBudget(SPIN_LIMIT)) if busy else EpollPoller()

    async with serving(poller_factory=factory) as server:
        async with await RawPeer.open(server) as other, trio.open_nursery() as nursery:
            _, frame = other.frame(ECHO, b"x" * 100)
            counts: list[int] = []

            async def pinging() -> None:
                address = ("127.0.0.1", server.port)
                counts.append(
                    await trio.to_thread.run_sync(ping_pong, address, frame, rounds, done)
                )

            nursery.start_soon(pinging)
            for number in range(20):
                assert (await other.call(ECHO, b"%d" % number)).body == b"%d" % number
                await trio.sleep(0.001)
                assert await trio.to_thread.run_sync(int, "7") == 7
            done.set()
    assert counts[0] < rounds
    assert busy == (spins > 0)
