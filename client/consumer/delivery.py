"""From the inbox to the application's handler, and back: workers, verdicts, second deliveries, forgotten messages.

A message that fails goes back to its broker (request 36), which delivers it again through the group's retry topic with a growing delay and
finally moves it to the dead letters.  If the broker cannot be asked or does not take it, the message stays unsettled here and is handed
out again after `retry_delay`; so nothing is lost, it only holds back the committed offset.  (The official client then sends the message to
the retry topic itself, which a broker that refused 36 will hardly take either.)

Source: client/…/impl/consumer/ConsumeMessageConcurrentlyService.java, DefaultMQPushConsumerImpl.java#sendMessageBack.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable

import attrs
import trio

from triomq.client.config import ConsumerSettings
from triomq.client.consumer.assignment import Assignment
from triomq.client.consumer.inbox import Inbox, InboxClosed
from triomq.client.consumer.received import ReceivedMessage, again
from triomq.client.errors import RouteNotFound, TrioMQError
from triomq.client.session import Session
from triomq.client.trouble import TroubleLog
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.send import SendBackHeader

logger = logging.getLogger(__name__)

Handler = Callable[[ReceivedMessage], Awaitable[object]]
"""Handles one message.  Its normal end is an ack, an exception a retry, unless it gave the verdict itself.  Its result is not used."""

EXPIRED_DELAY_LEVEL = 3
"""10 s: the delay of a message that was sent back because nobody settled it in time"""
_EXPIRED_IN_A_SWEEP_MAX = 16


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
class Delivery:
    """Hands messages to handlers and carries out their verdicts."""

    group: str
    session: Session
    settings: ConsumerSettings
    inbox: Inbox = attrs.field(factory=Inbox, init=False)
    redelivery: Redelivery = attrs.field(factory=Redelivery, init=False)
    _trouble: TroubleLog = attrs.field(factory=lambda: TroubleLog(logger), init=False)

    async def work(self, handler: Handler) -> None:
        """Handle messages one after the other until the inbox closes."""
        inbox = self.inbox
        while True:
            try:
                message = await inbox.get()
            except InboxClosed:
                return
            try:
                await handler(message)
            except Exception:  # the handler is the application's: whatever it raises concerns this one message
                logger.exception(
                    "handler failed on %s of %s; the message comes again", message.message_id, message.topic
                )
                if not message.settled:
                    await message.retry()
            else:
                if not message.settled:
                    message.ack_nowait()

    async def run(self, handler: Handler, concurrency: int) -> None:
        """Handle messages in `concurrency` tasks until the inbox closes."""
        async with trio.open_nursery() as nursery:
            for number in range(concurrency):
                nursery.start_soon(self.work, handler, name=f"handler-{number}")

    async def send_back(self, assignment: Assignment, message: ReceivedMessage, delay_level: int) -> bool:
        """Have the broker deliver a message again, or else keep it for another delivery here.  See `ReceivedMessage.retry`."""
        try:
            await self._give_back(message, delay_level)
        except TrioMQError as error:
            self._trouble.failed(f"sending messages back to broker {assignment.queue.broker_name}", error)
            next_time = again(message)
            if assignment.lost or not assignment.held.replace(next_time):
                return False
            self.redelivery.put(trio.current_time() + self.settings.retry_delay, next_time)
            return True
        self._trouble.worked(f"sending messages back to broker {assignment.queue.broker_name}")
        return assignment.settle(message.queue_offset)

    async def _give_back(self, message: ReceivedMessage, delay_level: int) -> None:
        queue = message.queue
        address = self.session.routes.master(queue.broker_name)
        if address is None:
            raise RouteNotFound(queue.topic, f"broker {queue.broker_name} has no master now")
        header = SendBackHeader(
            offset=message.log_offset,
            group=self.group,
            delay_level=delay_level,
            origin_message_id=message.message_id,
            origin_topic=message.topic,
            unit_mode=False,
            max_reconsume_times=self.settings.max_reconsume_times,
            broker_name=queue.broker_name,
        )
        command = request(RequestCode.CONSUMER_SEND_MSG_BACK, header)
        await self.session.call(address, command, self.settings.offset_timeout)

    async def expire(self, assignments: Callable[[], Iterable[Assignment]]) -> None:
        """Send back what the application holds for longer than `consume_timeout`, so that it does not block its queue for ever."""
        while True:
            await trio.sleep(min(self.settings.consume_timeout, 60.0))
            for assignment in list(assignments()):
                await self._expire(assignment)

    async def _expire(self, assignment: Assignment) -> None:
        for _ in range(_EXPIRED_IN_A_SWEEP_MAX):
            head = assignment.held.head()
            limit = trio.current_time() - self.settings.consume_timeout
            if head is None or assignment.lost or head.settled or not 0.0 < head.handed_out <= limit:
                return
            logger.warning(
                "message %s of %s has had no verdict for %g s and goes back to the broker: "
                "end every message with ack or retry, or raise consume_timeout",
                head.message_id,
                head.topic,
                self.settings.consume_timeout,
            )
            try:
                await self._give_back(head, EXPIRED_DELAY_LEVEL)
            except TrioMQError as error:
                self._trouble.failed(f"sending messages back to broker {assignment.queue.broker_name}", error)
                return
            assignment.settle(head.queue_offset)
