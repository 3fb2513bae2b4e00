"""Calls that a portal's loop carries out, and the tasks that do it."""

from __future__ import annotations

import concurrent.futures
import contextlib
import contextvars
from collections.abc import Awaitable, Callable
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import attrs
import trio

from triomq.client.core.broker_errors import shorten
from triomq.client.core.call_queue import CallQueue
from triomq.client.core.errors import NotRunning

R_contra = TypeVar("R_contra", contravariant=True)

_IDLE_MAX = 256
"""Tasks that are kept for further calls."""


class CallFuture(Protocol[R_contra]):
    """Takes the end of a call in the thread of the loop; ``concurrent.futures.Future`` is one."""

    def set_result(self, result: R_contra, /) -> None: ...

    def set_exception(self, error: BaseException, /) -> None: ...


F = TypeVar("F", bound=CallFuture[Any])


class CallCancelled(concurrent.futures.CancelledError):
    """The outcome of a call that was cancelled from outside."""


@attrs.define(eq=False)
class Call(Generic[F]):
    """A call that was submitted to the loop and has no outcome yet."""

    future: F
    queue: CallQueue
    function: Callable[..., Awaitable[Any]]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    context: contextvars.Context = attrs.field(factory=contextvars.copy_context, init=False)
    """That of the caller: its variables, such as the current span, are the function's."""
    scope: trio.CancelScope | None = attrs.field(default=None, init=False)
    """None before the call begins, and after its end"""
    cancelled: bool = attrs.field(default=False, init=False)

    def fail(self, error: BaseException) -> None:
        """End the call with an error, unless it has ended."""
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            self.future.set_exception(error)

    def cancel(self) -> None:
        """Cancel the call from any thread; its future is cancelled unless its result came first."""
        try:
            self.queue.put(self._cancel)
        except trio.RunFinishedError:
            self.fail(NotRunning("this object has stopped"))

    def _cancel(self) -> None:
        self.cancelled = True
        if self.scope is not None:
            self.scope.cancel()

    def carry_out_plain(self) -> None:
        """Call a synchronous function, the first argument of ``in_loop``, without a task."""
        function, *args = self.args
        try:
            result = self.context.run(function, *args, **self.kwargs)
        except Exception as error:  # any error of the function belongs to the caller
            self.fail(shorten(error))
        else:
            self.future.set_result(result)


AnyCall: TypeAlias = Call[Any]
"""A call whatever its result is: the loop only passes results on."""


@attrs.define(eq=False)
class CallTask:
    """A task that carries out one call after the other, each in the context of its caller."""

    call: AnyCall | None
    """the one at work, or the next one; None while it waits for one, so that it keeps no message"""
    task: trio.lowlevel.Task | None = None

    def take(self) -> AnyCall:
        """Return the call that has ended: a later cancellation concerns no other call."""
        call, self.call = self.call, None
        assert call is not None
        call.scope = None
        return call


@attrs.define(eq=False)
class CallTasks:
    """Tasks for calls, kept for further ones: a new task costs more than most calls."""

    nursery: trio.Nursery
    _idle: list[CallTask] = attrs.field(factory=list, init=False)

    def carry_out(self, call: AnyCall) -> None:
        """Carry a call out in a task. Checkpoint: never."""
        if self._idle:
            own = self._idle.pop()
            assert own.task is not None
            own.call, own.task.context = call, call.context
            trio.lowlevel.reschedule(own.task)
        else:
            call.context.run(self.nursery.start_soon, self._work, CallTask(call))

    async def _work(self, own: CallTask) -> None:
        own.task = trio.lowlevel.current_task()
        while True:
            try:
                with trio.CancelScope() as scope:
                    await _carry_out(scope, own)
                    while not scope.cancel_called and len(self._idle) < _IDLE_MAX:
                        await self._next_call(own)
                        await _carry_out(scope, own)
            except Exception as error:  # what remains of a group with a cancellation
                own.take().fail(shorten(error))
            except BaseException:
                if own.call is not None:
                    own.take().fail(
                        NotRunning("this object stopped during the call; its outcome is unknown")
                    )
                raise
            if own.call is not None:
                own.take().fail(CallCancelled())
            if len(self._idle) >= _IDLE_MAX:
                return
            await self._next_call(own)

    async def _next_call(self, own: CallTask) -> None:
        def abort(_: object) -> trio.lowlevel.Abort:
            self._idle.remove(own)
            return trio.lowlevel.Abort.SUCCEEDED

        self._idle.append(own)
        await trio.lowlevel.wait_task_rescheduled(abort)


async def _carry_out(scope: trio.CancelScope, own: CallTask) -> None:
    """Carry a call out; leave it in its task if it is cancelled."""
    call = own.call
    assert call is not None
    call.scope = scope
    if call.cancelled:
        scope.cancel()
    try:
        result = await call.function(*call.args, **call.kwargs)
    except Exception as error:  # any error of the function belongs to the caller
        own.take().fail(shorten(error))
    else:
        own.take().future.set_result(result)
