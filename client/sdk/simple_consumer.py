"""``SimpleConsumer``: receives messages, each for its invisible time, and acknowledges each.

async with ─┬ session: connector, route refresh, heartbeat
            ├ pops and what must be given back   (pop_calls.py)
            └ one watch per topic and broker while a receive waits   (receiver.py)
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from math import inf
from typing import SupportsIndex

import trio

from triomq.client.core.arguments import check_count, shown
from triomq.client.core.config import ConsumerSettings
from triomq.client.core.errors import NotRunning, SettingsError
from triomq.client.core.names import check_topic
from triomq.client.receiving.allocation import allocate_average
from triomq.client.receiving.member_spec import MemberSpec
from triomq.client.receiving.offsets import ConsumeFrom, Start
from triomq.client.receiving.pop.durations import Duration, check_duration, check_invisible
from triomq.client.receiving.pop.lease_times import OpenLeases
from triomq.client.receiving.pop.leased_message import LeasedMessage
from triomq.client.receiving.pop.pop_membership import PopMembership, open_pop_membership
from triomq.client.receiving.pop.pop_requests import POP_MAX
from triomq.client.receiving.pop.receiver import Receiver
from triomq.client.receiving.received import ReceivedMessage
from triomq.client.receiving.subscribing import Subscriptions
from triomq.client.sdk.broker_requests import BrokerRequests
from triomq.client.sdk.group_consumer import Consumer

_INVISIBLE_MIN = 0.01
"""Seconds; less is over before an answer is here."""


class SimpleConsumer(Consumer[PopMembership]):
    """A member of a group that receives messages when it asks; used with ``async with``.

        async with SimpleConsumer("ns1:9876", group="billing", subscriptions="Orders") as consumer:
            for message in await consumer.receive(count=10, invisible=30):
                await charge(message.body)
                await message.ack()

    All members of the group take messages of all queues (POP). A received message is hidden from
    the others for its invisible time; within it the application acks the message, or changes the
    time. Otherwise the group gets the message again, so delivery is at least once.

    The end of the block gives back messages that are neither settled nor hidden for another time
    (``change_invisible``): they can not be acked any more, and the group gets them at once.
    """

    ordered: bool
    """Whether each queue is consumed in its order."""
    invisible: float
    """Seconds for which a message is hidden if ``receive`` does not say otherwise."""

    def __init__(
        self,
        namesrv: str | Iterable[str] | None = None,
        *,
        group: str,
        subscriptions: Subscriptions,
        ordered: bool = False,
        invisible: Duration = 60.0,
        consume_from: Start = ConsumeFrom.LAST,
        settings: ConsumerSettings | None = None,
    ) -> None:
        """Describe a consumer; nothing is started.

        ``namesrv``, ``subscriptions`` and ``consume_from`` are those of ``PushConsumer``, but a
        group begins ``"first"`` or ``"last"``. ``ordered``: whether each queue is consumed in its
        order: it gives no more messages until those of the last receive are acked or come again.
        ``invisible``: seconds or a ``timedelta``, up to 12 hours.

        Raises: ``SettingsError``, ``TopicInvalid``, ``NoNameServer``.
        """
        super().__init__(namesrv, group, subscriptions, consume_from, settings)
        self.ordered = ordered
        self.invisible = check_invisible("invisible", invisible, least=_INVISIBLE_MIN)
        self._leases = OpenLeases()
        if not self._subscriptions:
            raise SettingsError("subscriptions names no topic")
        if self._start.where is ConsumeFrom.TIMESTAMP:
            raise SettingsError(
                "a group that pops begins 'first' or 'last': set its offsets with `mqadmin"
                " resetOffsetByTime` to begin at an instant"
            )

    def __repr__(self) -> str:
        state = "running" if self._membership is not None else "not running"
        return f"<{type(self).__name__} of {self.group}: {state}>"

    # Start and stop

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[None]:
        async with self._open_session() as session, self._observing():
            spec = MemberSpec(
                group=self.group,
                subscriptions=self._subscriptions,
                start=self._start,
                allocate=allocate_average,
                deliver=_no_delivery,
                sends_back=None,
            )

            def answer(membership: PopMembership) -> None:
                session.answer_requests(BrokerRequests(membership, self._describe).table())

            async with open_pop_membership(
                session, self.settings, spec, answer, Receiver, ordered=self.ordered
            ) as membership:
                self._membership = membership
                try:
                    yield
                finally:
                    self._membership = None
                    if leases := self._leases.take(trio.current_time()):
                        calls = membership.fetcher.calls
                        calls.start_soon(calls.give_back, leases)

    # Messages

    async def receive(
        self,
        *,
        count: SupportsIndex = 16,
        invisible: Duration | None = None,
        timeout: Duration | None = None,
    ) -> list[LeasedMessage]:
        """Wait for messages and return at most ``count`` of one topic and broker, up to 32.

        ``invisible``: how long they are hidden from the rest of the group, seconds or a
        ``timedelta``; None: the consumer's. ``timeout``: how long to wait; the list is then empty.
        None waits until there is a message. A cancelled call takes none: what a broker gives after
        it is given back.

        Raises: ``SettingsError``, ``NotRunning``; ``TrioMQError`` of a broker that refuses, and if
        no broker has answered within ``timeout``.
        Checkpoint: always.
        """
        number = check_count("count", count)
        if number > POP_MAX:
            raise SettingsError(f"count must be 1 to {POP_MAX}, the limit of brokers, not {number}")
        hidden = (
            self.invisible
            if invisible is None
            else check_invisible("invisible", invisible, least=_INVISIBLE_MIN)
        )
        limit = inf if timeout is None else check_duration("timeout", timeout)
        receiver = self._active()
        found = await receiver.receive(number, hidden, limit)
        requests, replier = receiver.calls.requests, receiver.replier
        now = trio.current_time()
        messages = []
        for each in found:
            self._leases.add(each.lease, now)
            messages.append(LeasedMessage(each.record, each.lease, requests, replier, self._leases))
        self._observers.polled(messages)
        return messages

    async def ack(self, message: LeasedMessage) -> None:
        """Acknowledge a message, as ``message.ack`` does.

        Raises: as ``LeasedMessage.ack``.
        """
        await message.ack()

    async def change_invisible(self, message: LeasedMessage, invisible: Duration) -> None:
        """Hide a message for another time, as ``message.change_invisible`` does.

        Raises: as ``LeasedMessage.change_invisible``.
        """
        await message.change_invisible(invisible)

    async def __anext__(self) -> LeasedMessage:
        """Receive the next message; the application settles it by ``ack`` or ``async with``."""
        if self._membership is None and self._context is not None:  # the consumer has stopped
            await trio.lowlevel.checkpoint()
            raise StopAsyncIteration
        membership = self._member()
        try:
            return (await self.receive(count=1))[0]
        except NotRunning:
            if membership is self._membership:
                raise
            raise StopAsyncIteration from None

    async def give_back(self, messages: Iterable[LeasedMessage]) -> None:
        """Give messages back that did not reach the application; for the other interfaces."""
        leases = [message._lease for message in messages if not message.settled]
        for lease in leases:
            self._leases.discard(lease)
        await self._active().calls.give_back(leases)

    # Subscriptions

    async def subscribe(self, subscriptions: Subscriptions) -> None:
        """Receive further topics, or other tags; all members of the group should do the same.

        Raises: ``SettingsError`` or ``SubscriptionInvalid`` for a filter that a broker refuses, and
        then nothing changes; ``NoNameServer``.
        """
        await super().subscribe(subscriptions)

    async def unsubscribe(self, topic: str) -> None:
        """Receive no more messages of a topic; those received before may still be acked.

        Raises: ``SettingsError`` if it is not subscribed.
        """
        membership = self._member()
        if check_topic(topic) not in self._subscriptions:
            raise SettingsError(f"topic {shown(topic)} is not subscribed")
        del self._subscriptions[topic]
        await membership.join({}, again=True)

    def _active(self) -> Receiver:
        receiver = self._member().fetcher
        assert isinstance(receiver, Receiver)
        return receiver


def _no_delivery(messages: list[ReceivedMessage]) -> None:
    """Take nothing: a simple consumer hands out what ``receive`` pops."""
