"""A Trio loop in a thread of its own, for callers outside Trio: ``triomq.sync`` and ``triomq.aio``.

One portal belongs to one producer or consumer, which is opened and closed by one task of the loop,
as nurseries require. A call from outside becomes a task in the loop with its own cancel scope; its
outcome goes to the caller's own kind of future. Any number of threads may call.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, ParamSpec, TypeVar

import trio

from triomq.client.core.arguments import check_timeout
from triomq.client.core.background import open_background, sole_error
from triomq.client.core.broker_errors import shorten
from triomq.client.core.call_queue import CallQueue
from triomq.client.core.errors import CallTimeout, ForkDetected, NotRunning
from triomq.client.core.portal_calls import AnyCall, Call, CallCancelled, CallTasks, F

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")

_CANCEL_SECONDS = 5.0
"""Time that a cancelled call has to end before the caller goes on without it."""

_OWN_THREAD = (
    "this call comes from the object's own thread, which would wait for itself for ever: hooks,"
    " selectors and allocation rules must not call the object; let another thread do it"
)


class _BodyFailed(Exception):
    """Stands in the loop for an error of the caller's ``with`` block."""


async def in_loop(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a synchronous function in the loop's thread; an argument for ``Portal.submit``."""
    await trio.lowlevel.checkpoint()
    return function(*args, **kwargs)


class Portal(Generic[T]):
    """Runs one async context manager in a background thread."""

    def __init__(
        self,
        target: AbstractAsyncContextManager[T],
        require_caller: Callable[[], None] = lambda: None,
    ) -> None:
        """Describe a portal; nothing is started.

        ``require_caller``: refuses a call whose caller must not wait here; called in the thread of
        each caller, before anything happens.
        """
        self._target = target
        self.require_caller = require_caller
        self._pid = os.getpid()
        """the process that started the thread, which need not be the one that made the object"""
        self._thread: threading.Thread | None = None
        self._entered: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._left: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._queue: CallQueue | None = None
        self._tasks: CallTasks | None = None
        self._late: CallTasks | None = None
        """runs calls while the context is being left, such as acks of running handlers"""
        self._leave = trio.Event()
        self._body_failed = False
        self._stop_asked = False
        """may be set before the loop exists"""
        self._calls: set[AnyCall] = set()
        """calls that the loop has not begun; each change is one operation and needs no lock"""

    # From outside

    def start(self) -> concurrent.futures.Future[T]:
        """Start the thread; the future ends when the context is entered, or fails to be.

        Raises: ``NotRunning`` for a second start.
        """
        self.require_caller()
        if self._thread is not None:
            raise NotRunning("this object was started before: make a new one")
        self._pid = os.getpid()
        for outcome in (self._entered, self._left):
            # A waiting caller may be cancelled; the start or stop that it waits for is not.
            outcome.set_running_or_notify_cancel()
        self._thread = threading.Thread(
            target=self._run_loop, name=f"triomq-{type(self._target).__name__}", daemon=True
        )
        self._thread.start()
        return self._entered

    def submit(
        self, function: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs
    ) -> Call[concurrent.futures.Future[R]]:
        """Start an async function in the loop, from any thread except the loop's own.

        Raises: ``NotRunning``, ``ForkDetected``.
        """
        future: concurrent.futures.Future[R] = concurrent.futures.Future()
        future.set_running_or_notify_cancel()
        return self.submit_for(future, function, *args, **kwargs)

    def submit_for(
        self, future: F, function: Callable[P, Awaitable[Any]], *args: P.args, **kwargs: P.kwargs
    ) -> Call[F]:
        """Start an async function, as ``submit`` does; ``future`` takes its outcome.

        Raises: ``NotRunning``, ``ForkDetected``.
        """
        if self._thread is not None and os.getpid() != self._pid:
            raise ForkDetected(
                "this object was started before a fork, its thread and connections do not exist in"
                " this process: make a new one in the child (with multiprocessing: in the worker,"
                " or use the 'spawn' start method)"
            )
        if threading.current_thread() is self._thread:
            raise NotRunning(_OWN_THREAD)
        self.require_caller()
        if self._queue is None or self._tasks is None or self._left.done():
            raise NotRunning(
                "this object is not running: use it inside its `with` block, or between `start()`"
                " and `stop()`"
            )
        call = Call(future, self._queue, function, args, kwargs)
        self._calls.add(call)
        try:
            self._queue.put(self._begin, call)
        except trio.RunFinishedError:
            self._calls.discard(call)
            raise NotRunning("this object has stopped") from None
        if self._left.done():
            self._give_up()
        return call

    def call(
        self,
        timeout: float | None,
        function: Callable[P, Awaitable[R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Run an async function in the loop and wait for its result.

        An interrupted wait (KeyboardInterrupt) cancels the call and leaves the object usable.

        Raises: the function's own errors; ``CallTimeout``; ``SettingsError`` for a wrong timeout.
        """
        seconds = check_timeout(timeout)
        call = self.submit(function, *args, **kwargs)
        try:
            return call.future.result(
                None if seconds is None or seconds > threading.TIMEOUT_MAX else seconds
            )
        except TimeoutError:
            if call.future.done():  # the function itself raised it
                raise
            call.cancel()
            concurrent.futures.wait([call.future], _CANCEL_SECONDS)
            if call.future.done() and not isinstance(call.future.exception(), CallCancelled):
                return call.future.result()
            raise CallTimeout(seconds or 0.0) from None
        except BaseException:
            if not call.future.done():
                call.cancel()
                concurrent.futures.wait([call.future], _CANCEL_SECONDS)
            raise

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        """Call a function in the loop soon, from any thread; does nothing after the end."""
        if self._queue is not None:
            with contextlib.suppress(trio.RunFinishedError):
                self._queue.put(function, *args)

    def stop(self, *, body_failed: bool = False) -> concurrent.futures.Future[None]:
        """Leave the context; the future ends when it is left, with the error of a crashed task.

        The future has already ended for a portal that was never started, in the child of a fork,
        and after a failed start (the start reported the error).

        Raises: ``NotRunning`` from the object's own thread, which would wait for itself.
        """
        if self._thread is None or self._pid != os.getpid():
            nothing: concurrent.futures.Future[None] = concurrent.futures.Future()
            nothing.set_result(None)
            return nothing
        if threading.current_thread() is self._thread:
            raise NotRunning(_OWN_THREAD)
        self._body_failed, self._stop_asked = body_failed, True
        self.call_soon(self._leave.set)
        if self._queue is not None:
            with contextlib.suppress(trio.RunFinishedError):
                self._queue.wake()
        return self._left

    @property
    def left(self) -> concurrent.futures.Future[None]:
        """Ends with the object, by a ``stop`` or by an error."""
        return self._left

    @property
    def ended(self) -> bool:
        """Whether ``NotRunning`` means the object's end: it ran, and this is another thread."""
        return self._thread is not None and threading.current_thread() is not self._thread

    @contextlib.contextmanager
    def until_ended(self) -> Iterator[None]:
        """Leave the block without an error when the object ends during a call in it."""
        try:
            yield
        except NotRunning:
            if not self.ended:
                raise

    def join(self) -> None:
        """Wait for the thread's end."""
        if self._thread is not None and self._pid == os.getpid():
            self._thread.join()

    # Inside

    def _run_loop(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:  # handed to the caller that waits, which raises it once
            shorten(error)
            if not self._entered.done():
                self._entered.set_exception(error)
                self._left.set_result(None)
            else:
                if not self._stop_asked:  # the caller may never ask
                    logger.error("%r has ended: %s", self._target, sole_error(error))
                self._left.set_exception(error)
        else:
            self._left.set_result(None)
        finally:
            self._give_up()

    def _give_up(self) -> None:
        """Fail the calls that the loop will never begin, because it has stopped."""
        while self._calls:
            with contextlib.suppress(KeyError):  # another thread took the last one
                self._calls.pop().fail(
                    NotRunning("this object stopped before the call could begin")
                )

    def _wakes(self, token: trio.lowlevel.TrioToken) -> Callable[[Callable[[], None]], object]:
        """Return what wakes the loop; runs in it."""
        return token.run_sync_soon

    async def _main(self) -> None:
        self._queue = CallQueue(self._wakes(trio.lowlevel.current_trio_token()))
        if self._stop_asked:
            self._leave.set()
        try:
            async with (
                open_background() as late,
                self._target as target,
                trio.open_nursery() as nursery,
            ):
                self._tasks, self._late = CallTasks(nursery), CallTasks(late)
                self._entered.set_result(target)
                await self._leave.wait()
                nursery.cancel_scope.cancel()
                if self._body_failed:
                    raise _BodyFailed
        except BaseExceptionGroup as group:
            if not isinstance(sole_error(group), _BodyFailed):
                raise
        except _BodyFailed:
            pass

    def _begin(self, call: AnyCall) -> None:
        assert self._tasks is not None
        assert self._late is not None
        self._calls.discard(call)
        tasks = self._late if self._tasks.nursery.cancel_scope.cancel_called else self._tasks
        if tasks.nursery.cancel_scope.cancel_called:
            call.fail(NotRunning("this object is stopping"))
        elif call.function is in_loop:  # a synchronous function needs no task
            call.carry_out_plain()
        else:
            tasks.carry_out(call)


class HandOver(Generic[R]):
    """Brings a result that must not be lost from the loop to a caller that may give up meanwhile.

    A lock orders the two sides. If the caller has given up before the result is there, the loop
    gives the result back. If the result is there first, the caller gives it back. So a call may be
    cancelled at any moment, and more than once, as anyio's scopes do.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._result: R | None = None
        self._abandoned = False

    def put(self, result: R) -> bool:
        """Leave the result for the caller; return False if it has given up. Checkpoint: never."""
        with self._lock:
            if not self._abandoned:
                self._result = result
            return not self._abandoned

    def take(self) -> R:
        """Return the result, after the call has ended well."""
        result = self._result
        assert result is not None
        return result

    def abandon(self) -> R | None:
        """Give up; return a result that has arrived, for the caller to give back."""
        with self._lock:
            self._abandoned = True
            return self._result
