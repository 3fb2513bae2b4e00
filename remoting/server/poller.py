"""The operating system's poller: which sockets are ready now, and wait until one is.

A selector task owns one poller with all its sockets. An epoll or kqueue object has a descriptor
that is itself pollable, so Trio waits for that single descriptor however many sockets are
registered (a nested poller).
"""

import select
import selectors
import socket
import time
from functools import partial
from typing import Protocol

import trio

from triomq.remoting.core.busy_poll import BusyPoll, SpinBudget, busy_poll, can_spin

# The bits of epoll; those of other pollers are translated. Any other bit in an event mask (error,
# hang-up) means that a read will tell.
READABLE = 1
WRITABLE = 4
_EVENTS_MAX = 1024
_OTHERS_WAIT_SECONDS = 300e-6
"""how long successful spins may keep other tasks of the loop, sockets and threads waiting"""


class Poller(Protocol):
    """What a selector needs. Level-triggered: a socket that is still ready is reported again."""

    def register(self, sock: socket.socket, events: int) -> None:
        """Watch a new socket for READABLE and/or WRITABLE."""

    def modify(self, sock: socket.socket, events: int) -> None:
        """Change what a socket is watched for; 0 = nothing."""

    def unregister(self, sock: socket.socket) -> None:
        """Stop watching a socket, before it is closed."""

    def poll(self) -> list[tuple[int, int]]:
        """Return (descriptor, events) of the sockets that are ready now."""

    async def wait(self) -> None:
        """Wait until ``poll`` may return something.

        Checkpoint: always, except in a poller that spins: there at least every 0.3 ms.
        """

    def close(self) -> None:
        """Close the poller's descriptors."""


class EpollPoller:
    """Linux's poller: ``select.epoll`` itself; ``selectors`` costs 0.5 µs more per ready socket."""

    def __init__(self, budget: SpinBudget | None = None) -> None:
        self._epoll = select.epoll()
        self._budget = budget or SpinBudget(0.0)
        self._shared: BusyPoll | None = None
        self._joined = False  # spins together with the other connections of this loop
        self._others_ran = float("-inf")
        # No methods: they would cost a call in every turn, and a turn may serve a single request.
        self.poll = partial(self._epoll.poll, 0, _EVENTS_MAX)
        self._has_input = partial(self._epoll.poll, 0, 1)
        self._sleep = partial(trio.lowlevel.wait_readable, self._epoll.fileno())
        self.wait = self._sleep if budget is None else self._spin_or_sleep

    async def _spin_or_sleep(self) -> None:
        shared = self._shared
        if shared is None:
            shared = self._shared = busy_poll()
        if shared.leads != self._joined:
            self._join_or_leave(shared)
        if not self._joined and self._budget.due() and await self._spin():
            return
        await self._sleep()
        self._others_ran = time.perf_counter()

    def _join_or_leave(self, shared: BusyPoll) -> None:
        if self._joined:
            shared.unwatch(self._epoll.fileno())
            self._joined = False
        else:
            nursery = trio.lowlevel.current_task().parent_nursery
            self._joined = nursery is not None and shared.join(
                self._epoll.fileno(), nursery, self._budget.limit
            )

    async def _spin(self) -> bool:
        """Spin until a socket is ready or the budget is over; return whether a socket is ready.

        Does not spin if a task is due in the next turn of the loop, or a timer within the budget.
        Tasks of this turn that Trio runs after ours are known to Trio only: they run up to one spin
        later, and failed spins soon become rare.
        """
        budget = self._budget
        if time.perf_counter() - self._others_ran > _OTHERS_WAIT_SECONDS:
            await trio.lowlevel.checkpoint()
            self._others_ran = time.perf_counter()
        others = trio.lowlevel.current_statistics()
        if others.tasks_runnable or others.seconds_to_next_deadline < budget.seconds:
            return False
        return bool(self._has_input()) or budget.spin(self._has_input, budget.seconds)

    def register(self, sock: socket.socket, events: int) -> None:
        self._epoll.register(sock.fileno(), events)

    def modify(self, sock: socket.socket, events: int) -> None:
        self._epoll.modify(sock.fileno(), events)

    def unregister(self, sock: socket.socket) -> None:
        self._epoll.unregister(sock.fileno())

    def close(self) -> None:
        if self._joined and self._shared is not None:
            self._join_or_leave(self._shared)
        self._epoll.close()


class SelectorPoller:
    """The default selector of the standard library: kqueue, on macOS and BSD."""

    def __init__(self, selector: selectors.DefaultSelector) -> None:
        self._selector = selector
        self.wait = partial(trio.lowlevel.wait_readable, selector.fileno())

    def register(self, sock: socket.socket, events: int) -> None:
        if events:
            self._selector.register(sock, _translated(events))

    def modify(self, sock: socket.socket, events: int) -> None:
        self.unregister(sock)
        self.register(sock, events)

    def unregister(self, sock: socket.socket) -> None:
        if sock in self._selector.get_map():  # a selector does not keep sockets without events
            self._selector.unregister(sock)

    def poll(self) -> list[tuple[int, int]]:
        return [
            (
                key.fd,
                (READABLE if events & selectors.EVENT_READ else 0)
                | (WRITABLE if events & selectors.EVENT_WRITE else 0),
            )
            for key, events in self._selector.select(0)
        ]

    def close(self) -> None:
        self._selector.close()


def _translated(events: int) -> int:
    return (selectors.EVENT_READ if events & READABLE else 0) | (
        selectors.EVENT_WRITE if events & WRITABLE else 0
    )


def open_poller(spin_limit: float = 0.0) -> Poller:
    """Return the best poller of this system.

    *spin_limit*: seconds that it may spin before it sleeps, where it can; 0: not at all.
    """
    if hasattr(select, "epoll"):
        return EpollPoller(SpinBudget(spin_limit) if spin_limit and can_spin() else None)
    return SelectorPoller(selectors.DefaultSelector())
