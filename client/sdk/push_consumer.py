"""``PushConsumer``: delivers the messages of a group's topics, to be settled one by one.

"Push" is RocketMQ's word: in fact the client pulls, by long polls that the broker answers when a
message arrives.

    async with ─┬ session: connector, route refresh, heartbeat
                ├ rebalance   queue locks   offset saver   consumption samples
                ├ one pull loop per queue
                └ redelivery or rests   expiry   handler-0 … handler-N

With ``mode="pop"``: one pop loop per topic and broker, renewals, and acknowledgements
(``pop/pop_fetcher.py``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Literal, SupportsIndex

import attrs
import trio

from triomq.client.core.arguments import awaiting, check_count, require_one_argument, shown
from triomq.client.core.background import open_background
from triomq.client.core.config import ConsumerSettings
from triomq.client.core.errors import NotRunning, SettingsError
from triomq.client.core.session import Session
from triomq.client.receiving.allocation import Allocation, allocate_average
from triomq.client.receiving.delivery import AnyHandler, BatchHandler, Delivery, Handler
from triomq.client.receiving.inbox import Inbox, InboxClosed
from triomq.client.receiving.member_spec import AssignmentChange, MemberSpec
from triomq.client.receiving.membership import open_membership
from triomq.client.receiving.offsets import ConsumeFrom, Start
from triomq.client.receiving.ordered_inbox import OrderedInbox
from triomq.client.receiving.pop.pop_fetcher import PopFetcher
from triomq.client.receiving.pop.pop_membership import open_pop_membership
from triomq.client.receiving.rates import TopicRates
from triomq.client.receiving.received import ReceivedMessage
from triomq.client.receiving.settlement import BrokerRetry, NoRetry, QueueSuspension
from triomq.client.receiving.subscribing import Subscriptions, make_subscriptions
from triomq.client.sdk.broker_requests import BrokerRequests
from triomq.client.sdk.group_consumer import AnyMembership, GroupConsumer
from triomq.remoting.protocol import names
from triomq.remoting.protocol.bodies.heartbeat import BROADCASTING
from triomq.remoting.protocol.short_repr import short_names

Mode = Literal["pull", "pop"]
"""How messages reach a group: its members own queues and pull them, or share all and pop."""


@attrs.frozen(kw_only=True)
class ConsumerStatistics:
    """A snapshot of a consumer."""

    queues: int
    """number of queues owned; 0 for a consumer that pops"""
    unsettled: int
    """number of messages that were pulled or popped and are not settled"""
    waiting: int
    """unsettled messages that were not taken yet"""
    set_aside: int
    """unsettled messages that the broker did not take back; they wait for another delivery here"""
    topics: Mapping[str, TopicRates] = attrs.field(factory=dict, repr=short_names)
    """rates of each topic in the last minute, retries under their own topic"""


class PushConsumer(GroupConsumer[AnyMembership]):
    """A member of a consumer group that gets messages delivered; used with ``async with``.

        async with PushConsumer("ns1:9876", group="billing", subscriptions="Orders") as consumer:
            async for message in consumer:
                async with message:  # acked at a normal end, retried after an exception
                    await charge(message.body)

    Either give a ``handler`` (or a ``batch_handler``), which runs in the background in
    ``concurrency`` tasks; or iterate with ``async for``, from any number of tasks; or call ``run``.
    Messages that are not settled come again: delivery is at least once, so handlers must tolerate
    duplicates.

    At the end of the block, also after an error and if it is cancelled, nothing more is pulled,
    running handlers end (within ``shutdown_timeout``), offsets are stored, and the member leaves
    its group.
    """

    ordered: bool
    """Whether each queue is consumed in its order."""
    broadcast: bool
    """Whether this member gets every message."""
    mode: Mode
    """How messages reach the group: ``"pull"`` or ``"pop"``."""

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
        """Describe a consumer; nothing is started.

        ``namesrv`` is ``"host:9876;host2:9876"``, a list of such addresses, or None for the
        environment variable NAMESRV_ADDR. ``subscriptions`` is a topic, a list of topics, or a dict
        of topic → tag expression or ``Sql``; it must be the same for all members of a group.
        ``consume_from`` (``"first"`` or ``"earliest"``, ``"last"`` or ``"latest"``, an aware
        datetime) only matters for queues in which the group has no offset yet.

        ``ordered``: whether each queue is consumed in its order, one message (or batch) at a time,
        by one member at a time; a message that fails holds back its queue. ``broadcast``: whether
        this member gets every message, whatever the others get; its offsets are in a file of its
        machine, and nothing is delivered again. ``allocate`` divides the queues among the members.
        ``on_assignment`` is called, and must not block, whenever queues were gained or lost.

        ``mode``: with ``"pull"`` each member owns a share of the queues. With ``"pop"`` all members
        take messages of all queues, each message hidden from the others for the setting
        ``pop_invisible``, renewed until it is settled: more members than queues have work, and a
        slow one holds back no other. All members of a group must use the same mode.

        Raises: ``SettingsError``, ``TopicInvalid``, ``HandlerInvalid``, ``NoNameServer``.
        """
        concurrency = check_count("concurrency", concurrency)
        batch_max = check_count("batch_max", batch_max)
        if handler is not None and batch_handler is not None:
            raise SettingsError("give a handler or a batch_handler, not both")
        super().__init__(
            namesrv, group, subscriptions, consume_from, allocate, on_assignment, settings
        )
        if not self._subscribed:
            raise SettingsError("subscriptions names no topic")
        self.mode = mode
        if mode != "pull":
            self._check_pop(broadcast=broadcast)
        if broadcast and self.settings.client.instance_name is None:
            client = attrs.evolve(self.settings.client, instance_name="DEFAULT")
            self.settings = attrs.evolve(self.settings, client=client)
        self.ordered = ordered
        self.broadcast = broadcast
        if broadcast:
            self._message_model = BROADCASTING
        else:
            self._subscriptions |= make_subscriptions(names.retry_topic(group))
        given = handler if batch_handler is None else batch_handler
        self._handler = None if given is None else _checked(given)
        self._batch_max = None if batch_handler is None else batch_max
        self._concurrency = concurrency
        self._delivery: Delivery | None = None
        self._broker_requests: BrokerRequests | None = None

    def _check_pop(self, *, broadcast: bool) -> None:
        """Refuse what has no meaning for a group that pops."""
        if self.mode != "pop":
            raise SettingsError(f"mode must be 'pull' or 'pop', not {shown(self.mode)}")
        if broadcast:
            raise SettingsError(
                "broadcast=True and mode='pop' exclude each other: POP gives each message to one"
                " member; use mode='pull' for broadcasting"
            )
        if self._start.where is ConsumeFrom.TIMESTAMP:
            raise SettingsError(
                "a group that pops begins 'first' or 'last': use mode='pull', or set its offsets"
                " with `mqadmin group reset`"
            )
        if self._on_assignment is not None or self._allocate is not allocate_average:
            raise SettingsError(
                "on_assignment and allocate need mode='pull': members of a group that pops own no"
                " queues"
            )

    # Start and stop

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[None]:
        async with self._open_session() as session, self._observing(self.settings.consume_timeout):
            delivery = self._make_delivery(session)
            inbox = delivery.inbox
            spec = MemberSpec(
                group=self.group,
                subscriptions=self._subscriptions,
                start=self._start,
                allocate=self._allocate,
                deliver=inbox.put,
                sends_back=delivery.sends_back,
                turns=inbox if isinstance(inbox, OrderedInbox) else None,
                broadcast=self.broadcast,
                on_assignment=self._on_assignment,
                make_message=self._observers.make_message,
            )

            def answer(membership: AnyMembership) -> None:
                self._broker_requests = BrokerRequests(
                    membership, self._describe, self._concurrency
                )
                session.answer_requests(self._broker_requests.table())

            opened: AbstractAsyncContextManager[AnyMembership] = (
                open_membership(session, self.settings, spec, answer)
                if self.mode == "pull"
                else open_pop_membership(
                    session, self.settings, spec, answer, PopFetcher, ordered=self.ordered
                )
            )
            async with opened as membership:
                try:
                    async with open_background() as nursery:
                        delivery.start_background(nursery, membership.fetcher.owned)
                        self._membership, self._delivery = membership, delivery
                        if self._handler is not None:
                            nursery.start_soon(
                                self._run, self._handler, self._concurrency, self._batch_max
                            )
                        yield
                        membership.stop_fetching()
                        inbox.close()
                finally:
                    inbox.close()
                    self._membership = self._delivery = self._broker_requests = None

    def _cut_short(self) -> None:
        if self._delivery is not None:
            self._delivery.cut_short()

    def _make_delivery(self, session: Session) -> Delivery:
        drain = self.settings.client.shutdown_timeout
        if self.mode == "pop":
            return Delivery(OrderedInbox() if self.ordered else Inbox(), None, None, drain)
        broker = None if self.broadcast else BrokerRetry(self.group, session, self.settings)
        if self.ordered:
            turns = OrderedInbox()
            return Delivery(turns, QueueSuspension(self.settings, turns, broker), broker, drain)
        return Delivery(Inbox(), broker or NoRetry(), broker, drain)

    # Messages

    async def run(self, handler: Handler, *, concurrency: SupportsIndex = 20) -> None:
        """Handle messages in ``concurrency`` tasks until the consumer stops.

        A normal end of the handler acks the message and an exception (which is logged) retries it,
        unless the handler settled it itself. If cancelled, running handlers may end, within
        ``shutdown_timeout``; the message of a handler that does not end comes again.

        Raises: ``HandlerInvalid``, ``SettingsError``, ``NotRunning``.
        """
        await self._run(_checked(handler), check_count("concurrency", concurrency))

    async def run_batches(
        self,
        handler: BatchHandler,
        *,
        batch_max: SupportsIndex = 32,
        concurrency: SupportsIndex = 20,
    ) -> None:
        """Handle messages in batches in ``concurrency`` tasks until the consumer stops.

        Each call of the handler gets the waiting messages of one queue, in order, at most
        ``batch_max``. A normal end acks those that are not settled, an exception retries them.

        Raises: ``HandlerInvalid``, ``SettingsError``, ``NotRunning``.
        """
        batch_max = check_count("batch_max", batch_max)
        concurrency = check_count("concurrency", concurrency)
        await self._run(_checked(handler), concurrency, batch_max)

    async def _run(
        self, handler: AnyHandler, concurrency: int, batch_max: int | None = None
    ) -> None:
        """Handle messages, or with ``batch_max`` batches, until the consumer stops."""
        delivery, broker_requests = self._active(), self._broker_requests
        assert broker_requests is not None
        fetcher = self._member().fetcher
        if isinstance(fetcher, PopFetcher):
            fetcher.handle_at_once(concurrency * (batch_max or 1))
        with broker_requests.offering(handler, batches=batch_max is not None):
            await delivery.run(self._observers.around(handler), concurrency, batch_max)

    async def take(self, *, max_messages: SupportsIndex = 32) -> list[ReceivedMessage]:
        """Wait for messages and return them, at most ``max_messages``, to be settled by the caller.

        A cancelled call takes none.

        Raises: ``NotRunning`` when the consumer stops.
        Checkpoint: maybe; can always be cancelled.
        """
        count = check_count("max_messages", max_messages)
        self._require_no_handler()
        try:
            return await self._active().inbox.get_some(count)
        except InboxClosed:
            raise NotRunning("this consumer is stopping") from None

    def _next(self) -> Awaitable[ReceivedMessage]:
        self._require_no_handler()
        return self._active().inbox.get()

    def _require_no_handler(self) -> None:
        if self._handler is not None:
            raise SettingsError(
                "this consumer has a handler, which gets the messages: iterate over a consumer"
                " without one, or use the handler alone"
            )

    # Control

    def pause(self) -> None:
        """Hand out and pull no more until ``resume``; handlers go on, the queues stay owned."""
        self._active().inbox.pause()
        self._member().fetcher.pause()

    def resume(self) -> None:
        """Continue after ``pause``."""
        self._member().fetcher.resume()
        self._active().inbox.resume()

    # State

    def statistics(self) -> ConsumerStatistics:
        """Return the numbers of queues and messages, and the rates of each topic.

        Raises: ``NotRunning``.
        """
        delivery, membership = self._active(), self._member()
        return ConsumerStatistics(
            queues=len(membership.fetcher.assignments),
            unsettled=membership.unsettled(),
            waiting=len(delivery.inbox),
            set_aside=0 if delivery.broker is None else len(delivery.broker.redelivery),
            topics=membership.fetcher.counts.rates(trio.current_time()),
        )

    def _active(self) -> Delivery:
        if self._delivery is None:
            raise NotRunning("this consumer is not running: use it inside `async with`")
        self._require_own_loop()
        return self._delivery


def _checked(handler: AnyHandler) -> AnyHandler:
    require_one_argument(handler)
    return awaiting(handler)
