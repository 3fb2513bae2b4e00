"""Looking for an answer instead of sleeping until it comes.

A broker that has nothing else to do answers sooner than a sleeping process is awake again: its processor goes idle, another one must
rouse it, and it finds its caches cold. So while an answer is due, a loop that is about to sleep first asks its sockets for a moment
whether it is there. Each look in vain doubles the number of sleeps that go by until the next one, so that where looking does not pay (a
broker that waits for its disk, a long poll, a processor that others use, too) it is soon very rare. What comes after the moment is over counts as in vain.

All connections of one Trio run look together, in an instrument of its loop, which is called when no task can run: no task that could work
is kept waiting. The connections of a master and its slave are among them, for senders wait at both ends. A server's selectors look by themselves, which is a turn of the loop
shorter, but then they would not see the others: while anything else is watched they join in (``EpollPoller``). What comes from elsewhere is seen a look later at the most: another thread's call, another socket, and in guest mode
whatever the host loop (asyncio) has to do, as Trio's turn is one of its callbacks.

Signal handlers of the application can run during a look, and raise. Trio would log that and take the instrument out, so it comes out of a
task of a connection that is watched, as if the signal had come while that one was working. Trio's own for Ctrl-C raises nothing here, as its loop is
protected from it: the main task gets its KeyboardInterrupt at its next checkpoint.
"""

import os
import select
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

import attrs
import trio

LOOK_SECONDS = 150e-6
"""longer than an idle broker on the same machine or beside it takes for one request, and no longer than a few wake-ups cost"""
_PASSED_MAX = 1023

_epoll = getattr(select, "epoll", None)  # Linux only
_of_this_run: trio.lowlevel.RunVar["BusyPoll"] = trio.lowlevel.RunVar("BusyPoll")


@attrs.define(eq=False)
class BusyPoll(trio.abc.Instrument):
    """`found` and `missed` count the looks that ended with and without an answer; one that was there already counts as neither."""

    look_seconds: float = LOOK_SECONDS
    found: int = attrs.field(default=0, init=False)
    missed: int = attrs.field(default=0, init=False)
    _sockets: "select.epoll | None" = attrs.field(default=None, init=False, repr=False)
    _expecting: dict[int, Callable[[], object]] = attrs.field(factory=dict, init=False, repr=False)
    _nurseries: dict[int, trio.Nursery] = attrs.field(factory=dict, init=False, repr=False)
    _joined: set[int] = attrs.field(factory=set, init=False, repr=False)
    _pass: int = attrs.field(default=0, init=False)  # so many sleeps without a look
    _price: int = attrs.field(default=0, init=False)  # what the last look in vain made of that

    @property
    def watched(self) -> int:
        """How many sockets are watched."""
        return len(self._expecting)

    @property
    def leads(self) -> bool:
        """Is anything watched but servers' pollers?"""
        return len(self._expecting) > len(self._joined)

    def join(self, descriptor: int, nursery: trio.Nursery, look_seconds: float) -> bool:
        """Watch a server's poller as well: its clients may always say something. From now on looks take so long. `unwatch` ends it. No checkpoint."""
        if not self.watch(descriptor, _always, nursery):
            return False
        self.look_seconds = look_seconds
        self._joined.add(descriptor)
        return True

    def watch(self, descriptor: int, expecting: Callable[[], object], nursery: trio.Nursery) -> bool:
        """Look for input of a socket whenever `expecting()` is true. False where that cannot be; then it just is not done. No checkpoint.

        What a signal handler raises during a look may come out of *nursery*, which must be open until `unwatch`.
        """
        # On one processor the other side cannot work while we look.
        if _epoll is None or len(os.sched_getaffinity(0)) < 2:
            return False
        try:
            if self._sockets is None:
                self._sockets = _epoll()
                trio.lowlevel.add_instrument(self)
            self._sockets.register(descriptor, select.EPOLLIN)
        except OSError:  # no descriptor of the system's, or it has none left
            self._rest()
            return False
        self._expecting[descriptor] = expecting
        self._nurseries[descriptor] = nursery
        return True

    def unwatch(self, descriptor: int) -> None:
        """Forget a watched socket, before it is closed. No checkpoint."""
        assert self._sockets is not None
        del self._expecting[descriptor], self._nurseries[descriptor]
        self._joined.discard(descriptor)
        self._sockets.unregister(descriptor)
        self._rest()

    def _rest(self) -> None:
        """Leave the loop alone if there is nothing to watch."""
        if not self._expecting and self._sockets is not None:
            with suppress(KeyError):  # Trio has taken it out: a signal handler raised just before or after our own code
                trio.lowlevel.remove_instrument(self)
            self._sockets.close()
            self._sockets = None

    def before_io_wait(self, timeout: float) -> None:
        """Trio's: the loop is about to sleep for so long; 0 if it will not."""
        if timeout <= 0:
            return
        if self._pass:
            self._pass -= 1
            return
        try:
            for expects in self._expecting.values():
                if expects():
                    self._look(min(timeout, self.look_seconds))
                    return
        except BaseException as error:  # a signal handler's
            trio.lowlevel.current_trio_token().run_sync_soon(self._crash, error)

    def _crash(self, error: BaseException) -> None:
        for nursery in self._nurseries.values():
            with suppress(RuntimeError):  # it has just ended
                nursery.start_soon(_raise, error, name="signal handler")
                return
        raise error  # nobody else can: Trio ends the run with it

    def _look(self, seconds: float) -> None:
        assert self._sockets is not None
        poll = self._sockets.poll
        if poll(0, 1):
            return
        until = time.perf_counter() + seconds
        while True:
            os.sched_yield()  # the other side may have to work on this processor
            late = time.perf_counter() >= until  # somebody else may: a sleeping task would have had it back sooner
            there = poll(0, 1)
            if late:
                break
            if there:
                self.found += 1
                self._price //= 2
                return
        self.missed += 1
        self._pass = self._price = min(2 * self._price + 1, _PASSED_MAX)


def _always() -> bool:
    return True


async def _raise(error: BaseException) -> NoReturn:
    raise error


def busy_poll() -> BusyPoll:
    """The one of this Trio run."""
    try:
        return _of_this_run.get()
    except LookupError:
        made = BusyPoll()
        _of_this_run.set(made)
        return made
