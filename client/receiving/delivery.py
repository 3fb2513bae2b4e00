"""From the inbox to the application's handlers, and back: workers, settlement, expiry."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any

import attrs
import trio

from triomq.client.core.arguments import require_nothing
from triomq.client.core.errors import HandlerInvalid
from triomq.client.receiving.assignment import Assignment, SendsBack
from triomq.client.receiving.inbox import Inbox, InboxClosed
from triomq.client.receiving.ordered_inbox import OrderedInbox
from triomq.client.receiving.received import ReceivedMessage
from triomq.client.receiving.settlement import BrokerRetry, settle_failed
from triomq.remoting.core.periodic import every

logger = logging.getLogger(__name__)

Handler = Callable[[ReceivedMessage], Awaitable[None]]
"""Handles one message. Its normal end acks the message and an exception retries it, unless the
handler settled it itself. It returns nothing.
"""

BatchHandler = Callable[[list[ReceivedMessage]], Awaitable[None]]
"""Handles several messages of one queue, in their order. Its normal end acks those that are not
settled, an exception retries them.
"""

AnyHandler = Callable[[Any], Awaitable[object]]

EXPIRED_DELAY_LEVEL = 3
"""10 s: the delay of a message that was sent back because it was not settled in time."""
_EXPIRED_IN_A_SWEEP_MAX = 16


@attrs.define(eq=False)
class Worker:
    """One task that handles messages; its scope is shielded, so that its handler may end."""

    workers: Workers
    scope: trio.CancelScope = attrs.field(factory=lambda: trio.CancelScope(shield=True))
    idle: bool = True
    """whether it waits for a message"""

    def stops(self) -> bool:
        """Return whether it shall handle no further message."""
        return self.workers.stopping

    def end(self) -> None:
        """Note that the task has ended."""
        self.workers.ended(self)


@attrs.define(eq=False)
class Workers:
    """The tasks of one ``run``, and what their cancellation means: no further message."""

    drain_seconds: float
    stopping: bool = attrs.field(default=False, init=False)
    _running: set[Worker] = attrs.field(factory=set, init=False)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)

    def add(self) -> Worker:
        """Return what a new task needs."""
        worker = Worker(self)
        self._running.add(worker)
        return worker

    def ended(self, worker: Worker) -> None:
        self._running.discard(worker)
        if not self._running:
            self._scope.cancel()

    def cut_short(self) -> None:
        """Cancel the handlers that still run."""
        for worker in self._running:
            worker.scope.cancel()

    async def limit(self) -> None:
        """Wait until the tasks have ended; if cancelled, end those that wait, limit the others."""
        with self._scope:
            try:
                await trio.sleep_forever()
            except trio.Cancelled:
                self.stopping = True
                end = trio.current_time() + self.drain_seconds
                for worker in self._running:
                    if worker.idle:
                        worker.scope.cancel()
                    else:
                        worker.scope.deadline = end
                raise


@attrs.define(eq=False)
class Delivery:
    """Hands messages to handlers and settles them."""

    inbox: Inbox | OrderedInbox
    sends_back: SendsBack | None
    """None if messages were popped: then their owners settle them"""
    broker: BrokerRetry | None
    """None for broadcasting consumers, and for those that pop"""
    drain_seconds: float
    """how long handlers may go on when ``run`` is cancelled, or the consumer stops"""
    _runs: set[Workers] = attrs.field(factory=set, init=False)

    def start_background(
        self, nursery: trio.Nursery, owned: Callable[[], Iterable[Assignment]]
    ) -> None:
        """Start the tasks that hand messages out again."""
        inbox, broker = self.inbox, self.broker
        if isinstance(inbox, OrderedInbox):
            nursery.start_soon(inbox.end_rests, name="rests")
        elif broker is not None:
            nursery.start_soon(
                broker.redelivery.deliver_due,
                lambda message: inbox.put([message]),
                name="redelivery",
            )
            seconds = min(broker.settings.consume_timeout, 60.0)
            nursery.start_soon(every, seconds, partial(expire, broker, owned), name="expiry")

    async def run(self, handler: AnyHandler, concurrency: int, batch_max: int | None) -> None:
        """Handle messages in ``concurrency`` tasks until the inbox closes.

        If cancelled, no further message is handled; handlers that run may end, within
        ``drain_seconds``. Those that do not are cancelled, and their messages come again.

        ``batch_max``: maximum number of messages for each call of a batch handler; None calls the
        handler with one message.

        Raises: ``HandlerInvalid`` once, however many tasks raised it.
        """
        workers = Workers(self.drain_seconds)
        self._runs.add(workers)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(workers.limit, name="drain")
                for number in range(concurrency):
                    nursery.start_soon(
                        self._work, handler, batch_max, workers.add(), name=f"handler-{number}"
                    )
        except BaseExceptionGroup as group:
            found, others = group.split(HandlerInvalid)
            if found is None or others is not None:
                raise
            wrong: BaseException = found
            while isinstance(wrong, BaseExceptionGroup):
                wrong = wrong.exceptions[0]
        else:
            return
        finally:
            self._runs.discard(workers)
        raise wrong

    def cut_short(self) -> None:
        """Cancel the handlers that still run while their consumer ends."""
        for workers in self._runs:
            workers.cut_short()

    async def _work(self, handler: AnyHandler, batch_max: int | None, worker: Worker) -> None:
        with worker.scope:
            await self._handle_all(handler, batch_max, worker)
        worker.end()

    async def _handle_all(self, handler: AnyHandler, batch_max: int | None, worker: Worker) -> None:
        inbox = self.inbox
        while not worker.stops():
            worker.idle = True
            try:
                if batch_max is None:
                    messages = [await inbox.get()]
                else:
                    messages = await inbox.get_some(batch_max, one_queue=True)
            except InboxClosed:
                return
            worker.idle = False
            if worker.stops():
                inbox.put_back(messages)
                return
            what: Any = messages[0] if batch_max is None else [*messages]
            try:
                try:
                    require_nothing(handler, await handler(what))
                except HandlerInvalid:  # it would fail for every message
                    raise
                except Exception:  # an error of the application's handler concerns these only
                    await _retry_failed(what, messages)
                else:
                    for message in messages:
                        if not message.settled:
                            message.ack_nowait()
            except BaseException:  # cancelled: the messages come again
                if worker.stops() and self.drain_seconds:
                    logger.warning(
                        "a handler of %s did not end within shutdown_timeout %g s and is cancelled;"
                        " its messages come again",
                        messages[0].topic,
                        self.drain_seconds,
                    )
                inbox.put_back([message for message in messages if not message.settled])
                raise


async def _retry_failed(what: object, messages: Sequence[ReceivedMessage]) -> None:
    """Log the current error of a handler that got ``what``, and retry what it did not settle."""
    first = messages[0]
    if what is not first:
        outcome = "those not settled come again, or become dead letters after the last delivery"
    elif first.settled:
        outcome = "the message stays settled"
    else:
        outcome = "the message comes again, or becomes a dead letter after its last delivery"
    failed = first.message_id if what is first else f"{len(messages)} messages"
    logger.exception("handler failed on %s of %s; %s", failed, first.topic, outcome)
    for message in messages:
        if not message.settled:
            await message.retry()


async def expire(broker: BrokerRetry, owned: Callable[[], Iterable[Assignment]]) -> None:
    """Send back messages that the application holds for longer than ``consume_timeout``.

    Otherwise they would block their queue. For concurrent consumers of a group only: ordered
    messages have to wait for each other, and broadcasting has no second delivery.
    """
    for assignment in owned():
        await _expire(broker, assignment)


async def _expire(broker: BrokerRetry, assignment: Assignment) -> None:
    timeout = broker.settings.consume_timeout
    for _ in range(_EXPIRED_IN_A_SWEEP_MAX):
        head = assignment.held.head()
        limit = trio.current_time() - timeout
        if head is None or assignment.lost or head.settled or not 0.0 < head.handed_out <= limit:
            return
        logger.warning(
            "message %s of %s was not settled for %g s and goes back to the broker: "
            "end every message with ack or retry, or raise consume_timeout",
            head.message_id,
            head.topic,
            timeout,
        )
        if not await broker.give_back(head, EXPIRED_DELAY_LEVEL, f"not settled for {timeout:g} s"):
            return
        if not assignment.lost and assignment.held.holds(head.queue_offset):
            assignment.note_failure(head)
            settle_failed(assignment, head)
