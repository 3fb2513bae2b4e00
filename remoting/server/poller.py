"""The seam to the operating system's poller: which sockets are ready now, and wait until one is.

A selector task owns one poller with all its sockets. An epoll or kqueue object has a descriptor that is itself pollable, so
Trio waits for that single descriptor however many sockets lie behind it (a nested poller). A poller without such a descriptor
(`select`, `poll`, or a system where nesting does not work: tried out at start) waits in a thread instead; it is slower, and it
serves the same way.
"""

import os
import select
import selectors
import socket
import time
from functools import partial
from typing import Protocol

import trio

from triomq.remoting.busy_poll import BusyPoll, busy_poll
from triomq.remoting.server.busy_polling import BusyPolling

# The bits of epoll; other pollers are translated. Anything else in an event mask (error, hang-up) means: read, and see.
READABLE = 1
WRITABLE = 4
_EVENTS_MAX = 1024


class Poller(Protocol):
    """What a selector needs. Level-triggered: what is not read or written shows up again."""

    def register(self, sock: socket.socket, events: int) -> None:
        """Watch a new socket for READABLE and/or WRITABLE."""

    def modify(self, sock: socket.socket, events: int) -> None:
        """Change what a socket is watched for; 0 = nothing."""

    def unregister(self, sock: socket.socket) -> None:
        """Forget a socket, before it is closed."""

    def poll(self) -> list[tuple[int, int]]:
        """(descriptor, events) of the sockets that are ready now."""

    async def wait(self) -> None:
        """Return when `poll` may have something. Checkpoint: yes, but for a poller that looks for a moment before it sleeps: that one
        lets a short while pass between two (`BusyPolling.turn`).
        """

    def close(self) -> None:
        """Give the descriptors back."""


class EpollPoller:
    """Linux. `select.epoll` without the wrapping of `selectors`, which costs 0.5 µs more for every ready socket."""

    __slots__ = ("_busy", "_epoll", "_joined", "_sleep", "_something", "_together", "poll", "wait")

    def __init__(self, busy: BusyPolling | None = None) -> None:
        self._epoll = select.epoll()
        self._busy = busy or BusyPolling(0.0)
        self._together: BusyPoll | None = None
        self._joined = False  # looks together with all others of this loop
        # No methods: a call less for every turn, and a turn may serve a single request.
        self.poll = partial(self._epoll.poll, 0, _EVENTS_MAX)
        self._something = partial(self._epoll.poll, 0, 1)
        self._sleep = partial(trio.lowlevel.wait_readable, self._epoll.fileno())
        self.wait = self._sleep if busy is None else self._wait_awake

    async def _wait_awake(self) -> None:
        busy, together = self._busy, self._together
        if together is None:
            together = self._together = busy_poll()
        if together.leads != self._joined:
            self._join_or_leave(together)
        if self._joined:
            await self._sleep()
            return
        if busy.worthwhile and await self._look():
            return
        begun = time.perf_counter()
        await self._sleep()
        now = time.perf_counter()
        busy.turned(now)
        busy.slept(now - begun)

    def _join_or_leave(self, together: BusyPoll) -> None:
        if self._joined:
            together.unwatch(self._epoll.fileno())
            self._joined = False
        else:
            nursery = trio.lowlevel.current_task().parent_nursery
            self._joined = nursery is not None and together.join(self._epoll.fileno(), nursery, self._busy.limit)

    async def _look(self) -> bool:
        """Ask again and again for the moment that `BusyPolling` allows: is a socket ready?

        Not if a task is due in the next turn of the loop, or a timer within the moment. Tasks of this turn that come after ours are not known
        to anybody but the loop: they run `limit` later at the most, and looks in vain soon become rare.
        """
        busy, something = self._busy, self._something
        begun = time.perf_counter()
        if busy.turn_due(begun):
            await trio.lowlevel.checkpoint()
            begun = time.perf_counter()
            busy.turned(begun)
        others = trio.lowlevel.current_statistics()
        if others.tasks_runnable or others.seconds_to_next_deadline < busy.patience:
            return False
        looked = 0.0
        there = something()
        while not there:
            os.sched_yield()  # whoever else wants this processor gets it
            there = something()
            looked = time.perf_counter() - begun
            if looked > busy.patience:  # also if it is there now: who sleeps has his processor back sooner than who yields it
                busy.missed()
                return bool(there)
        busy.found(looked)
        return True

    def register(self, sock: socket.socket, events: int) -> None:
        self._epoll.register(sock.fileno(), events)

    def modify(self, sock: socket.socket, events: int) -> None:
        self._epoll.modify(sock.fileno(), events)

    def unregister(self, sock: socket.socket) -> None:
        self._epoll.unregister(sock.fileno())

    def close(self) -> None:
        if self._joined and self._together is not None:
            self._join_or_leave(self._together)
        self._epoll.close()


