"""How consumers hand out messages under asyncio: iteration, and handlers in its loop.

The generated classes add the rest.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Self, SupportsIndex, TypeVar

from triomq import client
from triomq.aio.calls import AsyncioLifetime, call_in_asyncio, call_in_loop
from triomq.aio.received import BatchHandler, Handler, ReceivedMessage
from triomq.client import MessageQueue
from triomq.client.core.arguments import (
    awaiting,
    check_count,
    require_nothing,
    require_one_argument,
)
from triomq.client.core.portal import HandOver
from triomq.client.sdk.portal_messages import Prefetch

M = TypeVar("M")
V = TypeVar("V")


class PushConsumerBase(AsyncioLifetime[client.PushConsumer]):
    """Iterate over it, from any number of tasks, or give a ``handler`` or a ``batch_handler``.

    Handlers run in the asyncio loop that started the consumer, ``concurrency`` at a time.
    """

    def __init__(self, target: client.PushConsumer) -> None:
        super().__init__(target)
        self._prefetch = Prefetch(target, self._portal)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        """Wait for the next message; settle it by ``ack``, ``retry`` or ``async with message:``.

        The iteration ends when the consumer is stopped.
        """
        with self._portal.until_ended():
            return (await self.take(max_messages=1))[0]
        raise StopAsyncIteration

    async def take(self, *, max_messages: SupportsIndex = 32) -> list[ReceivedMessage]:
        """Wait for messages and return them, at most ``max_messages``, to be settled by the caller.

        A cancelled call takes none.
        """
        count = check_count("max_messages", max_messages)
        while not (taken := self._prefetch.take(count)):
            await call_in_loop(self._portal, self._prefetch.fill)
        return [ReceivedMessage(message, self._portal) for message in taken]

    async def run(self, handler: Handler, *, concurrency: SupportsIndex = 20) -> None:
        """Handle messages in ``concurrency`` tasks until the consumer is stopped.

        See ``triomq.PushConsumer.run``.
        """
        with self._portal.until_ended():
            await call_in_loop(
                self._portal, self._target.run, self._handling(handler), concurrency=concurrency
            )

    async def run_batches(
        self,
        handler: BatchHandler,
        *,
        batch_max: SupportsIndex = 32,
        concurrency: SupportsIndex = 20,
    ) -> None:
        """Handle messages in batches, as ``run`` does; see ``triomq.PushConsumer.run_batches``."""
        wrapped, run = self._handling_batches(handler), self._target.run_batches
        with self._portal.until_ended():
            await call_in_loop(
                self._portal, run, wrapped, batch_max=batch_max, concurrency=concurrency
            )

    def _handling(self, handler: Handler) -> client.Handler:
        return self._handled(handler, lambda message: ReceivedMessage(message, self._portal))

    def _handling_batches(self, handler: BatchHandler) -> client.BatchHandler:
        return self._handled(
            handler, lambda messages: [ReceivedMessage(each, self._portal) for each in messages]
        )

    def _handled(
        self, handler: Callable[[V], Awaitable[None]], view: Callable[[M], V]
    ) -> Callable[[M], Awaitable[None]]:
        """Return a handler for Trio, which gives the view of a message or batch to ``handler``."""
        require_one_argument(handler)
        awaited = awaiting(handler)

        async def handle(received: M) -> None:
            outcome = await call_in_asyncio(self._portal, awaited, view(received))
            require_nothing(handler, outcome)

        return handle


class PullConsumerBase(AsyncioLifetime[client.PullConsumer]):
    """Iterate over it, or call ``poll``."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        """Return the next message; with ``auto_commit`` the messages before it count as done.

        The iteration ends when the consumer is stopped.
        """
        with self._portal.until_ended():
            return (await self.poll(max_messages=1))[0]
        raise StopAsyncIteration

    async def poll(self, *, max_messages: SupportsIndex = 32) -> list[ReceivedMessage]:
        """Wait for messages and return them, at most ``max_messages``.

        There is no time limit: use ``asyncio.timeout``. A cancelled poll loses no message.
        """
        returned: HandOver[list[client.ReceivedMessage]] = HandOver()

        async def poll() -> None:
            messages = await self._target.poll(max_messages=max_messages)
            if not returned.put(messages):
                self._target.give_back(messages)

        try:
            await call_in_loop(self._portal, poll)
        except BaseException:  # cancelled: the messages have not reached the caller
            if messages := returned.abandon():
                self._portal.call_soon(self._target.give_back, messages)
            raise
        return [ReceivedMessage(message, self._portal) for message in returned.take()]

    async def latest(
        self, topic: str, *, keys_max: SupportsIndex = 1_000_000
    ) -> dict[str, ReceivedMessage]:
        """Read a topic as a table: return key → its newest message.

        See ``triomq.PullConsumer.latest``.
        """
        found = await call_in_loop(self._portal, self._target.latest, topic, keys_max=keys_max)
        return {key: ReceivedMessage(message, self._portal) for key, message in found.items()}

    def watch_queues(self, topic: str) -> AsyncIterator[tuple[MessageQueue, ...]]:
        """Iterate over a topic's readable queues: the current ones, then those after every change.

        See ``triomq.PullConsumer.watch_queues``.
        """
        return self._watch(self._target.watch_queues(topic))

    async def _watch(
        self, watch: AsyncIterator[tuple[MessageQueue, ...]]
    ) -> AsyncIterator[tuple[MessageQueue, ...]]:
        while True:
            yield await call_in_loop(self._portal, watch.__anext__)
