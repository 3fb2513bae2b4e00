"""A blocking `triomq.PullConsumer`."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import inf
from typing import SupportsIndex

import trio

from triomq import client
from triomq.client import (
    AssignmentChange,
    ConsumeFrom,
    ConsumerSettings,
    MessageQueue,
    NotRunning,
)
from triomq.client.arguments import check_timeout
from triomq.client.consumer.allocation import Allocation, allocate_average
from triomq.client.consumer.offsets import Start
from triomq.client.consumer.subscribing import Sql, Subscriptions
from triomq.client.portal import in_loop
from triomq.sync.lifetime import BlockingLifetime


class PullConsumer(BlockingLifetime[client.PullConsumer]):
    """A blocking `triomq.PullConsumer`."""

    def __init__(
        self,
        namesrv: str | Iterable[str] | None = None,
        *,
        group: str,
        subscriptions: Subscriptions | None = None,
        consume_from: Start = ConsumeFrom.LAST,
        auto_commit: bool = True,
        allocate: Allocation = allocate_average,
        on_assignment: Callable[[AssignmentChange], object] | None = None,
        settings: ConsumerSettings | None = None,
    ) -> None:
        super().__init__(
            client.PullConsumer(
                namesrv,
                group=group,
                subscriptions=subscriptions,
                consume_from=consume_from,
                auto_commit=auto_commit,
                allocate=allocate,
                on_assignment=on_assignment,
                settings=settings,
            )
        )

    def __iter__(self) -> Iterator[client.ReceivedMessage]:
        return self

    def __next__(self) -> client.ReceivedMessage:
        """Wait for the next message; with `auto_commit` the ones before it then count as done.  The iteration ends when the consumer is stopped."""
        try:
            return self.poll(max_messages=1)[0]
        except NotRunning:
            if self._portal.ended:
                raise StopIteration from None
            raise

    def poll(self, *, max_messages: SupportsIndex = 32, timeout: float | None = None) -> list[client.ReceivedMessage]:
        """Return at most `max_messages`; an empty list if none came within `timeout` seconds."""
        seconds = check_timeout(timeout)
        returned: list[client.ReceivedMessage] = []
        try:
            self._portal.call(None, _poll, self._target, max_messages, seconds, returned)
        except BaseException:  # interrupted; nobody got what had come
            if returned:
                self._portal.call(5.0, in_loop, self._target.give_back, returned)
            raise
        return returned

    def subscribe(self, subscriptions: Subscriptions, *, timeout: float | None = None) -> None:
        """Share further topics with the group."""
        self._portal.call(timeout, self._target.subscribe, subscriptions)

    def assign(self, queues: Iterable[MessageQueue], *, tags: str | Sql = "*", timeout: float | None = None) -> None:
        """Read exactly these queues."""
        self._portal.call(timeout, self._target.assign, queues, tags=tags)

    def queues(self, topic: str, *, timeout: float | None = None) -> tuple[MessageQueue, ...]:
        """Return all readable queues of a topic."""
        return self._portal.call(timeout, self._target.queues, topic)

    @property
    def client_id(self) -> str:
        """The name under which the brokers know this member."""
        return self._target.client_id

    @property
    def assignment(self) -> tuple[MessageQueue, ...]:
        """The queues that are read now."""
        return self._target.assignment

    def wait_assigned(self, *, timeout: float | None = None) -> None:
        """Wait until the group has given this member its first share."""
        self._portal.call(timeout, self._target.wait_assigned)

    def position(self, queue: MessageQueue) -> int:
        """Return the offset of the message that comes next."""
        return self._portal.call(None, in_loop, self._target.position, queue)

    def seek(self, queue: MessageQueue, offset: SupportsIndex, *, timeout: float | None = None) -> None:
        """Go on at another offset."""
        self._portal.call(timeout, self._target.seek, queue, offset)

    def seek_to_begin(self, queue: MessageQueue, *, timeout: float | None = None) -> None:
        """Go on at the oldest message."""
        self._portal.call(timeout, self._target.seek_to_begin, queue)

    def seek_to_time(self, queue: MessageQueue, instant: datetime.datetime, *, timeout: float | None = None) -> None:
        """Go on at the first message stored at or after an aware `datetime`."""
        self._portal.call(timeout, self._target.seek_to_time, queue, instant)

    def unsubscribe(self, topic: str, *, timeout: float | None = None) -> None:
        """Share a topic no longer."""
        self._portal.call(timeout, self._target.unsubscribe, topic)

    def seek_to_end(self, queue: MessageQueue, *, timeout: float | None = None) -> None:
        """Go on with what is sent from now on."""
        self._portal.call(timeout, self._target.seek_to_end, queue)

    def pause(self, *queues: MessageQueue) -> None:
        """Return nothing more of these queues until `resume`."""
        self._portal.call(None, in_loop, self._target.pause, *queues)

    def resume(self, *queues: MessageQueue) -> None:
        """Go on where `pause` stopped."""
        self._portal.call(None, in_loop, self._target.resume, *queues)

    def commit(self, offsets: Mapping[MessageQueue, SupportsIndex] | None = None, *, timeout: float | None = None) -> None:
        """Store offsets now."""
        self._portal.call(timeout, self._target.commit, offsets)

    def committed(self, queue: MessageQueue, *, timeout: float | None = None) -> int | None:
        """Return the group's offset as the broker has it."""
        return self._portal.call(timeout, self._target.committed, queue)

    def min_offset(self, queue: MessageQueue, *, timeout: float | None = None) -> int:
        """Return the offset of the oldest message."""
        return self._portal.call(timeout, self._target.min_offset, queue)

    def max_offset(self, queue: MessageQueue, *, timeout: float | None = None) -> int:
        """Return the offset that the next message will get."""
        return self._portal.call(timeout, self._target.max_offset, queue)

    def offset_for_time(self, queue: MessageQueue, instant: datetime.datetime, *, timeout: float | None = None) -> int:
        """Return the offset of the first message stored at or after an instant."""
        return self._portal.call(timeout, self._target.offset_for_time, queue, instant)


async def _poll(
    consumer: client.PullConsumer, max_messages: SupportsIndex, seconds: float | None, returned: list[client.ReceivedMessage]
) -> None:
    with trio.move_on_after(inf if seconds is None else seconds):
        returned += await consumer.poll(max_messages=max_messages)
