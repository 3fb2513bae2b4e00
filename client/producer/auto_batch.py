"""Automatic batches: messages of one topic that are sent at about the same time travel, and are stored, together.

A message joins the open pile of its (topic, queue, wait_stored, tag).  While no batch of these is under way, a pile leaves at once, with
everything that is sent in the same turn of the loop.  Otherwise it fills until that batch is answered, until its oldest message has waited
for `auto_batch_hold`, or until it holds `auto_batch_bytes`.  So a single sender waits for nobody (and a message
that finds no others is sent as an ordinary one), and the more are sent the larger batches become.  (Java holds every message for that time.)

Whoever sends waits for its own message: for the receipt, the error of the batch, or its own deadline.  Who is cancelled before the pile leaves
stays behind; later the message is with the others, and only when nobody waits any more the batch is given up.  Off by default, as in Java
(`autoBatch`).

    producer's nursery ─┬ one task for each pile: wait, send, wake the senders
                        └ the deadlines of those who wait

Source: client/…/producer/ProduceAccumulator.java.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable
from math import inf

import attrs
import msgspec
import trio

from triomq.client.config import ProducerSettings
from triomq.client.errors import NotRunning, SendFailed, SendTimeout, TrioMQError
from triomq.client.producer.encoding import ELEMENT_BYTES, Outgoing, OutgoingBatch, make_carrier
from triomq.client.producer.receipt import SendReceipt, split_receipt
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.message import TAGS, properties_text

PileKey = tuple[str, MessageQueue | None, bool, str | None]
"""topic, queue of a directed send, wait_stored, tag"""

FindRoute = Callable[[str], Awaitable[None]]
"""(topic) → when its route is known"""

SendBatch = Callable[[OutgoingBatch, MessageQueue | None, float], Awaitable[SendReceipt]]
"""(batch, queue, deadline) → the broker's answer"""

SendOne = Callable[[Outgoing, MessageQueue | None, float], Awaitable[SendReceipt]]
"""the same for a message that travels alone"""


class Passenger(msgspec.Struct, eq=False):
    """One message in a pile, and the task that waits for it."""

    outgoing: Outgoing
    deadline: float
    task: trio.lowlevel.Task
    waiting: bool = True
    receipt: SendReceipt | None = None
    error: Exception | None = None

    def wake(self) -> None:
        """Let the sender go on, if it still waits.  Atomic: no checkpoint."""
        if self.waiting:
            self.waiting = False
            trio.lowlevel.reschedule(self.task)


@attrs.define(eq=False)
class Pile:
    """One batch that fills, then travels."""

    key: PileKey
    since: float
    """trio time of its beginning"""
    passengers: list[Passenger] = attrs.field(factory=list)
    size: int = 0
    left: bool = False
    """whether nobody can join any more"""
    go: trio.Event = attrs.field(factory=trio.Event)
    """set when there is nothing more to wait for"""
    departed: bool = False
    """whether the messages may be on their way, of those that waited then"""
    journey: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    """from then to the answer; cancelled when nobody waits for that any more"""


