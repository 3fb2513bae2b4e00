"""``run``: a Trio program that ends in order when a signal comes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar, TypeVarTuple

import trio

from triomq.client.runner.stop_signals import StopSignals

R = TypeVar("R")
Args = TypeVarTuple("Args")


def run(main: Callable[[*Args], Awaitable[R]], *args: *Args) -> R | None:
    """Run ``await main(*args)`` as ``trio.run`` does; SIGTERM and Ctrl-C cancel it.

        async def main() -> None:
            async with triomq.PushConsumer("ns1:9876", group="billing", ...):
                await trio.sleep_forever()

        triomq.run(main)

    The blocks of producers and consumers then end in order: nothing more is pulled, running
    handlers end within ``shutdown_timeout``, what is finished is stored, what was not handled comes
    again at once, and members leave their groups. A second signal ends the process at once.

    Returns: the result of ``main``; None after SIGTERM, so that the exit code is 0.
    Raises: the errors of ``main``; ``SystemExit`` with 130 after Ctrl-C; ``NotRunning`` outside the
    main thread.
    """
    with StopSignals() as signals:
        return trio.run(_main, signals, main, args)


async def _main(
    signals: StopSignals, main: Callable[[*Args], Awaitable[R]], args: tuple[*Args]
) -> R | None:
    token = trio.lowlevel.current_trio_token()
    with trio.CancelScope() as scope:
        signals.on_stop(lambda: token.run_sync_soon(scope.cancel))
        return await main(*args)
    return None
