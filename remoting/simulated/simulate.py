"""Run a whole cluster in one Trio loop above a simulated system; one seed decides everything.

::

    def test_orders_survive_a_cut() -> None:
        simulate(7, orders)                      # the same seed, the same run, to the last byte

    async def orders(simulation: Simulation) -> None:
        broker, shop = simulation.machine("broker"), simulation.machine("shop")
        broker.start(nursery, serve)             # its tasks have the machine's address and clock
        ...
        simulation.network.cut("shop", "broker") # one way: packets of the shop no longer arrive
        broker.pause()                           # as SIGSTOP does, until broker.go_on()

Replaced are the calls by which Python reaches the system (``_replaced`` lists them, ADR 4 has the
reasons). ``trio.to_thread.run_sync`` runs in place, after a delay; there is one CPU, because a busy
poll would see no time pass. A call that is not replaced does not leave the simulation: a real
descriptor or thread raises ``RealWorld``. Disks are not replaced; a store takes one of its own
(``Disk``).

Time stands still while any task can run, and jumps when none can. A seed does not decide the order
of sets: start Python with ``PYTHONHASHSEED=0`` to compare runs of different processes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

import attrs
import trio
import trio.testing

from triomq.remoting.simulated.descriptors import RealWorld, SimulatedPoller
from triomq.remoting.simulated.network import Machine, SimulatedNetwork
from triomq.remoting.simulated.sockets import SimulatedSocket

__all__ = ["Machine", "RealWorld", "Simulation", "Trace", "simulate"]

T = TypeVar("T")

EPOCH_NS = 1_700_000_000_000_000_000
"""Wall time of every machine when a simulation begins."""
_PID = 4711
_TURNS_PER_POLL = 256
_machine: ContextVar[Machine] = ContextVar("machine")


class Trace:
    """The history of a run: lines for *tell*, and a digest that is equal for equal histories."""

    def __init__(self, tell: Callable[[str], object] | None = None) -> None:
        self._hash = hashlib.blake2b(digest_size=8)
        self._tell = tell
        self.count = 0

    def note(self, text: str) -> None:
        """Add an event, with the time. Checkpoint: never."""
        line = f"{trio.current_time():12.6f} {text}"
        self.count += 1
        self._hash.update(line.encode())
        if self._tell is not None:
            self._tell(line)

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits."""
        return self._hash.hexdigest()


@attrs.define(eq=False)
class Simulation:
    """Passed to the program: machines, their network, and the source of all random numbers."""

    seed: int
    random: random.Random
    network: SimulatedNetwork = attrs.field(repr=False)
    trace: Trace
    device_seconds: tuple[float, float] = (0.0001, 0.003)
    """Shortest and longest duration of a call in a thread."""
    _thread: int = attrs.field(factory=threading.get_ident, init=False)

    def machine(self, name: str) -> Machine:
        """Switch a machine on; it has the address and clock of an earlier one of that name."""
        return self.network.machine(name)

    def now_ns(self) -> int:
        """Return the wall clock of the calling machine, in nanoseconds since 1970.

        Other threads, which an earlier test may have left, belong to no machine.
        """
        if threading.get_ident() != self._thread:
            return time.clock_gettime_ns(time.CLOCK_REALTIME)  # not replaced
        return EPOCH_NS + int(trio.current_time() * 1e9) + self.network.asking().clock_offset_ns

    async def run_sync(
        self,
        call: Callable[..., object],
        *arguments: object,
        abandon_on_cancel: bool = False,
        limiter: trio.CapacityLimiter | None = None,
        **_: object,
    ) -> Any:
        """Run the call in one step, at the beginning or the end of a simulated duration."""
        async with limiter if limiter is not None else contextlib.AsyncExitStack():
            await trio.lowlevel.checkpoint_if_cancelled()
            seconds = self.random.uniform(*self.device_seconds)
            late = self.random.random() < 0.8
            # A thread that runs is not cancelled.
            with trio.CancelScope(shield=not abandon_on_cancel):
                if late:
                    await trio.sleep(seconds)
                try:
                    return call(*arguments)
                finally:
                    if not late:
                        await trio.sleep(seconds)


class _TrioIo:
    """Stands in for Trio's own, for simulated descriptors only."""

    def __init__(self, real: Any, network: SimulatedNetwork, known: object) -> None:
        self._real, self._network, self._known = real, network, known
        self._turns = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)

    def get_events(self, timeout: float) -> object:
        """Return the real events, of signals and threads; seldom, as asking costs a task's step."""
        self._turns += 1
        return (
            self._real.get_events(timeout)
            if timeout > 0 or self._turns % _TURNS_PER_POLL == 0
            else ()
        )

    async def wait_readable(self, file: object) -> None:
        if file is self._known:  # how other threads and signals wake Trio
            await self._real.wait_readable(file)
        else:
            await self._network.descriptors.file(file).wait_readable()

    async def wait_writable(self, file: object) -> None:
        await self._network.descriptors.file(file).wait_writable()

    def notify_closing(self, file: object) -> None:
        self._network.descriptors.file(file).notify_closing()


