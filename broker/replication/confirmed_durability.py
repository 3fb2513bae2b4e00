"""What a send waits for in controller mode: every member of the sync state set, and nothing less.

Unlike ``ReplicatedDurability`` it has no answer that clients take for success: a message that is
not confirmed in time is answered as an error that may be tried again. It is stored, and may be
confirmed later. A wait is a callback, not a task.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import attrs
import trio

from triomq.broker.replication.master_set import MasterSet
from triomq.broker.store.core.errors import FlushFailed
from triomq.broker.store.log.durability import DurabilityResult, OnDurable
from triomq.broker.store.store import MessageStore

HELD_SECONDS = 1.0
"""Longest wait of a planned switch for the members of the set."""


class SetWait(NamedTuple):
    """A sender that waits for the set to have the log up to ``end``, until ``deadline``."""

    end: int
    deadline: float
    on_durable: OnDurable


@attrs.define(eq=False)
class ConfirmedDurability:
    """Decides when messages are safe in controller mode; see ``Durability``."""

    store: MessageStore
    leads: MasterSet
    timeout_seconds: float = 3.0
    _deposed: bool = attrs.field(default=False, init=False)
    _held: int = attrs.field(default=0, init=False)
    _waits: deque[SetWait] = attrs.field(factory=deque, init=False)
    """Ascending in ``end`` and ``deadline``."""
    _new_wait: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)

    def refusal(self) -> str:
        """Return why no message may be stored now; an empty string: messages may be stored."""
        if self._deposed or self._held:
            return "another broker becomes the master"
        return self.leads.refusal(trio.current_time())

    def durable_now(self, log_end: int) -> bool:
        """Return whether the sender of messages up to ``log_end`` need not wait."""
        return self.leads.confirmed >= log_end and not self.leads.too_few

    def when_durable(self, log_end: int, on_durable: OnDurable) -> None:
        """Call ``on_durable`` when the set has the log up to ``log_end``, or is too late.

        Raises: FlushFailed, if an earlier fsync has failed. Checkpoint: never.
        """
        failure = self.store.flusher.failure
        if failure is not None:
            raise FlushFailed(failure.path, failure.cause)
        if self.durable_now(log_end):
            on_durable(DurabilityResult.DURABLE)
            return
        if self._deposed:
            on_durable(DurabilityResult.NOT_CONFIRMED)
            return
        if not self._waits:
            self._new_wait.unpark_all()
        deadline = trio.current_time() + self.timeout_seconds
        self._waits.append(SetWait(log_end, deadline, on_durable))

    def settle(self) -> None:
        """End the waits for what is confirmed; all of them if too few copies are left.

        A set that has become smaller than the minimum confirms what it has, but its members alone
        are not what the sender was promised. Checkpoint: never.
        """
        if self.leads.too_few:
            self.give_up()
        waits, confirmed = self._waits, self.leads.confirmed
        while waits and waits[0].end <= confirmed:
            waits.popleft().on_durable(DurabilityResult.DURABLE)

    def give_up(self) -> None:
        """End all waits: the senders get an error, since their messages may be lost.

        Checkpoint: never.
        """
        while self._waits:
            self._waits.popleft().on_durable(DurabilityResult.NOT_CONFIRMED)

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Refuse sends inside of this block, which begins when the set has all earlier ones.

        The next master then lacks nothing that other members have, so none of them has to cut its
        log, and no sender hears that its message may be stored. Checkpoint: always.
        """
        self._held += 1
        try:
            with trio.move_on_after(HELD_SECONDS):
                await self.store.confirmed.wait_reached(self.store.appended.value)
            yield
        finally:
            self._held -= 1

    def depose(self) -> None:
        """End all waits, and refuse what comes: the members follow another master.

        Otherwise the stop of this role would wait for the deadlines of these senders.
        Checkpoint: never.
        """
        self._deposed = True
        self.give_up()

    async def run_deadlines(self) -> None:
        """Run the task "replication-deadlines": end the waits whose time is over."""
        while True:
            if not self._waits:
                await self._new_wait.park()
                continue
            await trio.sleep_until(self._waits[0].deadline)
            now = trio.current_time()
            while self._waits and self._waits[0].deadline <= now:
                self._waits.popleft().on_durable(DurabilityResult.NOT_CONFIRMED)
