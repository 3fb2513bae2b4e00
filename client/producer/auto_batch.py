"""Automatic batches: messages of one topic that are sent at about the same time travel, and are stored, together.

A message joins the open pile of its (topic, queue, wait_stored, tag).  A pile leaves when its oldest message has waited for `auto_batch_hold`, or
when it holds `auto_batch_bytes`.  Whoever sends waits for the pile's answer and gets the receipt of its own message; if the batch fails,
all of them get the error.  Off by default, as in Java (`autoBatch`).

    producer's nursery ── one task for each pile: wait, send, wake the senders

Source: client/…/producer/ProduceAccumulator.java.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable

import attrs
import trio

from triomq.client.config import ProducerSettings
from triomq.client.errors import NotRunning, TrioMQError
from triomq.client.producer.encoding import ELEMENT_BYTES, Outgoing, OutgoingBatch, make_carrier
from triomq.client.producer.receipt import SendReceipt, split_receipt
from triomq.remoting.protocol.bodies.route import MessageQueue

PileKey = tuple[str, MessageQueue | None, bool, str | None]
"""topic, queue of a directed send, wait_stored, tag"""

SendBatch = Callable[[OutgoingBatch, MessageQueue | None, float], Awaitable[SendReceipt]]
"""(batch, queue, deadline) → the broker's answer"""


@attrs.define(eq=False)
class Pile:
    """One batch that fills."""

    deadline: float
    """of its oldest message"""
    elements: list[Outgoing | None] = attrs.field(factory=list)
    """None where a sender was cancelled before the pile left"""
    size: int = 0
    full: trio.Event = attrs.field(factory=trio.Event)
    done: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)
    receipts: list[SendReceipt] | None = None
    places: dict[int, int] = attrs.field(factory=dict)
    """index in the elements → index in the batch; set when the pile leaves"""
    error: Exception | None = None


@attrs.define(eq=False)
class Accumulator:
    """The open piles of one producer."""

    settings: ProducerSettings
    nursery: trio.Nursery
    send_batch: SendBatch
    new_id: Callable[[], str]
    size_bytes: int = attrs.field(default=0, init=False)
    """of all piles, waiting and under way"""
    _piles: dict[PileKey, Pile] = attrs.field(factory=dict, init=False)

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
        """Send a message that `takes` accepted with others.  Errors: those of the batch."""
        pile = self._piles.get(key)
        if pile is None:
            pile = self._piles[key] = Pile(deadline)
            self.nursery.start_soon(self._carry, key, pile, name=f"automatic batch for {key[0]}")
        place = len(pile.elements)
        size = _size_of(outgoing)
        pile.elements.append(outgoing)
        pile.size += size
        self.size_bytes += size
        if pile.size >= self.settings.auto_batch_bytes:
            self._close(key, pile)
        try:
            await pile.done.park()
        except BaseException:
            if not pile.places:  # it has not left yet
                pile.elements[place] = None
            raise
        if pile.receipts is None:
            if pile.error is None:
                raise NotRunning("the producer stopped before the batch was answered")
            if isinstance(pile.error, TrioMQError):  # each sender its own, since tracebacks grow
                raise copy.copy(pile.error) from pile.error
            raise pile.error
        return pile.receipts[pile.places[place]]

    def _close(self, key: PileKey, pile: Pile) -> None:
        """Let nobody join any more."""
        if self._piles.get(key) is pile:
            del self._piles[key]
        pile.full.set()

    async def _carry(self, key: PileKey, pile: Pile) -> None:
        """The life of one pile."""
        try:
            with trio.move_on_after(self.settings.auto_batch_hold):
                await pile.full.wait()
            self._close(key, pile)
            kept = [(place, element) for place, element in enumerate(pile.elements) if element is not None]
            if kept:
                pile.places = {place: index for index, (place, _) in enumerate(kept)}
                batch = self._batch(key, [element for _, element in kept])
                pile.receipts = split_receipt(await self.send_batch(batch, key[1], pile.deadline), batch.message_ids)
        except Exception as error:  # whatever it is (a check's, for instance), it belongs to the senders
            pile.error = error
        finally:
            self._close(key, pile)
            self.size_bytes -= pile.size
            pile.done.unpark_all()

    def _batch(self, key: PileKey, elements: list[Outgoing]) -> OutgoingBatch:
        parts = [(element.flag, element.body, element.properties.encode()) for element in elements]
        carrier = make_carrier(key[0], key[2], parts, self.new_id(), elements[0].born_timestamp)
        return OutgoingBatch(carrier, [element.message_id for element in elements])


def _size_of(outgoing: Outgoing) -> int:
    return ELEMENT_BYTES + len(outgoing.body) + len(outgoing.properties)
