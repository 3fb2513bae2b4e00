"""A blocking `triomq.PushConsumer`, and its messages, whose verdicts block, too."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import SupportsIndex

import trio

from triomq import client
from triomq.client import (
    AssignmentChange,
    ConsumeFrom,
    ConsumerSettings,
    ConsumerStatistics,
    MessageQueue,
    NotRunning,
)
from triomq.client.arguments import check_count, check_plain
from triomq.client.consumer.allocation import Allocation, allocate_average
from triomq.client.consumer.offsets import Start
from triomq.client.consumer.subscribing import Subscriptions
from triomq.client.consumer.view import MessageView, stamp, take
from triomq.client.portal import Portal, in_loop
from triomq.sync.lifetime import BlockingLifetime


class ReceivedMessage(MessageView):
    """A blocking `triomq.ReceivedMessage`, with the same read-only fields and verdicts."""

    __slots__ = ("_portal",)

    def __init__(self, message: client.ReceivedMessage, portal: Portal[client.PushConsumer]) -> None:
        super().__init__(message)
        self._portal = portal

    def ack(self, *, timeout: float | None = None) -> bool:
        """Count the message as done; see `triomq.ReceivedMessage.ack`."""
        return self._portal.call(timeout, self._message.ack)

    def retry(self, delay_level: SupportsIndex = 0, *, pause: float | None = None, timeout: float | None = None) -> bool:
        """Ask for the message again, later; see `triomq.ReceivedMessage.retry`."""
        return self._portal.call(timeout, self._message.retry, delay_level, pause=pause)

    def dead_letter(self, *, timeout: float | None = None) -> bool:
        """Move the message to the dead letters; see `triomq.ReceivedMessage.dead_letter`."""
        return self._portal.call(timeout, self._message.dead_letter)

    def __enter__(self) -> ReceivedMessage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.settled:
            return
        if error is None:
            self.ack()
        elif isinstance(error, Exception):
            self.retry()


Handler = Callable[[ReceivedMessage], object]
"""Handles one message in a worker thread: its normal end is an ack, an exception a retry, unless it gave the verdict itself."""


BatchHandler = Callable[[Sequence[ReceivedMessage]], object]
"""The same for the messages of one queue that are there; its verdict is for all that have none yet."""


class PushConsumer(BlockingLifetime[client.PushConsumer]):
    """A blocking `triomq.PushConsumer`: iterate over it, or give a `handler` or `batch_handler`, which runs in `concurrency` worker threads."""

    def __init__(
        self,
        namesrv: str | Iterable[str] | None = None,
        *,
        group: str,
        subscriptions: Subscriptions,
        handler: Handler | None = None,
        batch_handler: BatchHandler | None = None,
        batch_max: SupportsIndex = 32,
        concurrency: SupportsIndex = 20,
        ordered: bool = False,
        broadcast: bool = False,
        consume_from: Start = ConsumeFrom.LAST,
        allocate: Allocation = allocate_average,
        on_assignment: Callable[[AssignmentChange], object] | None = None,
        settings: ConsumerSettings | None = None,
    ) -> None:
        threads = check_count("concurrency", concurrency)
        for name, function in (("handler", handler), ("batch_handler", batch_handler)):
            check_plain(name, function)
        self._limiter = trio.CapacityLimiter(threads)
        self._handler, self._batch_handler = handler, batch_handler
        self._buffer: deque[client.ReceivedMessage] = deque()
        super().__init__(
            client.PushConsumer(
                namesrv,
                group=group,
                subscriptions=subscriptions,
                handler=self._handle if handler is not None else None,
                batch_handler=self._handle_batch if batch_handler is not None else None,
                batch_max=batch_max,
                concurrency=threads,
                ordered=ordered,
                broadcast=broadcast,
                consume_from=consume_from,
                allocate=allocate,
                on_assignment=on_assignment,
                settings=settings,
            )
        )

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return self

    def __next__(self) -> ReceivedMessage:
        """Wait for the next message; it wants `ack` or `retry`, or `with message:`.  The iteration ends when the consumer is stopped."""
        while True:
            try:
                message = self._buffer.popleft()  # asking first if there is one would race with other threads
            except IndexError:
                try:
                    self._portal.call(None, self._fill)
                except NotRunning:
                    if self._portal.ended:
                        raise StopIteration from None
                    raise
                continue
            if not message.lost:
                self._portal.tell(stamp, message)
                return ReceivedMessage(message, self._portal)

    @property
    def client_id(self) -> str:
        """The name under which the brokers know this member."""
        return self._target.client_id

    @property
    def assignment(self) -> tuple[MessageQueue, ...]:
        """The queues that this consumer owns now, sorted; retry queues included."""
        return self._target.assignment

    def wait_assigned(self, *, timeout: float | None = None) -> None:
        """Wait until this member has its first share of the queues."""
        self._portal.call(timeout, self._target.wait_assigned)

    def statistics(self) -> ConsumerStatistics:
        """Return how much is under way."""
        return self._portal.call(None, in_loop, self._target.statistics)

    def pause(self) -> None:
        """Take nothing more until `resume`; what this side has already is still returned."""
        self._portal.call(None, in_loop, self._target.pause)

    def resume(self) -> None:
        """Go on after `pause`."""
        self._portal.call(None, in_loop, self._target.resume)

    def subscribe(self, subscriptions: Subscriptions, *, timeout: float | None = None) -> None:
        """Consume further topics; see `triomq.PushConsumer.subscribe`."""
        self._portal.call(timeout, self._target.subscribe, subscriptions)

    def unsubscribe(self, topic: str, *, timeout: float | None = None) -> None:
        """Consume a topic no longer."""
        self._portal.call(timeout, self._target.unsubscribe, topic)

    async def _fill(self) -> None:
        self._buffer.extend(await take(self._target))

    async def _handle(self, message: client.ReceivedMessage) -> None:
        assert self._handler is not None
        view = ReceivedMessage(message, self._portal)
        # A thread cannot be cancelled: after `shutdown_timeout` it is left alone, and its verdict has no effect.
        await trio.to_thread.run_sync(self._handler, view, limiter=self._limiter, abandon_on_cancel=True)

    async def _handle_batch(self, messages: Sequence[client.ReceivedMessage]) -> None:
        assert self._batch_handler is not None
        views = [ReceivedMessage(message, self._portal) for message in messages]
        await trio.to_thread.run_sync(self._batch_handler, views, limiter=self._limiter, abandon_on_cancel=True)
