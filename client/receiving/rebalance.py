"""Division of the queues among the members of the group, repeated periodically.

There is no coordinator: each member asks a broker for the list of members, sorts it, applies the
same rule (``allocation.py``) and takes its share. Views differ for a moment after a change; then a
queue has two owners (duplicates) or none (delay) until the next round.

Source: client/…/impl/consumer/RebalanceImpl.java, RebalanceService.java.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable, Mapping
from math import inf

import attrs
import trio

from triomq.client.core.config import ConsumerSettings
from triomq.client.core.errors import NotRunning, ProtocolBroken, RouteNotFound, TrioMQError
from triomq.client.core.failure_log import FailureLog
from triomq.client.core.session import Session
from triomq.client.receiving.assignment import Assignment
from triomq.client.receiving.fetcher import Fetcher
from triomq.client.receiving.locks import QueueLocks
from triomq.client.receiving.member_spec import AssignmentChange, MemberSpec
from triomq.client.receiving.offsets import OffsetStore, ask_each
from triomq.client.receiving.ordered_inbox import OrderedInbox
from triomq.remoting.core.errors import ProtocolError
from triomq.remoting.protocol.bodies.groups import ConsumerIds
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.client import ConsumerGroupHeader
from triomq.remoting.protocol.names import RETRY_PREFIX

logger = logging.getLogger(__name__)


class NotYetMember(TrioMQError):
    """A broker's member list lacks this consumer: normal at the start, until the next heartbeat."""

    retriable = True


class NotHeard(TrioMQError):
    """A broker has not answered a heartbeat yet: its first answer wakes the rebalance."""

    retriable = True


class LockedElsewhere(TrioMQError):
    """Queues are still locked for their former owner: normal for a moment after a change."""

    retriable = True


class AllocationFailed(TrioMQError):
    """The allocation rule raised an error; nothing changes."""


Queues = tuple[MessageQueue, ...]


