"""A ``triomq.PushConsumer`` for asyncio."""

# Written by `make docs` from the signatures in client/sdk/push_consumer.py: change them instead.

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import SupportsIndex

from triomq import client
from triomq.aio.calls import awaited, called
from triomq.aio.consuming import PushConsumerBase
from triomq.aio.received import BatchHandler, Handler
from triomq.client.core.config import ConsumerSettings
from triomq.client.receiving.allocation import Allocation, allocate_average
from triomq.client.receiving.member_spec import AssignmentChange
from triomq.client.receiving.offsets import ConsumeFrom, Start
from triomq.client.receiving.subscribing import Subscriptions
from triomq.client.sdk.push_consumer import Mode
from triomq.remoting.protocol.bodies.route import MessageQueue


class PushConsumer(PushConsumerBase):
    """A ``triomq.PushConsumer`` for asyncio.

    Methods have the names and parameters of ``triomq.PushConsumer``; see there.
    """

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
        mode: Mode = "pull",
        consume_from: Start = ConsumeFrom.LAST,
        allocate: Allocation = allocate_average,
        on_assignment: Callable[[AssignmentChange], object] | None = None,
        settings: ConsumerSettings | None = None,
    ) -> None:
        super().__init__(
            client.PushConsumer(
                namesrv,
                group=group,
                subscriptions=subscriptions,
                handler=None if handler is None else self._handling(handler),
                batch_handler=None
                if batch_handler is None
                else self._handling_batches(batch_handler),
                batch_max=batch_max,
                concurrency=concurrency,
                ordered=ordered,
                broadcast=broadcast,
                mode=mode,
                consume_from=consume_from,
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
    def ordered(self) -> bool:
        """Whether each queue is consumed in its order."""
        return self._target.ordered

    @property
    def broadcast(self) -> bool:
        """Whether this member gets every message."""
        return self._target.broadcast

    @property
    def mode(self) -> Mode:
        """How messages reach the group: ``"pull"`` or ``"pop"``."""
        return self._target.mode

    subscribe = awaited(client.PushConsumer.subscribe)
    wait_assigned = awaited(client.PushConsumer.wait_assigned)
    unsubscribe = awaited(client.PushConsumer.unsubscribe)
    pause = called(client.PushConsumer.pause)
    resume = called(client.PushConsumer.resume)
    statistics = called(client.PushConsumer.statistics)
