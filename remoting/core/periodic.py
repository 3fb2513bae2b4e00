"""Work that a task repeats for as long as it runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio


async def every(seconds: float, work: Callable[[], Awaitable[None] | None]) -> None:
    """Pause, then call *work*, until cancelled; the pause begins when the call before has ended.

    Raises: what *work* raises.
    """
    while True:
        await trio.sleep(seconds)
        call = work()
        if call is not None:
            await call
