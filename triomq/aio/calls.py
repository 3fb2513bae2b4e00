"""Calls from an asyncio loop into an object's Trio loop and back, and its start and stop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import functools
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeAlias, TypeVar

import trio

from triomq.client.core.call_queue import CallQueue
from triomq.client.core.errors import HandlerInvalid, NotRunning
from triomq.client.core.lifetime import OnlyAsync
from triomq.client.core.portal import Portal, in_loop
from triomq.client.core.portal_calls import CallCancelled

A = TypeVar("A")
P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)
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


class AsyncioPortal(Portal[T], trio.abc.Instrument):
    """A portal whose callers, and whose handlers, live in one asyncio loop.

    Each of the two loops wakes the other once in a turn, at the end of the turn. Waking it at once
    would hand the interpreter over after each call, and so make every batch one call long.
    """

    loop: asyncio.AbstractEventLoop | None = None
    """That of the start."""
    into_asyncio: CallQueue
    """Into ``loop``."""
    _wake_up: Callable[[], None] | None = None
    """what asyncio is to call after this turn of Trio's loop"""

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have ``loop`` be the loop of the start, before it."""
        self.loop, self.into_asyncio = loop, CallQueue(self._wake_asyncio)

    def before_io_wait(self, timeout: float) -> None:
        """Wake asyncio: each task that is ready has had its turn; an instrument's method."""
        if (wake_up := self._wake_up) is not None:
            self._wake_up = None
            assert self.loop is not None
            with contextlib.suppress(RuntimeError):  # it is closed
                self.loop.call_soon_threadsafe(wake_up)

    def _wake_asyncio(self, run: Callable[[], None]) -> None:
        if trio.lowlevel.in_trio_run():
            self._wake_up = run
        else:  # after the end of Trio's loop
            assert self.loop is not None
            self.loop.call_soon_threadsafe(run)

    def _wakes(self, token: trio.lowlevel.TrioToken) -> Callable[[Callable[[], None]], object]:
        loop, wake_at_once = self.loop, super()._wakes(token)
        assert loop is not None
        trio.lowlevel.add_instrument(self)

        def wake_soon(run: Callable[[], None]) -> None:
            with contextlib.suppress(trio.RunFinishedError):  # the portal ends its calls itself
                wake_at_once(run)

        def wake(run: Callable[[], None]) -> None:
            if asyncio._get_running_loop() is loop:
                loop.call_soon(wake_soon, run)
            else:  # a stop from elsewhere
                wake_at_once(run)

        return wake

    def _run_loop(self) -> None:
        try:
            super()._run_loop()
        finally:
            self.before_io_wait(0)


AnyPortal: TypeAlias = AsyncioPortal[Any]
"""A portal of any kind of object: what its context manager gives does not matter to calls."""


class Answer(Generic[R]):
    """The outcome of a call, brought into the asyncio loop; several ``wait`` may follow."""

    __slots__ = ("_arrived", "_error", "_portal", "_result", "_waiting")

    def __init__(self, portal: AnyPortal) -> None:
        self._portal = portal
        self._waiting: asyncio.Future[None] | None = None
        self._arrived = False
        self._result: R | None = None
        self._error: BaseException | None = None

    def set_result(self, result: R) -> None:
        """Bring the result; called in the Trio loop."""
        with contextlib.suppress(RuntimeError):  # the asyncio loop is closed: nobody waits
            self._portal.into_asyncio.put(self._arrive, result, None)

    def set_exception(self, error: BaseException) -> None:
        """Bring an error, from any thread; an outcome that came before it counts."""
        with contextlib.suppress(RuntimeError):
            self._portal.into_asyncio.put(self._arrive, None, error)

    def _arrive(self, result: R | None, error: BaseException | None) -> None:
        if not self._arrived:
            self._arrived, self._result, self._error = True, result, error
        # A future that was cancelled is not waited for: `wait` makes another one.
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def wait(self) -> R:
        """Return the result. Raises: the error of the call."""
        if not self._arrived:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]


async def call_in_loop(
    portal: AnyPortal, function: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs
) -> R:
    """Run an async function in the portal's loop; cancelling this call cancels it there."""
    answer: Answer[R] = Answer(portal)
    call = portal.submit_for(answer, function, *args, **kwargs)
    try:
        return await answer.wait()
    except asyncio.CancelledError:
        call.cancel()
        try:
            await answer.wait()
        except CallCancelled:
            raise asyncio.CancelledError from None
        raise


class Counterpart(Protocol[S_co]):
    """An object for asyncio, and the object of ``triomq`` in the Trio loop that it stands for."""

    _portal: AnyPortal

    @property
    def _target(self) -> S_co: ...


