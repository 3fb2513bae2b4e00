"""The place where messages of an ordered consumer wait: each queue has its turn, and the next one only after the verdict about the last.

So of one queue at most one message (or one batch) is out at any time, whoever takes messages and from however many tasks; different queues go
side by side.  A message that failed returns to the front of its queue, which rests for a while.  A turn belongs to the queue and not to one
ownership of it: when the queue is lost and gained again, or its offset is moved, the next message still waits for the one that is out.

Source for the rules: client/…/impl/consumer/ConsumeMessageOrderlyService.java.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Sequence

import attrs
import trio

from triomq.client.consumer.inbox import InboxClosed
from triomq.client.consumer.received import ReceivedMessage
from triomq.remoting.protocol.bodies.route import MessageQueue


@attrs.define(eq=False)
class Lane:
    """One queue."""

    waiting: deque[ReceivedMessage] = attrs.field(factory=deque)
    out: set[ReceivedMessage] = attrs.field(factory=set)
    """handed out, no verdict yet"""
    failed: list[ReceivedMessage] = attrs.field(factory=list)
    """of what was handed out last: what comes again"""
    pause: float = 0.0
    """seconds of rest that the failed ones asked for"""
    resting: bool = False
    listed: bool = False
    """whether it stands among those that are ready"""
    idle: trio.Event | None = None
    """set when nothing is out any more"""


@attrs.define(eq=False)
class OrderedInbox:
    """Messages of all queues, one turn at a time for each queue.  The methods are those of `Inbox`."""

    _lanes: dict[MessageQueue, Lane] = attrs.field(factory=dict, init=False)
    _ready: deque[Lane] = attrs.field(factory=deque, init=False)
    _waiting: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _resting: list[tuple[float, int, Lane]] = attrs.field(factory=list, init=False)
    _numbers: itertools.count[int] = attrs.field(factory=itertools.count, init=False)
    _changed: trio.Event = attrs.field(factory=trio.Event, init=False)
    _closed: bool = attrs.field(default=False, init=False)
    _paused: bool = attrs.field(default=False, init=False)

    def __len__(self) -> int:
        return sum(len(lane.waiting) for lane in self._lanes.values())

    def put(self, messages: Sequence[ReceivedMessage]) -> None:
        """Take in a batch of one queue, unless it is closed.  Atomic: no checkpoint."""
        if self._closed:
            return
        lane = self._lanes.setdefault(messages[0].queue, Lane())
        lane.waiting.extend(messages)
        self._offer(lane)

    def put_back(self, messages: Sequence[ReceivedMessage]) -> None:
        """Take back what was handed out and nobody works on: it comes next.  Atomic: no checkpoint."""
        for message in messages:
            self.again(message, message, 0.0)

    def close(self) -> None:
        """Hand out nothing more; whoever waits is told so."""
        self._closed = True
        self._ready.clear()
        for lane in self._lanes.values():
            lane.waiting.clear()
        self._waiting.unpark_all()

    def pause(self) -> None:
        """Hand out nothing until `resume`."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._waiting.unpark_all()

    async def get(self) -> ReceivedMessage:
        """Wait for a message whose queue has its turn.  Errors: `InboxClosed`."""
        return (await self.get_some(1))[0]

    async def get_some(self, count_max: int, *, one_queue: bool = True) -> list[ReceivedMessage]:
        """Wait for a queue that has its turn and return its next messages, at most `count_max`.  Errors: `InboxClosed`."""
        await trio.lowlevel.checkpoint()
        while True:
            if self._closed:
                raise InboxClosed
            messages = self._pop(count_max)
            if messages:
                return messages
            await self._waiting.park()

    def verdict(self, message: ReceivedMessage) -> None:
        """Note that a message which was handed out has its verdict, counted or not.  Atomic: no checkpoint."""
        lane = self._lanes.get(message.queue)
        if lane is None or message not in lane.out:
            return
        lane.out.discard(message)
        if not lane.out:
            self._next_turn(lane)

    def again(self, message: ReceivedMessage, next_time: ReceivedMessage, pause: float) -> None:
        """Note that a message failed: `next_time` comes before all others of its queue, after a pause in seconds.  Atomic: no checkpoint."""
        lane = self._lanes.setdefault(message.queue, Lane())
        if next_time is message and message not in lane.out:
            return  # taken back before
        lane.failed.append(next_time)
        lane.pause = max(lane.pause, pause)
        self.verdict(message)

    def look_again(self, queue: MessageQueue) -> None:
        """Hand out what waited for the queue's lock.  Atomic: no checkpoint."""
        lane = self._lanes.get(queue)
        if lane is not None:
            self._offer(lane)

    async def wait_idle(self, queue: MessageQueue) -> None:
        """Wait until no message of a queue is out."""
        lane = self._lanes.get(queue)
        while lane is not None and lane.out:
            lane.idle = lane.idle or trio.Event()
            await lane.idle.wait()
        await trio.lowlevel.checkpoint()

    async def run(self) -> None:
        """Wake queues whose rest is over."""
        while True:
            self._changed = trio.Event()
            with trio.move_on_at(self._resting[0][0] if self._resting else trio.current_time() + 3600):
                await self._changed.wait()
            while self._resting and self._resting[0][0] <= trio.current_time():
                lane = heapq.heappop(self._resting)[2]
                lane.resting = False
                self._offer(lane)

    def _next_turn(self, lane: Lane) -> None:
        if lane.idle is not None:
            lane.idle.set()
            lane.idle = None
        if self._closed:
            return
        if lane.failed:
            lane.failed.sort(key=lambda message: message.queue_offset)
            lane.waiting.extendleft(reversed(lane.failed))
            lane.failed.clear()
            lane.resting = True
            heapq.heappush(self._resting, (trio.current_time() + lane.pause, next(self._numbers), lane))
            lane.pause = 0.0
            self._changed.set()
        else:
            self._offer(lane)

    def _offer(self, lane: Lane) -> None:
        if lane.waiting and not (lane.listed or lane.out or lane.resting or self._closed):
            lane.listed = True
            self._ready.append(lane)
            self._waiting.unpark()

    def _pop(self, count_max: int) -> list[ReceivedMessage]:
        now = trio.current_time()
        while self._ready and not self._paused:
            lane = self._ready.popleft()
            lane.listed = False
            waiting = lane.waiting
            while waiting and (waiting[0].owner.ending or waiting[0].settled):  # settled: by whom it was taken back from
                waiting.popleft()
            if not waiting or now >= waiting[0].owner.locked_until:  # without a lock: `look_again` lists it again
                continue
            owner = waiting[0].owner
            taken: list[ReceivedMessage] = []
            while waiting and len(taken) < count_max and waiting[0].owner is owner:
                message = waiting.popleft()
                if not message.settled:
                    message.handed_out = now
                    taken.append(message)
            lane.out.update(taken)
            return taken
        return []
