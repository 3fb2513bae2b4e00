"""Calls from an asyncio loop into an object's Trio loop and back, and its start and stop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Generic, ParamSpec, Self, TypeVar

import trio

from triomq.client.core.errors import HandlerInvalid, NotRunning
from triomq.client.core.lifetime import OnlyAsync
from triomq.client.core.portal import CallCancelled, Portal

A = TypeVar("A")
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound=AbstractAsyncContextManager[Any])


def running_loop(name: str) -> asyncio.AbstractEventLoop:
    """Return the caller's loop; ``name`` is what is called. Raises: ``NotRunning`` without one."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        here = "in Trio use triomq" if trio.lowlevel.in_trio_run() else "here use triomq.sync"
    raise NotRunning(
        f"triomq.aio.{name} needs a running asyncio loop, and the call comes from outside:"
        f" {here}.{name}, or call it in asyncio.run(…)"
    )


async def call_in_loop(
    portal: Portal[Any], function: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs
) -> R:
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


async def call_in_asyncio(
    loop: asyncio.AbstractEventLoop, function: Callable[[A], Awaitable[R]], argument: A
) -> R:
    """Run an async function in the asyncio loop, from Trio; cancelling this cancels it there.

    Raises: ``HandlerInvalid`` if the loop is closed, which ends a consumer: its messages come again
    elsewhere, and none becomes a dead letter.
    """
    token, done = trio.lowlevel.current_trio_token(), trio.Event()

    async def run() -> R:
        return await function(argument)

    def wake(_: object) -> None:
        with contextlib.suppress(trio.RunFinishedError):
            token.run_sync_soon(done.set)

    coroutine = run()
    try:
        future = asyncio.run_coroutine_threadsafe(coroutine, loop)
    except RuntimeError:
        coroutine.close()
        raise HandlerInvalid(
            "the asyncio loop in which handlers run is closed, so this object ends: keep its"
            " `async with` block inside the loop (in asyncio.run), or call `stop` before its end"
        ) from None
    future.add_done_callback(wake)
    try:
        await done.wait()
    except trio.Cancelled:
        future.cancel()
        raise
    return future.result()


class AsyncioLifetime(OnlyAsync, Generic[T]):
    """An object of ``triomq`` (the target) that runs in a thread of its own.

    It runs for the time of an ``async with`` block, or from ``start`` to ``stop``, and belongs to
    the asyncio loop that started it: handlers run there, and calls from other loops are refused.
    """

    _loop: asyncio.AbstractEventLoop | None = None
    """That of the start."""

    def __init__(self, target: T) -> None:
        self._target = target
        self._portal = Portal(target, self._require_own_loop)

    def __repr__(self) -> str:
        return repr(self._target)

    async def start(self) -> Self:
        """Start without an ``async with`` block, for notebooks; ``stop`` ends the object.

        Raises: ``NotRunning`` outside asyncio, and for a second start.
        """
        self._loop = self._loop or running_loop(type(self).__name__)
        entered = asyncio.wrap_future(self._portal.start())
        try:
            await asyncio.shield(entered)
        except asyncio.CancelledError:  # the caller has no object to stop
            self._portal.stop()
            # No task waits for the outcome: read it, so that asyncio does not complain.
            entered.add_done_callback(lambda future: future.exception())
            raise
        return self

    async def stop(self) -> None:
        """Stop an object that was started by ``start``; wait for its thread, even if cancelled.

        Any asyncio loop may call: the object may have outlived its own.
        """
        await self._stop(None)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stop(error)

    def _require_own_loop(self) -> None:
        """Refuse a call from another loop. Raises: ``NotRunning``."""
        name = type(self).__name__
        if running_loop(name) is self._loop or self._loop is None:
            return
        state = "is closed" if self._loop.is_closed() else "it belongs to"
        raise NotRunning(
            f"this triomq.aio.{name} was started in another asyncio loop, which {state}: make a new"
            " one in this loop; `await stop()`, from any loop, ends the old one"
        )

    async def _stop(self, error: BaseException | None) -> None:
        """Stop, and wait for the thread's end, even if this call is cancelled (unless twice)."""
        loop = running_loop(type(self).__name__)
        try:
            await asyncio.wrap_future(self._portal.stop(body_failed=error is not None))
        finally:
            await loop.run_in_executor(None, self._portal.join)
