"""`simulate` for programs with brokers in them: the simulation of `triomq.remoting.testing`, in which a store's disk thread works in place, too, and the kernel's
queue for fsyncs is not there.

`triomq.testing` is the public door.  Disks are real files unless a broker is given another `Disk`; what lies on them survives a simulated crash as it
survives that of a process.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, TypeVar

import trio

from triomq.broker.store import durability
from triomq.broker.store.disk import Disk
from triomq.remoting import testing
from triomq.remoting.testing import Simulation as Simulation

T = TypeVar("T")


class DiskInPlace:
    """`DiskThread` without a thread."""

    async def __aenter__(self) -> DiskInPlace:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    async def run(self, call: Callable[[], None]) -> None:
        """Call it, after or before the time that it takes."""
        await trio.to_thread.run_sync(call)


def simulate(
    seed: int, main: Callable[[Simulation], Awaitable[T]], *, tell: Callable[[str], object] | None = None
) -> T:
    """Run `main(simulation)` in a loop of its own, in a world that `seed` decides, and return what it returns.

    `tell` is called with each line of the trace: what was sent from where to where, and every fault.
    """
    module: Any = durability
    disk: Any = Disk
    thread, open_queue = module.DiskThread, disk.open_sync_queue
    module.DiskThread = DiskInPlace
    disk.open_sync_queue = lambda disk: None  # the kernel would answer in its own time, through a real descriptor
    try:
        return testing.simulate(seed, main, tell=tell)
    finally:
        module.DiskThread, disk.open_sync_queue = thread, open_queue
