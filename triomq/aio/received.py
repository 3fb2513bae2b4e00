"""Received messages whose ``ack``, ``retry`` and ``dead_letter`` are awaited; their handlers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Self, SupportsIndex

from triomq import client
from triomq.aio.calls import AsyncioPortal, call_in_loop
from triomq.client.core.portal import in_loop
from triomq.client.sdk.portal_messages import AnyMessage, PortalMessage


class AsyncioMessage(PortalMessage[AnyMessage]):
    """A message whose ``async with`` block settles it."""

    __slots__ = ()

    _portal: AsyncioPortal[Any]
    ack: Callable[[], Awaitable[object]]
    retry: Callable[[], Awaitable[object]]

    async def reply(
        self,
        body: bytes,
        *,
        properties: Mapping[str, str] | None = None,
        timeout: float = 3.0,
    ) -> None:
        """Answer a request; see ``triomq.ReceivedMessage.reply``."""
        await call_in_loop(
            self._portal, self._message.reply, body, properties=properties, timeout=timeout
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
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
        return await call_in_loop(self._portal, in_loop, self._message.ack_nowait)

    async def retry(self, delay_level: SupportsIndex = 0, *, pause: float | None = None) -> bool:
        """Have the message delivered again later; see ``triomq.ReceivedMessage.retry``."""
        return await call_in_loop(self._portal, self._message.retry, delay_level, pause=pause)

    async def dead_letter(self) -> bool:
        """Move the message to the dead letters; see ``triomq.ReceivedMessage.dead_letter``."""
        return await call_in_loop(self._portal, self._message.dead_letter)


Handler = Callable[[ReceivedMessage], Awaitable[None]]
"""Handles one message in the asyncio loop. Its normal end acks the message and an exception retries
it, unless the handler settled it itself.
"""

BatchHandler = Callable[[list[ReceivedMessage]], Awaitable[None]]
"""The same for several messages of one queue; its end settles those that are not settled."""
