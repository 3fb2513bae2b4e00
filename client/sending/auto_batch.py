"""Automatic batches: messages of one topic that are sent at about the same time are sent together.

A message joins the open batch of its (topic, queue, wait_stored, tag). While no batch with that key
is in flight, a batch is dispatched at once, with everything that is sent in the same turn of the
loop. Otherwise it fills until the batch in flight is answered, until its oldest message has waited
for ``auto_batch_hold``, or until it holds ``auto_batch_bytes``. So a single sender never waits for
others (a message that meets no others is sent as an ordinary one), and batches grow with the load.
(Java holds every message for the whole time.)

A sender waits for the receipt of its own message, the error of the batch, or its own deadline. A
send that is cancelled before dispatch is dropped; after dispatch the batch is abandoned only when
no sender waits any more. Off by default, as in Java (``autoBatch``).

    producer's nursery ─┬ one task for each batch: wait, send, wake the senders
                        └ the deadlines of the senders

Source: client/…/producer/ProduceAccumulator.java.
"""

from __future__ import annotations

import copy
import time
from math import inf

import attrs
import msgspec
import trio

from triomq.client.core.config import ProducerSettings
from triomq.client.core.errors import NotRunning, SendFailed, SendTimeout, TrioMQError
from triomq.client.sending.encoding import OutgoingMessage, make_carrier
from triomq.client.sending.receipt import SendReceipt, split_receipt
from triomq.client.sending.sender import Sender
from triomq.remoting.protocol.batch import ELEMENT_BYTES
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.message_properties import TAGS, properties_text

BatchKey = tuple[str, MessageQueue | None, bool, str | None]
"""topic, queue of a directed send, wait_stored, tag"""


class BatchedSend(msgspec.Struct, eq=False):
    """One message of a batch, and the task that waits for its receipt."""

    outgoing: OutgoingMessage
    deadline: float
    task: trio.lowlevel.Task
    waiting: bool = True
    receipt: SendReceipt | None = None
    error: Exception | None = None

    def wake(self) -> None:
        """Wake the sender if it still waits."""
        if self.waiting:
            self.waiting = False
            trio.lowlevel.reschedule(self.task)


@attrs.define(eq=False)
class AutoBatch:
    """A batch that fills, is dispatched and is answered."""

    key: BatchKey
    since: float
    """trio time of its first message"""
    sends: list[BatchedSend] = attrs.field(factory=list)
    size: int = 0
    closed: bool = False
    """whether no message can join any more"""
    ready: trio.Event = attrs.field(factory=trio.Event)
    """set when the batch need not wait any longer"""
    dispatched: bool = False
    """whether the messages of the senders that waited at that time may have been sent"""
    in_flight: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    """from dispatch to the answer; cancelled when no sender waits any more"""


