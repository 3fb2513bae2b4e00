"""A ``triomq.PushConsumer`` for asyncio."""

# Written by `make docs` from the signatures in client/sdk/push_consumer.py: change them instead.

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import SupportsIndex

from triomq import client
from triomq.aio.calls import call_in_loop
from triomq.aio.consuming import PushConsumerBase
from triomq.aio.received import BatchHandler, Handler
from triomq.client.core.config import ConsumerSettings
from triomq.client.core.portal import in_loop
from triomq.client.receiving.allocation import Allocation, allocate_average
from triomq.client.receiving.member_spec import AssignmentChange
from triomq.client.receiving.offsets import ConsumeFrom, Start
from triomq.client.receiving.subscribing import Subscriptions
from triomq.client.sdk.push_consumer import ConsumerStatistics, Mode
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

    async def subscribe(self, subscriptions: Subscriptions) -> None:
        """Consume further topics, or other tags; all members of the group should do the same."""
        await call_in_loop(self._portal, self._target.subscribe, subscriptions)

    @property
    def assignment(self) -> tuple[MessageQueue, ...]:
        """The queues that this consumer owns, sorted; a push consumer's retry queues included."""
        return self._target.assignment

    async def wait_assigned(self) -> None:
        """Wait until this member has its first share of the queues."""
        await call_in_loop(self._portal, self._target.wait_assigned)

    async def unsubscribe(self, topic: str) -> None:
        """Stop consuming a topic: its queues go to the members that still subscribe to it."""
        await call_in_loop(self._portal, self._target.unsubscribe, topic)

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

    async def pause(self) -> None:
        """Hand out and pull no more until ``resume``; handlers go on, the queues stay owned."""
        await call_in_loop(self._portal, in_loop, self._target.pause)

    async def resume(self) -> None:
        """Continue after ``pause``."""
        await call_in_loop(self._portal, in_loop, self._target.resume)

    async def statistics(self) -> ConsumerStatistics:
        """Return the numbers of queues and messages, and the rates of each topic."""
        return await call_in_loop(self._portal, in_loop, self._target.statistics)
