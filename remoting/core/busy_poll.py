"""Busy polling: ask sockets for a bounded time before the loop sleeps. ADR 7 has the reasons.

``SpinBudget`` decides when and for how long. A server's selector spins in its own task. Connections
of clients, and of a master and its slave, share one ``BusyPoll`` for each Trio run: an instrument
of the loop, called when no task can run, so a spin keeps no runnable task waiting. While any of
them is watched, selectors join the shared spin (``EpollPoller``). Input of other kinds is seen up
to one spin later: calls of other threads, other sockets and, in guest mode, all work of the host
loop (asyncio), because Trio's turn is one of its callbacks.

Signal handlers of the application can run during a spin, and raise. Trio would log that exception
and remove the instrument, so it is raised in the nursery of a watched connection instead, as if the
signal had come while that connection was working. Trio's own handler of Ctrl-C raises nothing here.
"""

import os
import select
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NoReturn

import attrs
import trio

SPIN_SECONDS = 150e-6
"""longer than an idle broker on the same machine takes for one request, no longer than a few
wake-ups cost
"""
_SKIP_MAX = 1023
_SPIN_SHARE_MIN = 1 / 8  # of the limit

_epoll = getattr(select, "epoll", None)  # Linux only
_of_this_run: trio.lowlevel.RunVar["BusyPoll"] = trio.lowlevel.RunVar("BusyPoll")


def can_spin() -> bool:
    """Return whether this process has a second CPU: on one, the peer cannot work during a spin."""
    return len(os.sched_getaffinity(0)) > 1


@attrs.define(eq=False)
class SpinBudget:
    """Decides when to spin and for how long.

    Each failed spin doubles the number of idle waits before the next spin, each successful spin
    halves the number that the next failure starts from. ``limit`` caps one spin, in seconds;
    ``seconds`` is the next spin's length: twice the smoothed duration of successful spins.
    """

    limit: float = SPIN_SECONDS
    seconds: float = attrs.field(init=False)
    found: int = attrs.field(default=0, init=False)
    """spins that ended with input"""
    missed: int = attrs.field(default=0, init=False)
    """spins that ended without"""
    _usual: float = attrs.field(init=False)
    _back_off: int = attrs.field(default=0, init=False)  # idle waits that a failed spin cost
    _skip: int = attrs.field(default=0, init=False)  # idle waits until the next spin

    def __attrs_post_init__(self) -> None:
        self.seconds, self._usual = self.limit, self.limit / 2

    def due(self) -> bool:
        """Return whether to spin before this idle wait; called once for each idle wait."""
        if self._skip:
            self._skip -= 1
            return False
        return self.limit > 0

    def spin(self, has_input: Callable[[], object], seconds: float) -> bool:
        """Ask ``has_input`` until it returns something true, for up to *seconds*.

        Returns: whether there is input. Checkpoint: never.
        """
        begun = time.perf_counter()
        while True:
            os.sched_yield()  # the peer may need this CPU
            there = has_input()
            spent = time.perf_counter() - begun
            if spent > seconds:
                # Also if there is input now: another process had the CPU, and past the budget a
                # sleeping task regains it sooner than one that yields.
                self._note_missed()
                return bool(there)
            if there:
                self._note_found(spent)
                return True

    def _note_found(self, spent: float) -> None:
        self.found += 1
        self._back_off //= 2
        self._usual += (spent - self._usual) / 8
        self.seconds = min(max(2 * self._usual, _SPIN_SHARE_MIN * self.limit), self.limit)

    def _note_missed(self) -> None:
        self.missed += 1
        self._skip = self._back_off = min(2 * self._back_off + 1, _SKIP_MAX)
        self.seconds = min(2 * self.seconds, self.limit)  # the spin may have been too short


@attrs.define(eq=False)
class BusyPoll(trio.abc.Instrument):
    """The spin that all watched sockets of one Trio run share."""

    budget: SpinBudget = attrs.field(factory=SpinBudget)
    _sockets: "select.epoll | None" = attrs.field(default=None, init=False, repr=False)
    _expecting: dict[int, Callable[[], object]] = attrs.field(factory=dict, init=False, repr=False)
    _nurseries: dict[int, trio.Nursery] = attrs.field(factory=dict, init=False, repr=False)
    _joined: set[int] = attrs.field(factory=set, init=False, repr=False)

    @property
    def watched(self) -> int:
        """How many sockets are watched."""
        return len(self._expecting)

    @property
    def leads(self) -> bool:
        """Whether anything but servers' pollers is watched."""
        return len(self._expecting) > len(self._joined)

    def join(self, descriptor: int, nursery: trio.Nursery, limit: float) -> bool:
        """Watch a server's poller as well, until ``unwatch``: its clients may send at any time.

        *limit*, in seconds, caps all spins from now on. Checkpoint: never.
        """
        if not self.watch(descriptor, lambda: True, nursery):
            return False
        self.budget.limit = self.budget.seconds = limit
        self._joined.add(descriptor)
        return True

    def watch(
        self, descriptor: int, expecting: Callable[[], object], nursery: trio.Nursery
    ) -> bool:
        """Spin for input of a socket whenever ``expecting()`` is true.

        What a signal handler raises during a spin may be raised in *nursery*, which must be open
        until ``unwatch``.

        Returns: False if this system or process cannot spin; then the socket is not watched.
        Checkpoint: never.
        """
        if _epoll is None or not can_spin():
            return False
        try:
            if self._sockets is None:
                self._sockets = _epoll()
                trio.lowlevel.add_instrument(self)
            self._sockets.register(descriptor, select.EPOLLIN)
        except OSError:  # the descriptor is not the system's, or no descriptor is left for epoll
            self._stop_if_unused()
            return False
        self._expecting[descriptor] = expecting
        self._nurseries[descriptor] = nursery
        return True

    def unwatch(self, descriptor: int) -> None:
        """Stop watching a socket, before it is closed. Checkpoint: never."""
        assert self._sockets is not None
        del self._expecting[descriptor], self._nurseries[descriptor]
        self._joined.discard(descriptor)
        self._sockets.unregister(descriptor)
        self._stop_if_unused()

    def _stop_if_unused(self) -> None:
        if not self._expecting and self._sockets is not None:
            # KeyError: Trio has removed the instrument, because a signal handler raised just before
            # or after our own code.
            with suppress(KeyError):
                trio.lowlevel.remove_instrument(self)
            self._sockets.close()
            self._sockets = None

    def before_io_wait(self, timeout: float) -> None:
        """Spin if the loop would sleep (*timeout* > 0, in seconds) and a socket expects input."""
        if timeout <= 0 or not self.budget.due():
            return
        try:
            for expects in self._expecting.values():
                if expects():
                    assert self._sockets is not None
                    has_input = partial(self._sockets.poll, 0, 1)
                    # Input from before the spin is no measure of its success.
                    if not has_input():
                        self.budget.spin(has_input, min(timeout, self.budget.seconds))
                    return
        except BaseException as error:  # a signal handler's
            trio.lowlevel.current_trio_token().run_sync_soon(self._crash, error)

    def _crash(self, error: BaseException) -> None:
        for nursery in self._nurseries.values():
            with suppress(RuntimeError):  # the nursery has just closed
                nursery.start_soon(_raise, error, name="signal handler")
                return
        raise error  # no connection is left: Trio ends the run with it


async def _raise(error: BaseException) -> NoReturn:
    raise error


def busy_poll() -> BusyPoll:
    """Return the ``BusyPoll`` of this Trio run."""
    try:
        return _of_this_run.get()
    except LookupError:
        made = BusyPoll()
        _of_this_run.set(made)
        return made
