"""`PushConsumer`: messages of a group's topics, each with a verdict.

    async with PushConsumer("ns1:9876", group="billing", subscriptions={"Orders": "paid || refunded"}) as consumer:
        async for message in consumer:
            async with message:                      # ack at a normal end, retry after an exception
                await charge(message.body)

"Push" is RocketMQ's word: really the client pulls, by long polls that the broker answers when a message arrives.

    async with ─┬ session: connector, route refresh, heartbeat
                ├ rebalance   queue locks   offset saver   consumption samples   one pull loop per queue
                └ redelivery or rests   expiry   handler-0 … handler-N
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import SupportsIndex

import attrs
import trio

from triomq.client.arguments import awaiting, check_callable, check_count
from triomq.client.background import open_background
from triomq.client.config import ConsumerSettings, namesrv_addresses
from triomq.client.consumer.allocation import Allocation, allocate_average
from triomq.client.consumer.answers import Answers
from triomq.client.consumer.assignment import SendsBack
from triomq.client.consumer.counts import TopicRates
from triomq.client.consumer.delivery import BatchHandler, Delivery, Expiry, Handler
from triomq.client.consumer.group_consumer import GroupConsumer
from triomq.client.consumer.inbox import Inbox, InboxClosed
from triomq.client.consumer.membership import Membership, Role, open_membership
from triomq.client.consumer.offsets import ConsumeFrom, Start, StartPoint
from triomq.client.consumer.ordered_inbox import OrderedInbox
from triomq.client.consumer.rebalance import AssignmentChange
from triomq.client.consumer.received import ReceivedMessage
from triomq.client.consumer.subscribing import Subscriptions, check_filters, make_subscriptions
from triomq.client.consumer.verdicts import BrokerRetry, NoRetry, QueueSuspension
from triomq.client.errors import NotRunning, SettingsError
from triomq.client.heartbeats import Member
from triomq.client.hooks import with_consume_hooks
from triomq.client.names import check_topic
from triomq.client.session import Session, open_session
from triomq.remoting.protocol import names
from triomq.remoting.protocol.bodies.heartbeat import BROADCASTING, CLUSTERING, CONSUME_PASSIVELY, ConsumerData
from triomq.remoting.protocol.reprs import short_names

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
    topics: Mapping[str, TopicRates] = attrs.field(factory=dict, repr=short_names)
    """what each topic came to in the last minute, retries under their own topic"""


@attrs.frozen
class _Parts:
    """How messages are handed out and what becomes of those that failed."""

    inbox: Inbox | OrderedInbox
    sends_back: SendsBack
    broker: BrokerRetry | None

    @property
    def turns(self) -> OrderedInbox | None:
        return self.inbox if isinstance(self.inbox, OrderedInbox) else None

    @property
    def set_aside(self) -> int:
        return len(self.broker.redelivery) if self.broker is not None else 0


class PushConsumer(GroupConsumer):
    """A member of a consumer group, used with `async with`.

    Either give a `handler` (or a `batch_handler`), which then runs in the background in `concurrency` tasks; or iterate with `async for`, from
    as many tasks as you like; or call `run`.  Messages that get no verdict come again: at least once, so handlers must bear a duplicate.

    At the end of the block nothing more is pulled; handlers end (within `shutdown_timeout`, or at once after an error); offsets are stored; the
    group is told.
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
        consume_from: Start = ConsumeFrom.LAST,
        allocate: Allocation = allocate_average,
        on_assignment: Callable[[AssignmentChange], object] | None = None,
        settings: ConsumerSettings | None = None,
    ) -> None:
        """Describe a consumer; nothing is started.

        `namesrv` is `"host:9876;host2:9876"`, a list, or None for the environment variable NAMESRV_ADDR.  `subscriptions` is a topic, a list
        of topics, or topic → tag expression; all members of a group must have the same.  `consume_from` (`"first"` or `"earliest"`, `"last"` or `"latest"`, an
        aware datetime) matters only for queues for which the group has no offset yet.

        `ordered`: of each queue one message (or batch) at a time, in its order, by one member of the group at a time; a message that fails
        holds back its queue.  `broadcast`: this member gets every message, whatever the others get; its offsets lie in a file of this
        machine, and nothing is delivered again.  `on_assignment` is called, and must not wait, whenever queues came or went.
        """
        concurrency = check_count("concurrency", concurrency)
        batch_max = check_count("batch_max", batch_max)
        for name, function in (("allocate", allocate), ("on_assignment", on_assignment)):
            check_callable(name, function)
        if handler is not None and batch_handler is not None:
            raise SettingsError("give a handler or a batch_handler, not both")
        super().__init__(group, settings)
        if broadcast and self.settings.client.instance_name is None:
            client = attrs.evolve(self.settings.client, instance_name="DEFAULT")
            self.settings = attrs.evolve(self.settings, client=client)
        self.ordered = ordered
        self.broadcast = broadcast
        self._namesrv = namesrv_addresses(namesrv)
        self._subscriptions = make_subscriptions(subscriptions, time.time_ns() // 1_000_000)
        if not self._subscriptions:
            raise SettingsError("subscriptions names no topic")
        if not broadcast:
            retry_topic = names.retry_topic(group)
            self._subscriptions |= make_subscriptions({retry_topic: "*"}, time.time_ns() // 1_000_000)
        self._handler = None if handler is None else awaiting(handler)
        self._batch_handler = None if batch_handler is None else awaiting(batch_handler)
        self._batch_max = batch_max
        self._concurrency = concurrency
        self._start = StartPoint.of(consume_from)
        self._allocate = allocate
        self._on_assignment = on_assignment
        self._delivery: Delivery | None = None
        self._parts: _Parts | None = None
        self._answers: Answers | None = None
        self._handled = trio.Event()

    # -- life -------------------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[None]:
        member = Member(consumer_group=self.group, consumer_data=self._describe)
        async with open_session(self._namesrv, self.settings.client, member) as session:
            parts = self._make_parts(session)
            delivery = Delivery(parts.inbox)
            role = Role(
                group=self.group,
                subscriptions=self._subscriptions,
                start=self._start,
                allocate=self._allocate,
                deliver=parts.inbox.put,
                sends_back=parts.sends_back,
                turns=parts.turns,
                broadcast=self.broadcast,
                on_assignment=self._on_assignment,
            )
            async with open_membership(session, self.settings, role) as membership:
                try:
                    async with open_background() as nursery:
                        self._start_background(nursery, parts, membership)
                        self._membership, self._delivery, self._parts = membership, delivery, parts
                        self._answers = Answers(
                            self.group, self.settings, membership, self._describe, self.ordered, self._concurrency
                        )
                        session.answer_requests(self._answers.table())
                        if self._handler is not None or self._batch_handler is not None:
                            nursery.start_soon(self._handle, name="handlers")
                        else:
                            self._handled.set()
                        yield
                        membership.stop_fetching()
                        parts.inbox.close()
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
                    parts.inbox.close()
                    self._membership = self._delivery = self._parts = self._answers = None

    def _make_parts(self, session: Session) -> _Parts:
        broker = None if self.broadcast else BrokerRetry(self.group, session, self.settings)
        if self.ordered:
            turns = OrderedInbox()
            return _Parts(turns, QueueSuspension(self.settings, turns, broker), broker)
        return _Parts(Inbox(), broker or NoRetry(), broker)

    def _start_background(self, nursery: trio.Nursery, parts: _Parts, membership: Membership) -> None:
        if isinstance(parts.inbox, OrderedInbox):
            nursery.start_soon(parts.inbox.run, name="rests")
        elif parts.broker is not None:
            nursery.start_soon(parts.broker.redelivery.run, parts.inbox, name="redelivery")
            expiry = Expiry(self.settings, parts.broker, membership.owned)
            nursery.start_soon(expiry.run, name="expiry")

    async def _handle(self) -> None:
        try:
            if self._handler is not None:
                await self.run(self._handler, concurrency=self._concurrency)
            elif self._batch_handler is not None:
                await self.run_batches(self._batch_handler, batch_max=self._batch_max, concurrency=self._concurrency)
        finally:
            self._handled.set()

    def _describe(self) -> ConsumerData:
        return ConsumerData(
            group=self.group,
            consume_type=CONSUME_PASSIVELY,
            message_model=BROADCASTING if self.broadcast else CLUSTERING,
            consume_from_where=self._start.where.value,
            subscriptions=list(self._subscriptions.values()),
        )

    # -- messages ---------------------------------------------------------------------------------------------------------------

    async def run(self, handler: Handler, *, concurrency: SupportsIndex = 20) -> None:
        """Handle messages in `concurrency` tasks until the consumer stops or this call is cancelled.

        The end of the handler is an ack, an exception a retry (logged), unless the handler gave the verdict itself.  A handler that is
        cancelled leaves its message without verdict: it comes again.
        """
        concurrency = check_count("concurrency", concurrency)
        handler = awaiting(handler)
        delivery, answers = self._active(), self._answers
        assert answers is not None
        with answers.offering(handler):
            await delivery.run(with_consume_hooks(handler, self.group, self.settings.consume_hooks), concurrency)

    async def run_batches(self, handler: BatchHandler, *, batch_max: SupportsIndex = 32, concurrency: SupportsIndex = 20) -> None:
        """Handle messages in batches: each call gets what is there of one queue, in its order, at most `batch_max` messages.

        The end of the handler acks all messages of the batch that have no verdict yet, an exception retries them.
        """
        batch_max = check_count("batch_max", batch_max)
        concurrency = check_count("concurrency", concurrency)
        handler = awaiting(handler)
        delivery, answers = self._active(), self._answers
        assert answers is not None
        with answers.offering(handler, batches=True):
            told = with_consume_hooks(handler, self.group, self.settings.consume_hooks)
            await delivery.run_batches(told, batch_max, concurrency)

    async def take(self, *, max_messages: SupportsIndex = 32) -> list[ReceivedMessage]:
        """Wait until something is there and return it, at most `max_messages`; each wants its verdict.

        A cancelled call takes nothing.  Errors: `NotRunning` when the consumer stops.
        """
        count = check_count("max_messages", max_messages)
        try:
            return await self._active().inbox.get_some(count)
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

    # -- steering it ------------------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Hand out and pull nothing more, until `resume`; handlers that run may end, the queues stay ours."""
        self._active().inbox.pause()
        self._member().fetcher.pause()

    def resume(self) -> None:
        """Go on after `pause`."""
        self._member().fetcher.resume()
        self._active().inbox.resume()

    async def subscribe(self, subscriptions: Subscriptions) -> None:
        """Consume further topics, or others of their tags.  All members of the group should do the same.

        Errors: `SettingsError`, `SubscriptionInvalid` for a filter that a broker refuses, and then everything stays as it was.
        """
        session = self._member().session
        added = make_subscriptions(subscriptions, time.time_ns() // 1_000_000)
        await check_filters(session, self.group, added.values())
        membership = self._member()  # it may have ended meanwhile
        self._subscriptions.update(added)
        await membership.join(added, again=True)

    async def unsubscribe(self, topic: str) -> None:
        """Consume a topic no longer: its queues go to the other members, if they still want it."""
        membership = self._member()
        if self._subscriptions.pop(check_topic(topic), None) is None:
            raise SettingsError(f"topic {topic} is not subscribed")
        await membership.join({}, again=True)

    # -- what it is doing -------------------------------------------------------------------------------------------------------

    def statistics(self) -> ConsumerStatistics:
        """Return how much is under way."""
        delivery, membership = self._active(), self._member()
        assert self._parts is not None
        return ConsumerStatistics(
            queues=len(membership.fetcher.assignments),
            unsettled=sum(len(assignment.held) for assignment in membership.owned()),
            waiting=len(delivery.inbox),
            set_aside=self._parts.set_aside,
            topics=membership.fetcher.counts.rates(trio.current_time()),
        )

    def _active(self) -> Delivery:
        if self._delivery is None:
            raise NotRunning("this consumer is not running: use it inside `async with`")
        return self._delivery
