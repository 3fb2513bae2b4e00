"""``Lifetime``: start and stop of producers and consumers by ``async with``, once each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Self

import trio

from triomq.client.errors import NotRunning


class Lifetime(ABC):
    """An object that runs for the time of its ``async with`` block."""

    _context: AbstractAsyncContextManager[None] | None = None
    """None before the start"""

    @abstractmethod
    def _open(self) -> AbstractAsyncContextManager[None]:
        """Return the context manager of one run."""

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
        self._context = self._open()
        await self._context.__aenter__()
        return self

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
        return await self._context.__aexit__(kind, error, trace)
