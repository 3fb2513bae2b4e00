"""The task "transactions": asks producers for the end of halves that wait too long, or gives up.

A check appends a copy of the half with a higher count, and an op record for the half, and sends the
copy to one connected producer of its group. A half whose producers are all away gets a copy too, so
that the group's offset can go on, but the count stays. After ``checks_max`` checks, or when the
half is as old as the log may be, it goes to TRANS_CHECK_MAX_TIME_TOPIC, where an operator finds it.
Java takes the age from the sender's clock alone, and gives up what a sender sends whose clock is
days behind; here the store time of the first record must be as old. All of these are wall clocks,
and one that jumps makes every half old: producers have an hour of the steady clock to answer.
Source: broker/transaction/queue/TransactionalMessageServiceImpl.java#check,
AbstractTransactionalMessageCheckListener.java.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

import attrs
import trio

from triomq.broker.services.groups import GroupTable
from triomq.broker.services.transactions import halves
from triomq.broker.services.transactions.transactions import RETRY_SECONDS, Transactions
from triomq.broker.store.core.draft import Draft, check_draft
from triomq.broker.store.core.errors import IllegalMessage, StoreIoError, StoreUnavailable
from triomq.remoting.access.users import AccessUser
from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.transaction import CheckTransactionHeader
from triomq.remoting.protocol.message_properties import REAL_TOPIC
from triomq.remoting.protocol.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC
from triomq.remoting.protocol.record import StoredMessage
from triomq.remoting.protocol.short_repr import short_text
from triomq.remoting.server.connection import Connection

logger = logging.getLogger(__name__)

BATCH = 50
PAUSE_SECONDS = 0.05
"""Pause behind a full batch: at most 1,000 checks a second, which a Java producer can queue."""
BATCH_BYTES = 4 * 1024 * 1024
OUTBOX_BYTES_MAX = 4 * 1024 * 1024
"""A producer that has not read more than this is not asked: its connection would be closed."""
BUSY_SECONDS = 1.0
"""Pause before a half is tried again whose producers have much to read."""
ROUND_SECONDS = 1.0
"""How often progress is saved while there is some."""
OLD_SECONDS = 3600.0
"""For how long halves are still checked that have become too old."""
EXAMPLES_LOGGED = 3


@attrs.frozen
class CheckRules:
    """When a half is checked, and when it is given up. Times: seconds."""

    timeout: float
    """From the arrival of a half to its first check."""
    interval: float
    checks_max: int
    reserved: float
    """Age by the wall clock from which a half is given up after OLD_SECONDS."""


@attrs.frozen
class DueHalf:
    """A half whose check is due, and when its transaction began (ms)."""

    half: StoredMessage
    begun_ms: int


@attrs.frozen
class Step:
    """What happens to one half whose check is due."""

    half: StoredMessage
    draft: Draft
    asked: Connection | None
    """The producer that is asked about the copy; None: nobody is asked, or it is given up."""
    abandoned: bool = False
    old_since: float | None = None
    """Since when it has been too old."""


@attrs.define(eq=False)
class TransactionChecks:
    """Owns no state but the log: what is open is in ``Transactions``."""

    transactions: Transactions
    clients: GroupTable[Connection]
    rules: Callable[[], CheckRules]
    ensure_topic: Callable[[str], object]
    """Creates a system topic that is not there yet."""
    broker_name: str
    may_ask: Callable[[AccessUser | None, Connection, str], bool] | None
    """Whether a producer's user may send to a topic; None: all may. A check shows the message."""
    limit: LogLimit = attrs.field(factory=LogLimit)

    async def run(self) -> None:
        """Load the open halves, then check those that are due. Raises: StoreIoError."""
        transactions = self.transactions
        await transactions.load()
        if transactions.open.open:
            logger.info("%d open transactions are taken over", len(transactions.open.open))
        while True:
            arrival = transactions.next_arrival()
            full = await self._check_due()
            unsaved = transactions.save_progress()
            if full:
                await trio.sleep(PAUSE_SECONDS)
            elif transactions.open.open or unsaved:
                await trio.sleep(self._pause())
            else:
                await arrival.wait()

    def _pause(self) -> float:
        due = self.transactions.open.next_due(self.rules().timeout)
        pause = ROUND_SECONDS if due is None else due - trio.current_time()
        return max(PAUSE_SECONDS, min(pause, ROUND_SECONDS))

    async def _check_due(self) -> bool:
        """Check the halves that are due; return whether there may be more."""
        transactions = self.transactions
        due = transactions.open.due(trio.current_time(), self.rules().timeout, BATCH)
        found: list[DueHalf] = []
        for offset in due:
            half = await transactions.read_half(offset)
            if half is not None:
                found.append(DueHalf(half, await self._begun_ms(half)))
            if sum(item.half.size for item in found) >= BATCH_BYTES:
                self._move(found)
                found = []
                await trio.sleep(PAUSE_SECONDS)
        if found:
            self._move(found)
        return len(due) == BATCH

    async def _begun_ms(self, half: StoredMessage) -> int:
        """Return when a transaction began: by its sender's clock, but if it is too old by that one,
        not before its first record was stored. Checkpoint: maybe.
        """
        reserved_ms = self.rules().reserved * 1000
        born_ms = half.born_timestamp
        if not 0 < reserved_ms <= self.transactions.clock_ms() - born_ms:
            return born_ms
        first = half
        offset = halves.first_queue_offset(half)
        if offset != half.queue_offset:
            try:
                found = await self.transactions.store.messages(
                    HALF_TOPIC, 0, offset, messages_max=1, bytes_max=0
                )
            except StoreIoError:
                return born_ms
            if not found.messages:
                return born_ms  # the log has deleted it: it is old
            first = found.messages[0]
            if (first.born_timestamp, first.body) != (born_ms, half.body):
                return born_ms  # the offset is that of another broker
        return max(born_ms, first.store_timestamp)

    # Without a checkpoint from here on: what is open must not change in between.

    def _move(self, found: list[DueHalf]) -> None:
        """Append what the halves become, then ask the producers. Checkpoint: never."""
        transactions, rules = self.transactions, self.rules()
        now, now_ms = trio.current_time(), transactions.clock_ms()
        steps = []
        parties = {_party(item.half) for item in found}
        producers = {party: self._producers(*party) for party in parties}
        for half, age in [(item.half, (now_ms - item.begun_ms) / 1000) for item in found]:
            asked = producers[_party(half)]
            if half.queue_offset not in transactions.open.open:
                continue  # ended while others were read
            left = halves.immune_seconds(half, rules.timeout, now_ms)
            if rules.reserved > 0:
                left = min(left, rules.reserved - age)
            if left > 0:
                transactions.open.postpone(half.queue_offset, now + left)
            elif asked is None:
                transactions.open.postpone(half.queue_offset, now + BUSY_SECONDS)
            else:
                old_since = (
                    transactions.open.old_since.get(half.queue_offset, now)
                    if age >= rules.reserved > 0
                    else None
                )
                steps.append(self._step(half, asked, rules, old_since))
        if any(step.abandoned for step in steps):
            self.ensure_topic(CHECK_MAX_TIME_TOPIC)
        try:
            places = transactions.append(
                [step.draft for step in steps], [step.half.queue_offset for step in steps]
            )
        except (StoreUnavailable, StoreIoError) as error:
            self.limit.warning(logger, "transactions must wait: %s", error)
            for step in steps:
                transactions.open.postpone(step.half.queue_offset, now + RETRY_SECONDS)
            return
        counts, given_up = transactions.counts, []
        for step, place in zip(steps, places, strict=True):
            if step.abandoned:
                counts.abandoned += 1
                given_up.append(step.half)
                continue
            if step.old_since is not None:
                transactions.open.old_since[place.queue_offset] = step.old_since
            transactions.open.note_copy(
                halves.first_queue_offset(step.half), place.queue_offset, now + rules.interval
            )
            if step.asked is None:
                counts.unasked += 1
                continue
            counts.checks += 1
            half, message_id = step.half, step.half.message_id
            header = CheckTransactionHeader(
                place.queue_offset,
                place.log_offset,
                message_id,
                message_id,
                f"{half.store_host_bytes.hex().upper()}{place.log_offset:016X}",
                HALF_TOPIC,
                self.broker_name,
            )
            body = halves.check_record(half, step.draft, place)
            step.asked.oneway(
                request(RequestCode.CHECK_TRANSACTION_STATE, header, body, oneway=True)
            )
        if given_up:
            self._log_given_up(given_up, rules)

    def _step(
        self,
        half: StoredMessage,
        producers: list[Connection],
        rules: CheckRules,
        old_since: float | None,
    ) -> Step:
        checks = halves.checks_of(half)
        late = old_since is not None and trio.current_time() >= old_since + OLD_SECONDS
        if checks >= rules.checks_max or late:
            return Step(half, halves.abandoned(half), None, abandoned=True)
        asked = random.choice(producers) if producers else None
        copy = halves.moved(half, checks=checks + (asked is not None))
        if not self._fits(copy):  # its properties leave no room for the count
            return Step(half, halves.abandoned(half), None, abandoned=True)
        return Step(half, copy, asked, old_since=old_since)

    def _fits(self, copy: Draft) -> bool:
        """Return whether a copy can be stored. A limit that was lowered is for new bodies only."""
        store = self.transactions.store
        try:
            store.check_draft(copy)
        except IllegalMessage:
            size = len(copy.body)
            if size <= store.config.message_size_bytes_max:
                return False
            try:
                check_draft(copy, attrs.evolve(store.config, message_size_bytes_max=size))
            except IllegalMessage:
                return False
        return True

    def _producers(self, group: str, topic: str) -> list[Connection] | None:
        """Return the producers that can be asked; None if all that are there are busy."""
        members = [
            member.connection
            for member in self.clients.producers.get(group, {}).values()
            if self.may_ask is None or self.may_ask(member.user, member.connection, topic)
        ]
        free = [member for member in members if member.outbox_bytes <= OUTBOX_BYTES_MAX]
        return free if free or not members else None

    def _log_given_up(self, given_up: list[StoredMessage], rules: CheckRules) -> None:
        shown = ", ".join(
            f"{short_text(half.message_id)} of group {short_text(halves.producer_group(half))} for"
            f" {short_text(half.properties.get('REAL_TOPIC'))}"
            for half in given_up[:EXAMPLES_LOGGED]
        )
        logger.warning(
            "%d transactions are given up after %d checks or %.0f hours and moved to %s: %s%s;"
            " their producers answered none of the checks with commit or rollback",
            len(given_up),
            rules.checks_max,
            rules.reserved / 3600,
            CHECK_MAX_TIME_TOPIC,
            shown,
            ", …" if len(given_up) > EXAMPLES_LOGGED else "",
        )


def _party(half: StoredMessage) -> tuple[str, str]:
    """Return the producer group and the topic of a half."""
    return halves.producer_group(half), half.properties.get(REAL_TOPIC, "")
