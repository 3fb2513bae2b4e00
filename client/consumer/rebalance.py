"""Periodic re-division of the queues among the members of the group.

There is no coordinator: each member asks a broker who the members are, sorts, applies the same rule (`allocation.py`) and takes its share.
Views differ for a moment after a change; then a queue has two owners (duplicates) or none (delay) until the next round.

Source: client/…/impl/consumer/RebalanceImpl.java, RebalanceService.java.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Mapping

import attrs
import trio

from triomq.client.config import ConsumerSettings
from triomq.client.consumer.allocation import Allocation
from triomq.client.consumer.assignment import Assignment
from triomq.client.consumer.fetcher import Fetcher
from triomq.client.consumer.offsets import RETRY_TOPIC_PREFIX, GroupOffsets, StartPoint
from triomq.client.errors import ProtocolBroken, RouteNotFound, TrioMQError
from triomq.client.session import Session
from triomq.client.trouble import TroubleLog
from triomq.remoting.errors import ProtocolError
from triomq.remoting.protocol.bodies.groups import ConsumerIds
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.client import GetConsumerListHeader

logger = logging.getLogger(__name__)


class NotYetMember(TrioMQError):
    """A broker's member list lacks this consumer: normal right after the start, cured by the next heartbeat."""

    retriable = True


@attrs.frozen
class Change:
    """What one round means for one topic."""

    gained: tuple[MessageQueue, ...]
    lost: tuple[MessageQueue, ...]


def compare(owned: Iterable[MessageQueue], share: Iterable[MessageQueue]) -> Change:
    """Return the difference between what is owned and what should be, both parts sorted."""
    before, after = set(owned), set(share)
    return Change(tuple(sorted(after - before)), tuple(sorted(before - after)))


@attrs.define(eq=False)
class Rebalancer:
    """Keeps the fetcher's queues equal to this member's share."""

    session: Session
    settings: ConsumerSettings
    fetcher: Fetcher
    offsets: GroupOffsets
    topics: Mapping[str, object]
    start: StartPoint
    allocate: Allocation
    on_change: Callable[[], None] = lambda: None
    """called after a round that gained or lost a queue"""
    _wanted: trio.Event = attrs.field(factory=trio.Event, init=False)
    _first_round: trio.Event = attrs.field(factory=trio.Event, init=False)
    _trouble: TroubleLog = attrs.field(factory=lambda: TroubleLog(logger), init=False)

    def wake(self) -> None:
        """Ask for a round at once: the group, a route or a connection has changed."""
        self._wanted.set()

    async def wait_balanced(self) -> None:
        """Wait until a round has given this member its share of every topic."""
        await self._first_round.wait()

    async def run(self) -> None:
        """Divide now, then every `rebalance_interval`, when woken, and soon again after a round that did not work out."""
        while True:
            self._wanted = trio.Event()
            balanced = await self.round()
            if balanced:
                self._first_round.set()
            with trio.move_on_after(self.settings.rebalance_interval if balanced else self.settings.rebalance_retry):
                await self._wanted.wait()

    async def round(self) -> bool:
        """Divide all topics once; returns whether every one of them got its owner."""
        balanced = True
        for topic in self.topics:
            try:
                change = await self._divide(topic)
                if change is not None and (change.gained or change.lost):
                    await self._apply(change)
                    self.on_change()
            except TrioMQError as error:
                # The retry topic comes to life with the group's first heartbeat; brokers of other kinds may never create it.
                if not topic.startswith(RETRY_TOPIC_PREFIX):
                    balanced = False
                    self._trouble.failed(f"rebalance of {topic}", error)
            else:
                self._trouble.worked(f"rebalance of {topic}")
        return balanced

    async def _divide(self, topic: str) -> Change | None:
        """Compute this member's share; None if it cannot be known now, and then nothing changes.  Errors: `TrioMQError`."""
        known = await self.session.subscribe_queues(topic)
        if known is None:
            raise RouteNotFound(topic)
        members = await self._members(topic, known.brokers)
        client_id = self.session.client_id
        if client_id not in members:
            raise NotYetMember(f"group {self.fetcher.group} does not list this consumer yet")
        share = self.allocate(client_id, sorted(known.subscribe), sorted(members))
        return compare((queue for queue in self.fetcher.assignments if queue.topic == topic), share)

    async def _members(self, topic: str, brokers: tuple[str, ...]) -> list[str]:
        """Ask a random broker of the topic who is in the group."""
        name = random.choice(brokers)
        address = self.session.routes.any_address(name)
        if address is None:
            raise RouteNotFound(topic, f"broker {name} is in no route")
        await self.session.greet(address)
        command = request(
            RequestCode.GET_CONSUMER_LIST_BY_GROUP, GetConsumerListHeader(consumer_group=self.fetcher.group)
        )
        response = await self.session.call(address, command, self.session.settings.request_timeout)
        try:
            return ConsumerIds.decode(bytes(response.body)).consumer_ids
        except ProtocolError as error:
            raise ProtocolBroken(f"{address} sent an unreadable member list: {error}") from error

    async def _apply(self, change: Change) -> None:
        lost = [self.fetcher.drop(queue) for queue in change.lost]
        gained: dict[MessageQueue, tuple[int, int]] = {}
        errors: list[TrioMQError] = []

        async def find_start(queue: MessageQueue) -> None:
            try:
                gained[queue] = await self.offsets.start_position(queue, self.start)
            except TrioMQError as error:
                errors.append(error)

        if lost:
            self.fetcher.nursery.start_soon(self.offsets.store, lost, name="store offsets of lost queues")
        async with trio.open_nursery() as nursery:
            for queue in change.gained:
                nursery.start_soon(find_start, queue)
        for queue in sorted(gained):
            self.fetcher.take(queue, *gained[queue])
        if change.lost or gained:
            logger.info(
                "group %s: gained %s, lost %s", self.fetcher.group, _names(gained), _names(a.queue for a in lost)
            )
        if errors:
            raise errors[0]

    def owned(self) -> list[Assignment]:
        return list(self.fetcher.assignments.values())


def _names(queues: Iterable[MessageQueue]) -> str:
    return ", ".join(f"{queue.topic}/{queue.broker_name}/{queue.queue_id}" for queue in queues) or "nothing"
