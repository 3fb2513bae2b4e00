"""``TransactionMethods``: what a producer does with transactions."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial
from math import ceil
from typing import SupportsIndex

import attrs
import trio

from triomq.client.core.arguments import check_seconds
from triomq.client.core.config import ProducerSettings
from triomq.client.core.errors import MessageInvalid, NotRunning, SettingsError
from triomq.client.core.lifetime import Lifetime
from triomq.client.core.session import Session
from triomq.client.sending.encoding import OutgoingMessage, prepare
from triomq.client.sending.message_arguments import as_message, queue_choice
from triomq.client.sending.queue_choice import Selector
from triomq.client.sending.sender import Sender, SendTarget
from triomq.client.transactions.checked_message import CheckHandler
from triomq.client.transactions.checks import CheckAnswers
from triomq.client.transactions.ends import TransactionEnds
from triomq.client.transactions.local import (
    LocalWork,
    TransactionResult,
    called,
    check_local,
    outcome_of,
)
from triomq.client.transactions.outcomes import Outcomes
from triomq.client.transactions.transaction import PreparedHalf, Transaction
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.message import Message
from triomq.remoting.protocol.message_properties import (
    CHECK_IMMUNITY_SECONDS,
    PRODUCER_GROUP,
    TRAN_MSG,
    parse_properties,
    properties_text,
)
from triomq.remoting.protocol.names import HALF_TOPIC
from triomq.remoting.protocol.sys_flags import TRANSACTION_PREPARED

_NO_DELAY = (
    "a transaction cannot be delayed: until its end nobody knows whether the message exists, and"
    " brokers would discard it (Java's client drops the delay without a word). Leave the delay out,"
    " or send the delayed message from the consumer of this one"
)


@attrs.define(eq=False)
class ProducerTransactions:
    """The transactions of a running producer."""

    sender: Sender
    ends: TransactionEnds
    outcomes: Outcomes
    checks: CheckAnswers

    @classmethod
    def start(
        cls, sender: Sender, check: CheckHandler | None, nursery: trio.Nursery
    ) -> ProducerTransactions:
        """Answer the brokers' checks from now on."""
        session = sender.session
        outcomes, ends = Outcomes(), TransactionEnds(sender.group, session, sender.trace)
        checks = CheckAnswers(sender.settings, outcomes, check, ends)
        session.answer_requests({RequestCode.CHECK_TRANSACTION_STATE: checks.check})
        if check is not None:
            nursery.start_soon(checks.run, name="transaction checks")
            _meet_brokers(session)
        return cls(sender, ends, outcomes, checks)

    def prepare(
        self,
        message: Message,
        target: SendTarget | None,
        *,
        message_id: str | None,
        sharding_key: str | None,
        check_after: int | None,
    ) -> PreparedHalf:
        """Return a half message that is ready to be sent. Raises: ``MessageInvalid``."""
        sender = self.sender
        now_ms = time.time_ns() // 1_000_000
        outgoing = prepare(
            message.topic,
            message.body,
            sender.settings,
            message_id or sender.ids.next(now_ms),
            now_ms,
            tag=message.tag,
            keys=message.keys,
            properties=message.properties,
            flag=message.flag,
            wait_stored=message.wait_stored,
            sharding_key=sharding_key,
        )
        space = sender.session.namespace
        _mark_half(
            outgoing, sender.group if space is None else space.full(sender.group), check_after
        )
        return PreparedHalf(
            message.topic,
            outgoing.message_id,
            lambda: parse_properties(outgoing.properties),
            partial(sender.send, outgoing, target=target),
            self.ends,
            self.outcomes,
        )


def _meet_brokers(session: Session) -> None:
    """Send heartbeats to all brokers that have half messages.

    A producer that was started anew has sent nothing yet, and brokers only ask producers that they
    know. Every broker with transactions has the topic of the half messages.
    """
    session.finder.keep(HALF_TOPIC)


def _mark_half(outgoing: OutgoingMessage, group: str, check_after: int | None) -> None:
    made = {TRAN_MSG: "true", PRODUCER_GROUP: group}
    if check_after is not None:
        made[CHECK_IMMUNITY_SECONDS] = str(check_after)
    outgoing.properties += properties_text(made)
    outgoing.sys_flag |= TRANSACTION_PREPARED


class TransactionMethods(Lifetime):
    """The methods of a producer that belong to transactions."""

    settings: ProducerSettings
    _transactions: ProducerTransactions | None = None

    @abstractmethod
    def _check_topic(self, topic: str) -> None:
        """Refuse a topic that no broker accepts."""

    def transaction(
        self,
        topic: str | Message,
        body: bytes | None = None,
        *,
        tag: str | None = None,
        keys: Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        queue: MessageQueue | SupportsIndex | None = None,
        sharding_key: str | None = None,
        select: Selector | None = None,
        delay_level: SupportsIndex = 0,
        delay: float | timedelta | None = None,
        deliver_at: datetime | None = None,
        message_id: str | None = None,
        check_after: float | None = None,
    ) -> Transaction:
        """Return a block for local work; consumers get the message only if the block ends well.

            async with producer.transaction("Orders", body, keys=[order_id]) as transaction:
                ...  # the local transaction, committed in here

        Entering the block sends a half message, which no consumer sees; if that fails, the block is
        not run. A normal end commits it, an exception rolls it back. After a cancelled block, and
        after a crash of this process, a broker asks a producer of the group how it ended, some
        seconds later: see ``check`` of ``Producer``.

        The arguments are those of ``send``; delays (``delay_level``, ``delay``, ``deliver_at``) are
        refused. ``check_after``: seconds in which the broker does not ask, for blocks that take
        longer than the broker's transactionTimeOut (6 s).

        Raises: when the block is entered, as ``send``; ``SendFailed`` if the broker stored the half
        message less safely than it promises.
        """
        kept = as_message(topic, body, tag, keys, properties, flag)

        def prepared() -> PreparedHalf:
            if self._transactions is None:
                raise NotRunning("this producer is not running: use it inside `async with`")
            if delay_level or delay is not None or deliver_at is not None:
                raise MessageInvalid(_NO_DELAY)
            self._check_topic(kept.topic)
            return self._transactions.prepare(
                kept,
                queue if queue is not None else queue_choice(kept, sharding_key, select),
                message_id=message_id,
                sharding_key=sharding_key,
                check_after=_check_after(check_after),
            )

        return Transaction(prepared)

    async def send_in_transaction(
        self, message: Message, local: LocalWork, argument: object = None
    ) -> TransactionResult:
        """Send a message in Java's form of a transaction, for code that is ported.

        ``local`` is called with the message and the argument when the half message is stored, and
        returns how the local work ended; a plain function runs in a worker thread. An exception
        is logged and counts as UNKNOWN. (A block of ``transaction`` rolls back.)

        Raises: as ``transaction``; ``SettingsError`` if ``local`` cannot be called.
        """
        check_local(local)
        async with self.transaction(message) as transaction:
            outcome = await outcome_of(partial(called, local, message, argument))
            await transaction.end(outcome)
        return TransactionResult(transaction.receipt, outcome, transaction.confirmed)


def _check_after(seconds: float | None) -> int | None:
    given = check_seconds("check_after", seconds)
    if given is None:
        return None
    if not 0 < given < 1e9:
        raise SettingsError(
            f"check_after must be a number of seconds greater than 0, not {seconds!r}"
        )
    return ceil(given)