@attrs.define(eq=False)
class Accumulator:
    """The piles of one producer."""

    settings: ProducerSettings
    nursery: trio.Nursery
    find_route: FindRoute
    send_batch: SendBatch
    send_one: SendOne
    new_id: Callable[[], str]
    size_bytes: int = attrs.field(default=0, init=False)
    """of all piles, waiting and under way"""
    _open: dict[PileKey, Pile] = attrs.field(factory=dict, init=False)
    _under_way: dict[PileKey, int] = attrs.field(factory=dict, init=False)
    """how many piles have left and are not answered"""
    _piles: set[Pile] = attrs.field(factory=set, init=False)
    """all of both kinds"""
    _earliest: float = attrs.field(default=inf, init=False)
    _timer: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)

    def takes(self, outgoing: Outgoing) -> bool:
        """Say whether a message can join a pile: it is small, not compressed, and there is room."""
        size = _size_of(outgoing)
        settings = self.settings
        return (
            not outgoing.sys_flag
            and size < settings.auto_batch_bytes
            and self.size_bytes + size <= settings.auto_batch_total_bytes
        )

    async def send(self, outgoing: Outgoing, key: PileKey, deadline: float) -> SendReceipt:
        """Send a message that `takes` accepted with others.  Errors: those of the batch; `SendTimeout` at the message's own deadline;
        when the producer stops `SendFailed`, or `NotRunning` if it had not left yet."""
        pile = self._open.get(key)
        if pile is None:
            pile = self._open[key] = Pile(key, trio.current_time())
            self._piles.add(pile)
            self.nursery.start_soon(self._carry, pile, name="automatic batch")
        passenger = Passenger(outgoing, deadline, trio.lowlevel.current_task())
        pile.passengers.append(passenger)
        size = _size_of(outgoing)
        pile.size += size
        self.size_bytes += size
        if pile.size >= self.settings.auto_batch_bytes:
            self._close(pile)
        if deadline < self._earliest:
            self._earliest = self._timer.deadline = deadline

        def give_up(_raise_cancel: object) -> trio.lowlevel.Abort:
            passenger.waiting = False  # one that has not left stays behind
            if pile.departed and not any(other.waiting for other in pile.passengers):
                pile.journey.cancel()
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(give_up)
        if passenger.receipt is not None:
            return passenger.receipt
        error = passenger.error
        if error is None:
            raise NotRunning("the producer stopped before the message left with an automatic batch: it is not stored")
        if isinstance(error, TrioMQError):  # each sender its own, since tracebacks grow
            raise copy.copy(error) from error
        raise error

    def _close(self, pile: Pile) -> None:
        """Let nobody join any more, and the pile leave.  Atomic: no checkpoint."""
        if self._open.get(pile.key) is pile:
            del self._open[pile.key]
        pile.left = True
        pile.go.set()

    async def _carry(self, pile: Pile) -> None:
        """The life of one pile."""
        try:
            if not pile.left and self._under_way.get(pile.key) and self.settings.auto_batch_hold:
                with trio.move_on_at(pile.since + self.settings.auto_batch_hold):
                    await pile.go.wait()
                    if not pile.left:  # a batch was answered: its senders, who are about to go on, come along
                        await trio.lowlevel.checkpoint()
            await self.find_route(pile.key[0])
            self._close(pile)
            aboard = [passenger for passenger in pile.passengers if passenger.waiting]
            if aboard:
                pile.departed = True
                with pile.journey:
                    await self._travel(pile, aboard)
        except trio.Cancelled:
            if pile.departed:
                _tell(pile, _unanswered(pile))
            raise
        except Exception as error:  # whatever it is (a check's, for instance), it belongs to the senders
            _tell(pile, error)
        finally:
            self._close(pile)
            self._piles.discard(pile)
            self.size_bytes -= pile.size
            for passenger in pile.passengers:
                passenger.wake()

    async def _travel(self, pile: Pile, aboard: list[Passenger]) -> None:
        """Be under way, and let the next pile go afterwards."""
        key = pile.key
        self._under_way[key] = self._under_way.get(key, 0) + 1
        try:
            await self._send(pile, aboard, max(passenger.deadline for passenger in aboard))
        finally:
            left = self._under_way.pop(key) - 1
            if left:
                self._under_way[key] = left
            elif (next_one := self._open.get(key)) is not None:
                next_one.go.set()

    async def _send(self, pile: Pile, aboard: list[Passenger], deadline: float) -> None:
        """Send what has come together and hand out the receipts; a single message needs no batch."""
        topic, queue, wait_stored, tag = pile.key
        messages = [passenger.outgoing for passenger in aboard]
        if len(messages) == 1:
            aboard[0].receipt = await self.send_one(messages[0], queue, deadline)
            return
        parts = [(message.flag, message.body, message.properties.encode()) for message in messages]
        carrier = make_carrier(topic, wait_stored, parts, self.new_id(), messages[0].born_timestamp)
        if tag is not None:  # where the batch is stored as one record, consumers filter it by this
            carrier.properties += properties_text({TAGS: tag})
        batch = OutgoingBatch(carrier, [message.message_id for message in messages])
        receipt = await self.send_batch(batch, queue, deadline)
        for passenger, its_own in zip(aboard, split_receipt(receipt, batch.message_ids)):
            passenger.receipt = its_own

    async def watch_deadlines(self) -> None:
        """Wake everyone whose own time is over, whatever becomes of the batch; for ever."""
        while True:
            waiting = (passenger for pile in self._piles for passenger in pile.passengers if passenger.waiting)
            self._earliest = min((passenger.deadline for passenger in waiting), default=inf)
            with trio.CancelScope(deadline=self._earliest) as self._timer:
                await trio.sleep_forever()
            now = trio.current_time()
            for pile in self._piles:
                for passenger in pile.passengers:
                    if passenger.waiting and passenger.deadline <= now:
                        passenger.error = _late(pile)
                        passenger.wake()


def _tell(pile: Pile, error: Exception) -> None:
    """Let this be the outcome for all that still wait for one."""
    for passenger in pile.passengers:
        if passenger.waiting:
            passenger.error = error


def _late(pile: Pile) -> SendTimeout:
    """The error of a message whose time is over before its batch is answered; one that has not left stays behind."""
    if not pile.departed:
        reason = "it waited for the topic's route, or for others to travel with (auto_batch_hold)"
        return SendTimeout(pile.key[0], (), reason=reason)
    return SendTimeout(
        pile.key[0], (), maybe_stored=True, reason="the automatic batch that it travels in has no answer yet"
    )


def _unanswered(pile: Pile) -> SendFailed:
    """The error of a message that was under way when the producer stopped."""
    return SendFailed(pile.key[0], (), maybe_stored=True, reason="the producer stopped before the automatic batch was answered")


def _size_of(outgoing: Outgoing) -> int:
    return ELEMENT_BYTES + len(outgoing.body) + len(outgoing.properties)