@attrs.define(eq=False)
class Accumulator:
    """The batches of one producer."""

    settings: ProducerSettings
    nursery: trio.Nursery
    sender: Sender
    size_bytes: int = attrs.field(default=0, init=False)
    """of all batches, open and in flight"""
    _open: dict[BatchKey, AutoBatch] = attrs.field(factory=dict, init=False)
    _in_flight: dict[BatchKey, int] = attrs.field(factory=dict, init=False)
    """number of batches that are dispatched and not answered"""
    _batches: set[AutoBatch] = attrs.field(factory=set, init=False)
    """all batches that are not answered"""
    _earliest: float = attrs.field(default=inf, init=False)
    _timer: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)

    def takes(self, outgoing: OutgoingMessage) -> bool:
        """Return whether a message can join a batch: small, not compressed, and there is room."""
        size = _size_of(outgoing)
        settings = self.settings
        return (
            not outgoing.sys_flag
            and size < settings.auto_batch_bytes
            and self.size_bytes + size <= settings.auto_batch_total_bytes
        )

    async def send(self, outgoing: OutgoingMessage, key: BatchKey, deadline: float) -> SendReceipt:
        """Send a message that ``takes`` accepted, in a batch with others.

        Raises: the errors of the batch; ``SendTimeout`` at the message's own deadline; when the
        producer stops, ``NotRunning`` before dispatch and ``SendFailed`` after it.
        """
        batch = self._open.get(key)
        if batch is None:
            batch = self._open[key] = AutoBatch(key, trio.current_time())
            self._batches.add(batch)
            self.nursery.start_soon(self._run_batch, batch, name="automatic batch")
        pending = BatchedSend(outgoing, deadline, trio.lowlevel.current_task())
        batch.sends.append(pending)
        size = _size_of(outgoing)
        batch.size += size
        self.size_bytes += size
        if batch.size >= self.settings.auto_batch_bytes:
            self._close(batch)
        if deadline < self._earliest:
            self._earliest = self._timer.deadline = deadline

        def give_up(_raise_cancel: object) -> trio.lowlevel.Abort:
            pending.waiting = False  # before dispatch this drops the message from the batch
            if batch.dispatched and not any(other.waiting for other in batch.sends):
                batch.in_flight.cancel()
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(give_up)
        if pending.receipt is not None:
            return pending.receipt
        error = pending.error
        if error is None:
            raise NotRunning(
                "the producer stopped before the message was sent with an automatic batch: it is"
                " not stored"
            )
        if isinstance(error, TrioMQError):  # a copy for each sender, since tracebacks grow
            raise copy.copy(error) from error
        raise error

    def _close(self, batch: AutoBatch) -> None:
        """Close the batch to further messages and dispatch it."""
        if self._open.get(batch.key) is batch:
            del self._open[batch.key]
        batch.closed = True
        batch.ready.set()

    async def _run_batch(self, batch: AutoBatch) -> None:
        """Wait until a batch may be dispatched, send it and wake its senders."""
        try:
            hold = self.settings.auto_batch_hold
            if not batch.closed and self._in_flight.get(batch.key) and hold:
                with trio.move_on_at(batch.since + hold):
                    await batch.ready.wait()
                    if not batch.closed:
                        # A batch was answered: its senders run now, and their next messages join.
                        await trio.lowlevel.checkpoint()
            await self.sender.find_route(batch.key[0])
            self._close(batch)
            waiting = [pending for pending in batch.sends if pending.waiting]
            if waiting:
                batch.dispatched = True
                with batch.in_flight:
                    await self._dispatch(batch, waiting)
        except trio.Cancelled:
            if batch.dispatched:
                reason = "the producer stopped before the automatic batch was answered"
                _fail(batch, SendFailed(batch.key[0], (), maybe_stored=True, reason=reason))
            raise
        except Exception as error:  # any error, for example of a check, belongs to the senders
            _fail(batch, error)
        finally:
            self._close(batch)
            self._batches.discard(batch)
            self.size_bytes -= batch.size
            for pending in batch.sends:
                pending.wake()

    async def _dispatch(self, batch: AutoBatch, waiting: list[BatchedSend]) -> None:
        """Send a batch, and let the next one go when it is answered."""
        key = batch.key
        self._in_flight[key] = self._in_flight.get(key, 0) + 1
        try:
            await self._send(batch, waiting, max(pending.deadline for pending in waiting))
        finally:
            others = self._in_flight.pop(key) - 1
            if others:
                self._in_flight[key] = others
            elif (following := self._open.get(key)) is not None:
                following.ready.set()

    async def _send(self, batch: AutoBatch, waiting: list[BatchedSend], deadline: float) -> None:
        """Send the messages and hand out the receipts; a single message needs no batch."""
        topic, queue, wait_stored, tag = batch.key
        messages = [pending.outgoing for pending in waiting]
        if len(messages) == 1:
            waiting[0].receipt = await self.sender.send(
                messages[0], target=queue, deadline=deadline
            )
            return
        parts = [(message.flag, message.body, message.properties.encode()) for message in messages]
        batch_id = self.sender.ids.next(time.time_ns() // 1_000_000)
        carrier = make_carrier(topic, wait_stored, parts, batch_id, messages[0].born_timestamp)
        if tag is not None:  # consumers filter by it where the batch is stored as one record
            carrier.properties += properties_text({TAGS: tag})
        code = RequestCode.SEND_BATCH_MESSAGE
        receipt = await self.sender.send(carrier, target=queue, code=code, deadline=deadline)
        message_ids = [message.message_id for message in messages]
        for pending, own_receipt in zip(waiting, split_receipt(receipt, message_ids)):
            pending.receipt = own_receipt

    async def watch_deadlines(self) -> None:
        """Wake each sender at its own deadline, whatever becomes of its batch; runs for ever."""
        while True:
            deadlines = (
                pending.deadline
                for batch in self._batches
                for pending in batch.sends
                if pending.waiting
            )
            self._earliest = min(deadlines, default=inf)
            with trio.CancelScope(deadline=self._earliest) as self._timer:
                await trio.sleep_forever()
            now = trio.current_time()
            for batch in self._batches:
                for pending in batch.sends:
                    if pending.waiting and pending.deadline <= now:
                        pending.error = _timed_out(batch)
                        pending.wake()


def _fail(batch: AutoBatch, error: Exception) -> None:
    """Make this the outcome of all sends that still wait for one."""
    for pending in batch.sends:
        if pending.waiting:
            pending.error = error


def _timed_out(batch: AutoBatch) -> SendTimeout:
    """Return the error of a send whose deadline is over before its batch is answered."""
    reason = (
        "its automatic batch has no answer yet"
        if batch.dispatched
        else "it waited for the topic's route, or for others in its batch (auto_batch_hold)"
    )
    return SendTimeout(batch.key[0], (), maybe_stored=batch.dispatched, reason=reason)


def _size_of(outgoing: OutgoingMessage) -> int:
    return ELEMENT_BYTES + len(outgoing.body) + len(outgoing.properties)