class _ReadyTasks(deque[trio.lowlevel.Task]):
    """Trio's queue of runnable tasks, without the tasks of paused machines."""

    def append(self, task: trio.lowlevel.Task) -> None:
        machine = task.context.get(_machine)
        if machine is not None and machine.paused:
            machine.waiting.append(task)
        else:
            super().append(task)


def simulate(
    seed: int,
    main: Callable[[Simulation], Awaitable[T]],
    *,
    tell: Callable[[str], object] | None = None,
) -> T:
    """Run *main* in a world that *seed* decides; *tell* gets each line of the trace.

    Returns: what *main* returns. Raises: what *main* raises.
    """

    async def run() -> T:
        trace = Trace(tell)
        choose = random.Random(seed)
        network = SimulatedNetwork(random.Random(choose.getrandbits(64)), _machine, trace.note)
        simulation = Simulation(seed, choose, network, trace)
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(network.run, name="simulated-network")
            try:
                with _replaced(simulation):
                    result = await main(simulation)
            except Exception as error:  # kept, and raised below without a group around it
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return result

    with _seeded(seed):
        return trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed Trio's order of tasks and the global random numbers for the block."""
    run: Any = trio._core._run
    state, order, allowed = (
        random.getstate(),
        run._r.getstate(),
        run._ALLOW_DETERMINISTIC_SCHEDULING,
    )
    run._ALLOW_DETERMINISTIC_SCHEDULING = True
    run._r.seed(seed)
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(state)
        run._r.setstate(order)
        run._ALLOW_DETERMINISTIC_SCHEDULING = allowed


@contextlib.contextmanager
def _replaced(simulation: Simulation) -> Iterator[None]:
    """Replace the calls that reach the system for the block."""
    network = simulation.network

    def nanoseconds() -> int:
        return int(trio.current_time() * 1e9)

    def no_thread(*_: object) -> None:
        raise RealWorld(
            "a thread was started inside a simulation: use trio.to_thread.run_sync, or give the"
            " code a seam"
        )

    class Socket(SimulatedSocket):
        """``socket.socket``, as a type: Trio checks for it."""

        def __init__(
            self,
            family: int = -1,
            type: int = -1,  # noqa: A002
            proto: int = -1,
            fileno: int | None = None,
        ) -> None:
            super().__init__(network, family, type, fileno)

    class Epoll(SimulatedPoller):
        """``select.epoll``."""

        def __init__(self) -> None:
            super().__init__(network.descriptors)

    wrapped: Any = trio._socket._SocketType
    original = wrapped._nonblocking_helper

    async def nonblocking(
        sock: object, wait: object, call: Any, *arguments: object, **named: object
    ) -> object:
        """Call our method of the same name: Trio has kept the methods of the real class."""
        return await original(sock, wait, getattr(Socket, call.__name__), *arguments, **named)

    runner: Any = trio._core._run.GLOBAL_RUN_CONTEXT.runner
    manager = _TrioIo(runner.io_manager, network, runner.entry_queue.wakeup.wakeup_sock)
    queue = runner.runq
    runner.runq = _ReadyTasks(queue)
    queue.clear()
    network.ready = runner.runq.append
    replacements: list[tuple[object, str, object]] = [
        (socket, "socket", Socket),
        (wrapped, "_nonblocking_helper", nonblocking),
        (select, "epoll", Epoll),
        (runner, "io_manager", manager),
        (trio.to_thread, "run_sync", simulation.run_sync),
        (threading.Thread, "start", no_thread),
        (os, "getpid", lambda: _PID),
        (os, "sched_getaffinity", lambda _pid: {0}),
        (os, "urandom", random.Random(f"urandom {simulation.seed}").randbytes),
        (time, "time_ns", simulation.now_ns),
        (time, "time", lambda: simulation.now_ns() / 1e9),
        (time, "monotonic", trio.current_time),
        (time, "perf_counter", trio.current_time),
        (time, "monotonic_ns", nanoseconds),
        (time, "perf_counter_ns", nanoseconds),
    ]
    originals = [(owner, name, getattr(owner, name, None)) for owner, name, _ in replacements]
    for owner, name, value in replacements:
        setattr(owner, name, value)
    try:
        yield
    finally:
        queue.extend(runner.runq)
        runner.runq = queue
        for owner, name, value in originals:
            if value is None:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
