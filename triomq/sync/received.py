"""Received messages whose ``ack``, ``retry`` and ``dead_letter`` block, and their handlers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self, SupportsIndex

from triomq import client
from triomq.client.core.portal import in_loop
from triomq.client.sdk.portal_messages import AnyMessage, PortalMessage


class BlockingMessage(PortalMessage[AnyMessage]):
    """A message whose ``with`` block settles it."""

    __slots__ = ()

    ack: Callable[[], object]
    retry: Callable[[], object]

    def reply(
        self, body: bytes, *, properties: Mapping[str, str] | None = None, timeout: float = 3.0
    ) -> None:
        """Answer a request; see ``triomq.ReceivedMessage.reply``."""
        self._portal.call(None, self._target.reply, body, properties=properties, timeout=timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.settled:
            return
        if error is None:
            self.ack()
        elif isinstance(error, Exception):
            self.retry()


class ReceivedMessage(BlockingMessage[client.ReceivedMessage]):
    """A blocking ``triomq.ReceivedMessage``: the same fields, to be settled exactly once."""

    __slots__ = ()

    def ack(self, *, timeout: float | None = None) -> bool:
        """Count the message as done; see ``triomq.ReceivedMessage.ack``."""
        return self._portal.call(timeout, in_loop, self._target.ack_nowait)

    def retry(
        self,
        delay_level: SupportsIndex = 0,
        *,
        pause: float | None = None,
        timeout: float | None = None,
    ) -> bool:
        """Have the message delivered again later; see ``triomq.ReceivedMessage.retry``."""
        return self._portal.call(timeout, self._target.retry, delay_level, pause=pause)

    def dead_letter(self, *, timeout: float | None = None) -> bool:
        """Move the message to the dead letters; see ``triomq.ReceivedMessage.dead_letter``."""
        return self._portal.call(timeout, self._target.dead_letter)


Handler = Callable[[ReceivedMessage], None]
"""Handles one message in a worker thread. Its normal end acks the message and an exception retries
it, unless the handler settled it itself.
"""

BatchHandler = Callable[[list[ReceivedMessage]], None]
"""The same for several messages of one queue; its end settles those that are not settled."""
