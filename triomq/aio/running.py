"""``triomq.aio.run``: an asyncio program that ends in order when a signal comes; its probes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, SupportsIndex, TypeVar, TypeVarTuple

from triomq import client
from triomq.aio.calls import AsyncioLifetime
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


class Probes(AsyncioLifetime[client.Probes]):
    """A ``triomq.Probes`` for asyncio, of objects of this package; see there."""

    def __init__(
        self, *clients: AsyncioLifetime[Any], port: SupportsIndex, host: str = "127.0.0.1"
    ) -> None:
        targets: list[Any] = [getattr(each, "_target", each) for each in clients]
        super().__init__(client.Probes(*targets, port=port, host=host))
