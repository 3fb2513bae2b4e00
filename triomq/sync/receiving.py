"""What a blocking simple consumer receives, and how it hands it out.

The generated class adds the rest.
"""

from __future__ import annotations

import contextlib
import datetime
from typing import Self, SupportsIndex

import trio

from triomq import client
from triomq.client.core.errors import NotRunning
from triomq.client.core.portal import HandOver
from triomq.client.receiving.pop.durations import Duration
from triomq.sync.lifetime import BlockingLifetime
from triomq.sync.received import BlockingMessage


class LeasedMessage(BlockingMessage[client.LeasedMessage]):
    """A blocking ``triomq.LeasedMessage``: the same fields, to be acked in time."""

    __slots__ = ()

    @property
    def receipt(self) -> str:
        """The receipt handle; ``change_invisible`` gives a new one."""
        return self._target.receipt

    @property
    def invisible_until(self) -> datetime.datetime:
        """When the group gets the message again, by the broker's clock; an aware datetime."""
        return self._target.invisible_until

    def ack(self, *, timeout: float | None = None) -> None:
        """Acknowledge the message; see ``triomq.LeasedMessage.ack``."""
        self._portal.call(timeout, self._target.ack)

    def change_invisible(self, invisible: Duration, *, timeout: float | None = None) -> None:
        """Hide the message for another time; see ``triomq.LeasedMessage.change_invisible``."""
        self._portal.call(timeout, self._target.change_invisible, invisible)

    def retry(self, delay: Duration | None = None, *, timeout: float | None = None) -> None:
        """Settle the message as failed; see ``triomq.LeasedMessage.retry``."""
        self._portal.call(timeout, self._target.retry, delay)

    def dead_letter(self, *, timeout: float | None = None) -> None:
        """Move the message to the dead letters; see ``triomq.LeasedMessage.dead_letter``."""
        self._portal.call(timeout, self._target.dead_letter)


class SimpleConsumerBase(BlockingLifetime[client.SimpleConsumer]):
    """Call ``receive``, or iterate over it."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> LeasedMessage:
        """Receive the next message; the application settles it by ``ack`` or ``with message:``.

        The iteration ends when the consumer is stopped.
        """
        with self._portal.until_ended():
            return self.receive(count=1)[0]
        raise StopIteration

    def receive(
        self,
        *,
        count: SupportsIndex = 16,
        invisible: Duration | None = None,
        timeout: Duration | None = None,
    ) -> list[LeasedMessage]:
        """Return at most ``count`` messages; an empty list after ``timeout`` without any.

        See ``triomq.SimpleConsumer.receive``.
        """
        received: HandOver[list[client.LeasedMessage]] = HandOver()

        async def receive() -> None:
            messages = await self._target.receive(count=count, invisible=invisible, timeout=timeout)
            if not received.put(messages):
                with trio.CancelScope(shield=True):
                    await self._target.give_back(messages)

        try:
            self._portal.call(None, receive)
        except BaseException:  # interrupted: the messages have not reached the caller
            if messages := received.abandon():
                with contextlib.suppress(NotRunning):
                    self._portal.submit(self._target.give_back, messages)
            raise
        return [LeasedMessage(message, self._portal) for message in received.take()]

    def ack(self, message: LeasedMessage, *, timeout: float | None = None) -> None:
        """Acknowledge a message, as ``message.ack`` does."""
        message.ack(timeout=timeout)

    def change_invisible(
        self, message: LeasedMessage, invisible: Duration, *, timeout: float | None = None
    ) -> None:
        """Hide a message for another time, as ``message.change_invisible`` does."""
        message.change_invisible(invisible, timeout=timeout)
