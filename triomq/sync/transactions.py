"""Transactions whose block and whose local work run in the caller's thread.

The generated class of the producer adds the rest.
"""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Self

from triomq import client
from triomq.client import LocalWork, Message, TransactionOutcome, TransactionResult
from triomq.client.core.arguments import check_plain
from triomq.client.transactions.checked_message import CheckHandler
from triomq.client.transactions.local import check_local, failed_outcome, known_outcome
from triomq.client.transactions.portal_transaction import PortalTransaction
from triomq.sync.lifetime import BlockingLifetime


class Transaction(PortalTransaction):
    """A blocking ``triomq.Transaction``; used with ``with``, once."""

    __slots__ = ()

    def commit(self, *, timeout: float | None = None) -> bool:
        """Commit now, before the end of the block; return whether the broker confirmed."""
        return self._portal.call(timeout, self._target.commit)

    def rollback(self, *, timeout: float | None = None) -> bool:
        """Roll back now, without an exception; return whether the broker confirmed."""
        return self._portal.call(timeout, self._target.rollback)

    def leave_open(self, *, timeout: float | None = None) -> None:
        """Decide nothing, whatever the block does; see ``triomq.Transaction.leave_open``."""
        self._portal.call(timeout, self._target.leave_open)

    def end(self, outcome: TransactionOutcome, *, timeout: float | None = None) -> bool:
        """End the transaction with this outcome; return whether the broker confirmed."""
        return self._portal.call(timeout, self._target.end, outcome)

    def __enter__(self) -> Self:
        return self._enter(None)

    def _enter(self, timeout: float | None) -> Self:
        try:
            self._portal.call(timeout, self._target.__aenter__)
        except BaseException:
            self._not_entered()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._portal.call(None, self._target.__aexit__, kind, error, trace)


class ProducerBase(BlockingLifetime[client.Producer]):
    """Transactions in the caller's thread. A check handler runs in a worker thread."""

    def send_in_transaction(
        self,
        message: Message,
        local: LocalWork,
        argument: object = None,
        *,
        timeout: float | None = None,
    ) -> TransactionResult:
        """Send a message in Java's form of a transaction; ``local`` runs in this thread.

        ``timeout``: seconds for the half message. See ``triomq.Producer.send_in_transaction``.
        """
        check_local(local)
        check_plain("local", local)
        transaction = Transaction(self._target.transaction(message), self._portal)
        with ExitStack() as stack:
            stack.push(transaction._enter(timeout))
            try:
                outcome = known_outcome(local(message, argument))
            except Exception as error:  # any error of the application
                outcome = failed_outcome(error)
            transaction.end(outcome)
        return TransactionResult(transaction.receipt, outcome, transaction.confirmed)

    def _checking(self, check: CheckHandler) -> CheckHandler:
        check_plain("check", check)
        return check
