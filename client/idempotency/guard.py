"""``Guard``: the rules of ``@once``, the same for the three interfaces. Its steps block."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterator

import attrs

from triomq.client.core.arguments import check_callable, check_seconds, shown
from triomq.client.core.errors import (
    ClaimBusy,
    ClaimLost,
    HandlerInvalid,
    OnceStoreFailed,
    SettingsError,
)
from triomq.client.idempotency.claims import Busy, Done, Held, OnceStore, message_key, scope_of
from triomq.client.receiving.message_view import MessageView

logger = logging.getLogger(__name__)

KeyOf = Callable[[MessageView], str]

_PAUSE_FIRST, _PAUSE_MAX = 0.01, 1.0


@attrs.frozen
class OnceStatistics:
    """What a handler under ``@once`` has done, in messages."""

    done: int
    """handled and marked"""
    duplicates: int
    """not handled, since they were done before"""
    failed: int
    """ended by an error, a retry or a cancellation, too long ones included"""
    busy: int
    """another consumer worked on them for all of ``wait``"""
    lost: int
    """the handler took longer than the lease: the effect may have happened twice"""


@attrs.define(eq=False)
class Guard:
    """The claims of one handler.

    ``key``: what identifies a message; ``wait``: seconds to wait for another consumer that works
    on the message.
    """

    store: OnceStore
    key: KeyOf
    wait: float
    transaction: bool
    done: int = attrs.field(default=0, init=False)
    duplicates: int = attrs.field(default=0, init=False)
    failed: int = attrs.field(default=0, init=False)
    busy: int = attrs.field(default=0, init=False)
    lost: int = attrs.field(default=0, init=False)

    def statistics(self) -> OnceStatistics:
        """Return the counts so far; threads that count at the same time make them inexact."""
        return OnceStatistics(self.done, self.duplicates, self.failed, self.busy, self.lost)

    def identify(self, message: object) -> tuple[str, str]:
        """Return scope and key of a message. Raises: ``HandlerInvalid``, ``SettingsError``."""
        if not isinstance(message, MessageView):
            raise HandlerInvalid(
                f"a handler under @once takes one message, not {shown(message)}: in a batch"
                " handler or a pull loop, call it for each message"
            )
        key = self.key(message)
        if not isinstance(key, str) or not key:
            raise SettingsError(
                f"the key of message {message.message_id} is {shown(key)}: the function `key` of"
                " @once must return a text that is not empty"
            )
        return scope_of(message), key

    def attempt(self, scope: str, key: str) -> Held[object] | Done | Busy:
        """Try once to get a key. Raises: ``OnceStoreFailed``."""
        if self.transaction:
            return self.store.begin(scope, key)  # type: ignore[attr-defined,no-any-return]
        return self.store.claim(scope, key)

    def pauses(self, message: MessageView) -> Iterator[float]:
        """Yield the seconds between tries until ``wait`` is over. Raises: ``ClaimBusy`` then."""
        end, pause = time.monotonic() + self.wait, _PAUSE_FIRST
        while (left := end - time.monotonic()) > 0:
            yield min(pause, left)
            pause = min(pause * 2, _PAUSE_MAX)
        self.busy += 1
        raise ClaimBusy(
            f"message {message.message_id} of {message.topic}: another consumer has worked on it"
            f" for {self.wait:g} s (or died at it, and its lease is not over); it comes again later"
        )

    def settle(self, message: MessageView, held: Held[object]) -> None:
        """End a handler that returned: mark the key, or give it up with the message.

        Raises: ``ClaimLost``, ``OnceStoreFailed``.
        """
        if message.given_back:
            self.give_up(message, held)
            return
        try:
            marked = held.finish()
        except ClaimLost:
            self.lost += 1
            raise
        except OnceStoreFailed:
            self.failed += 1
            raise
        if not marked:
            raise self.late(message)
        self.done += 1

    def give_up(self, message: MessageView, held: Held[object]) -> None:
        """Count a handler that failed, and give its key up, so that the next delivery has it."""
        self.failed += 1
        try:
            held.release()
        except OnceStoreFailed as error:
            logger.warning(
                "message %s of %s: its claim stays until the lease of %g s ends: %s",
                message.message_id,
                message.topic,
                self.store.lease,
                error,
            )

    def late(self, message: MessageView) -> ClaimLost:
        """Count a handler that took too long; return the error."""
        self.lost += 1
        return ClaimLost(
            f"the handler worked on message {message.message_id} of {message.topic} for longer"
            f" than the lease of {self.store.lease:g} s, so another consumer may have it: make the"
            " lease of the store longer than a handler can take"
        )


class GuardedHandler:
    """What the ``OnceHandler`` of each interface is made of."""

    __call__: Callable[..., object]

    def __init__(self, handler: Callable[..., object], guard: Guard) -> None:
        functools.update_wrapper(self, handler)
        self._name = getattr(handler, "__qualname__", repr(handler))
        self._guard = guard

    def __repr__(self) -> str:
        return f"<OnceHandler of {self._name}, {self._guard.store!r}>"

    def statistics(self) -> OnceStatistics:
        """Return how many messages were handled, left out as duplicates, failed …"""
        return self._guard.statistics()


def make_guard(
    store: OnceStore, key: KeyOf | None, wait: float | None, *, transaction: bool
) -> Guard:
    """Return the guard for the arguments of ``once``. Raises: ``SettingsError``."""
    if not (hasattr(store, "claim") and hasattr(store, "lease")):
        raise SettingsError(
            f"@once takes a store, such as SqliteOnceStore(path), not {shown(store)}"
        )
    if transaction and not hasattr(store, "begin"):
        raise SettingsError(
            f"{type(store).__name__} has no transactions that could include what a handler does:"
            " use SqliteOnceStore or PostgresqlOnceStore, or leave out transaction=True"
        )
    check_callable("key", key)
    seconds = check_seconds("wait", wait)
    return Guard(
        store, key or message_key, store.lease if seconds is None else seconds, transaction
    )
