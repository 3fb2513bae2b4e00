"""``simulate`` for programs with brokers in them.

It is the simulation of ``triomq.remoting``, without the kernel's queue for fsyncs.
``triomq.testing`` is its public interface. Disks are real files unless a broker is given another
``Disk``; files survive a simulated crash as they survive the crash of a process.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from triomq.broker.store.io.disk import Disk
from triomq.remoting.simulated import simulate as remoting_simulation
from triomq.remoting.simulated.simulate import Simulation as Simulation

T = TypeVar("T")


def simulate(
    seed: int,
    main: Callable[[Simulation], Awaitable[T]],
    *,
    tell: Callable[[str], object] | None = None,
) -> T:
    """Run ``main(simulation)`` in a loop of its own, in the world of ``seed``; return its result.

    ``tell`` gets each line of the trace: every message with its two ends, and every fault.
    """
    disk: Any = Disk
    open_queue = disk.open_sync_queue
    # The kernel's queue would answer in real time, through a real descriptor.
    disk.open_sync_queue = lambda disk: None
    try:
        return remoting_simulation.simulate(seed, main, tell=tell)
    finally:
        disk.open_sync_queue = open_queue
