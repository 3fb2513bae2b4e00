"""``once`` for Trio: a decorator of handlers. The database is asked in worker threads."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, overload

import attrs
import trio

from triomq.client.core.arguments import awaiting, require_nothing
from triomq.client.idempotency.claims import Busy, Done, Held, OnceStore, TransactionalOnceStore
from triomq.client.idempotency.guard import Guard, GuardedHandler, KeyOf, make_guard
from triomq.client.idempotency.sql_store import rows
from triomq.client.receiving.message_view import MessageView
from triomq.client.receiving.received import ReceivedMessage

C = TypeVar("C")
P = ParamSpec("P")
R = TypeVar("R")

_THREADS_MAX = 40


@attrs.define(eq=False)
class OnceTransaction(Generic[C]):
    """An open transaction, in which the effect of a handler and its mark are committed together.

    ``@once`` commits when the handler returns, and rolls back after an error. The handler must not
    end the transaction, and must let errors of its statements out.
    """

    connection: C
    """``sqlite3.Connection`` or ``psycopg.Connection``; its calls block, so make them in ``run``"""
    _limiter: trio.CapacityLimiter = attrs.field(repr=False)

    async def run(
        self, function: Callable[Concatenate[C, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Call ``function(connection, *args, **kwargs)`` in a worker thread; return its result.

        Checkpoint: always. A call that has begun is not cancelled.
        """
        call = functools.partial(function, self.connection, *args, **kwargs)
        return await trio.to_thread.run_sync(call, limiter=self._limiter)

    async def execute(self, statement: str, parameters: Sequence[object] = ()) -> Sequence[Any]:
        """Run one SQL statement in a worker thread; return the rows that it finds."""
        return await trio.to_thread.run_sync(
            _execute, self.connection, statement, parameters, limiter=self._limiter
        )


def _execute(connection: Any, statement: str, parameters: Sequence[object]) -> Sequence[Any]:
    return rows(connection.execute(statement, parameters))


class OnceHandler(GuardedHandler):
    """A handler whose effect happens once for each message; made by ``once``."""

    def __init__(self, handler: Callable[..., Awaitable[object]], guard: Guard) -> None:
        super().__init__(handler, guard)
        one = awaiting(handler)
        self._handler = awaiting(lambda both: handler(*both)) if guard.transaction else one
        # Two limits: those that wait for a key must not keep the holder's own calls waiting.
        self._claiming = trio.CapacityLimiter(_THREADS_MAX)
        self._working = trio.CapacityLimiter(_THREADS_MAX)

    async def __call__(self, message: ReceivedMessage) -> None:
        """Handle a message, unless that was done before. When this returns, it is done.

        Raises: the handler's errors; ``ClaimBusy``, ``ClaimLost``, ``OnceStoreFailed``.
        """
        guard = self._guard
        held, deadline = await self._claim(message)
        if held is None:
            guard.duplicates += 1
            return
        arguments: object = message
        if guard.transaction:
            arguments = message, OnceTransaction(held.connection, self._working)
        try:
            with trio.CancelScope(deadline=deadline) as scope:
                require_nothing(self, await self._handler(arguments))
            if scope.cancelled_caught:
                raise guard.late(message)
        except BaseException:
            await self._uncancelled(guard.give_up, message, held)
            raise
        await self._uncancelled(guard.settle, message, held)  # the effect has happened

    async def _uncancelled(
        self,
        step: Callable[[MessageView, Held[object]], None],
        message: MessageView,
        held: Held[object],
    ) -> None:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(step, message, held, limiter=self._working)

    async def _claim(self, message: ReceivedMessage) -> tuple[Held[object] | None, float]:
        """Return the key, and when its lease ends; None for a message that is done."""
        guard = self._guard
        scope, key = guard.identify(message)
        pauses = guard.pauses(message)
        while True:
            deadline = trio.current_time() + guard.store.lease
            outcome = await trio.to_thread.run_sync(
                guard.attempt, scope, key, limiter=self._claiming
            )
            if not isinstance(outcome, Busy):
                return None if isinstance(outcome, Done) else outcome, deadline
            await trio.sleep(next(pauses))


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
    """Make a handler take effect once for each message, however often the message arrives.

    ``store`` keeps which messages are done, for each group and topic. ``key`` returns what
    identifies a message: by default the id that the producer gave it, which retries keep.
    ``wait``: seconds to wait for another consumer that works on the same message; None for the
    store's lease. With ``transaction`` the handler gets a ``OnceTransaction`` as second argument.

    Without ``transaction`` a message is claimed, handled, and marked. An error, a cancellation or
    a retry gives the claim up. If the process dies between the effect and the mark, or the mark
    cannot be written, the effect happens again: at least once. With ``transaction`` the mark is
    committed together with what the handler wrote into the same database: exactly once.

    Raises: ``SettingsError``; ``HandlerInvalid`` for a handler that is not async.
    """
    guard = make_guard(store, key, wait, transaction=transaction)
    return lambda handler: OnceHandler(handler, guard)
