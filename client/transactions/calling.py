"""Call a function of the application that may be async or plain, from Trio."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import trio


def is_async(function: object) -> bool:
    """Return whether a function, or an object's ``__call__``, is an ``async def``."""
    call = getattr(function, "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


async def called(
    function: Callable[..., object],
    *arguments: object,
    threads: trio.CapacityLimiter | None = None,
    abandon: bool = False,
) -> object:
    """Return what the function returns; a plain one runs in a worker thread, since it may block.

    ``abandon``: whether a cancelled call leaves its thread alone instead of waiting for it.

    Checkpoint: always.
    """
    if is_async(function):
        outcome = function(*arguments)
    else:
        outcome = await trio.to_thread.run_sync(
            function, *arguments, limiter=threads, abandon_on_cancel=abandon
        )
    return await outcome if inspect.isawaitable(outcome) else outcome
