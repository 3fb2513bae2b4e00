"""``triomq.sync.once``: a decorator of plain handlers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, overload

import attrs

from triomq.client.core.arguments import check_plain, require_nothing
from triomq.client.idempotency.claims import Busy, Done, Held, OnceStore, TransactionalOnceStore
from triomq.client.idempotency.guard import Guard, GuardedHandler, KeyOf, make_guard
from triomq.client.idempotency.sql_store import rows
from triomq.sync.received import ReceivedMessage

C = TypeVar("C")
P = ParamSpec("P")
R = TypeVar("R")


@attrs.define(eq=False)
class OnceTransaction(Generic[C]):
    """An open transaction; see ``triomq.OnceTransaction``. Only the handler's thread uses it."""

    connection: C
    """``sqlite3.Connection`` or ``psycopg.Connection``"""

    def run(self, function: Callable[Concatenate[C, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call ``function(connection, *args, **kwargs)``; return its result."""
        return function(self.connection, *args, **kwargs)

    def execute(self, statement: str, parameters: Sequence[object] = ()) -> Sequence[Any]:
        """Run one SQL statement; return the rows that it finds."""
        connection: Any = self.connection
        return rows(connection.execute(statement, parameters))


class OnceHandler(GuardedHandler):
    """A handler whose effect happens once for each message; made by ``once``."""

    def __init__(self, handler: Callable[..., object], guard: Guard) -> None:
        check_plain("handler", handler)
        super().__init__(handler, guard)
        self._handler = handler

    def __call__(self, message: ReceivedMessage) -> None:
        """Handle a message, unless that was done before. When this returns, it is done.

        Raises: the handler's errors; ``ClaimBusy``, ``ClaimLost``, ``OnceStoreFailed``.
        """
        guard = self._guard
        held = self._claim(message)
        if held is None:
            guard.duplicates += 1
            return
        try:
            arguments: tuple[object, ...] = (message,)
            if guard.transaction:
                arguments = message, OnceTransaction(held.connection)
            require_nothing(self, self._handler(*arguments))
        except BaseException:
            guard.give_up(message, held)
            raise
        guard.settle(message, held)

    def _claim(self, message: ReceivedMessage) -> Held[object] | None:
        """Return the key; None for a message that is done."""
        guard = self._guard
        scope, key = guard.identify(message)
        pauses = guard.pauses(message)
        while isinstance(outcome := guard.attempt(scope, key), Busy):
            time.sleep(next(pauses))
        return None if isinstance(outcome, Done) else outcome


@overload
def once(
    store: OnceStore,
    *,
    key: KeyOf | None = ...,
    wait: float | None = ...,
    transaction: Literal[False] = ...,
) -> Callable[[Callable[[ReceivedMessage], object]], OnceHandler]: ...


@overload
def once(
    store: TransactionalOnceStore[C],
    *,
    key: KeyOf | None = ...,
    wait: float | None = ...,
    transaction: Literal[True],
) -> Callable[[Callable[[ReceivedMessage, OnceTransaction[C]], object]], OnceHandler]: ...


def once(
    store: Any, *, key: KeyOf | None = None, wait: float | None = None, transaction: bool = False
) -> Callable[[Callable[..., object]], OnceHandler]:
    """Make a handler take effect once for each message; see ``triomq.once``.

    A thread cannot be cancelled: a handler that takes longer than the lease goes on, and fails
    with ``ClaimLost`` at its end if another consumer has taken the message over.

    Raises: ``SettingsError``.
    """
    guard = make_guard(store, key, wait, transaction=transaction)
    return lambda handler: OnceHandler(handler, guard)
