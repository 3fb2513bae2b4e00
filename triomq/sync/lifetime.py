"""``BlockingLifetime``: start and stop of the loop behind a blocking object."""

from __future__ import annotations

import builtins
import logging
import sys
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self, TypeVar

import trio

from triomq.client.core.errors import NotRunning
from triomq.client.core.portal import Portal

logger = logging.getLogger(__name__)

T = TypeVar("T", bound=AbstractAsyncContextManager[Any])


class BlockingLifetime(Generic[T]):
    """An object of ``triomq`` (the target) that runs in a thread of its own.

    It runs for the time of a ``with`` block, or from ``start`` to ``stop``.
    """

    def __init__(self, target: T) -> None:
        self._target = target
        self._portal = Portal(target, self._require_no_loop)
        self._warned = False

    def __repr__(self) -> str:
        return repr(self._target)

    def start(self) -> Self:
        """Start without a ``with`` block, for notebooks; ``stop`` ends the object."""
        entered = self._portal.start()
        try:
            entered.result()
        except BaseException:  # interrupted: the caller has no object to stop
            self._portal.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop an object that was started by ``start``."""
        self._stop(None)

    def __enter__(self) -> Self:
        return self.start()

    if not TYPE_CHECKING:  # type checkers find the mistake, because they see no such method

        async def __aenter__(self) -> NoReturn:
            name = type(self).__name__
            raise TypeError(
                f"write `with` for a triomq.sync.{name}; `async with` is for triomq.{name} (Trio)"
                f" and triomq.aio.{name} (asyncio)"
            )

        async def __aexit__(self, *error: object) -> None:
            """Complete the protocol: ``async with`` looks for both methods."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop(error)

    def _require_no_loop(self) -> None:
        """Refuse a caller inside a Trio loop; warn one inside asyncio, except in a notebook.

        A call stops the caller's loop while it waits: for ever, if what it waits for (a broker in a
        test) runs there, too. Cells of a notebook run in a loop that has nothing else to do.

        Raises: ``NotRunning``.
        """
        name = type(self).__name__
        if trio.lowlevel.in_trio_run():
            raise NotRunning(
                f"triomq.sync.{name} blocks its caller, here a whole Trio loop: use triomq.{name},"
                " or call it in a thread (trio.to_thread.run_sync)"
            )
        if self._warned or hasattr(builtins, "get_ipython"):
            return
        asyncio = sys.modules.get("asyncio")  # not imported: most callers never need it
        if asyncio is not None and asyncio._get_running_loop() is not None:
            self._warned = True
            logger.warning(
                "triomq.sync.%s stops the asyncio loop that calls it, while it waits: use"
                " triomq.aio.%s, or call it in a thread (asyncio.to_thread)",
                name,
                name,
            )

    def _stop(self, error: BaseException | None) -> None:
        left = self._portal.stop(body_failed=error is not None)
        try:
            left.result()
        finally:
            if left.done():  # otherwise a second Ctrl-C: the thread, a daemon, is left alone
                self._portal.join()
