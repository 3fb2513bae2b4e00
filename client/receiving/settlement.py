"""What happens to a message that failed, for each of the three kinds of consumers.

*Concurrent*: the message goes back to its broker (CONSUMER_SEND_MSG_BACK, 36), which delivers it
again through the group's retry topic with a growing delay and finally moves it to the dead letters.
If the broker cannot be reached or does not take it, the message stays unsettled here and is handed
out again after ``retry_delay``; nothing is lost, the message only holds back the committed offset.
(The official client then sends the message to the retry topic itself, which a broker that refused
the request is not likely to accept.) The request is not repeated while the broker cannot be
reached, because the handler would wait for it.

*Ordered*: its queue rests, then the same message comes again; after ``max_reconsume_times`` further
deliveries it goes to the dead letters, by the same request. (The official client sends it to the
retry topic, where the broker moves it to the dead letters because the group holds queue locks.)

If the message is given back while an error is handled, the request carries the text of that error.
Our brokers store the beginning of the text with the message, and operators read it at a dead
letter.

*Broadcasting*: no broker keeps it. It is logged and counts as done, as in the official client.

Source: client/…/impl/consumer/ConsumeMessageConcurrentlyService.java,
ConsumeMessageOrderlyService.java, DefaultMQPushConsumerImpl.java#sendMessageBack.
"""

from __future__ import annotations

import logging
import sys
import traceback

import attrs
import trio

from triomq.client.core.config import ConsumerSettings
from triomq.client.core.errors import TrioMQError
from triomq.client.core.failure_log import FailureLog
from triomq.client.core.session import Session
from triomq.client.receiving.assignment import Assignment
from triomq.client.receiving.ordered_inbox import OrderedInbox
from triomq.client.receiving.received import DEAD_LETTER, ReceivedMessage, next_delivery
from triomq.client.receiving.timetable import Timetable
from triomq.remoting.core.printable import printable
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.send import SendBackHeader
from triomq.remoting.protocol.message_properties import FAILURE_CHARS_MAX

logger = logging.getLogger(__name__)

PAUSE_MIN, PAUSE_MAX = 0.01, 30.0
"""Limits, in seconds, of the rest of an ordered consumer's queue after a failure."""


@attrs.define(eq=False)
class BrokerRetry:
    """Sends failed messages back to their broker: for concurrent consumers."""

    group: str
    session: Session
    settings: ConsumerSettings
    redelivery: Timetable[ReceivedMessage] = attrs.field(factory=Timetable, init=False)
    """messages that wait here for another delivery"""
    _failures: FailureLog = attrs.field(factory=lambda: FailureLog(logger), init=False)

    async def send_back(
        self, assignment: Assignment, message: ReceivedMessage, delay_level: int
    ) -> bool:
        """Have the broker deliver a message again, otherwise keep it for another delivery here."""
        assignment.note_failure(message)
        if not await self.give_back(message, delay_level):
            next_time = next_delivery(message)
            if assignment.lost or not assignment.held.replace(next_time):
                return False
            self.redelivery.put(trio.current_time() + self.settings.retry_delay, next_time)
            return True
        return settle_failed(assignment, message)

    async def give_back(
        self, message: ReceivedMessage, delay_level: int, failure: str | None = None
    ) -> bool:
        """Ask the broker to deliver a message again later, or to make it a dead letter (level -1).

        ``failure``: why; None for the error that is being handled, if there is one.

        Returns: False if the broker did not take it, which is logged.
        """
        failure = failure or failure_text(sys.exception())
        name = message.queue.broker_name
        what = f"sending messages back to broker {name}"
        try:
            address = self.session.master_address(message.queue)
            header = SendBackHeader(
                offset=message.log_offset,
                group=self.group,
                delay_level=delay_level,
                origin_message_id=message.message_id,
                origin_topic=message.topic,
                unit_mode=False,
                max_reconsume_times=self.settings.max_reconsume_times,
                broker_name=name,
                failure=failure,
            )
            command = request(RequestCode.CONSUMER_SEND_MSG_BACK, header)
            await self.session.call(address, command, self.settings.offset_timeout)
        except TrioMQError as error:
            self._failures.failed(what, error)
            return False
        self._failures.worked(what)
        return True


@attrs.define(eq=False)
class QueueSuspension:
    """Lets the queue rest and hands the same message out again: for ordered consumers."""

    settings: ConsumerSettings
    inbox: OrderedInbox
    broker: BrokerRetry | None
    """takes dead letters; None for broadcasting consumers, which have none"""

    async def send_back(
        self, assignment: Assignment, message: ReceivedMessage, delay_level: int
    ) -> bool:
        """Have a message come again before all others of its queue, or make it a dead letter."""
        assignment.note_failure(message)
        limit = self.settings.max_reconsume_times
        if delay_level == DEAD_LETTER or (limit is not None and message.reconsume_times >= limit):
            if self.broker is None:
                return await drop(assignment, message)
            if await self.broker.give_back(message, DEAD_LETTER):
                return settle_failed(assignment, message)
        else:
            await trio.lowlevel.checkpoint()
        next_time = next_delivery(message)
        if assignment.lost or not assignment.held.replace(next_time):
            self.inbox.settled(message)
            return False
        pause = self.settings.suspend_queue if message.pause is None else message.pause
        self.inbox.requeue(message, next_time, min(max(pause, PAUSE_MIN), PAUSE_MAX))
        return True


class NoRetry:
    """Counts failed messages as done: for broadcasting consumers."""

    async def send_back(
        self, assignment: Assignment, message: ReceivedMessage, delay_level: int
    ) -> bool:
        assignment.note_failure(message)
        return await drop(assignment, message)


def failure_text(error: BaseException | None) -> str | None:
    """Return what a message that is sent back says about the error of its handler."""
    if error is None:
        return None
    # Unlike str(error), it also copes with an error that cannot be shown.
    text = traceback.format_exception_only(error)[0]
    return printable(" ".join(text.split()))[:FAILURE_CHARS_MAX]


async def drop(assignment: Assignment, message: ReceivedMessage) -> bool:
    """Log a message that no broker takes back, and settle it."""
    logger.warning(
        "message %s of %s failed and is not delivered again: broadcasting consumers have no"
        " retries",
        message.message_id,
        message.topic,
    )
    await trio.lowlevel.checkpoint()
    return settle_failed(assignment, message)


def settle_failed(assignment: Assignment, message: ReceivedMessage) -> bool:
    """Settle a message that comes again elsewhere, without counting it as done."""
    message.handed_out = 0.0  # `note_failure` has counted its time
    counted = assignment.settle(message)
    if counted:
        assignment.counts.done -= 1
    return counted
