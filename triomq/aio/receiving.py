"""What a simple consumer for asyncio receives, and how it hands it out.

The generated class adds the rest.
"""

from __future__ import annotations

import contextlib
import datetime
from typing import Self, SupportsIndex

import trio

from triomq import client
from triomq.aio.calls import AsyncioLifetime, awaited, call_in_loop
from triomq.aio.received import AsyncioMessage
from triomq.client.core.errors import NotRunning
from triomq.client.core.portal import HandOver
from triomq.client.receiving.pop.durations import Duration


class LeasedMessage(AsyncioMessage[client.LeasedMessage]):
    """A ``triomq.LeasedMessage`` for asyncio: the same fields, to be acked in time."""

    __slots__ = ()

    @property
    def receipt(self) -> str:
        """The receipt handle; ``change_invisible`` gives a new one."""
        return self._target.receipt

    @property
    def invisible_until(self) -> datetime.datetime:
        """When the group gets the message again, by the broker's clock; an aware datetime."""
        return self._target.invisible_until

    ack = awaited(client.LeasedMessage.ack)
    change_invisible = awaited(client.LeasedMessage.change_invisible)
    retry = awaited(client.LeasedMessage.retry)
    dead_letter = awaited(client.LeasedMessage.dead_letter)


class SimpleConsumerBase(AsyncioLifetime[client.SimpleConsumer]):
    """Call ``receive``, or iterate over it, from any number of tasks."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> LeasedMessage:
        """Receive the next message; the application settles it by ``ack`` or ``async with``.

        The iteration ends when the consumer is stopped.
        """
        with self._portal.until_ended():
            return (await self.receive(count=1))[0]
        raise StopAsyncIteration

    async def receive(
        self,
        *,
        count: SupportsIndex = 16,
        invisible: Duration | None = None,
        timeout: Duration | None = None,
    ) -> list[LeasedMessage]:
        """Return at most ``count`` messages; an empty list after ``timeout`` without any.

        See ``triomq.SimpleConsumer.receive``. A cancelled call takes none.
        """
        received: HandOver[list[client.LeasedMessage]] = HandOver()

        async def receive() -> None:
            messages = await self._target.receive(count=count, invisible=invisible, timeout=timeout)
            if not received.put(messages):
                with trio.CancelScope(shield=True):
                    await self._target.give_back(messages)

        try:
            await call_in_loop(self._portal, receive)
        except BaseException:  # cancelled: the messages have not reached the caller
            if messages := received.abandon():
                with contextlib.suppress(NotRunning):
                    self._portal.submit(self._target.give_back, messages)
            raise
        return [LeasedMessage(message, self._portal) for message in received.take()]

    async def ack(self, message: LeasedMessage) -> None:
        """Acknowledge a message, as ``message.ack`` does."""
        await message.ack()

    async def change_invisible(self, message: LeasedMessage, invisible: Duration) -> None:
        """Hide a message for another time, as ``message.change_invisible`` does."""
        await message.change_invisible(invisible)
