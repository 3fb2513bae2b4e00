"""A ``triomq.PullConsumer`` for asyncio."""

# Written by `make docs` from the signatures in client/sdk/pull_consumer.py: change them instead.

from __future__ import annotations

from collections.abc import Callable, Iterable

from triomq import client
from triomq.aio.calls import awaited, called
from triomq.aio.consuming import PullConsumerBase
from triomq.client.core.config import ConsumerSettings
from triomq.client.receiving.allocation import Allocation, allocate_average
from triomq.client.receiving.member_spec import AssignmentChange
from triomq.client.receiving.offsets import ConsumeFrom, Start
from triomq.client.receiving.subscribing import Subscriptions
from triomq.remoting.protocol.bodies.route import MessageQueue


class PullConsumer(PullConsumerBase):
    """A ``triomq.PullConsumer`` for asyncio.

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

    @property
    def assignment(self) -> tuple[MessageQueue, ...]:
        """The queues that this consumer owns, sorted; a push consumer's retry queues included."""
        return self._target.assignment

    @property
    def auto_commit(self) -> bool:
        """Whether each ``poll`` declares the messages of earlier polls as done."""
        return self._target.auto_commit

    subscribe = awaited(client.PullConsumer.subscribe)
    wait_assigned = awaited(client.PullConsumer.wait_assigned)
    unsubscribe = awaited(client.PullConsumer.unsubscribe)
    assign = awaited(client.PullConsumer.assign)
    queues = awaited(client.PullConsumer.queues)
    position = called(client.PullConsumer.position)
    seek = awaited(client.PullConsumer.seek)
    seek_to_begin = awaited(client.PullConsumer.seek_to_begin)
    seek_to_end = awaited(client.PullConsumer.seek_to_end)
    seek_to_time = awaited(client.PullConsumer.seek_to_time)
    pause = called(client.PullConsumer.pause)
    resume = called(client.PullConsumer.resume)
    commit = awaited(client.PullConsumer.commit)
    commit_nowait = called(client.PullConsumer.commit_nowait)
    committed = awaited(client.PullConsumer.committed)
    min_offset = awaited(client.PullConsumer.min_offset)
    max_offset = awaited(client.PullConsumer.max_offset)
    offset_for_time = awaited(client.PullConsumer.offset_for_time)
