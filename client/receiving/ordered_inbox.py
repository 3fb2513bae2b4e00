"""``OrderedInbox``: messages of an ordered consumer wait here until it is their queue's turn.

A queue's next message is handed out only when the last one is settled. So at most one message (or
one batch) of a queue is out at any time, however many tasks take messages; different queues are
handled side by side. A message that failed returns to the front of its queue, which rests for a
while. A turn belongs to the queue and not to one ownership of it: when the queue is lost and gained
again, or its offset is moved, the next message still waits for the one that is out.

Source for the rules: client/…/impl/consumer/ConsumeMessageOrderlyService.java.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import attrs
import trio

from triomq.client.receiving.inbox import InboxClosed
from triomq.client.receiving.received import ReceivedMessage
from triomq.client.receiving.timetable import Timetable
from triomq.remoting.protocol.bodies.route import MessageQueue


@attrs.define(eq=False)
class QueueState:
    """The state of one queue."""

    waiting: deque[ReceivedMessage] = attrs.field(factory=deque)
    out: set[ReceivedMessage] = attrs.field(factory=set)
    """handed out and not settled"""
    failed: list[ReceivedMessage] = attrs.field(factory=list)
    """messages of the last turn that come again"""
    pause: float = 0.0
    """seconds for which the queue rests after this turn"""
    resting: bool = False
    listed: bool = False
    """whether it is in the list of ready queues"""
    idle: trio.Event | None = None
    """set when no message is out any more"""


@attrs.define(eq=False)
class OrderedInbox:
    """Messages of all queues, one turn at a time for each queue; methods as in ``Inbox``."""

    _queues: dict[MessageQueue, QueueState] = attrs.field(factory=dict, init=False)
    _ready: deque[QueueState] = attrs.field(factory=deque, init=False)
    _waiting: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _resting: Timetable[QueueState] = attrs.field(factory=Timetable, init=False)
    _closed: bool = attrs.field(default=False, init=False)
    _paused: bool = attrs.field(default=False, init=False)

    def __len__(self) -> int:
        return sum(len(state.waiting) for state in self._queues.values())

    def put(self, messages: Sequence[ReceivedMessage]) -> None:
        """Add a batch of one queue; a closed inbox drops it."""
        if self._closed:
            return
        state = self._queues.setdefault(messages[0].queue, QueueState())
        state.waiting.extend(messages)
        self._offer(state)

    def put_back(self, messages: Sequence[ReceivedMessage]) -> None:
        """Put back messages whose handler was cancelled; they come next."""
        for message in messages:
            self.requeue(message, message, 0.0)

    def close(self) -> None:
        """Hand out no more messages; wake the waiting tasks, which get ``InboxClosed``."""
        self._closed = True
        self._ready.clear()
        for state in self._queues.values():
            state.waiting.clear()
        self._waiting.unpark_all()

    def pause(self) -> None:
        """Hand out nothing until ``resume``."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._waiting.unpark_all()

    async def get(self) -> ReceivedMessage:
        """Wait for a queue's turn and return its next message. Raises: ``InboxClosed``."""
        return (await self.get_some(1))[0]

    async def get_some(self, count_max: int, *, one_queue: bool = True) -> list[ReceivedMessage]:
        """Wait for a queue's turn and return its next messages, at most ``count_max``.

        Raises: ``InboxClosed``.
        """
        await trio.lowlevel.checkpoint()
        while True:
            if self._closed:
                raise InboxClosed
            messages = self._pop(count_max)
            if messages:
                return messages
            await self._waiting.park()

    def settled(self, message: ReceivedMessage) -> None:
        """Note that a message which was handed out is settled, whether or not it counts."""
        state = self._queues.get(message.queue)
        if state is None or message not in state.out:
            return
        state.out.discard(message)
        if not state.out:
            self._next_turn(state)

    def requeue(self, message: ReceivedMessage, next_time: ReceivedMessage, pause: float) -> None:
        """Note that a message failed; ``next_time`` comes before all others of its queue.

        ``pause``: seconds for which the queue rests before.
        """
        state = self._queues.setdefault(message.queue, QueueState())
        if next_time is message and message not in state.out:
            return  # it was requeued before
        state.failed.append(next_time)
        state.pause = max(state.pause, pause)
        self.settled(message)

    def recheck(self, queue: MessageQueue) -> None:
        """Offer the messages of a queue whose lock was renewed or lost."""
        state = self._queues.get(queue)
        if state is not None:
            self._offer(state)

    async def wait_idle(self, queue: MessageQueue) -> None:
        """Wait until no message of a queue is out."""
        state = self._queues.get(queue)
        while state is not None and state.out:
            state.idle = state.idle or trio.Event()
            await state.idle.wait()
        await trio.lowlevel.checkpoint()

    async def end_rests(self) -> None:
        """Offer queues whose rest is over; runs for ever."""
        await self._resting.deliver_due(self._end_rest)

    def _end_rest(self, state: QueueState) -> None:
        state.resting = False
        self._offer(state)

    def _next_turn(self, state: QueueState) -> None:
        if state.idle is not None:
            state.idle.set()
            state.idle = None
        if self._closed:
            return
        if state.failed:
            state.failed.sort(key=lambda message: message.queue_offset)
            state.waiting.extendleft(reversed(state.failed))
            state.failed.clear()
            state.resting = True
            self._resting.put(trio.current_time() + state.pause, state)
            state.pause = 0.0
        else:
            self._offer(state)

    def _offer(self, state: QueueState) -> None:
        if state.waiting and not (state.listed or state.out or state.resting or self._closed):
            state.listed = True
            self._ready.append(state)
            self._waiting.unpark()

    def _pop(self, count_max: int) -> list[ReceivedMessage]:
        now = trio.current_time()
        while self._ready and not self._paused:
            state = self._ready.popleft()
            state.listed = False
            waiting = state.waiting
            # A requeued message may have been settled by the handler that had it before.
            while waiting and (waiting[0].owner.ending or waiting[0].settled):
                waiting.popleft()
            if not waiting or now >= waiting[0].owner.locked_until:
                continue  # without a lock: `recheck` lists the queue again
            taken: list[ReceivedMessage] = []
            while waiting and len(taken) < count_max and not waiting[0].owner.ending:
                message = waiting.popleft()
                if not message.settled:
                    message.handed_out = now
                    taken.append(message)
            state.out.update(taken)
            return taken
        return []
