"""Tell brokers how transactions ended: END_TRANSACTION (37).

The request is answered by brokers, although Java's client does not wait for it. Nothing is sent a
second time: a broker that did not confirm asks (CHECK_TRANSACTION_STATE), and a commit that arrives
twice would deliver the message twice.

Source: client/…/impl/producer/DefaultMQProducerImpl.java#endTransaction;
broker/…/processor/EndTransactionProcessor.java.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import attrs

from triomq.client.core.errors import ConnectionFailed, TrioMQError
from triomq.client.core.failure_log import FailureLog
from triomq.client.core.message_trace import COMMITTED, ROLLED_BACK, UNDECIDED, MessageTrace
from triomq.client.core.session import Session
from triomq.client.sending.receipt import SendReceipt
from triomq.client.transactions.outcomes import TransactionOutcome
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.transaction import EndTransactionHeader
from triomq.remoting.protocol.ids import decode_offset_message_id
from triomq.remoting.protocol.message_properties import MSG_REGION

logger = logging.getLogger(__name__)


@attrs.define(eq=False)
class TransactionEnds:
    """Sends the ends of one producer's transactions."""

    group: str
    session: Session
    trace: MessageTrace | None = None
    """notes ends that were sent; None if traces are off"""
    _failures: FailureLog = attrs.field(factory=lambda: FailureLog(logger), init=False)

    async def end(
        self,
        topic: str,
        receipt: SendReceipt,
        outcome: TransactionOutcome,
        properties: Callable[[], Mapping[str, str]],
    ) -> bool:
        """Commit or roll back a half message; return whether its broker confirmed.

        ``properties``: returns those of the half message, for its trace.
        """
        broker = receipt.queue.broker_name
        try:
            _, _, log_offset = decode_offset_message_id(receipt.offset_message_id)
        except ValueError as error:
            self._failures.failed(f"ends of transactions at {broker}", error)
            return False
        header = EndTransactionHeader(
            producer_group=self.group,
            half_queue_offset=receipt.queue_offset,
            log_offset=log_offset,
            verdict=outcome.value,
            message_id=receipt.message_id,
            transaction_id=receipt.message_id,
            topic=topic,
            broker_name=broker,
        )
        region = {MSG_REGION: receipt.region}
        address = self.session.routes.master(broker)
        return await self.send(broker, address, header, lambda: {**region, **properties()})

    async def send(
        self,
        broker: str,
        address: str | None,
        header: EndTransactionHeader,
        properties: Callable[[], Mapping[str, str]],
    ) -> bool:
        """Send an end to a broker; return whether it confirmed.

        "Unknown" is not answered by brokers, so it counts as confirmed when it is written.
        ``properties``: as in ``end``.
        """
        oneway = header.verdict == TransactionOutcome.UNKNOWN.value
        command = request(RequestCode.END_TRANSACTION, header, oneway=oneway)
        seconds = self.session.settings.request_timeout
        try:
            if address is None:
                raise ConnectionFailed(
                    broker, "the route names no master for this broker", "start its master again"
                )
            if oneway:
                await self.session.oneway(address, command, seconds)
            else:
                await self.session.call(address, command, seconds)
        except TrioMQError as error:
            self._failures.failed(f"ends of transactions at {broker}", error)
            logger.debug("transaction %s is not confirmed: %s", header.transaction_id, error)
            return False
        self._failures.worked(f"ends of transactions at {broker}")
        if self.trace is not None:
            self.trace.end_transaction(header, _STATES[header.verdict], address, properties())
        return True


_STATES = {
    TransactionOutcome.COMMIT.value: COMMITTED,
    TransactionOutcome.ROLLBACK.value: ROLLED_BACK,
    TransactionOutcome.UNKNOWN.value: UNDECIDED,
}