@attrs.define(eq=False)
class Rebalancer:
    """Keeps the fetcher's queues equal to this member's share."""

    session: Session
    settings: ConsumerSettings
    spec: MemberSpec
    fetcher: Fetcher
    offsets: OffsetStore
    locks: QueueLocks | None = attrs.field(default=None, init=False)
    """ordered consumers: queues are locked before pulls, and move while no message is handled"""
    _wanted: trio.Event = attrs.field(factory=trio.Event, init=False)
    _first_round: trio.Event = attrs.field(factory=trio.Event, init=False)
    """also set by ``end``"""
    balanced: bool = attrs.field(default=False, init=False)
    """whether a round has given this member its share"""
    _ended: bool = attrs.field(default=False, init=False)
    _locked_elsewhere: bool = attrs.field(default=False, init=False)
    _alone: bool = attrs.field(default=True, init=False)
    """whether the group had no other member in the last round"""
    _waited: bool = attrs.field(default=False, init=False)
    """whether this round has waited for the former owners of its queues"""
    _failures: FailureLog = attrs.field(factory=lambda: FailureLog(logger), init=False)

    def __attrs_post_init__(self) -> None:
        turns = self.spec.turns
        if turns is not None and not self.spec.broadcast:
            self.locks = QueueLocks(
                self.spec.group,
                self.session,
                self.settings,
                self.fetcher.owned,
                turns.recheck,
                self._lock_lost,
            )

    def wake(self) -> None:
        """Have a round at once: the group, a route or a connection has changed."""
        self._wanted.set()

    async def wait_balanced(self) -> None:
        """Wait until a round has given this member its share of every topic.

        Raises: ``NotRunning`` if there will be none.
        """
        await self._first_round.wait()
        if self._ended and not self.balanced:
            raise NotRunning("this consumer is stopping, and had no share of the queues yet")

    def end(self) -> None:
        """Divide no more, and wake the tasks that wait for a share."""
        self._ended = True
        self._first_round.set()

    async def rebalance_when_due(self) -> None:
        """Divide the queues now, every ``rebalance_interval``, when woken, soon after a failure."""
        while True:
            self._wanted = trio.Event()
            balanced = await self.round()
            if balanced:
                self.balanced = True
                self._first_round.set()
            wait = self.settings.rebalance_interval if balanced else self.settings.rebalance_retry
            if self._locked_elsewhere:
                wait = min(wait, self.settings.lock_retry)
            with trio.move_on_after(wait):
                await self._wanted.wait()

    async def round(self) -> bool:
        """Divide all topics once; return whether this member has its share of every one."""
        balanced, self._locked_elsewhere, self._waited = True, False, False
        subscribed = self.spec.subscriptions
        # First what is given up: another member may wait for it.
        for topic in {queue.topic for queue in self.fetcher.assignments} - subscribed.keys():
            await self._unsubscribed(topic)
        # A copy, since the application may subscribe to more during the round.
        for topic in list(subscribed):
            try:
                gained, lost = await self._divide(topic)
                if gained or lost:
                    await self._apply(topic, gained, lost)
            except LockedElsewhere as error:
                balanced, self._locked_elsewhere = False, True
                logger.debug("group %s: %s", self.spec.group, error)
            except TrioMQError as error:
                # The group's first heartbeat creates the retry topic; some brokers never do.
                if not topic.startswith(RETRY_PREFIX):
                    balanced = False
                    self._failures.failed(f"rebalance of {topic}", error)
            else:
                self._failures.worked(f"rebalance of {topic}")
        return balanced

    async def _divide(self, topic: str) -> tuple[Queues, Queues]:
        """Return the queues that this member must gain and lose to have its share.

        Raises: ``TrioMQError`` if the share cannot be known now; nothing changes then.
        """
        # Without a route this member keeps its queues. If members gave them up whenever a name
        # server is away, the whole group would stop.
        known = await self.session.finder.subscribe_queues(topic)
        if known is None:
            raise RouteNotFound(topic)
        if self.spec.broadcast:
            return self._compare(topic, known.brokers, known.subscribe)
        members = await self._members(topic, known.brokers)
        client_id = self.session.client_id
        self._alone = members == [client_id]
        # Without this member in the list, the others divide all queues among themselves: a share of
        # our own would overlap with theirs.
        if client_id not in members:
            raise NotYetMember(f"group {self.spec.group} does not list this consumer yet")
        try:
            # Every member sorts, so all of them apply the rule to the same two lists.
            share = self.spec.allocate(client_id, sorted(known.subscribe), sorted(members))
        except Exception as error:  # the rule may be the application's
            raise AllocationFailed(
                f"the allocation rule failed for {topic}: {type(error).__name__}: {error}"
            ) from error
        return self._compare(topic, known.brokers, share)

    def _compare(
        self, topic: str, brokers: tuple[str, ...], share: Iterable[MessageQueue]
    ) -> tuple[Queues, Queues]:
        """Compare the owned queues with the share; return the queues to gain and to lose.

        Queues that are being handed over are not lost again. Queues of a broker that is away stay
        owned for ``absent_broker_timeout``; the official client gives them up as soon as their
        offsets cannot be stored, and begins them again at the offset last written.
        """
        now = trio.current_time()
        owned = {
            queue: held for queue, held in self.fetcher.assignments.items() if queue.topic == topic
        }
        for queue, assignment in owned.items():
            if queue.broker_name in brokers:
                assignment.absent_since = None
            elif assignment.absent_since is None:
                assignment.absent_since = now
        wanted, limit = set(share), self.settings.absent_broker_timeout
        # A route without a broker does not tell whether the broker is gone or only the name server
        # has not heard of it: only time does.
        lost = [
            queue
            for queue in owned.keys() - wanted
            if not owned[queue].leaving
            and ((since := owned[queue].absent_since) is None or now - since >= limit)
        ]
        return tuple(sorted(wanted - owned.keys())), tuple(sorted(lost))

    async def _members(self, topic: str, brokers: tuple[str, ...]) -> list[str]:
        """Return the group's members, from a random broker of the topic that was heard."""
        # A broker that was not heard may hang, and the round would wait for it.
        name = random.choice([name for name in brokers if self.session.hears(name)] or brokers)
        address = self.session.routes.any_address(name)
        if address is None:
            raise RouteNotFound(topic, f"broker {name} is in no route", offered=True)
        # The list of a broker that has no heartbeat of ours lacks this member.
        await self.session.heartbeats.ensure(address)
        command = request(
            RequestCode.GET_CONSUMER_LIST_BY_GROUP,
            ConsumerGroupHeader(consumer_group=self.spec.group),
        )
        response = await self.session.call(address, command, self.session.settings.request_timeout)
        try:
            return ConsumerIds.decode(bytes(response.body)).consumer_ids
        except ProtocolError as error:
            raise ProtocolBroken(f"{address} sent an unreadable member list: {error}") from error

    async def _apply(self, topic: str, gained: Queues, lost: Queues) -> None:
        # Lose before gain: two members that exchange queues would otherwise wait for each other's
        # locks until the next round.
        ended = await self._lose(lost)
        if self.locks is None or not gained:
            if gained and not self._alone and not self._waited:
                # Once in a round, as other members give up the queues of all topics in one round.
                self._waited = True
                await trio.sleep(self.settings.handover_delay)
            await self._gain(topic, ended, gained, {})
            return
        async with self.locks.gaining(gained) as locked:
            wanted = tuple(queue for queue in gained if queue in locked)
            await self._gain(topic, ended, wanted, locked)
        if len(wanted) < len(gained):
            raise LockedElsewhere(
                f"{len(gained) - len(wanted)} queues of {topic} are locked for other members"
            )

    async def _gain(
        self,
        topic: str,
        lost: Iterable[Assignment],
        wanted: Queues,
        locked: Mapping[MessageQueue, float],
    ) -> None:
        # A broker that hangs must not hold up the queues of the others.
        silent = {name for queue in wanted if not self.session.hears(name := queue.broker_name)}
        starts, errors = await ask_each(
            lambda queue: self.offsets.start_position(queue, self.spec.start),
            (queue for queue in wanted if queue.broker_name not in silent),
        )
        if silent:
            self.session.heartbeats.ensure_soon()
            errors.append(NotHeard(f"no heartbeat is answered yet by {', '.join(sorted(silent))}"))
        gained = [self.fetcher.take(queue, *starts[queue]) for queue in sorted(starts)]
        for assignment in gained:
            assignment.locked_until = locked.get(assignment.queue, inf)
        self.fetcher.divide_limits()
        new = [
            assignment
            for assignment in gained
            if assignment.stored < 0 and assignment.to_store >= 0
        ]
        if new:  # stored at once: after a crash the group must not begin elsewhere
            self.fetcher.nursery.start_soon(self.offsets.store, new, name="store first offsets")
        if lost or gained:
            self._report(topic, gained, lost)
        if errors:
            raise errors[0]

    async def _unsubscribed(self, topic: str) -> None:
        mine = [a.queue for a in self.fetcher.owned() if a.queue.topic == topic and not a.leaving]
        lost = await self._lose(mine)
        if lost:
            self._report(topic, [], lost)

    async def _lose(self, queues: Iterable[MessageQueue]) -> list[Assignment]:
        """Give queues up; return the assignments that ended.

        Queues of an ordered consumer end later, when none of their messages is being handled.
        """
        turns = self.spec.turns
        if turns is not None:
            for queue in queues:
                assignment = self.fetcher.assignments[queue]
                assignment.leave()
                self.fetcher.nursery.start_soon(
                    self._hand_over, assignment, turns, name="hand over"
                )
            await trio.lowlevel.checkpoint()
            return []
        lost = [self.fetcher.drop(queue) for queue in queues]
        if lost:
            self.fetcher.nursery.start_soon(
                self.offsets.store, lost, name="store offsets of lost queues"
            )
        await trio.lowlevel.checkpoint()
        return lost

    async def _hand_over(self, assignment: Assignment, turns: OrderedInbox) -> None:
        """Let the last handler end, store the offset, release the lock: in this order.

        The next member then continues right behind the last handled message.
        """
        queue = assignment.queue
        with trio.move_on_after(self.settings.consume_timeout):
            await turns.wait_idle(queue)
        if assignment.lost:
            return
        # Before the lock is released: the next member reads this offset as soon as it has the lock.
        await self.offsets.store([assignment])
        if self.fetcher.assignments.get(queue) is not assignment:
            return
        self.fetcher.drop(queue)
        if self.locks is not None:
            await self.locks.release([queue])
        self._report(queue.topic, [], [assignment])
        self.wake()

    def _lock_lost(self, queue: MessageQueue) -> None:
        lost = self.fetcher.drop(queue)
        if self.spec.turns is not None:
            self.spec.turns.recheck(queue)  # drops the messages that waited
        self._report(queue.topic, [], [lost])
        self.wake()

    def _report(self, topic: str, gained: Iterable[Assignment], lost: Iterable[Assignment]) -> None:
        """Log a change and call ``on_assignment``."""
        change = AssignmentChange(
            topic=topic,
            gained=tuple(assignment.queue for assignment in gained),
            lost=tuple(assignment.queue for assignment in lost),
            owned=tuple(
                sorted(queue for queue in self.fetcher.assignments if queue.topic == topic)
            ),
            queues=known.subscribe
            if (known := self.session.routes.topic(topic)) is not None
            else (),
        )
        logger.info(
            "group %s: gained %s, lost %s",
            self.spec.group,
            _names(change.gained),
            _names(change.lost),
        )
        if self.spec.on_assignment is None:
            return
        try:
            self.spec.on_assignment(change)
        except Exception:  # an error of the application's callback does not stop the rebalance
            logger.exception(
                "on_assignment of group %s failed; the queues are taken or given up all the same",
                self.spec.group,
            )


def _names(queues: Iterable[MessageQueue]) -> str:
    return (
        ", ".join(f"{queue.topic}/{queue.broker_name}/{queue.queue_id}" for queue in queues)
        or "nothing"
    )
