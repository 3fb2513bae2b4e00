"""Periodic re-division of the queues among the members of the group.

There is no coordinator: each member asks a broker who the members are, sorts, applies the same rule (`allocation.py`) and takes its share.
Views differ for a moment after a change; then a queue has two owners (duplicates) or none (delay) until the next round.

Source: client/…/impl/consumer/RebalanceImpl.java, RebalanceService.java.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Mapping
from math import inf

import attrs
import trio

from triomq.client.config import ConsumerSettings
from triomq.client.consumer.allocation import Allocation
from triomq.client.consumer.assignment import Assignment
from triomq.client.consumer.fetcher import Fetcher
from triomq.client.consumer.locks import QueueLocks
from triomq.client.consumer.offsets import GroupOffsets, StartPoint
from triomq.client.consumer.ordered_inbox import OrderedInbox
from triomq.client.errors import NotRunning, ProtocolBroken, RouteNotFound, TrioMQError
from triomq.client.session import Session
from triomq.client.trouble import TroubleLog
from triomq.remoting.errors import ProtocolError
from triomq.remoting.protocol.bodies.groups import ConsumerIds
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.client import GetConsumerListHeader
from triomq.remoting.protocol.names import RETRY_PREFIX
from triomq.remoting.protocol.reprs import short_count

logger = logging.getLogger(__name__)


class NotYetMember(TrioMQError):
    """A broker's member list lacks this consumer: normal right after the start, cured by the next heartbeat."""

    retriable = True


class LockedElsewhere(TrioMQError):
    """Queues of an ordered consumer are still locked for the member that had them: normal for a moment after a change of the group."""

    retriable = True


class AllocationFailed(TrioMQError):
    """The allocation rule raised; nothing changes."""


