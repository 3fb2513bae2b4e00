"""``triomq.aio.once``: a decorator of handlers for asyncio, which asks the database in threads."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, overload

import attrs

from triomq.aio.calls import running_loop
from triomq.aio.received import ReceivedMessage
from triomq.client.core.arguments import awaiting, require_nothing
from triomq.client.core.errors import HandlerInvalid, NotRunning
from triomq.client.idempotency.claims import Busy, Done, Held, OnceStore, TransactionalOnceStore
from triomq.client.idempotency.guard import Guard, GuardedHandler, KeyOf, make_guard
from triomq.client.idempotency.sql_store import rows

C = TypeVar("C")
P = ParamSpec("P")
R = TypeVar("R")

_THREADS_MAX = 40


@attrs.define(eq=False)
class OnceTransaction(Generic[C]):
    """An open transaction; see ``triomq.OnceTransaction``."""

    connection: C
    """``sqlite3.Connection`` or ``psycopg.Connection``; its calls block, so make them in ``run``"""
    _executor: Executor = attrs.field(repr=False)

    async def run(
        self, function: Callable[Concatenate[C, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Call ``function(connection, *args, **kwargs)`` in a worker thread; return its result.

        A call that has begun is not cancelled.
        """
        return await _in_thread(
            self._executor, functools.partial(function, self.connection, *args, **kwargs)
        )

    async def execute(self, statement: str, parameters: Sequence[object] = ()) -> Sequence[Any]:
        """Run one SQL statement in a worker thread; return the rows that it finds."""
        connection: Any = self.connection
        return await _in_thread(
            self._executor, lambda: rows(connection.execute(statement, parameters))
        )


async def _in_thread(executor: Executor, call: Callable[[], R]) -> R:
    """Return the result of a call in a thread; if cancelled, wait for its end nevertheless."""
    future = asyncio.get_running_loop().run_in_executor(executor, call)
    await _ended(future)
    return future.result()


async def _ended(future: asyncio.Future[Any]) -> None:
    """Wait for the end of a call in a thread, which cannot be cancelled."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        future.exception()  # read, so that asyncio does not complain
        raise cancelled


class OnceHandler(GuardedHandler):
    """A handler whose effect happens once for each message; made by ``once``."""

    def __init__(self, handler: Callable[..., Awaitable[object]], guard: Guard) -> None:
        super().__init__(handler, guard)
        one = awaiting(handler)
        self._handler = awaiting(lambda both: handler(*both)) if guard.transaction else one
        # Two pools: those that wait for a key must not keep the holder's own calls waiting.
        self._claiming = ThreadPoolExecutor(_THREADS_MAX, thread_name_prefix="triomq-once-claim")
        self._working = ThreadPoolExecutor(_THREADS_MAX, thread_name_prefix="triomq-once")

    async def __call__(self, message: ReceivedMessage) -> None:
        """Handle a message, unless that was done before. When this returns, it is done.

        Raises: the handler's errors; ``ClaimBusy``, ``ClaimLost``, ``OnceStoreFailed``;
        ``HandlerInvalid`` outside asyncio.
        """
        try:
            running_loop("once")
        except NotRunning as error:  # it would fail for every message, and make dead letters
            raise HandlerInvalid(str(error)) from None
        guard = self._guard
        held, deadline = await self._claim(message)
        if held is None:
            guard.duplicates += 1
            return
        arguments: object = message
        if guard.transaction:
            arguments = message, OnceTransaction(held.connection, self._working)
        limit = asyncio.timeout_at(deadline)
        try:
            try:
                async with limit:
                    require_nothing(self, await self._handler(arguments))
            except TimeoutError:
                if limit.expired():
                    raise guard.late(message) from None
                raise
        except BaseException:
            await _in_thread(self._working, functools.partial(guard.give_up, message, held))
            raise
        await _in_thread(self._working, functools.partial(guard.settle, message, held))

    async def _claim(self, message: ReceivedMessage) -> tuple[Held[Any] | None, float]:
        """Return the key, and when its lease ends; None for a message that is done."""
        guard = self._guard
        scope, key = guard.identify(message)
        pauses = guard.pauses(message)
        loop = asyncio.get_running_loop()
        while True:
            deadline = loop.time() + guard.store.lease
            trial = loop.run_in_executor(self._claiming, guard.attempt, scope, key)
            try:
                await _ended(trial)
            except asyncio.CancelledError:
                late = None if trial.exception() is not None else trial.result()
                if late is not None and not isinstance(late, Done | Busy):
                    await _in_thread(self._working, functools.partial(guard.give_up, message, late))
                raise
            outcome = trial.result()
            if not isinstance(outcome, Busy):
                return None if isinstance(outcome, Done) else outcome, deadline
            await asyncio.sleep(next(pauses))


@overload
def once(
    store: OnceStore,
    *,
    key: KeyOf | None = ...,
    wait: float | None = ...,
    transaction: Literal[False] = ...,
) -> Callable[[Callable[[ReceivedMessage], Awaitable[object]]], OnceHandler]: ...


@overload
def once(
    store: TransactionalOnceStore[C],
    *,
    key: KeyOf | None = ...,
    wait: float | None = ...,
    transaction: Literal[True],
) -> Callable[
    [Callable[[ReceivedMessage, OnceTransaction[C]], Awaitable[object]]], OnceHandler
]: ...


def once(
    store: Any, *, key: KeyOf | None = None, wait: float | None = None, transaction: bool = False
) -> Callable[[Callable[..., Awaitable[object]]], OnceHandler]:
    """Make a handler take effect once for each message; see ``triomq.once``.

    Raises: ``SettingsError``; ``HandlerInvalid`` for a handler that is not async.
    """
    guard = make_guard(store, key, wait, transaction=transaction)
    return lambda handler: OnceHandler(handler, guard)
