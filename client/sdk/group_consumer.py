"""What consumers have in common: ``Consumer`` all of them, ``GroupConsumer`` push and pull."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from math import inf
from typing import Generic, Self, TypeVar

import trio

from triomq.client.core.arguments import check_callable, check_settings
from triomq.client.core.config import ConsumerSettings, namesrv_addresses
from triomq.client.core.errors import NotRunning, SettingsError
from triomq.client.core.heartbeats import JoinedGroups
from triomq.client.core.lifetime import Lifetime
from triomq.client.core.names import check_group, check_topic
from triomq.client.core.session import Session, open_session
from triomq.client.receiving.allocation import Allocation
from triomq.client.receiving.inbox import InboxClosed
from triomq.client.receiving.member_spec import AssignmentChange
from triomq.client.receiving.membership import Membership
from triomq.client.receiving.observed import Observers
from triomq.client.receiving.offsets import Start, StartPoint
from triomq.client.receiving.pop.pop_membership import PopMembership
from triomq.client.receiving.received import ReceivedMessage
from triomq.client.receiving.subscribing import Subscriptions, check_filters, make_subscriptions
from triomq.client.spans.setup import add_spans
from triomq.client.trace.dispatcher import open_trace
from triomq.remoting.protocol.bodies.heartbeat import (
    BROADCASTING,
    CLUSTERING,
    CONSUME_PASSIVELY,
    ConsumerData,
)
from triomq.remoting.protocol.bodies.route import MessageQueue

AnyMembership = Membership | PopMembership
M = TypeVar("M", bound=AnyMembership)


class Consumer(Lifetime, Generic[M]):
    """What consumers of all kinds have in common."""

    group: str
    """The consumer group."""
    settings: ConsumerSettings
    """The settings as given, or the defaults."""

    _consume_type = CONSUME_PASSIVELY
    _message_model = CLUSTERING
    _subscribed = True
    """whether the group shares the queues, instead of ``PullConsumer.assign``"""

    def __init__(
        self,
        namesrv: str | Iterable[str] | None,
        group: str,
        subscriptions: Subscriptions,
        consume_from: Start,
        settings: ConsumerSettings | None,
    ) -> None:
        self.group = check_group(group)
        self.settings = check_settings(settings, ConsumerSettings)
        self._namesrv = namesrv_addresses(namesrv)
        self._subscriptions = make_subscriptions(subscriptions)
        self._start = StartPoint.of(consume_from)
        self._membership: M | None = None
        self._observers = Observers(group, self.settings.consume_hooks)

    def __aiter__(self) -> Self:
        return self

    @property
    def client_id(self) -> str:
        """This member's name on the brokers."""
        return self._running().session.client_id

    async def subscribe(self, subscriptions: Subscriptions) -> None:
        """Consume further topics, or other tags; all members of the group should do the same.

        Raises: ``SettingsError`` after ``assign``; ``SettingsError`` or ``SubscriptionInvalid`` for
        a filter that a broker refuses, and then nothing changes.
        """
        membership = self._sharing_member()
        added = make_subscriptions(subscriptions, self._subscriptions.values())
        await check_filters(membership.session, self.group, added.values())
        await membership.begin(added)
        membership = self._sharing_member()  # the consumer may have stopped during the waits
        self._subscriptions.update(added)
        if not self._subscribed:
            # Before anything can fail or be cancelled, so that a second call finds it running.
            self._subscribed = True
            membership.start_rebalancing()
        await membership.join(added, again=True)

    def _open_session(self) -> AbstractAsyncContextManager[Session]:
        groups = JoinedGroups(consumer_group=self.group, consumer_data=self._describe)
        return open_session(self._namesrv, self.settings.client, groups)

    @asynccontextmanager
    async def _observing(self, consume_timeout: float = inf) -> AsyncIterator[None]:
        """Trace messages for the length of the block, if the settings say so.

        ``consume_timeout``: seconds after which a message counts as not settled.
        """
        settings = self.settings
        add_spans(self._observers, settings, broadcast=self._message_model == BROADCASTING)
        async with open_trace(
            self.group, "CONSUME", self._namesrv, settings.client, consume_timeout=consume_timeout
        ) as trace:
            if trace is not None:
                self._observers.consume_hooks = (*self._observers.consume_hooks, trace)
            yield

    def _describe(self) -> ConsumerData:
        return ConsumerData(
            group=self.group,
            consume_type=self._consume_type,
            message_model=self._message_model,
            consume_from_where=self._start.where.value,
            subscriptions=list(self._subscriptions.values()) if self._subscribed else [],
        )

    def _member(self) -> M:
        member = self._running()
        self._require_own_loop()
        return member

    def _running(self) -> M:
        """Return the membership, for what any thread may read."""
        if self._membership is None:
            raise NotRunning("this consumer is not running: use it inside `async with`")
        return self._membership

    def _sharing_member(self) -> M:
        membership = self._member()
        if membership.fetcher.assignments and not self._subscribed:
            raise SettingsError(
                "subscribe and assign exclude each other: use one consumer for each"
            )
        return membership


class GroupConsumer(Consumer[M]):
    """A member of a consumer group, running or not."""

    def __init__(
        self,
        namesrv: str | Iterable[str] | None,
        group: str,
        subscriptions: Subscriptions,
        consume_from: Start,
        allocate: Allocation,
        on_assignment: Callable[[AssignmentChange], object] | None,
        settings: ConsumerSettings | None,
    ) -> None:
        for name, function in (("allocate", allocate), ("on_assignment", on_assignment)):
            check_callable(name, function)
        super().__init__(namesrv, group, subscriptions, consume_from, settings)
        self._subscribed = bool(self._subscriptions)
        self._allocate = allocate
        self._on_assignment = on_assignment

    def __repr__(self) -> str:
        membership = self._membership  # read once: the façades call this from other threads
        state = membership.state if membership else "not running"
        return f"<{type(self).__name__} of {self.group}: {state}>"

    @property
    def assignment(self) -> tuple[MessageQueue, ...]:
        """The queues that this consumer owns, sorted; a push consumer's retry queues included."""
        # A copy, since the façades call this from other threads.
        return tuple(sorted(self._running().fetcher.assignments.copy()))

    async def wait_assigned(self) -> None:
        """Wait until this member has its first share of the queues.

        The share is empty if the group has more members than queues.

        Raises: ``NotRunning`` outside the ``async with`` block, and when it ends before the first
        share; ``SettingsError`` if nothing is subscribed (queues of ``assign`` need no wait).
        """
        membership = self._member()
        if not self._subscribed:
            raise SettingsError(
                "nothing is subscribed, so this consumer gets no queues: call `subscribe` first;"
                " queues that you gave to `assign` need no wait"
            )
        await membership.wait_balanced()

    async def unsubscribe(self, topic: str) -> None:
        """Stop consuming a topic: its queues go to the members that still subscribe to it.

        Raises: ``SettingsError`` if the topic is not subscribed.
        """
        membership = self._member()
        if not self._subscribed or check_topic(topic) not in self._subscriptions:
            raise SettingsError(f"topic {topic} is not subscribed")
        del self._subscriptions[topic]
        await membership.join({}, again=True)

    async def __anext__(self) -> ReceivedMessage:
        if self._membership is None and self._context is not None:  # the consumer has stopped
            await trio.lowlevel.checkpoint()
            raise StopAsyncIteration
        try:
            return await self._next()
        except InboxClosed:
            raise StopAsyncIteration from None

    @abstractmethod
    def _next(self) -> Awaitable[ReceivedMessage]:
        """Return an awaitable of the next message. Raises: ``InboxClosed``, ``NotRunning``."""
