"""``PopFetcher``: a push consumer's pops, one loop of long polls for each topic and broker.

What is popped waits in the inbox for a handler. Until it is settled its invisible time is renewed,
at half of it, so that no other member gets it. An acknowledgement is sent in the background. A
failed message is hidden for the group's delay and comes again from its retry topic; after the last
delivery it becomes a dead letter. (Java's client acknowledges it, and it is gone.)

An ordered consumer hands a failed message out again itself: its queue is blocked for the group
until the messages of the last pop are acknowledged.

Source: client/…/impl/consumer/DefaultMQPushConsumerImpl.java#popMessage,
ConsumeMessagePopConcurrentlyService.java.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from math import inf

import attrs
import trio

from triomq.client.core.errors import FlowControl, MessageGone, MessageRefused, TrioMQError
from triomq.client.core.retry import concerns_route
from triomq.client.receiving.pop.ack_queue import AckQueue
from triomq.client.receiving.pop.durations import DELIVERIES_MAX, retry_seconds
from triomq.client.receiving.pop.hold import Hold
from triomq.client.receiving.pop.hold_limit import HoldLimit
from triomq.client.receiving.pop.lease_times import LeaseTimes
from triomq.client.receiving.pop.pop_calls import Popped
from triomq.client.receiving.pop.pop_requests import POP_MAX
from triomq.client.receiving.pop.pop_sources import PopSources
from triomq.client.receiving.pop.source_turns import PopSource
from triomq.client.receiving.received import DEAD_LETTER, ReceivedMessage, next_delivery
from triomq.client.receiving.settlement import PAUSE_MAX, PAUSE_MIN
from triomq.remoting.protocol.bodies.route import MessageQueue

logger = logging.getLogger(__name__)

_AT_ONCE_SECONDS = 1.0
"""An empty answer that comes sooner was not held by the broker."""
_IDLE_SECONDS = 3600.0
"""Wait for renewals while nothing is held; a new message ends it."""


@attrs.define(eq=False)
class SourceLoop:
    """The loop of one source, and what it holds."""

    source: PopSource
    limit: HoldLimit
    bytes_max: int
    count: int = 0
    size_bytes: int = 0
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, repr=False)
    _room: trio.Event = attrs.field(factory=trio.Event, init=False, repr=False)

    @property
    def room(self) -> int:
        """How many messages may be popped now."""
        return max(0, self.limit.value - self.count) if self.size_bytes < self.bytes_max else 0

    async def wait_room(self) -> None:
        """Wait until a message may be popped. Checkpoint: maybe, only when it waits."""
        while not self.room:
            self._room = trio.Event()
            await self._room.wait()

    def recheck(self) -> None:
        """Wake the loop if it may pop now."""
        if self.room:
            self._room.set()


@attrs.define(eq=False)
class PopFetcher(PopSources):
    """The messages that a push consumer popped, and the tasks that pop."""

    handled_at_once: int = attrs.field(default=1, init=False)
    acks: AckQueue = attrs.field(init=False)
    _loops: dict[PopSource, SourceLoop] = attrs.field(factory=dict, init=False)
    _holds: dict[Hold, SourceLoop] = attrs.field(factory=dict, init=False)
    _times: LeaseTimes[Hold] = attrs.field(init=False)
    _more: trio.Event = attrs.field(factory=trio.Event, init=False)
    """a message was added"""
    _running: trio.Event = attrs.field(factory=trio.Event, init=False)
    """not paused"""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        settings = self.settings
        self._times = LeaseTimes(settings.pop_invisible / 2, min(1.0, settings.pop_invisible / 8))
        self.acks = AckQueue(self.calls, settings.error_delay, self._release)
        self._running.set()

    def held(self) -> int:
        return len(self._holds)

    # Loops

    def sources_changed(self) -> None:
        if self._stopped:
            return
        current = self.current()
        for source in [source for source in self._loops if source not in current]:
            self._loops.pop(source).scope.cancel()
            self._failures.forget(source.name)
        for source in current:
            if source not in self._loops:
                limit = HoldLimit(self.settings.pop_messages_max, self.handled_at_once)
                loop = SourceLoop(source, limit, self.settings.cached_bytes_max)
                self._loops[source] = loop
                self.nursery.start_soon(
                    self._pop_loop, loop, name=f"pop {source.topic} {source.broker_name}"
                )

    def handle_at_once(self, count: int) -> None:
        """Note how many messages the handlers take at once."""
        self.handled_at_once = max(self.handled_at_once, count)
        for loop in self._loops.values():
            loop.limit.set_least(self.handled_at_once)
            loop.recheck()

    def pause(self) -> None:
        if self._running.is_set():  # otherwise the loops wait for this event
            self._running = trio.Event()

    def resume(self) -> None:
        self._running.set()

    def stop(self) -> None:
        """Pop nothing more, and give back what no handler has; settling still counts."""
        self._stopped = True
        for loop in self._loops.values():
            loop.scope.cancel()
        self._give_back([hold for hold in self._holds if not hold.message.handed_out])

    async def end(self, *, wait: float) -> None:
        """Give everything back, within ``wait`` seconds. Checkpoint: always."""
        self._give_back([hold for hold in self._holds if not hold.done])
        await self.calls.end(wait=wait)

    def _give_back(self, holds: Sequence[Hold]) -> None:
        for hold in holds:
            hold.lost = True
            self._release(hold)
            if hold.changing is None:
                self.calls.start_soon(self.calls.give_back, [hold.lease])

    async def _pop_loop(self, loop: SourceLoop) -> None:
        settings, source = self.settings, loop.source
        invisible = settings.pop_invisible
        attempt = self._new_attempt()
        with loop.scope:
            while True:
                await self._running.wait()
                await loop.wait_room()
                count = min(loop.room, settings.pull_batch, POP_MAX)
                began, pause = trio.current_time(), 0.0
                try:
                    result = await self.calls.pop(
                        source, count, invisible, settings.suspend, attempt
                    )
                except FlowControl:
                    pause = settings.flow_control_delay
                except TrioMQError as error:
                    self._failures.failed(source.name, error)
                    if concerns_route(error):
                        self.session.finder.invalidate(source.topic)
                    pause = settings.error_delay
                else:
                    self._failures.worked(source.name)
                    attempt = self._new_attempt()
                    if result.popped:
                        self._take(loop, result.popped, trio.current_time() - began)
                        pause = settings.pull_interval
                    elif result.answer.full:
                        pause = settings.error_delay
                    elif trio.current_time() - began < _AT_ONCE_SECONDS:
                        pause = settings.flow_control_delay
                if pause:
                    await trio.sleep(pause)

    def _take(self, loop: SourceLoop, popped: Sequence[Popped], seconds: float) -> None:
        now, messages = trio.current_time(), []
        for each in popped:
            handle = each.lease.handle
            hold = Hold(
                group=self.spec.group,
                queue=MessageQueue(loop.source.topic, handle.broker_name, handle.queue_id),
                lease=each.lease,
                source=loop.source,
                holder=self,
                replier=self.replier,
                popped_at=now,
            )
            hold.message = self.spec.make_message(each.record, hold, False)
            self._holds[hold] = loop
            self._times.keep(hold, now)
            loop.count += 1
            loop.size_bytes += hold.message.size_bytes
            messages.append(hold.message)
        self.counts.of(loop.source.topic).note_pull(len(messages), seconds)
        self._more.set()
        if not self.ordered:
            self.spec.deliver(messages)
            return
        by_queue: dict[MessageQueue, list[ReceivedMessage]] = {}
        for message in messages:
            by_queue.setdefault(message.queue, []).append(message)
        for together in by_queue.values():
            self.spec.deliver(together)

    # Renewals

    async def renew(self) -> None:
        """Renew invisible times when they are due; runs for ever."""
        while True:
            for hold in self._times.take_due(trio.current_time()):
                self.nursery.start_soon(self._renew, hold, name="renew")
            due = self._times.next_due()
            self._more = trio.Event()
            with trio.move_on_at(trio.current_time() + _IDLE_SECONDS if due == inf else due):
                await self._more.wait()

    async def _renew(self, hold: Hold) -> None:
        if hold.changing is not None:
            self._times.failed(hold, trio.current_time())
        elif self._is_forgotten(hold):
            logger.warning(
                "message %s of %s was not settled for %g s and goes back to the broker: end every"
                " message with ack or retry, or raise consume_timeout",
                hold.message_id,
                hold.source.topic,
                self.settings.consume_timeout,
            )
            self._lose(hold)
            await self.calls.give_back([hold.lease])
        else:
            await self._change(hold, self.settings.pop_invisible)

    def _is_forgotten(self, hold: Hold) -> bool:
        """Return whether the application holds a message for longer than ``consume_timeout``.

        Ordered messages have to wait for each other.
        """
        since = hold.message.handed_out or hold.popped_at
        return not self.ordered and trio.current_time() - since >= self.settings.consume_timeout

    async def _change(self, hold: Hold, seconds: float) -> None:
        """Hide a message for another time; a failure is logged.

        A message that is settled meanwhile is acknowledged afterwards, with its new handle.
        """
        hold.changing = trio.Event()
        what = f"renewing invisible times of {hold.lease.handle.broker_name}"
        try:
            await self.calls.requests.change(hold.lease, seconds)
        except TrioMQError as error:
            if isinstance(error, MessageGone | MessageRefused):
                logger.warning(
                    "message %s of %s comes again, its invisible time is over: raise pop_invisible",
                    hold.message_id,
                    hold.source.topic,
                )
                self._lose(hold)
            else:
                self._failures.failed(what, error)
                if trio.current_time() >= hold.lease.ends:
                    self._lose(hold)
        else:
            self._failures.worked(what)
            if hold in self._holds and not hold.done:
                self._times.keep(hold, trio.current_time())
            elif hold.lost:  # given back meanwhile
                self.calls.start_soon(self.calls.give_back, [hold.lease])
        finally:
            hold.changing.set()
            hold.changing = None
            if hold.done and hold in self._holds:
                self.acks.put(hold)
            elif hold in self._holds and hold not in self._times:  # failed, or cancelled
                self._times.failed(hold, trio.current_time())
            self._more.set()

    # Settlement

    def settle(self, hold: Hold, message: ReceivedMessage) -> bool:
        if not hold.lost and not hold.done and trio.current_time() >= hold.lease.ends:
            self._lose(hold)
        counts = not hold.lost and not hold.done
        if counts:
            self._note_done(hold, message)
            hold.done = True
            self._times.drop(hold)
            if hold.changing is None:
                self.acks.put(hold)
        if self.spec.turns is not None:
            self.spec.turns.settled(message)
        return counts

    def _note_done(self, hold: Hold, message: ReceivedMessage) -> None:
        now, counts = trio.current_time(), self.counts.of(hold.source.topic)
        counts.done += 1
        if message.handed_out:
            counts.done_seconds += now - message.handed_out
        self._holds[hold].limit.settled(now - hold.popped_at)

    async def send_back(self, hold: Hold, message: ReceivedMessage, delay_level: int) -> bool:
        self._note_failure(hold, message)
        while hold.changing is not None:
            await hold.changing.wait()
        if hold.lost or hold.done:
            await trio.lowlevel.checkpoint()
            return self._not_counted(message)
        if self._is_last(delay_level, message) and await self._dead_letter(hold, message):
            return True
        turns = self.spec.turns
        if turns is not None:
            await trio.lowlevel.checkpoint()
            hold.message = next_delivery(message)
            pause = self.settings.suspend_queue if message.pause is None else message.pause
            turns.requeue(message, hold.message, min(max(pause, PAUSE_MIN), PAUSE_MAX))
            return True
        self._times.drop(hold)
        await self._change(hold, retry_seconds(delay_level, message.reconsume_times))
        lost = hold.lost
        self._lose(hold)  # another delivery is another message
        return not lost

    def _note_failure(self, hold: Hold, message: ReceivedMessage) -> None:
        counts = self.counts.of(hold.source.topic)
        counts.failed += 1
        if message.handed_out:
            counts.done_seconds += trio.current_time() - message.handed_out

    def _is_last(self, delay_level: int, message: ReceivedMessage) -> bool:
        limit = self.settings.max_reconsume_times
        if limit is None and not self.ordered:
            limit = DELIVERIES_MAX
        if delay_level == DEAD_LETTER:
            return True
        return limit is not None and message.reconsume_times >= limit

    async def _dead_letter(self, hold: Hold, message: ReceivedMessage) -> bool:
        broker = hold.lease.handle.broker_name
        what = f"moving dead letters at broker {broker}"
        hold.changing = trio.Event()
        try:
            await self.calls.requests.dead_letter(hold.lease, message._stored)
        except TrioMQError as error:
            self._failures.failed(what, error)
            return False
        finally:
            hold.changing.set()
            hold.changing = None
        self._failures.worked(what)
        hold.done = True
        self._release(hold)
        self._not_counted(message)
        return True

    def _not_counted(self, message: ReceivedMessage) -> bool:
        if self.spec.turns is not None:
            self.spec.turns.settled(message)
        return False

    def abandon(self, hold: Hold, message: ReceivedMessage) -> None:
        if self.spec.turns is not None:
            self.spec.turns.requeue(message, message, 0.0)

    def _lose(self, hold: Hold) -> None:
        """Hold a message no longer; of an ordered queue nothing behind it either."""
        together = [hold]
        if self.ordered:
            together += [each for each in self._holds if each.queue == hold.queue]
        for each in together:
            if not each.done:
                each.lost = True
                self._release(each)

    def _release(self, hold: Hold) -> None:
        self._times.drop(hold)
        loop = self._holds.pop(hold, None)
        if loop is not None:
            loop.count -= 1
            loop.size_bytes -= hold.message.size_bytes
            loop.recheck()
