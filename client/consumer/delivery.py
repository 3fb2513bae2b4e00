"""From the inbox to the application's handlers, and back: workers, their verdicts, forgotten messages."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

import attrs
import trio

from triomq.client.config import ConsumerSettings
from triomq.client.consumer.assignment import Assignment
from triomq.client.consumer.inbox import Inbox, InboxClosed
from triomq.client.consumer.ordered_inbox import OrderedInbox
from triomq.client.consumer.received import ReceivedMessage
from triomq.client.consumer.verdicts import BrokerRetry, settle_failed
from triomq.client.errors import HandlerInvalid

logger = logging.getLogger(__name__)

Handler = Callable[[ReceivedMessage], Awaitable[object]]
"""Handles one message.  Its normal end is an ack, an exception a retry, unless it gave the verdict itself.  Its result is not used."""

BatchHandler = Callable[[list[ReceivedMessage]], Awaitable[object]]
"""Handles some messages of one queue, in their order.  Its normal end acks those without a verdict, an exception retries them."""

EXPIRED_DELAY_LEVEL = 3
"""10 s: the delay of a message that was sent back because nobody settled it in time"""
_EXPIRED_IN_A_SWEEP_MAX = 16


@attrs.define(eq=False)
class Delivery:
    """Hands messages to handlers and carries out their verdicts."""

    inbox: Inbox | OrderedInbox

    async def work(self, handler: Handler) -> None:
        """Handle messages one after the other until the inbox closes."""
        inbox = self.inbox
        while True:
            try:
                message = await inbox.get()
            except InboxClosed:
                return
            try:
                await self._handle(handler, message)
            except BaseException:  # cancelled
                self._abandon([message])
                raise

    async def _handle(self, handler: Handler, message: ReceivedMessage) -> None:
        try:
            await handler(message)
        except HandlerInvalid:  # it would fail on every message alike
            raise
        except Exception:  # the handler is the application's: whatever it raises concerns this one message
            outcome = "its verdict stands" if message.settled else "the message comes again, or is a dead letter after its last time"
            logger.exception("handler failed on %s of %s; %s", message.message_id, message.topic, outcome)
            if not message.settled:
                await message.retry()
        else:
            if not message.settled:
                message.ack_nowait()

    async def work_batches(self, handler: BatchHandler, batch_max: int) -> None:
        """Handle batches of at most `batch_max` messages until the inbox closes."""
        while True:
            try:
                messages = await self.inbox.get_some(batch_max, one_queue=True)
            except InboxClosed:
                return
            try:
                await self._handle_batch(handler, messages)
            except BaseException:  # cancelled
                self._abandon(messages)
                raise

    async def _handle_batch(self, handler: BatchHandler, messages: Sequence[ReceivedMessage]) -> None:
        try:
            await handler(list(messages))
        except HandlerInvalid:
            raise
        except Exception:  # as above: it concerns this batch
            logger.exception(
                "handler failed on %d messages of %s; those without a verdict come again, or are dead letters after their last time",
                len(messages),
                messages[0].topic,
            )
            await _retry_all(messages)
        else:
            for message in messages:
                if not message.settled:
                    message.ack_nowait()

    def _abandon(self, messages: Sequence[ReceivedMessage]) -> None:
        """Let what a cancelled handler had in hand come again.  Atomic: no checkpoint."""
        self.inbox.put_back([message for message in messages if not message.settled])

    async def run(self, handler: Handler, concurrency: int) -> None:
        """Handle messages in `concurrency` tasks until the inbox closes."""
        await _side_by_side(partial(self.work, handler), concurrency)

    async def run_batches(self, handler: BatchHandler, batch_max: int, concurrency: int) -> None:
        """Handle batches in `concurrency` tasks until the inbox closes."""
        await _side_by_side(partial(self.work_batches, handler, batch_max), concurrency)


async def _side_by_side(work: Callable[[], Awaitable[None]], concurrency: int) -> None:
    """Run so many workers until all have ended.  Errors: `HandlerInvalid`, once, however many of them found out."""
    try:
        async with trio.open_nursery() as nursery:
            for number in range(concurrency):
                nursery.start_soon(work, name=f"handler-{number}")
    except BaseExceptionGroup as group:
        found, others = group.split(HandlerInvalid)
        if found is None or others is not None:
            raise
        wrong: BaseException = found
        while isinstance(wrong, BaseExceptionGroup):
            wrong = wrong.exceptions[0]
    else:
        return
    raise wrong


async def _retry_all(messages: Sequence[ReceivedMessage]) -> None:
    for message in messages:
        if not message.settled:
            await message.retry()


@attrs.define(eq=False)
class Expiry:
    """Sends back what the application holds for longer than `consume_timeout`, so that it does not block its queue for ever.

    For concurrent consumers of a group: in order, one message has to wait for the other, and broadcasting has no second delivery.
    """

    settings: ConsumerSettings
    broker: BrokerRetry
    assignments: Callable[[], Iterable[Assignment]]

    async def run(self) -> None:
        while True:
            await trio.sleep(min(self.settings.consume_timeout, 60.0))
            for assignment in list(self.assignments()):
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
            if not await self.broker.give_back(head, EXPIRED_DELAY_LEVEL):
                return
            if not assignment.lost and assignment.held.holds(head.queue_offset):
                assignment.note_failure(head)
                settle_failed(assignment, head)
