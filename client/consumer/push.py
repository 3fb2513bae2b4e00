"""`PushConsumer`: messages of a group's topics, each with a verdict.

    async with PushConsumer("ns1:9876", group="billing", subscriptions={"Orders": "paid || refunded"}) as consumer:
        async for message in consumer:
            async with message:                      # ack at a normal end, retry after an exception
                await charge(message.body)

"Push" is RocketMQ's word: really the client pulls, by long polls that the broker answers when a message arrives.

    async with ─┬ session: connector, route refresh, heartbeat
                └ rebalance   offset saver   redelivery   expiry   one pull loop per queue   handler-0 … handler-N
"""

from __future__ import annotations

import datetime
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType

import attrs
import trio

from triomq.client.background import open_background
from triomq.client.config import ConsumerSettings, namesrv_addresses
from triomq.client.consumer.allocation import Allocation, allocate_average
from triomq.client.consumer.delivery import Delivery, Handler
from triomq.client.consumer.inbox import InboxClosed
from triomq.client.consumer.membership import Membership, open_membership
from triomq.client.consumer.offsets import RETRY_TOPIC_PREFIX, ConsumeFrom, StartPoint
from triomq.client.consumer.received import ReceivedMessage
from triomq.client.consumer.subscribing import Subscriptions, make_subscriptions
from triomq.client.errors import NotRunning, SettingsError
from triomq.client.names import check_group
from triomq.client.session import Member, open_session
from triomq.remoting.protocol.bodies.heartbeat import CLUSTERING, CONSUME_PASSIVELY, ConsumerData
from triomq.remoting.protocol.bodies.route import MessageQueue

logger = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class ConsumerStatistics:
    """A snapshot of a consumer."""

    queues: int
    """queues owned now"""
    unsettled: int
    """messages that were pulled and have no verdict yet"""
    waiting: int
    """of these, messages that nobody has taken yet"""
    set_aside: int
    """of these, messages that wait for another delivery here since the broker did not take them back"""


