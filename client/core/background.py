"""Background tasks behind an ``async with``, without exception groups that users do not expect.

A nursery wraps every error that passes through it, the application's own included, in a group.
Users do not see the SDK's nurseries, so a group with a single error is unwrapped again. Several
errors at once stay a group.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def open_background() -> AsyncIterator[trio.Nursery]:
    """Open a nursery for background tasks, which are cancelled when the body ends.

    A crash of a task cancels the body. A single error leaves the ``async with`` without a group.

    Checkpoint: always, at the end.
    """
    try:
        async with trio.open_nursery() as nursery:
            yield nursery
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        if len(group.exceptions) != 1:
            raise
        sole = group.exceptions[0]
    else:
        return
    raise sole


def sole_error(group: BaseException) -> BaseException:
    """Return the single error inside nested groups; otherwise the innermost group with several."""
    error = group
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
