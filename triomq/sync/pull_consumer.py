"""A blocking ``triomq.PullConsumer``."""

# Written by `make docs` from the signatures in client/sdk/pull_consumer.py: change them instead.

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping
from typing import SupportsIndex

from triomq import client
from triomq.client.core.config import ConsumerSettings
from triomq.client.core.portal import in_loop
from triomq.client.receiving.allocation import Allocation, allocate_average
from triomq.client.receiving.member_spec import AssignmentChange
from triomq.client.receiving.offsets import ConsumeFrom, Start
from triomq.client.receiving.subscribing import Sql, Subscriptions
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.sync.consuming import PullConsumerBase


class PullConsumer(PullConsumerBase):
    """A blocking ``triomq.PullConsumer``.

    Methods have the names and parameters of ``triomq.PullConsumer``; see there.
    """

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

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._target.group

    @property
    def settings(self) -> ConsumerSettings:
        """The settings as given, or the defaults."""
        return self._target.settings

    @property
    def client_id(self) -> str:
        """This member's name on the brokers."""
        return self._target.client_id

    def subscribe(self, subscriptions: Subscriptions, *, timeout: float | None = None) -> None:
        """Consume further topics, or other tags; all members of the group should do the same."""
        self._portal.call(timeout, self._target.subscribe, subscriptions)

    @property
    def assignment(self) -> tuple[MessageQueue, ...]:
        """The queues that this consumer owns, sorted; a push consumer's retry queues included."""
        return self._target.assignment

    def wait_assigned(self, *, timeout: float | None = None) -> None:
        """Wait until this member has its first share of the queues."""
        self._portal.call(timeout, self._target.wait_assigned)

    def unsubscribe(self, topic: str, *, timeout: float | None = None) -> None:
        """Stop consuming a topic: its queues go to the members that still subscribe to it."""
        self._portal.call(timeout, self._target.unsubscribe, topic)

    @property
    def auto_commit(self) -> bool:
        """Whether each ``poll`` declares the messages of earlier polls as done."""
        return self._target.auto_commit

    def assign(
        self, queues: Iterable[MessageQueue], *, tags: str | Sql = "*", timeout: float | None = None
    ) -> None:
        """Read exactly these queues, instead of those of an earlier call."""
        self._portal.call(timeout, self._target.assign, queues, tags=tags)

    def queues(self, topic: str, *, timeout: float | None = None) -> tuple[MessageQueue, ...]:
        """Return all readable queues of a topic. Raises: ``RouteNotFound``, ``NoNameServer``."""
        return self._portal.call(timeout, self._target.queues, topic)

    def position(self, queue: MessageQueue) -> int:
        """Return the offset of the message that comes next. Raises: ``QueueNotAssigned``."""
        return self._portal.call(None, in_loop, self._target.position, queue)

    def seek(
        self, queue: MessageQueue, offset: SupportsIndex, *, timeout: float | None = None
    ) -> None:
        """Continue at another offset."""
        self._portal.call(timeout, self._target.seek, queue, offset)

    def seek_to_begin(self, queue: MessageQueue, *, timeout: float | None = None) -> None:
        """Continue at the oldest message. Raises: as ``seek``."""
        self._portal.call(timeout, self._target.seek_to_begin, queue)

    def seek_to_end(self, queue: MessageQueue, *, timeout: float | None = None) -> None:
        """Continue with messages that are sent from now on. Raises: as ``seek``."""
        self._portal.call(timeout, self._target.seek_to_end, queue)

    def seek_to_time(
        self, queue: MessageQueue, instant: datetime.datetime, *, timeout: float | None = None
    ) -> None:
        """Continue at the first message stored at or after an aware ``datetime``."""
        self._portal.call(timeout, self._target.seek_to_time, queue, instant)

    def pause(self, *queues: MessageQueue) -> None:
        """Return no more messages of these queues until ``resume``; the queues stay owned."""
        self._portal.call(None, in_loop, self._target.pause, *queues)

    def resume(self, *queues: MessageQueue) -> None:
        """Continue where ``pause`` stopped. Raises: ``QueueNotAssigned``."""
        self._portal.call(None, in_loop, self._target.resume, *queues)

    def commit(
        self,
        offsets: Mapping[MessageQueue, SupportsIndex] | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        """Store offsets now: the given ones, otherwise those behind all returned messages."""
        self._portal.call(timeout, self._target.commit, offsets)

    def commit_nowait(self, offsets: Mapping[MessageQueue, SupportsIndex] | None = None) -> None:
        """Store offsets as ``commit`` does, in the background and until that works."""
        self._portal.call(None, in_loop, self._target.commit_nowait, offsets)

    def committed(self, queue: MessageQueue, *, timeout: float | None = None) -> int | None:
        """Return the group's offset on the broker, or None if it has none."""
        return self._portal.call(timeout, self._target.committed, queue)

    def min_offset(self, queue: MessageQueue, *, timeout: float | None = None) -> int:
        """Return the offset of the oldest message. Raises: ``TrioMQError`` from the broker."""
        return self._portal.call(timeout, self._target.min_offset, queue)

    def max_offset(self, queue: MessageQueue, *, timeout: float | None = None) -> int:
        """Return the offset that the next message will get. Raises: ``TrioMQError`` (broker)."""
        return self._portal.call(timeout, self._target.max_offset, queue)

    def offset_for_time(
        self, queue: MessageQueue, instant: datetime.datetime, *, timeout: float | None = None
    ) -> int:
        """Return the offset of the first message stored at or after an aware ``datetime``."""
        return self._portal.call(timeout, self._target.offset_for_time, queue, instant)
