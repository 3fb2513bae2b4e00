"""``Lifetime``: start and stop of producers and consumers by ``async with``, once each.

async with ─┬ the body
            └ the object   shielded: it goes on when the body is cancelled or fails, and ends in
                           order: handlers end, offsets are stored, the member leaves its group
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self

import trio

from triomq.client.core.background import open_background
from triomq.client.core.broker_errors import shorten
from triomq.client.core.errors import NotRunning, TrioMQError


class OnlyAsync:
    """Base of classes that ``async with`` starts: ``with`` raises an error that says so."""

    if not TYPE_CHECKING:  # type checkers find the mistake, because they see no such method

        def __enter__(self) -> NoReturn:
            name = type(self).__name__
            raise TypeError(f"write `async with` for a {name}, or use triomq.sync.{name}")

        def __exit__(self, *error: object) -> None:
            """Complete the protocol: ``with`` looks for both methods."""


class Lifetime(OnlyAsync, ABC):
    """An object that runs for the time of its ``async with`` block."""

    _context: AbstractAsyncContextManager[None] | None = None
    """None before the start"""
    _loop: trio.lowlevel.TrioToken | None = None
    """That of the start."""
    _body_failed = False
    """Whether the body of the block ended by an error, or was cancelled."""

    @abstractmethod
    def _open(self) -> AbstractAsyncContextManager[None]:
        """Return the context manager of one run; each step of its end has a limit.

        Its body ends without an error, however the application's body ends.
        """

    def _cut_short(self) -> None:
        """Cancel what is shielded, since the end itself was interrupted."""

    @asynccontextmanager
    async def _hosted(self) -> AsyncIterator[None]:
        """Run the object in a task of its own for the length of the block.

        Whatever cancels the block, the object's tasks work until it has ended in order. What
        interrupts the end itself (a second Ctrl-C) cancels them.
        """
        leave, left = trio.Event(), trio.Event()
        scope = trio.CancelScope()

        async def host(*, task_status: trio.TaskStatus[None]) -> None:
            try:
                with scope:
                    async with self._open():
                        task_status.started()
                        await leave.wait()
            finally:
                left.set()

        async with open_background() as nursery:
            await nursery.start(host, name=f"{type(self).__name__}")
            # Shielded only now: a start that is cancelled would wait for a shielded task for ever.
            scope.shield = True
            try:
                yield
            except BaseException:
                self._body_failed = True
                raise
            finally:
                leave.set()
                try:
                    with trio.CancelScope(shield=True):
                        await left.wait()
                finally:
                    if not left.is_set():  # interrupted
                        self._cut_short()
                    scope.cancel()

    async def __aenter__(self) -> Self:
        """Start the object.

        Raises: ``NoNameServer``; ``NotRunning`` for a second start, and outside Trio.
        """
        if not trio.lowlevel.in_trio_run():
            name = type(self).__name__
            raise NotRunning(
                f"triomq.{name} runs in Trio, and this is another event loop: under asyncio use"
                f" triomq.aio.{name}, without a loop triomq.sync.{name}"
            )
        if self._context is not None:
            raise NotRunning(f"this {type(self).__name__} was started before: make a new one")
        self._loop = trio.lowlevel.current_trio_token()
        self._context = self._hosted()
        try:
            await self._context.__aenter__()
        except TrioMQError as error:
            raise shorten(error)  # noqa: B904
        return self

    def _require_own_loop(self) -> None:
        """Refuse a call from another loop, where what it waits for never happens.

        Raises: ``NotRunning``.
        """
        try:
            loop = trio.lowlevel.current_trio_token()
        except RuntimeError:
            loop = None
        if loop is self._loop:
            return
        name = type(self).__name__
        if loop is None:
            raise NotRunning(
                f"this triomq.{name} runs in a Trio loop, and the call comes from outside: under"
                f" asyncio use triomq.aio.{name}, in a thread triomq.sync.{name} or"
                " trio.from_thread.run"
            )
        raise NotRunning(
            f"this triomq.{name} was started in another Trio loop, and belongs to it: call it there"
            f" (trio.from_thread.run), or use triomq.sync.{name}, which any thread may call"
        )

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        """Stop, as the class describes."""
        if self._context is None:
            raise NotRunning(
                f"this {type(self).__name__} was not started: use it with `async with`"
            )
        try:
            return await self._context.__aexit__(kind, error, trace)
        except TrioMQError as crash:
            raise shorten(crash)  # noqa: B904