@attrs.frozen(kw_only=True)
class AssignmentChange:
    """What a round changed: told to the application's `on_assignment`."""

    topic: str
    gained: tuple[MessageQueue, ...] = attrs.field(repr=short_count)
    lost: tuple[MessageQueue, ...] = attrs.field(repr=short_count)
    owned: tuple[MessageQueue, ...] = attrs.field(repr=short_count)
    """the queues of the topic that this member has now"""
    queues: tuple[MessageQueue, ...] = attrs.field(repr=short_count)
    """all queues of the topic"""


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
    allocate: Allocation | None
    """None: every member owns every queue, as in broadcasting"""
    turns: OrderedInbox | None = None
    """ordered consumers: queues are locked before they are pulled, and move only when nothing of them is being handled"""
    on_change: Callable[[AssignmentChange], object] = lambda change: None
    """called after a round that gained or lost a queue"""
    locks: QueueLocks | None = attrs.field(default=None, init=False)
    _wanted: trio.Event = attrs.field(factory=trio.Event, init=False)
    _first_round: trio.Event = attrs.field(factory=trio.Event, init=False)
    """set, too, when there will be none"""
    _balanced: bool = attrs.field(default=False, init=False)
    _ended: bool = attrs.field(default=False, init=False)
    _locked_elsewhere: bool = attrs.field(default=False, init=False)
    _alone: bool = attrs.field(default=True, init=False)
    """whether the group had no other member the last time"""
    _waited: bool = attrs.field(default=False, init=False)
    """whether this round has given the former owners their time"""
    _trouble: TroubleLog = attrs.field(factory=lambda: TroubleLog(logger), init=False)

    def __attrs_post_init__(self) -> None:
        if self.turns is not None and self.allocate is not None:
            self.locks = QueueLocks(
                self.fetcher.group, self.session, self.settings, self.owned, self.turns.look_again, self._lock_lost
            )

    def wake(self) -> None:
        """Ask for a round at once: the group, a route or a connection has changed."""
        self._wanted.set()

    async def wait_balanced(self) -> None:
        """Wait until a round has given this member its share of every topic.  Errors: `NotRunning` if there will be none."""
        await self._first_round.wait()
        if self._ended and not self._balanced:
            raise NotRunning("this consumer is stopping, and had no share of the queues yet")

    def end(self) -> None:
        """Divide no more; who waits for a share is told.  Atomic: no checkpoint."""
        self._ended = True
        self._first_round.set()

    async def run(self) -> None:
        """Divide now, then every `rebalance_interval`, when woken, and soon again after a round that did not work out."""
        while True:
            self._wanted = trio.Event()
            balanced = await self.round()
            if balanced:
                self._balanced = True
                self._first_round.set()
            wait = self.settings.rebalance_interval if balanced else self.settings.rebalance_retry
            if self._locked_elsewhere:
                wait = min(wait, self.settings.lock_retry)
            with trio.move_on_after(wait):
                await self._wanted.wait()

    async def round(self) -> bool:
        """Divide all topics once; returns whether every one of them got its owner."""
        balanced, self._locked_elsewhere, self._waited = True, False, False
        for topic in {queue.topic for queue in self.fetcher.assignments} - self.topics.keys():
            await self._unsubscribed(topic)
        for topic in list(self.topics):
            try:
                change = await self._divide(topic)
                if change.gained or change.lost:
                    await self._apply(topic, change)
            except LockedElsewhere as error:
                balanced, self._locked_elsewhere = False, True
                logger.debug("group %s: %s", self.fetcher.group, error)
            except TrioMQError as error:
                # The retry topic comes to life with the group's first heartbeat; brokers of other kinds may never create it.
                if not topic.startswith(RETRY_PREFIX):
                    balanced = False
                    self._trouble.failed(f"rebalance of {topic}", error)
            else:
                self._trouble.worked(f"rebalance of {topic}")
        return balanced

    async def _divide(self, topic: str) -> Change:
        """Compute this member's share.  Errors: `TrioMQError` if it cannot be known now, and then nothing changes."""
        known = await self.session.subscribe_queues(topic)
        if known is None:
            raise RouteNotFound(topic)
        if self.allocate is None:
            return self._compare(topic, known.brokers, known.subscribe)
        members = await self._members(topic, known.brokers)
        client_id = self.session.client_id
        self._alone = members == [client_id]
        if client_id not in members:
            raise NotYetMember(f"group {self.fetcher.group} does not list this consumer yet")
        try:
            share = self.allocate(client_id, sorted(known.subscribe), sorted(members))
        except Exception as error:  # the rule may be the application's
            raise AllocationFailed(
                f"the allocation rule failed for {topic}: {type(error).__name__}: {error}"
            ) from error
        return self._compare(topic, known.brokers, share)

    def _compare(self, topic: str, brokers: tuple[str, ...], share: Iterable[MessageQueue]) -> Change:
        """Compare what we have with our share.  Queues that are being handed over are not lost again, and those of a broker that is away stay.

        The official client gives the latter up at once, when their offsets cannot be stored, and begins them again at what the broker had
        written before it went.
        """
        now = trio.current_time()
        owned = {queue: held for queue, held in self.fetcher.assignments.items() if queue.topic == topic}
        for queue, assignment in owned.items():
            if queue.broker_name in brokers:
                assignment.absent_since = None
            elif assignment.absent_since is None:
                assignment.absent_since = now
        change = compare(owned, share)
        patience = self.settings.absent_broker_timeout
        lost = [
            queue
            for queue in change.lost
            if not owned[queue].leaving and ((since := owned[queue].absent_since) is None or now - since >= patience)
        ]
        return attrs.evolve(change, lost=tuple(lost))

    async def _members(self, topic: str, brokers: tuple[str, ...]) -> list[str]:
        """Ask a random broker of the topic who is in the group."""
        name = random.choice(brokers)
        address = self.session.routes.any_address(name)
        if address is None:
            raise RouteNotFound(topic, f"broker {name} is in no route", offered=True)
        await self.session.greet(address)
        command = request(
            RequestCode.GET_CONSUMER_LIST_BY_GROUP, GetConsumerListHeader(consumer_group=self.fetcher.group)
        )
        response = await self.session.call(address, command, self.session.settings.request_timeout)
        try:
            return ConsumerIds.decode(bytes(response.body)).consumer_ids
        except ProtocolError as error:
            raise ProtocolBroken(f"{address} sent an unreadable member list: {error}") from error

    async def _apply(self, topic: str, change: Change) -> None:
        lost = await self._lose(change.lost)
        if self.locks is None or not change.gained:
            if change.gained and not self._alone and not self._waited:
                self._waited = True  # once in a round: the others give up all their topics' queues in one round, too
                await trio.sleep(self.settings.handover_delay)
            await self._gain(topic, lost, change.gained, {})
            return
        async with self.locks.gaining(change.gained) as locked:
            wanted = tuple(queue for queue in change.gained if queue in locked)
            await self._gain(topic, lost, wanted, locked)
        if len(wanted) < len(change.gained):
            raise LockedElsewhere(f"{len(change.gained) - len(wanted)} queues of {topic} are locked for other members")

    async def _gain(
        self,
        topic: str,
        lost: Iterable[Assignment],
        wanted: Iterable[MessageQueue],
        locked: Mapping[MessageQueue, float],
    ) -> None:
        starts, errors = await self._find_starts(wanted)
        gained = [self.fetcher.take(queue, *starts[queue]) for queue in sorted(starts)]
        for assignment in gained:
            assignment.locked_until = locked.get(assignment.queue, inf)
        self.fetcher.divide_limits()
        new = [assignment for assignment in gained if assignment.stored < 0 and assignment.to_store >= 0]
        if new:  # so that a crash in the next seconds does not let the group begin elsewhere
            self.fetcher.nursery.start_soon(self.offsets.store, new, name="store first offsets")
        if lost or gained:
            self._tell(topic, gained, lost)
        if errors:
            raise errors[0]

    async def _unsubscribed(self, topic: str) -> None:
        mine = [a.queue for a in self.owned() if a.queue.topic == topic and not a.leaving]
        lost = await self._lose(mine)
        if lost:
            self._tell(topic, [], lost)

    async def _find_starts(
        self, queues: Iterable[MessageQueue]
    ) -> tuple[dict[MessageQueue, tuple[int, int]], list[TrioMQError]]:
        starts: dict[MessageQueue, tuple[int, int]] = {}
        errors: list[TrioMQError] = []

        async def find_start(queue: MessageQueue) -> None:
            try:
                starts[queue] = await self.offsets.start_position(queue, self.start)
            except TrioMQError as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            for queue in queues:
                nursery.start_soon(find_start, queue)
        return starts, errors

    async def _lose(self, queues: Iterable[MessageQueue]) -> list[Assignment]:
        """Give queues up; returns those that are gone now.  Queues of an ordered consumer go when nothing of them is being handled."""
        if self.turns is not None:
            for queue in queues:
                self.fetcher.assignments[queue].leave()
                self.fetcher.nursery.start_soon(
                    self._hand_over, self.fetcher.assignments[queue], self.turns, name="hand over"
                )
            await trio.lowlevel.checkpoint()
            return []
        lost = [self.fetcher.drop(queue) for queue in queues]
        if lost:
            self.fetcher.nursery.start_soon(self.offsets.store, lost, name="store offsets of lost queues")
        await trio.lowlevel.checkpoint()
        return lost

    async def _hand_over(self, assignment: Assignment, turns: OrderedInbox) -> None:
        """Let the last handler end, store the offset, give up the lock: in this order, so that the next member goes on right behind it."""
        queue = assignment.queue
        with trio.move_on_after(self.settings.consume_timeout):
            await turns.wait_idle(queue)
        if assignment.lost:
            return
        await self.offsets.store([assignment])
        if self.fetcher.assignments.get(queue) is not assignment:
            return
        self.fetcher.drop(queue)
        if self.locks is not None:
            await self.locks.release([queue])
        self._tell(queue.topic, [], [assignment])
        self.wake()

    def _lock_lost(self, queue: MessageQueue) -> None:
        lost = self.fetcher.drop(queue)
        if self.turns is not None:
            self.turns.look_again(queue)  # lets go of what waited
        self._tell(queue.topic, [], [lost])
        self.wake()

    def _tell(self, topic: str, gained: Iterable[Assignment], lost: Iterable[Assignment]) -> None:
        change = AssignmentChange(
            topic=topic,
            gained=tuple(assignment.queue for assignment in gained),
            lost=tuple(assignment.queue for assignment in lost),
            owned=tuple(sorted(queue for queue in self.fetcher.assignments if queue.topic == topic)),
            queues=known.subscribe if (known := self.session.routes.topic(topic)) is not None else (),
        )
        logger.info("group %s: gained %s, lost %s", self.fetcher.group, _names(change.gained), _names(change.lost))
        try:
            self.on_change(change)
        except Exception:  # the application's: what it watches goes on without it
            logger.exception("on_assignment of group %s failed; the queues are taken or given up all the same", self.fetcher.group)

    def owned(self) -> list[Assignment]:
        return list(self.fetcher.assignments.values())


def _names(queues: Iterable[MessageQueue]) -> str:
    return ", ".join(f"{queue.topic}/{queue.broker_name}/{queue.queue_id}" for queue in queues) or "nothing"