Counterparts = Callable[Concatenate[Counterpart[S], P], Coroutine[object, None, R]]
"""A method of the objects for asyncio, with the parameters and the result of the target's."""


def awaited(method: Callable[Concatenate[S, P], Awaitable[R]]) -> Counterparts[S, P, R]:
    """Return the method for asyncio that runs an async method of the target in its loop.

    It has the name, the signature, and the first paragraph of the docstring of ``method``.
    """

    @functools.wraps(method)
    async def call(self: Counterpart[S], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await call_in_loop(self._portal, method, self._target, *args, **kwargs)

    call.__doc__ = (method.__doc__ or "").partition("\n\n")[0]
    return call


def called(method: Callable[Concatenate[S, P], R]) -> Counterparts[S, P, R]:
    """Return the method for asyncio that calls a plain method of the target in its loop.

    The portal recognizes ``in_loop`` and needs no task for such a call.
    """

    @functools.wraps(method)
    async def call(self: Counterpart[S], /, *args: P.args, **kwargs: P.kwargs) -> R:
        run: Callable[..., Awaitable[R]] = in_loop
        return await call_in_loop(self._portal, run, method, self._target, *args, **kwargs)

    call.__doc__ = (method.__doc__ or "").partition("\n\n")[0]
    return call


class HandlerCall(Generic[R]):
    """A call of the application's async function in the asyncio loop, from a task in Trio."""

    def __init__(self, portal: AnyPortal, coroutine: Coroutine[object, None, R]) -> None:
        self._portal, self._coroutine = portal, coroutine
        self._context = contextvars.copy_context()
        self._task: asyncio.Task[R] | None = None
        self._waiter: trio.lowlevel.Task | None = None
        """The task in Trio; None before and after its wait"""

    async def wait(self) -> R:
        """Run in the asyncio loop and return the result; if cancelled, do not wait for the end."""
        self._waiter = trio.lowlevel.current_task()
        loop = self._portal.loop
        assert loop is not None
        try:
            if loop.is_closed():  # also while a wake-up of the queue is under way for ever
                raise RuntimeError("the loop is closed")
            self._portal.into_asyncio.put(self._begin, loop)
        except RuntimeError:
            self._coroutine.close()
            raise HandlerInvalid(
                "the asyncio loop in which handlers run is closed, so this object ends: keep its"
                " `async with` block inside the loop (in asyncio.run), or `stop` it before its end"
            ) from None
        await trio.lowlevel.wait_task_rescheduled(self._abort)
        assert self._task is not None
        if self._task.cancelled():  # by the application: an error of its handler
            raise concurrent.futures.CancelledError
        return self._task.result()

    # In the asyncio loop

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._waiter is None:  # cancelled before
            self._coroutine.close()
            return
        self._task = self._context.run(loop.create_task, self._coroutine)
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[R]) -> None:
        if not task.cancelled():
            task.exception()  # read, so that asyncio does not complain if nobody waits any more
        self._portal.call_soon(self._wake)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    # In the Trio loop

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            trio.lowlevel.reschedule(waiter)

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._waiter = None
        with contextlib.suppress(RuntimeError):
            self._portal.into_asyncio.put(self._cancel)
        return trio.lowlevel.Abort.SUCCEEDED


async def call_in_asyncio(
    portal: AnyPortal, function: Callable[[A], Awaitable[R]], argument: A
) -> R:
    """Run an async function in the asyncio loop, from Trio; cancelling this cancels it there.

    Raises: ``HandlerInvalid`` if the loop is closed, which ends a consumer: its messages come again
    elsewhere, and none becomes a dead letter.
    """

    async def run() -> R:
        return await function(argument)

    return await HandlerCall(portal, run()).wait()


class AsyncioLifetime(OnlyAsync, Generic[T]):
    """An object of ``triomq`` (the target) that runs in a thread of its own.

    It runs for the time of an ``async with`` block, or from ``start`` to ``stop``, and belongs to
    the asyncio loop that started it: handlers run there, and calls from other loops are refused.
    """

    def __init__(self, target: T) -> None:
        self._target = target
        self._portal = AsyncioPortal(target, self._require_own_loop)

    def __repr__(self) -> str:
        return repr(self._target)

    async def start(self) -> Self:
        """Start without an ``async with`` block, for notebooks; ``stop`` ends the object.

        Raises: ``NotRunning`` outside asyncio, and for a second start.
        """
        loop = running_loop(type(self).__name__)
        if self._portal.loop is None:
            self._portal.bind(loop)
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
        name, own = type(self).__name__, self._portal.loop
        if running_loop(name) is own or own is None:
            return
        state = "is closed" if own.is_closed() else "it belongs to"
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
