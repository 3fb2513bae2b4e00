"""``triomq.aio.run``: an asyncio program that ends in order when a signal comes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar, TypeVarTuple

from triomq.client.runner.stop_signals import StopSignals

R = TypeVar("R")
Args = TypeVarTuple("Args")


def run(main: Callable[[*Args], Awaitable[R]], *args: *Args) -> R | None:
    """Run ``await main(*args)`` as ``asyncio.run`` does; SIGTERM and Ctrl-C cancel it.

    See ``triomq.run``.
    """
    with StopSignals() as signals:
        return asyncio.run(_main(signals, main, args))


async def _main(
    signals: StopSignals, main: Callable[[*Args], Awaitable[R]], args: tuple[*Args]
) -> R | None:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    signals.on_stop(lambda: loop.call_soon_threadsafe(task.cancel))
    try:
        return await main(*args)
    except asyncio.CancelledError:
        if signals.received is None:
            raise
        return None