class PushConsumer:
    """A member of a consumer group, used with `async with`.

    Either give a `handler`, which then runs in the background in `concurrency` tasks; or iterate with `async for`, from as many tasks as
    you like; or call `run`.  Messages that get no verdict come again: at least once, so handlers must bear a duplicate.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        *,
        group: str,
        subscriptions: Subscriptions,
        handler: Handler | None = None,
        concurrency: int = 20,
        consume_from: str | ConsumeFrom | datetime.datetime = ConsumeFrom.LAST,
        allocate: Allocation = allocate_average,
        settings: ConsumerSettings | None = None,
    ) -> None:
        """Describe a consumer; nothing is started.

        `namesrv` is `"host:9876;host2:9876"`, a list, or None for the environment variable NAMESRV_ADDR.  `subscriptions` is a topic, a list
        of topics, or topic → tag expression; all members of a group must have the same.  `consume_from` (`"first"`, `"last"`, an aware
        datetime) matters only for queues for which the group has no offset yet.
        """
        if concurrency < 1:
            raise SettingsError(f"concurrency must be 1 or greater, not {concurrency}")
        self.group = check_group(group)
        self.settings = settings or ConsumerSettings()
        self._namesrv = namesrv_addresses(namesrv)
        self._subscriptions = make_subscriptions(subscriptions, time.time_ns() // 1_000_000)
        if not self._subscriptions:
            raise SettingsError("subscriptions names no topic")
        retry_topic = RETRY_TOPIC_PREFIX + group
        self._subscriptions |= make_subscriptions({retry_topic: "*"}, time.time_ns() // 1_000_000)
        self._handler = handler
        self._concurrency = concurrency
        self._start = StartPoint.of(consume_from)
        self._allocate = allocate
        self._membership: Membership | None = None
        self._delivery: Delivery | None = None
        self._handled = trio.Event()
        self._context: AbstractAsyncContextManager[None] | None = None

    def __repr__(self) -> str:
        state = f"owns {len(self._membership.fetcher.assignments)} queues" if self._membership else "not running"
        return f"<PushConsumer of {self.group}: {state}>"

    # -- life -------------------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> PushConsumer:
        """Start.  Errors: `NoNameServer` if none answers."""
        if self._context is not None:
            raise NotRunning("this consumer was started before: make a new one")
        self._context = self._open()
        await self._context.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Stop: no more pulls; handlers end (within `shutdown_timeout`, or at once after an error); offsets are stored; unregister."""
        assert self._context is not None
        return await self._context.__aexit__(kind, error, trace)

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[None]:
        member = Member(consumer_group=self.group, consumer_data=self._describe)
        async with open_session(self._namesrv, self.settings.client, member) as session:
            delivery = Delivery(self.group, session, self.settings)
            async with open_membership(
                session,
                self.settings,
                group=self.group,
                subscriptions=self._subscriptions,
                start=self._start,
                allocate=self._allocate,
                deliver=delivery.inbox.put,
                sends_back=delivery,
            ) as membership:
                try:
                    async with open_background() as nursery:
                        nursery.start_soon(delivery.redelivery.run, delivery.inbox, name="redelivery")
                        nursery.start_soon(delivery.expire, membership.owned, name="expiry")
                        self._membership, self._delivery = membership, delivery
                        if self._handler is not None:
                            nursery.start_soon(self._handle, self._handler, name="handlers")
                        else:
                            self._handled.set()
                        yield
                        membership.stop_fetching()
                        delivery.inbox.close()
                        with trio.move_on_after(self.settings.client.shutdown_timeout) as drain:
                            await self._handled.wait()
                        if drain.cancelled_caught:
                            logger.warning(
                                "group %s: handlers did not end within shutdown_timeout %g s and are cancelled; "
                                "their messages come again",
                                self.group,
                                self.settings.client.shutdown_timeout,
                            )
                finally:
                    delivery.inbox.close()
                    self._membership = self._delivery = None

    async def _handle(self, handler: Handler) -> None:
        try:
            await self.run(handler, concurrency=self._concurrency)
        finally:
            self._handled.set()

    def _describe(self) -> ConsumerData:
        return ConsumerData(
            group=self.group,
            consume_type=CONSUME_PASSIVELY,
            message_model=CLUSTERING,
            consume_from_where=self._start.where.value,
            subscriptions=list(self._subscriptions.values()),
        )

    # -- messages ---------------------------------------------------------------------------------------------------------------

    async def run(self, handler: Handler, *, concurrency: int = 20) -> None:
        """Handle messages in `concurrency` tasks until the consumer stops or this call is cancelled.

        The end of the handler is an ack, an exception a retry (logged), unless the handler gave the verdict itself.  A handler that is
        cancelled leaves its message without verdict: it comes again.
        """
        await self._active().run(handler, concurrency)

    async def take(self, max_messages: int = 32) -> list[ReceivedMessage]:
        """Wait until something is there and return it, at most `max_messages`; each wants its verdict.

        A cancelled call takes nothing.  Errors: `NotRunning` when the consumer stops.
        """
        try:
            return await self._active().inbox.get_some(max_messages)
        except InboxClosed:
            raise NotRunning("this consumer is stopping") from None

    def __aiter__(self) -> PushConsumer:
        return self

    async def __anext__(self) -> ReceivedMessage:
        """Wait for the next message; it wants `ack` or `retry`, or `async with message:`."""
        if self._delivery is None and self._context is not None:  # it has stopped
            await trio.lowlevel.checkpoint()
            raise StopAsyncIteration
        try:
            return await self._active().inbox.get()
        except InboxClosed:
            raise StopAsyncIteration from None

    # -- what it is doing -------------------------------------------------------------------------------------------------------

    @property
    def client_id(self) -> str:
        """The name under which the brokers know this member."""
        return self._member().session.client_id

    @property
    def assignment(self) -> tuple[MessageQueue, ...]:
        """The queues that this consumer owns now, sorted, its retry queues included."""
        return tuple(sorted(self._member().fetcher.assignments))

    async def wait_assigned(self) -> None:
        """Wait until this member has its first share of the queues (which may be none, if there are more members than queues)."""
        await self._member().rebalancer.wait_balanced()

    def statistics(self) -> ConsumerStatistics:
        """Return how much is under way."""
        delivery, membership = self._active(), self._member()
        return ConsumerStatistics(
            queues=len(membership.fetcher.assignments),
            unsettled=sum(len(assignment.held) for assignment in membership.owned()),
            waiting=len(delivery.inbox),
            set_aside=len(delivery.redelivery),
        )

    def _active(self) -> Delivery:
        if self._delivery is None:
            raise NotRunning("this consumer is not running: use it inside `async with`")
        return self._delivery

    def _member(self) -> Membership:
        if self._membership is None:
            raise NotRunning("this consumer is not running: use it inside `async with`")
        return self._membership
