"""The same server on every kind of poller: nested epoll, and those without a pollable descriptor (as on other systems)."""

from __future__ import annotations

import select
import selectors
import socket
import threading
import time
from collections.abc import Callable

import pytest
import trio
from serving import ECHO, STAGES, RawPeer, ping_pong, serving, until

from triomq.remoting.server import poller
from triomq.remoting.server.busy_polling import BusyPolling
from triomq.remoting.server.poller import EpollPoller, Poller, SelectorPoller, open_poller


def eager(turn: float = 300e-6) -> BusyPolling:
    """Looks from the first moment on, and for long."""
    busy = BusyPolling(0.05, turn)
    for _ in range(4):
        busy.slept(0.0)
    assert busy.worthwhile
    return busy


FACTORIES: dict[str, tuple[Callable[[], Poller], bool]] = {
    "default": (open_poller, True),
    "busy": (lambda: EpollPoller(eager()), True),
    "nested selector": (lambda: SelectorPoller(selectors.DefaultSelector()), True),
    "select": (lambda: SelectorPoller(selectors.SelectSelector()), False),
    "poll": (lambda: SelectorPoller(selectors.PollSelector()), False),
}


@pytest.mark.feature(24)
@pytest.mark.parametrize("stages", STAGES, ids=["1-1", "3-8"])
@pytest.mark.parametrize("kind", list(FACTORIES))
async def test_everything_a_poller_must_notice(kind: str, stages: tuple[int, int]) -> None:
    factory, _ = FACTORIES[kind]
    body = b"x" * 100_000
    async with serving(stages=stages, poller_factory=factory, outbox_high_bytes=150_000) as server:
        async with await RawPeer.open(server) as first:
            for number in range(20):
                assert (await first.call(ECHO, b"%d" % number)).body == b"%d" % number
            # A socket added while the selector waits; then write interest, a paused reader, and its end.
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


@pytest.mark.parametrize("kind", list(FACTORIES))
def test_nesting_is_tried_out(kind: str) -> None:
    factory, nested = FACTORIES[kind]
    made = factory()
    try:
        assert getattr(made, "nested", True) is nested
    finally:
        made.close()


def test_a_descriptor_that_tells_nothing_is_not_trusted() -> None:
    """Some systems have a poller whose own descriptor cannot be polled: it must not be waited for."""

    class Deaf(selectors.SelectSelector):
        def fileno(self) -> int:
            return idle.fileno()

    with select.epoll() as idle:
        made = SelectorPoller(Deaf())
        assert not made.nested
        made.close()


def test_epoll_where_there_is_epoll(monkeypatch: pytest.MonkeyPatch) -> None:
    made = open_poller()
    assert isinstance(made, EpollPoller)
    made.close()
    monkeypatch.delattr(poller.select, "epoll")
    other = open_poller()
    assert isinstance(other, SelectorPoller)
    other.close()


async def test_a_waiting_thread_ends_with_its_server() -> None:
    made = SelectorPoller(selectors.SelectSelector())
    with trio.move_on_after(0.01) as scope:
        await made.wait()
    assert scope.cancelled_caught
    made.close()
    with trio.fail_after(5):
        # The abandoned thread saw the wake-up: the poller's only thread is free again.
        async with made._limiter:
            assert made._limiter.borrowed_tokens == 1


async def test_what_comes_after_the_moment_is_over_is_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor that was yielded may come back much later: by sleeping one has it sooner. What is there is served all the same."""
    busy = eager()
    made = EpollPoller(busy)
    here, there = socket.socketpair()
    with here, there:
        made.register(here, poller.READABLE)

        def late() -> None:
            there.send(b"x")
            time.sleep(2 * busy.limit)

        monkeypatch.setattr(poller.os, "sched_yield", late)
        patience = busy.patience
        with trio.fail_after(5):
            await made.wait()
        assert made.poll() == [(here.fileno(), poller.READABLE)]
        busy.missed()
        assert not busy.worthwhile, "of the two misses that new credit allows, the late one was the first"
        assert busy.patience == patience
        made.close()


@pytest.mark.feature(24)
@pytest.mark.parametrize("busy", [True, False], ids=["looking", "sleeping"])
async def test_who_sends_without_a_pause_keeps_nobody_from_his_turn(busy: bool) -> None:
    """A selector that finds the next request at each look never sleeps: other sockets, threads and deadlines must be served all the same."""
    rounds, looks = 20_000, 0
    done = threading.Event()

    class Counting(EpollPoller):
        async def _look(self) -> bool:
            nonlocal looks
            found = await super()._look()
            looks += found
            return found

    def factory() -> Poller:
        return Counting(eager()) if busy else EpollPoller()

    async with serving(poller_factory=factory) as server:
        async with await RawPeer.open(server) as other, trio.open_nursery() as nursery:
            _, frame = other.frame(ECHO, b"x" * 100)
            counts: list[int] = []

            async def pinging() -> None:
                address = ("127.0.0.1", server.port)
                counts.append(await trio.to_thread.run_sync(ping_pong, address, frame, rounds, done))

            nursery.start_soon(pinging)
            for number in range(20):
                assert (await other.call(ECHO, b"%d" % number)).body == b"%d" % number
                await trio.sleep(0.001)
                assert await trio.to_thread.run_sync(int, "7") == 7
            done.set()
    assert counts[0] < rounds
    assert busy == (looks > 0)
