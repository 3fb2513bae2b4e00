"""How transactions of this producer ended: its memory, from which brokers' checks are answered.

Pure. A transaction that runs is known until it ends; a decided one until ``limit`` others were
decided after it.
"""

from __future__ import annotations

import enum

import attrs

from triomq.remoting.protocol.headers.transaction import COMMIT, ROLLBACK, UNDECIDED

OUTCOMES_MAX = 10_000
"""Decided transactions that a producer remembers: about 2 MB, and minutes of checks under load."""


class TransactionOutcome(enum.Enum):
    """How a local transaction ended."""

    COMMIT = COMMIT
    """consumers get the message"""
    ROLLBACK = ROLLBACK
    """the message never existed"""
    UNKNOWN = UNDECIDED
    """not decided: the broker asks again later"""


@attrs.define(eq=False)
class Outcomes:
    """The transactions of one producer, by message id."""

    limit: int = OUTCOMES_MAX
    _running: set[str] = attrs.field(factory=set, init=False)
    _decided: dict[str, TransactionOutcome] = attrs.field(factory=dict, init=False)
    """in the order of the decisions"""

    def __len__(self) -> int:
        return len(self._running) + len(self._decided)

    def begin(self, message_id: str) -> None:
        """Note that a transaction runs: until it ends, a check of it is answered "unknown"."""
        self._running.add(message_id)

    def decide(self, message_id: str, outcome: TransactionOutcome) -> None:
        """Note the end of a transaction; an unknown one is forgotten."""
        self._running.discard(message_id)
        self._decided.pop(message_id, None)
        if outcome is TransactionOutcome.UNKNOWN:
            return
        self._decided[message_id] = outcome
        if len(self._decided) > self.limit:
            del self._decided[next(iter(self._decided))]

    def of(self, message_id: str) -> TransactionOutcome | None:
        """Return the outcome of a transaction, UNKNOWN while it runs, None if it is not known."""
        if message_id in self._running:
            return TransactionOutcome.UNKNOWN
        return self._decided.get(message_id)
