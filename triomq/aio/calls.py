"""From an asyncio loop into an object's Trio loop and back: calls, their cancellation, starting and stopping."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar

import trio

from triomq.client.portal import CallCancelled, Portal

P = ParamSpec("P")
R = TypeVar("R")


async def call_in_loop(portal: Portal[Any], function: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run an async function in the portal's loop; cancelling this call cancels it there."""
    call = portal.submit(function, *args, **kwargs)
    waiting = asyncio.wrap_future(call.future)
    try:
        return await asyncio.shield(waiting)
    except asyncio.CancelledError:
        call.cancel()
        try:
            await waiting
        except CallCancelled:
            raise asyncio.CancelledError from None
        raise


async def in_loop(function: Callable[[], R]) -> R:
    """Run a function in the portal's loop, where the consumer's state may be touched."""
    await trio.lowlevel.checkpoint()
    return function()


async def start_portal(portal: Portal[Any]) -> None:
    entered = asyncio.wrap_future(portal.start())
    try:
        await asyncio.shield(entered)
    except asyncio.CancelledError:  # nobody would ever stop what has begun
        portal.stop()
        entered.add_done_callback(lambda future: future.exception())  # whatever became of it, nobody waits for it
        raise


async def stop_portal(portal: Portal[Any], error: BaseException | None) -> None:
    """Stop, and wait for the thread's end, even if this is cancelled meanwhile (unless twice): the stop goes on in any case."""
    try:
        await asyncio.wrap_future(portal.stop(body_failed=error is not None))
    finally:
        await asyncio.get_running_loop().run_in_executor(None, portal.join)
