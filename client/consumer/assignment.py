"""`Assignment`: one queue that this consumer owns at the moment, from gaining it until losing it."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Protocol

import attrs
import trio

from triomq.client.consumer.counts import TopicCounts
from triomq.client.consumer.process_queue import Limits, ProcessQueue
from triomq.client.consumer.received import ReceivedMessage
from triomq.remoting.protocol.bodies.route import MessageQueue


class SendsBack(Protocol):
    """Who has messages delivered again."""

    async def send_back(self, assignment: Assignment, message: ReceivedMessage, delay_level: int) -> bool: ...


class Turns(Protocol):
    """Who hands out a queue's next message only after the verdict about the last one: for ordered consumers."""

    def verdict(self, message: ReceivedMessage) -> None: ...

    def again(self, message: ReceivedMessage, next_time: ReceivedMessage, pause: float) -> None: ...


@attrs.define(eq=False, repr=False)
class Assignment:
    """A queue while it is ours.

    When the queue is lost, or its offset is moved, the object is marked `lost` for good and (in the second case) replaced: messages that
    it handed out keep pointing at it, so that late verdicts find no target.
    """

    queue: MessageQueue
    held: ProcessQueue[ReceivedMessage]
    limits: Limits
    sends_back: SendsBack | None
    """None: messages have no verdict, offsets are committed by position"""
    counts: TopicCounts = attrs.field(factory=TopicCounts)
    turns: Turns | None = None
    lost: bool = False
    leaving: bool = False
    """whether it is to move to another member as soon as what was handed out has its verdict"""
    locked_until: float = inf
    """trio time until which the broker keeps the queue locked for us, as far as we may trust it; ordered consumers only"""
    paused: bool = False
    broker_id: int = 0
    """which member of the broker group to pull from, as the broker suggests it"""
    stored: int = -1
    """the offset that the broker is known to have for the group; -1 if nobody knows"""
    stores: int = 0
    """how many requests to store an offset were made"""
    committable: int = -1
    """without verdicts: the position that may be stored, -1 for none yet"""
    absent_since: float | None = None
    """trio time at which its broker was first missing in the routes; None while it is there"""
    pulled_at: float = 0.0
    """trio time of the last pull's beginning"""
    settled_at: float = 0.0
    """trio time of the last verdict"""
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, repr=False)
    """of the task that pulls"""
    poll: trio.CancelScope = attrs.field(factory=trio.CancelScope, repr=False)
    """of the pull under way"""
    _room: trio.Event | None = attrs.field(default=None, init=False, repr=False)

    def __repr__(self) -> str:
        return f"<Assignment of {self.queue}{', lost' if self.lost else ''}>"

    @property
    def to_store(self) -> int:
        """The offset that the group has come to."""
        return self.held.committed if self.sends_back is not None else self.committable

    @property
    def ending(self) -> bool:
        """Whether nothing more of it may be handed out."""
        return self.lost or self.leaving

    def settle(self, message: ReceivedMessage) -> bool:
        """Count a message as done; False if this queue is not ours any more.  Atomic: no checkpoint."""
        counted = not self.lost and self.held.settle(message.queue_offset)
        if counted:
            now = self.settled_at = trio.current_time()
            self.counts.done += 1
            if message.handed_out:
                self.counts.done_seconds += now - message.handed_out
            if self._room is not None:
                self.look_again()
        if self.turns is not None:
            self.turns.verdict(message)
        return counted

    def settle_all(self, messages: Iterable[ReceivedMessage]) -> None:
        """Count messages without verdicts as done, those of one poll together.  Atomic: no checkpoint."""
        now = self.settled_at = trio.current_time()
        for message in messages:
            if self.held.settle(message.queue_offset):
                self.counts.done += 1
                self.counts.done_seconds += now - message.handed_out
        if self._room is not None:
            self.look_again()

    def note_failure(self, message: ReceivedMessage) -> None:
        """Count a message as failed.  Atomic: no checkpoint."""
        self.counts.failed += 1
        if message.handed_out:
            self.counts.done_seconds += trio.current_time() - message.handed_out

    async def send_back(self, message: ReceivedMessage, delay_level: int) -> bool:
        """Have a message delivered again later; False if this queue is not ours any more."""
        if self.lost or self.sends_back is None or not self.held.holds(message.queue_offset):
            await trio.lowlevel.checkpoint()
            if self.turns is not None:
                self.turns.verdict(message)
            return False
        return await self.sends_back.send_back(self, message, delay_level)

    def abandon(self, message: ReceivedMessage) -> None:
        """Note that nobody works on a message without verdict any more.  Atomic: no checkpoint.

        In order it comes again, since its queue would stand still for ever; otherwise `consume_timeout` takes care of it.
        """
        if self.turns is not None:
            self.turns.again(message, message, 0.0)

    async def wait_room(self) -> bool:
        """Wait until the limits allow another pull and the queue is not paused.  Returns whether there was anything to wait for."""
        if not self._full():
            return False
        while self._full():
            self._room = trio.Event()
            await self._room.wait()
        return True

    def look_again(self) -> None:
        """Let a waiting puller go on if it may."""
        if self._room is not None and not self._full():
            self._room.set()
            self._room = None

    def pause(self) -> None:
        """Pull nothing until `resume`; an answer that is under way is dropped and asked for again then.  Atomic: no checkpoint."""
        self.paused = True
        self.poll.cancel()

    def resume(self) -> None:
        self.paused = False
        self.look_again()

    def leave(self) -> None:
        """Pull and hand out no more; verdicts still count, until `lose`.  Atomic: no checkpoint."""
        self.leaving = True
        self.scope.cancel()

    def lose(self) -> None:
        """End this ownership: nothing is pulled, no verdict counts.  Atomic: no checkpoint."""
        self.lost = True
        self.scope.cancel()

    def successor(self, position: int) -> Assignment:
        """Return the assignment that takes over after a jump to another offset; this one is lost, its puller goes on for the new one."""
        self.lost = True
        return Assignment(
            queue=self.queue,
            held=ProcessQueue(position),
            limits=self.limits,
            sends_back=self.sends_back,
            counts=self.counts,
            turns=self.turns,
            locked_until=self.locked_until,
            paused=self.paused,
            broker_id=self.broker_id,
            stored=self.stored,
            committable=position if self.sends_back is None else -1,
            scope=self.scope,
        )

    def _full(self) -> bool:
        return self.paused or self.held.above(self.limits) is not None
