"""Background tasks behind an `async with`, without exception groups that nobody asked for.

A nursery wraps every error that passes through it into a group, the application's own as well.  Users of a producer do not know that there
is a nursery; so a group with a single error is taken off again, one layer for each nursery of ours.  Several errors at once stay a group.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def open_background() -> AsyncIterator[trio.Nursery]:
    """Open a nursery for background tasks; they are cancelled when the body ends.

    A crash of a task cancels the body and comes out of the `async with`; so does an error of the body, in both cases plain if it is the
    only one.
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
