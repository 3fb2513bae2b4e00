"""What the blocking objects have in common: starting and stopping the loop behind them, and a look at its state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import trio

from triomq.client.portal import Portal

R = TypeVar("R")


async def in_loop(function: Callable[[], R]) -> R:
    """Run a function in the loop's thread, where the consumer's state may be looked at."""
    await trio.lowlevel.checkpoint()
    return function()


def start_portal(portal: Portal[Any]) -> None:
    entered = portal.start()
    try:
        entered.result()
    except BaseException:  # interrupted: nobody would ever stop what has begun
        portal.stop()
        raise


def stop_portal(portal: Portal[Any], error: BaseException | None) -> None:
    left = portal.stop(body_failed=error is not None)
    try:
        left.result()
    finally:
        portal.join()
