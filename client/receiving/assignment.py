"""``Assignment``: one queue that this consumer owns, from gaining it until losing it."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Protocol

import attrs
import trio

from triomq.client.receiving.ordered_inbox import OrderedInbox
from triomq.client.receiving.process_queue import ProcessQueue, PullLimits
from triomq.client.receiving.rates import TopicCounts
from triomq.client.receiving.received import ReceivedMessage
from triomq.client.receiving.replier import Replier
from triomq.remoting.protocol.bodies.route import MessageQueue


class SendsBack(Protocol):
    """Has failed messages delivered again."""

    async def send_back(
        self, assignment: Assignment, message: ReceivedMessage, delay_level: int
    ) -> bool: ...


@attrs.define(eq=False, repr=False)
class Assignment:
    """A queue while this consumer owns it.

    When the queue is lost, or its offset is moved, the object is marked ``lost`` for good and (in
    the second case) replaced. Messages that it handed out keep pointing at it, so settling them
    late has no effect.
    """

    queue: MessageQueue
    held: ProcessQueue
    limits: PullLimits
    sends_back: SendsBack | None
    """None: messages are not settled, offsets are committed by position"""
    group: str = ""
    counts: TopicCounts = attrs.field(factory=TopicCounts)
    turns: OrderedInbox | None = None
    """ordered consumers only"""
    lost: bool = False
    leaving: bool = False
    """whether it moves to another member as soon as the messages handed out are settled"""
    locked_until: float = inf
    """trio time until which the lock may be trusted; ordered consumers only"""
    replier: Replier | None = None
    """answers requests"""
    paused: bool = False
    broker_id: int = 0
    """the member of the broker group to pull from, as the broker suggested"""
    stored: int = -1
    """the group's offset on the broker; -1 if it is unknown here"""
    end: int = -1
    """the offset behind the queue's last message, as of the last answer; -1 before the first"""
    stores: int = 0
    """number of requests made to store an offset"""
    committable: int = -1
    """if messages are not settled: the position that may be stored, -1 for none yet"""
    absent_since: float | None = None
    """trio time since which the routes do not name its broker; None while they do"""
    pulled_at: float = 0.0
    """trio time at which the last pull began"""
    settled_at: float = 0.0
    """trio time at which the last message was settled"""
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, repr=False)
    """cancels the task that pulls"""
    poll: trio.CancelScope = attrs.field(factory=trio.CancelScope, repr=False)
    """cancels the current pull"""
    _room: trio.Event | None = attrs.field(default=None, init=False, repr=False)

    def __repr__(self) -> str:
        return f"<Assignment of {self.queue}{', lost' if self.lost else ''}>"

    @property
    def to_store(self) -> int:
        """The offset to store for the group."""
        return self.held.committed if self.sends_back is not None else self.committable

    @property
    def ending(self) -> bool:
        """Whether no more of its messages may be handed out."""
        return self.lost or self.leaving

    def settle(self, message: ReceivedMessage) -> bool:
        """Count a message as done; return False if this queue is not owned any more."""
        counted = not self.lost and self.held.settle(message.queue_offset)
        if counted:
            now = self.settled_at = trio.current_time()
            self.counts.done += 1
            if message.handed_out:
                self.counts.done_seconds += now - message.handed_out
            if self._room is not None:
                self.recheck()
        if self.turns is not None:
            self.turns.settled(message)
        return counted

    def settle_all(self, messages: Iterable[ReceivedMessage]) -> None:
        """Count the messages of one poll as done, for consumers that do not settle them singly."""
        now = self.settled_at = trio.current_time()
        for message in messages:
            if self.held.settle(message.queue_offset):
                self.counts.done += 1
                self.counts.done_seconds += now - message.handed_out
        if self._room is not None:
            self.recheck()

    def note_failure(self, message: ReceivedMessage) -> None:
        """Count a message as failed."""
        self.counts.failed += 1
        if message.handed_out:
            self.counts.done_seconds += trio.current_time() - message.handed_out

    async def send_back(self, message: ReceivedMessage, delay_level: int) -> bool:
        """Have a message delivered again later; return False if the queue is not owned any more."""
        if self.lost or self.sends_back is None or not self.held.holds(message.queue_offset):
            await trio.lowlevel.checkpoint()
            if self.turns is not None:
                self.turns.settled(message)
            return False
        return await self.sends_back.send_back(self, message, delay_level)

    def abandon(self, message: ReceivedMessage) -> None:
        """Note that no handler works on a message any more, although it is not settled.

        An ordered consumer gets the message again, since its queue would stop for ever; for others
        ``consume_timeout`` applies.
        """
        if self.turns is not None:
            self.turns.requeue(message, message, 0.0)

    async def wait_room(self) -> bool:
        """Wait until the limits allow another pull and the queue is not paused.

        Returns: whether it had to wait.
        Checkpoint: maybe, only when it waits.
        """
        if not self._full():
            return False
        while self._full():
            self._room = trio.Event()
            await self._room.wait()
        return True

    def recheck(self) -> None:
        """Wake the waiting pull task if it may pull now."""
        if self._room is not None and not self._full():
            self._room.set()
            self._room = None

    def pause(self) -> None:
        """Pull nothing until ``resume``; an answer on its way is dropped, then pulled again."""
        self.paused = True
        self.poll.cancel()

    def resume(self) -> None:
        self.paused = False
        self.recheck()

    def leave(self) -> None:
        """Pull and hand out no more messages; settling still counts, until ``lose``."""
        self.leaving = True
        self.scope.cancel()

    def lose(self) -> None:
        """End this ownership: nothing is pulled, and settling has no effect."""
        self.lost = True
        self.scope.cancel()

    def _full(self) -> bool:
        return self.paused or self.held.above(self.limits)
