"""How a benchmark ends early: Ctrl-C and SIGTERM stop the load, and its summary is printed."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import attrs
import trio

from triomq.client.core.background import open_background

TELL_SECONDS = 1.0
"""between two lines about the progress"""


@attrs.define(eq=False)
class EarlyEnd:
    """Tells a run to stop: set by a signal, or when the run has all its messages."""

    stop: trio.Event = attrs.field(factory=trio.Event)
    interrupted: bool = False


@asynccontextmanager
async def load_phase(tell: Callable[[], object]) -> AsyncIterator[EarlyEnd]:
    """Watch for signals and call ``tell`` every second, for the length of the block.

    After the block signals have their usual effect again, so that a second Ctrl-C ends a clean-up.
    """
    end = EarlyEnd()

    async def watch(*, task_status: trio.TaskStatus[None]) -> None:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for _ in signals:
                end.interrupted = True
                end.stop.set()

    async def tell_progress() -> None:
        while True:
            await trio.sleep(TELL_SECONDS)
            tell()

    async with open_background() as nursery:
        await nursery.start(watch)
        nursery.start_soon(tell_progress, name="progress of the benchmark")
        yield end
