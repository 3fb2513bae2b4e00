"""A transaction outside the Trio loop: what ``triomq.sync`` and ``triomq.aio`` share."""

from __future__ import annotations

from triomq.client.core.portal import Portal
from triomq.client.sending.receipt import SendReceipt
from triomq.client.transactions.outcomes import TransactionOutcome
from triomq.client.transactions.transaction import Transaction


class PortalTransaction:
    """A transaction of a producer behind a portal; subclasses wait in their own way."""

    __slots__ = ("_portal", "_target")

    def __init__(self, transaction: Transaction, portal: Portal[object]) -> None:
        self._target = transaction
        self._portal = portal

    def __repr__(self) -> str:
        return repr(self._target)

    @property
    def id(self) -> str:
        """The message's id, which the check handler gets as ``transaction_id``."""
        return self._target.id

    @property
    def receipt(self) -> SendReceipt:
        """Where the half message is stored; its queue is the one that consumers will find it in."""
        return self._target.receipt

    @property
    def outcome(self) -> TransactionOutcome:
        """How the transaction ended; UNKNOWN while it runs, and if it was left open."""
        return self._target.outcome

    @property
    def confirmed(self) -> bool:
        """Whether the broker confirmed the outcome; otherwise it asks, and gets the same one."""
        return self._target.confirmed

    def _not_entered(self) -> None:
        """Note that the block is not run: the caller was interrupted while it was entered."""
        self._portal.call_soon(self._target.abandon)
