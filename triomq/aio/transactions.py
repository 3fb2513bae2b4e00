"""Transactions whose block, local work and check handler run in the asyncio loop.

The generated class of the producer adds the rest.
"""

from __future__ import annotations

import asyncio
import inspect
from types import TracebackType
from typing import Self

from triomq import client
from triomq.aio.calls import AnyPortal, AsyncioLifetime, awaited, call_in_asyncio, call_in_loop
from triomq.client import LocalWork, Message, TransactionOutcome, TransactionResult
from triomq.client.core.arguments import is_async
from triomq.client.transactions.checked_message import CheckedMessage, CheckHandler
from triomq.client.transactions.local import check_local, outcome_of
from triomq.client.transactions.portal_transaction import PortalTransaction


class Transaction(PortalTransaction):
    """A ``triomq.Transaction`` for asyncio; used with ``async with``, once."""

    __slots__ = ()

    _portal: AnyPortal

    commit = awaited(client.Transaction.commit)
    rollback = awaited(client.Transaction.rollback)
    leave_open = awaited(client.Transaction.leave_open)
    end = awaited(client.Transaction.end)

    async def __aenter__(self) -> Self:
        try:
            await call_in_loop(self._portal, self._target.__aenter__)
        except BaseException:
            self._not_entered()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await call_in_loop(self._portal, self._target.__aexit__, kind, error, trace)


class ProducerBase(AsyncioLifetime[client.Producer]):
    """Transactions in the asyncio loop. A plain check handler runs in a worker thread."""

    async def send_in_transaction(
        self, message: Message, local: LocalWork, argument: object = None
    ) -> TransactionResult:
        """Send a message in Java's form of a transaction; ``local`` may be async or plain.

        See ``triomq.Producer.send_in_transaction``.
        """
        check_local(local)

        async def work() -> object:
            if is_async(local):
                outcome: object = local(message, argument)
            else:
                outcome = await asyncio.to_thread(local, message, argument)
            return await outcome if inspect.isawaitable(outcome) else outcome

        async with Transaction(self._target.transaction(message), self._portal) as transaction:
            outcome = await outcome_of(work)
            await transaction.end(outcome)
        return TransactionResult(transaction.receipt, outcome, transaction.confirmed)

    def _checking(self, check: CheckHandler) -> CheckHandler:
        if not is_async(check):
            return check

        async def ask(message: CheckedMessage) -> TransactionOutcome:
            outcome = check(message)
            assert inspect.isawaitable(outcome)
            return await outcome

        async def answer(message: CheckedMessage) -> TransactionOutcome:
            return await call_in_asyncio(self._portal, ask, message)

        return answer
