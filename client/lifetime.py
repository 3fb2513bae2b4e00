"""`Lifetime`: producers and consumers as objects, opened once and closed once by `async with`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Self

import trio

from triomq.client.errors import NotRunning


class Lifetime(ABC):
    """An object that runs while its `async with` block does."""

    _context: AbstractAsyncContextManager[None] | None = None
    """None before the start"""

    @abstractmethod
    def _open(self) -> AbstractAsyncContextManager[None]:
        """Return the context of one life."""

    async def __aenter__(self) -> Self:
        """Start.  Errors: `NoNameServer` if none answers, `NotRunning` for a second start, and outside of Trio."""
        if not trio.lowlevel.in_trio_run():
            name = type(self).__name__
            raise NotRunning(f"triomq.{name} runs in Trio, and this is another event loop: under asyncio use triomq.aio.{name}, without a loop triomq.sync.{name}")
        if self._context is not None:
            raise NotRunning(f"this {type(self).__name__} was started before: make a new one")
        self._context = self._open()
        await self._context.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Stop: what that means is told by the class."""
        if self._context is None:
            raise NotRunning(f"this {type(self).__name__} was not started: use it with `async with`")
        return await self._context.__aexit__(kind, error, trace)
