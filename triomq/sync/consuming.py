"""How blocking consumers hand out messages: iteration, and handlers in worker threads.

The generated classes add the rest.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from math import inf
from typing import Self, SupportsIndex, TypeVar

import trio

from triomq import client
from triomq.client import CallTimeout, MessageQueue
from triomq.client.core.arguments import (
    check_count,
    check_plain,
    check_timeout,
    require_nothing,
    require_one_argument,
)
from triomq.client.core.portal import HandOver
from triomq.client.sdk.portal_messages import Prefetch
from triomq.sync.lifetime import BlockingLifetime
from triomq.sync.received import BatchHandler, Handler, ReceivedMessage

M = TypeVar("M")
V = TypeVar("V")


class PushConsumerBase(BlockingLifetime[client.PushConsumer]):
    """Iterate over it, or give a ``handler`` or a ``batch_handler``.

    Handlers run in ``concurrency`` worker threads.
    """

    def __init__(self, target: client.PushConsumer) -> None:
        super().__init__(target)
        self._prefetch = Prefetch(target, self._portal)
        self._limiter = trio.CapacityLimiter(inf)  # `concurrency` is the limit

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ReceivedMessage:
        """Wait for the next message; settle it by ``ack``, ``retry`` or ``with message:``.

        The iteration ends when the consumer is stopped.
        """
        with self._portal.until_ended():
            return self.take(max_messages=1)[0]
        raise StopIteration

    def take(
        self, *, max_messages: SupportsIndex = 32, timeout: float | None = None
    ) -> list[ReceivedMessage]:
        """Return at most ``max_messages`` to settle, or an empty list after ``timeout`` seconds."""
        count, seconds = check_count("max_messages", max_messages), check_timeout(timeout)
        end = None if seconds is None else time.monotonic() + seconds
        while not (taken := self._prefetch.take(count)):
            try:
                self._portal.call(
                    None if end is None else end - time.monotonic(), self._prefetch.fill
                )
            except CallTimeout:
                return []
        return [ReceivedMessage(message, self._portal) for message in taken]

    def run(
        self, handler: Handler, *, concurrency: SupportsIndex = 20, timeout: float | None = None
    ) -> None:
        """Handle messages in ``concurrency`` worker threads until the consumer is stopped.

        See ``triomq.PushConsumer.run``.
        """
        with self._portal.until_ended():
            self._portal.call(
                timeout, self._target.run, self._handling(handler), concurrency=concurrency
            )

    def run_batches(
        self,
        handler: BatchHandler,
        *,
        batch_max: SupportsIndex = 32,
        concurrency: SupportsIndex = 20,
        timeout: float | None = None,
    ) -> None:
        """Handle messages in batches, as ``run`` does; see ``triomq.PushConsumer.run_batches``."""
        wrapped = self._handling_batches(handler)
        with self._portal.until_ended():
            self._portal.call(
                timeout,
                self._target.run_batches,
                wrapped,
                batch_max=batch_max,
                concurrency=concurrency,
            )

    def _handling(self, handler: Handler) -> client.Handler:
        check_plain("handler", handler)
        return self._handled(handler, lambda message: ReceivedMessage(message, self._portal))

    def _handling_batches(self, handler: BatchHandler) -> client.BatchHandler:
        check_plain("batch_handler", handler)
        return self._handled(
            handler, lambda messages: [ReceivedMessage(each, self._portal) for each in messages]
        )

    def _handled(
        self, handler: Callable[[V], object], view: Callable[[M], V]
    ) -> Callable[[M], Awaitable[None]]:
        """Return a handler for Trio, which gives the view of a message or batch to ``handler``."""
        require_one_argument(handler)

        async def handle(received: M) -> None:
            # A thread cannot be cancelled: after `shutdown_timeout` it is left alone, and settling
            # its message has no effect.
            outcome = await trio.to_thread.run_sync(
                handler, view(received), limiter=self._limiter, abandon_on_cancel=True
            )
            require_nothing(handler, outcome)

        return handle


class PullConsumerBase(BlockingLifetime[client.PullConsumer]):
    """Iterate over it, or call ``poll``."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ReceivedMessage:
        """Wait for the next message; with ``auto_commit`` the messages before it count as done.

        The iteration ends when the consumer is stopped.
        """
        with self._portal.until_ended():
            return self.poll(max_messages=1)[0]
        raise StopIteration

    def poll(
        self, *, max_messages: SupportsIndex = 32, timeout: float | None = None
    ) -> list[ReceivedMessage]:
        """Return at most ``max_messages``; an empty list after ``timeout`` seconds without any."""
        seconds = check_timeout(timeout)
        returned: HandOver[list[client.ReceivedMessage]] = HandOver()
        try:
            self._portal.call(None, _poll, self._target, max_messages, seconds, returned)
        except BaseException:  # interrupted: the messages have not reached the caller
            if messages := returned.abandon():
                self._portal.call_soon(self._target.give_back, messages)
            raise
        return [ReceivedMessage(message, self._portal) for message in returned.take()]

    def latest(
        self, topic: str, *, keys_max: SupportsIndex = 1_000_000, timeout: float | None = None
    ) -> dict[str, ReceivedMessage]:
        """Read a topic as a table: return key → its newest message.

        See ``triomq.PullConsumer.latest``.
        """
        found = self._portal.call(timeout, self._target.latest, topic, keys_max=keys_max)
        return {key: ReceivedMessage(message, self._portal) for key, message in found.items()}

    def watch_queues(self, topic: str) -> Iterator[tuple[MessageQueue, ...]]:
        """Iterate over a topic's readable queues: the current ones, then those after every change.

        See ``triomq.PullConsumer.watch_queues``.
        """
        watch = self._target.watch_queues(topic)
        return iter(partial(self._portal.call, None, watch.__anext__), None)


async def _poll(
    consumer: client.PullConsumer,
    max_messages: SupportsIndex,
    seconds: float | None,
    returned: HandOver[list[client.ReceivedMessage]],
) -> None:
    messages: list[client.ReceivedMessage] = []
    with trio.move_on_after(inf if seconds is None else seconds):
        messages = await consumer.poll(max_messages=max_messages)
    if not returned.put(messages):
        consumer.give_back(messages)