class SelectorPoller:
    """Any selector of the standard library: nested if it can be, else waiting in a thread (*nested* says which)."""

    __slots__ = ("_limiter", "_selector", "_waker", "_waking", "nested")

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._limiter = trio.CapacityLimiter(1)  # own one: a waiting selector must not take a thread from disk reads
        self._waker, self._waking = socket.socketpair()
        self._waker.setblocking(False)
        self._waking.setblocking(False)
        self._selector.register(self._waker, selectors.EVENT_READ)
        self.nested = self._nests()

    def _nests(self) -> bool:
        """Try it out: does our own descriptor become readable when a socket inside does?"""
        fileno = getattr(self._selector, "fileno", None)
        if fileno is None:
            return False
        self._wake()
        with selectors.DefaultSelector() as outer:
            outer.register(fileno(), selectors.EVENT_READ)
            seen = bool(outer.select(0))
        self._drain()
        return seen

    def register(self, sock: socket.socket, events: int) -> None:
        if events:
            self._selector.register(sock, _translated(events))
        self._changed()

    def modify(self, sock: socket.socket, events: int) -> None:
        known = sock in self._selector.get_map()
        if events and known:
            self._selector.modify(sock, _translated(events))
        elif events:
            self._selector.register(sock, _translated(events))
        elif known:
            self._selector.unregister(sock)
        self._changed()

    def unregister(self, sock: socket.socket) -> None:
        if sock in self._selector.get_map():
            self._selector.unregister(sock)
        self._changed()

    def poll(self) -> list[tuple[int, int]]:
        ready: list[tuple[int, int]] = []
        for key, events in self._selector.select(0):
            if key.fileobj is self._waker:
                self._drain()
            else:
                ready.append(
                    (
                        key.fd,
                        (READABLE if events & selectors.EVENT_READ else 0)
                        | (WRITABLE if events & selectors.EVENT_WRITE else 0),
                    )
                )
        return ready

    async def wait(self) -> None:
        if self.nested:
            fd: int = self._selector.fileno()  # type: ignore[attr-defined]
            await trio.lowlevel.wait_readable(fd)
            return
        try:
            await trio.to_thread.run_sync(self._select_blocking, abandon_on_cancel=True, limiter=self._limiter)
        except trio.Cancelled:
            self._wake()  # the abandoned thread must not stay in select() for ever
            raise

    def _select_blocking(self) -> None:
        """In a thread: wait only; the loop asks again which sockets are ready."""
        try:
            self._selector.select()
        except (OSError, ValueError):
            return  # a socket was closed between two system calls: the loop's own poll() sees the new set

    def _changed(self) -> None:
        if not self.nested:
            self._wake()

    def _wake(self) -> None:
        try:
            self._waking.send(b"\0")
        except OSError:
            return  # full: it is awake already; closed: nobody sleeps

    def _drain(self) -> None:
        try:
            while self._waker.recv(4096):
                pass
        except BlockingIOError:
            return

    def close(self) -> None:
        self._wake()
        self._selector.close()
        self._waker.close()
        self._waking.close()


def _translated(events: int) -> int:
    return (selectors.EVENT_READ if events & READABLE else 0) | (selectors.EVENT_WRITE if events & WRITABLE else 0)


def open_poller(busy_seconds: float = 0.0) -> Poller:
    """The best poller of this system. Where it can, and where more than one processor is ours, it looks for so long before it sleeps."""
    if hasattr(select, "epoll"):
        return EpollPoller(BusyPolling(busy_seconds) if busy_seconds and len(os.sched_getaffinity(0)) > 1 else None)
    return SelectorPoller(selectors.DefaultSelector())
