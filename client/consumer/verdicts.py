"""What becomes of a message that failed: three kinds of consumers, three answers.

*Concurrent*: it goes back to its broker (request 36), which delivers it again through the group's retry topic with a growing delay and finally
moves it to the dead letters.  If the broker cannot be asked or does not take it, the message stays unsettled here and is handed out again
after `retry_delay`; so nothing is lost, it only holds back the committed offset.  (The official client then sends the message to the retry
topic itself, which a broker that refused 36 will hardly take either.)

*Ordered*: its queue rests, then the same message comes again; with `max_reconsume_times` it goes to the dead letters after that many times.
(The official client sends it to the retry topic, where the broker lays it aside because the group holds queue locks; here request 36 says it
outright.)

*Broadcasting*: nobody keeps it.  It is logged and counts as done, as in the official client.

Source: client/…/impl/consumer/ConsumeMessageConcurrentlyService.java, ConsumeMessageOrderlyService.java,
DefaultMQPushConsumerImpl.java#sendMessageBack.
"""

from __future__ import annotations

import heapq
import itertools
import logging

import attrs
import trio

from triomq.client.config import ConsumerSettings
from triomq.client.consumer.assignment import Assignment
from triomq.client.consumer.inbox import Inbox
from triomq.client.consumer.ordered_inbox import OrderedInbox
from triomq.client.consumer.received import DEAD_LETTER, ReceivedMessage, again
from triomq.client.errors import RouteNotFound, TrioMQError
from triomq.client.session import Session
from triomq.client.trouble import TroubleLog
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.send import SendBackHeader

logger = logging.getLogger(__name__)

PAUSE_MIN, PAUSE_MAX = 0.01, 30.0
"""seconds that a queue of an ordered consumer may rest after a failure"""


@attrs.define(eq=False)
class Redelivery:
    """Messages that wait here for another delivery, by due time."""

    _heap: list[tuple[float, int, ReceivedMessage]] = attrs.field(factory=list, init=False)
    _numbers: itertools.count[int] = attrs.field(factory=itertools.count, init=False)
    _changed: trio.Event = attrs.field(factory=trio.Event, init=False)

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, due: float, message: ReceivedMessage) -> None:
        """Hand this message out at a trio time.  Atomic: no checkpoint."""
        heapq.heappush(self._heap, (due, next(self._numbers), message))
        self._changed.set()

    async def run(self, inbox: Inbox) -> None:
        """Move messages to the inbox when their time has come."""
        while True:
            self._changed = trio.Event()
            with trio.move_on_at(self._heap[0][0] if self._heap else trio.current_time() + 3600):
                await self._changed.wait()
            while self._heap and self._heap[0][0] <= trio.current_time():
                inbox.put([heapq.heappop(self._heap)[2]])


@attrs.define(eq=False)
class BrokerRetry:
    """Gives messages back to their broker: for concurrent consumers."""

    group: str
    session: Session
    settings: ConsumerSettings
    redelivery: Redelivery = attrs.field(factory=Redelivery, init=False)
    _trouble: TroubleLog = attrs.field(factory=lambda: TroubleLog(logger), init=False)

    async def send_back(self, assignment: Assignment, message: ReceivedMessage, delay_level: int) -> bool:
        """Have the broker deliver a message again, or else keep it for another delivery here.  See `ReceivedMessage.retry`."""
        assignment.note_failure(message)
        if not await self.give_back(message, delay_level):
            next_time = again(message)
            if assignment.lost or not assignment.held.replace(next_time):
                return False
            self.redelivery.put(trio.current_time() + self.settings.retry_delay, next_time)
            return True
        return settle_failed(assignment, message)

    async def give_back(self, message: ReceivedMessage, delay_level: int) -> bool:
        """Ask the broker to deliver a message again later, or to lay it aside (level -1); False, and a log line, if it did not take it."""
        name = message.queue.broker_name
        what = f"sending messages back to broker {name}"
        try:
            address = self.session.routes.master(name)
            if address is None:
                topic = message.queue.topic
                raise RouteNotFound(topic, f"broker {name} has no master now", offered=self.session.routes.topic(topic) is not None)
            header = SendBackHeader(
                offset=message.log_offset,
                group=self.group,
                delay_level=delay_level,
                origin_message_id=message.message_id,
                origin_topic=message.topic,
                unit_mode=False,
                max_reconsume_times=self.settings.max_reconsume_times,
                broker_name=name,
            )
            command = request(RequestCode.CONSUMER_SEND_MSG_BACK, header)
            await self.session.call(address, command, self.settings.offset_timeout)
        except TrioMQError as error:
            self._trouble.failed(what, error)
            return False
        self._trouble.worked(what)
        return True


@attrs.define(eq=False)
class QueueSuspension:
    """Lets the queue rest and hands the same message out again: for ordered consumers."""

    settings: ConsumerSettings
    inbox: OrderedInbox
    broker: BrokerRetry | None
    """takes dead letters; None for broadcasting consumers, which have none"""

    async def send_back(self, assignment: Assignment, message: ReceivedMessage, delay_level: int) -> bool:
        """Have a message come again before all others of its queue, or lay it aside after its last time."""
        assignment.note_failure(message)
        limit = self.settings.max_reconsume_times
        if delay_level == DEAD_LETTER or (limit is not None and message.reconsume_times >= limit):
            if self.broker is None:
                log_dropped(message)
                await trio.lowlevel.checkpoint()
                return settle_failed(assignment, message)
            if await self.broker.give_back(message, DEAD_LETTER):
                return settle_failed(assignment, message)
        else:
            await trio.lowlevel.checkpoint()
        next_time = again(message)
        if assignment.lost or not assignment.held.replace(next_time):
            self.inbox.verdict(message)
            return False
        pause = self.settings.suspend_queue if message.pause is None else message.pause
        self.inbox.again(message, next_time, min(max(pause, PAUSE_MIN), PAUSE_MAX))
        return True


class NoRetry:
    """Counts failures as done: for broadcasting consumers."""

    async def send_back(self, assignment: Assignment, message: ReceivedMessage, delay_level: int) -> bool:
        assignment.note_failure(message)
        log_dropped(message)
        await trio.lowlevel.checkpoint()
        return settle_failed(assignment, message)


def log_dropped(message: ReceivedMessage) -> None:
    logger.warning(
        "message %s of %s failed and is not delivered again: broadcasting consumers have no retries",
        message.message_id,
        message.topic,
    )


def settle_failed(assignment: Assignment, message: ReceivedMessage) -> bool:
    """Strike a message out that somebody else takes care of, without counting it as done.  Atomic: no checkpoint."""
    message.handed_out = 0.0  # its time was counted with the failure
    counted = assignment.settle(message)
    if counted:
        assignment.counts.done -= 1
    return counted
