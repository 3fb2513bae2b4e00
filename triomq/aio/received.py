"""Received messages whose ``ack``, ``retry`` and ``dead_letter`` are awaited; their handlers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Protocol, Self

from triomq import client
from triomq.aio.calls import AnyPortal, awaited, call_in_loop
from triomq.client.core.portal import in_loop
from triomq.client.sdk.portal_messages import AnyMessage, PortalMessage


class Settling(Protocol):
    """What the block of a message calls."""

    @property
    def settled(self) -> bool: ...

    async def ack(self) -> object: ...

    async def retry(self) -> object: ...


class AsyncioMessage(PortalMessage[AnyMessage]):
    """A message whose ``async with`` block settles it."""

    __slots__ = ()

    _portal: AnyPortal

    async def reply(
        self, body: bytes, *, properties: Mapping[str, str] | None = None, timeout: float = 3.0
    ) -> None:
        """Answer a request; see ``triomq.ReceivedMessage.reply``."""
        await call_in_loop(
            self._portal, self._target.reply, body, properties=properties, timeout=timeout
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self: Settling,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.settled:
            return
        if error is None:
            await self.ack()
        elif isinstance(error, Exception):
            await self.retry()


class ReceivedMessage(AsyncioMessage[client.ReceivedMessage]):
    """A ``triomq.ReceivedMessage`` for asyncio: the same fields, to be settled exactly once."""

    __slots__ = ()

    async def ack(self) -> bool:
        """Count the message as done; see ``triomq.ReceivedMessage.ack``."""
        return await call_in_loop(self._portal, in_loop, self._target.ack_nowait)

    retry = awaited(client.ReceivedMessage.retry)
    dead_letter = awaited(client.ReceivedMessage.dead_letter)


Handler = Callable[[ReceivedMessage], Awaitable[None]]
"""Handles one message in the asyncio loop. Its normal end acks the message and an exception retries
it, unless the handler settled it itself.
"""

BatchHandler = Callable[[list[ReceivedMessage]], Awaitable[None]]
"""The same for several messages of one queue; its end settles those that are not settled."""
