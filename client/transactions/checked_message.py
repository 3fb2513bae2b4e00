"""``CheckedMessage``: a message about whose transaction a broker asks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from triomq.client.receiving.pushed_message import PushedMessage
from triomq.client.transactions.outcomes import TransactionOutcome
from triomq.remoting.protocol.message_properties import TRANSACTION_CHECK_TIMES
from triomq.remoting.protocol.short_repr import short_text


class CheckedMessage(PushedMessage):
    """A message that no consumer can see yet, as a check handler gets it; read-only.

    ``queue_offset`` and ``log_offset`` are those of the half message.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {short_text(self.message_id)} of {short_text(self.topic)},"
            f" {len(self._record.body):,} bytes, checked {self.checks} times before>"
        )

    @property
    def transaction_id(self) -> str:
        """``Transaction.id``, which is also the ``message_id``."""
        return self._record.message_id

    @property
    def checks(self) -> int:
        """The number of earlier checks; brokers give a message up after 15."""
        try:
            return int(self._record.properties.get(TRANSACTION_CHECK_TIMES, "0"))
        except ValueError:
            return 0


CheckHandler = Callable[[CheckedMessage], TransactionOutcome | Awaitable[TransactionOutcome]]
"""Returns how the local transaction of a message ended, for example by looking for its row.

Every producer of the group may be asked, a process that started later included. An exception counts
as UNKNOWN. A plain function runs in a worker thread.
"""
