"""A task of a slave that acts for its master: it gives open transactions to other masters.

Its log takes nothing but its master's, so it can neither end a transaction nor count a check. When
the check of a half is due it sends the half to another master, again as a half of the same producer
group; that master asks the producers. Their END_TRANSACTION for this group is refused meanwhile.
How far the half queue is done is committed here as by a consumer, and the master takes it over.
Source: broker/transaction/queue/TransactionalMessageServiceImpl.java#check (escape).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import attrs
import trio

from triomq.broker.services.remote_sender import RemoteSender, RemoteSendFailed, send_to_the_end
from triomq.broker.services.transactions import halves
from triomq.broker.services.transactions.checks import BATCH, ROUND_SECONDS, CheckRules
from triomq.broker.services.transactions.transactions import RETRY_SECONDS, Transactions
from triomq.remoting.protocol.names import HALF_TOPIC, TRANSACTION_GROUP
from triomq.remoting.protocol.record import StoredMessage

logger = logging.getLogger(__name__)


@attrs.define(eq=False)
class RemoteHalves:
    """Run while the slave acts; begins anew each time, since its master has changed the log."""

    open_transactions: Callable[[], Transactions]
    sender: RemoteSender
    rules: Callable[[], CheckRules]

    async def run(self) -> None:
        """Send every open half whose check is due, then wait until the task ends.

        Raises: StoreIoError.
        """
        transactions = self.open_transactions()
        await transactions.load()
        while transactions.open.open:
            rules = self.rules()
            due = sorted(transactions.open.due(trio.current_time(), rules.timeout, BATCH))
            for offset in due:
                half = await transactions.read_half(offset)
                if half is not None:
                    await self._give(transactions, half, rules)
            transactions.offsets.commit(
                TRANSACTION_GROUP, HALF_TOPIC, 0, transactions.open.progress().half
            )
            if len(due) < BATCH:
                await trio.sleep(ROUND_SECONDS)
        await trio.sleep_forever()

    async def _give(
        self, transactions: Transactions, half: StoredMessage, rules: CheckRules
    ) -> None:
        opened, now = transactions.open, trio.current_time()
        left = halves.immune_seconds(half, rules.timeout, transactions.clock_ms())
        if left > 0:
            opened.postpone(half.queue_offset, now + left)
            return
        try:
            await send_to_the_end(self.sender, half)
        except RemoteSendFailed as error:
            opened.postpone(half.queue_offset, trio.current_time() + RETRY_SECONDS)
            transactions.limit.warning(
                logger,
                "transactions must wait until this group has its master again, or another master"
                " takes them: %s",
                error,
            )
        else:
            opened.finish([half.queue_offset])
