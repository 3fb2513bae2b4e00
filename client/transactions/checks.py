"""Answer brokers that ask how a transaction ended: CHECK_TRANSACTION_STATE (39).

    checks ── one task for each of ``check_concurrency``

The producer's own memory answers first. Other questions wait for the application's handler, at most
``check_waiting_max`` of them; a question that finds no room is dropped and comes again.

Source: client/…/impl/ClientRemotingProcessor.java#checkTransactionState,
impl/producer/DefaultMQProducerImpl.java#checkTransactionState.
"""

from __future__ import annotations

import logging

import attrs
import trio

from triomq.client.core.arguments import shown
from triomq.client.core.config import ProducerSettings
from triomq.client.transactions.checked_message import CheckedMessage, CheckHandler
from triomq.client.transactions.ends import TransactionEnds
from triomq.client.transactions.local import called
from triomq.client.transactions.outcomes import Outcomes, TransactionOutcome
from triomq.remoting.core.errors import ProtocolError, RemoteProtocolError
from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.protocol.command import Command
from triomq.remoting.protocol.headers.transaction import (
    CheckTransactionHeader,
    EndTransactionHeader,
)
from triomq.remoting.protocol.record import StoredMessage
from triomq.remoting.protocol.record_reader import decode_records

logger = logging.getLogger(__name__)


@attrs.frozen
class TransactionCheck:
    """One question of a broker."""

    address: str
    header: CheckTransactionHeader
    message: CheckedMessage


@attrs.define(eq=False)
class CheckAnswers:
    """Answers the checks of one producer."""

    settings: ProducerSettings
    outcomes: Outcomes
    handler: CheckHandler | None
    _ends: TransactionEnds
    dropped: int = attrs.field(default=0, init=False)
    """questions that found ``check_waiting_max`` others waiting"""
    _limit: LogLimit = attrs.field(factory=LogLimit, init=False)
    _warned: bool = attrs.field(default=False, init=False)
    _threads: trio.CapacityLimiter = attrs.field(init=False)
    _waiting: trio.MemorySendChannel[TransactionCheck] = attrs.field(init=False)
    _taken: trio.MemoryReceiveChannel[TransactionCheck] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._threads = trio.CapacityLimiter(self.settings.check_concurrency)
        self._waiting, self._taken = trio.open_memory_channel(self.settings.check_waiting_max)

    async def check(self, address: str, command: Command) -> None:
        """Take a broker's question; answer it if the outcome is known here. A ``PeerHandler``."""
        try:
            header, record = _check_of(command)
        except ProtocolError as error:
            await trio.lowlevel.checkpoint()
            logger.warning("a check of a transaction by %s cannot be read: %s", address, error)
            return
        space = self._ends.session.namespace
        if space is not None:
            space.own_record(record)
        message = CheckedMessage(record, self._ends.group, header.broker_name or "")
        question = TransactionCheck(address, header, message)
        outcome = self.outcomes.of(record.message_id)
        if outcome is None and self.handler is None:
            outcome = TransactionOutcome.UNKNOWN
            self._warn_of_no_handler(question)
        if outcome is not None:
            await self._answer(question, outcome)
            return
        await trio.lowlevel.checkpoint()
        try:
            self._waiting.send_nowait(question)
        except trio.WouldBlock:
            self.dropped += 1
            self._limit.log(
                logger,
                logging.WARNING,
                "%d checks of transactions were dropped, since check_waiting_max=%d others wait"
                " for the check handler; brokers ask again",
                self.dropped,
                self.settings.check_waiting_max,
            )

    async def run(self) -> None:
        """Ask the handler, with ``check_concurrency`` questions at a time."""
        async with trio.open_nursery() as nursery:
            for _ in range(self.settings.check_concurrency):
                nursery.start_soon(self._answer_checks, name="transaction checks")

    async def _answer_checks(self) -> None:
        async for question in self._taken:
            # Decided while the question waited: for example by a second check of the same half.
            outcome = self.outcomes.of(question.message.message_id)
            if outcome is None:
                outcome = await self._outcome_of(question.message)
            await self._answer(question, outcome)

    async def _outcome_of(self, message: CheckedMessage) -> TransactionOutcome:
        """Return what the handler says; UNKNOWN if it fails."""
        assert self.handler is not None
        try:
            outcome = await called(self.handler, message, threads=self._threads, abandon=True)
        except Exception as error:  # any error of the application
            self._limit.log(
                logger,
                logging.ERROR,
                "the check handler failed for %r; the broker asks again",
                message,
                error=error,
            )
            return TransactionOutcome.UNKNOWN
        if isinstance(outcome, TransactionOutcome):
            return outcome
        self._limit.log(
            logger,
            logging.ERROR,
            "the check handler must return TransactionOutcome.COMMIT, ROLLBACK or UNKNOWN for %r,"
            " not %s",
            message,
            shown(outcome),
        )
        return TransactionOutcome.UNKNOWN

    async def _answer(self, question: TransactionCheck, outcome: TransactionOutcome) -> None:
        header, message = question.header, question.message
        answer = EndTransactionHeader(
            producer_group=self._ends.group,
            half_queue_offset=header.half_queue_offset,
            log_offset=header.log_offset,
            verdict=outcome.value,
            message_id=message.message_id,
            from_check=True,
            transaction_id=header.transaction_id or message.message_id,
            topic=message.topic,
            broker_name=header.broker_name,
        )
        broker = header.broker_name or question.address
        await self._ends.send(broker, question.address, answer, lambda: message.properties)

    def _warn_of_no_handler(self, question: TransactionCheck) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "%s asks how the transaction of %r ended, and this producer of group %s has no"
                " check handler: the answer is UNKNOWN, and the message is lost after 15 checks;"
                " give Producer(check=…) (this is logged once)",
                question.address,
                question.message,
                self._ends.group,
            )


def _check_of(command: Command) -> tuple[CheckTransactionHeader, StoredMessage]:
    header = command.header(CheckTransactionHeader)
    records = decode_records(command.body)
    if len(records) != 1:
        raise RemoteProtocolError(f"one message is wanted, not {len(records)}")
    return header, records[0]
