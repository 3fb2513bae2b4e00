"""``Transaction``: a message that consumers get only if the block ends well."""

from __future__ import annotations

import types
from collections.abc import Awaitable, Callable, Mapping

import attrs
import trio

from triomq.client.core.arguments import shown
from triomq.client.core.errors import AlreadySettled, NotRunning, SendFailed, SettingsError
from triomq.client.sending.receipt import SendReceipt, SendStatus
from triomq.client.transactions.ends import TransactionEnds
from triomq.client.transactions.outcomes import Outcomes, TransactionOutcome


@attrs.frozen
class PreparedHalf:
    """A half message that is ready to be sent."""

    topic: str
    message_id: str
    properties: Callable[[], Mapping[str, str]]
    send: Callable[[], Awaitable[SendReceipt]]
    ends: TransactionEnds
    outcomes: Outcomes


class Transaction:
    """One message and the local work that it belongs to; used with ``async with``, once.

        async with producer.transaction("Orders", body, keys=[order_id]) as transaction:
            ...  # the local transaction, committed in here

    | The block | The message |
    |---|---|
    | ends normally | is committed: consumers get it |
    | raises an ``Exception`` | is rolled back; the exception goes on |
    | is cancelled or interrupted | stays open; a broker asks the check handler later |
    | is not entered, since the half message failed | never existed |
    """

    def __init__(self, prepare: Callable[[], PreparedHalf]) -> None:
        self._prepare = prepare
        self._half: PreparedHalf | None = None
        self._receipt: SendReceipt | None = None
        self._outcome = TransactionOutcome.UNKNOWN
        self._ended = False
        self._confirmed = False

    def __repr__(self) -> str:
        half = self._half
        if half is None:
            return "<Transaction: not begun>"
        state = "running" if not self._ended else self._outcome.name.lower()
        if self._outcome is not TransactionOutcome.UNKNOWN and not self._confirmed:
            state += ", not confirmed"
        return f"<Transaction {half.message_id} of {half.topic}: {state}>"

    # State

    @property
    def id(self) -> str:
        """The message's id, which the check handler gets as ``transaction_id``."""
        return self._begun().message_id

    @property
    def receipt(self) -> SendReceipt:
        """Where the half message is stored; its queue is the one that consumers will find it in."""
        self._begun()
        assert self._receipt is not None
        return self._receipt

    @property
    def outcome(self) -> TransactionOutcome:
        """How the transaction ended; UNKNOWN while it runs, and if it was left open."""
        return self._outcome

    @property
    def confirmed(self) -> bool:
        """Whether the broker confirmed the outcome; otherwise it asks, and gets the same one."""
        return self._confirmed

    # The end

    async def commit(self) -> bool:
        """Commit now, before the end of the block; return whether the broker confirmed.

        Raises: ``AlreadySettled``, ``NotRunning`` before the block.
        """
        return await self.end(TransactionOutcome.COMMIT)

    async def rollback(self) -> bool:
        """Roll back now, without an exception; return whether the broker confirmed.

        Raises: ``AlreadySettled``, ``NotRunning`` before the block.
        """
        return await self.end(TransactionOutcome.ROLLBACK)

    async def leave_open(self) -> None:
        """Decide nothing, whatever the block does: the check handler is asked in some seconds.

        For local work whose outcome is not known, for example a database that went away while it
        committed.

        Raises: ``AlreadySettled``, ``NotRunning`` before the block.
        """
        await self.end(TransactionOutcome.UNKNOWN)

    async def end(self, outcome: TransactionOutcome) -> bool:
        """End the transaction with this outcome; return whether the broker confirmed.

        An end that is not confirmed within ``request_timeout`` is logged, and settled when the
        broker asks. The outcome is decided, so a cancelled caller waits for the answer, too.

        Raises: ``AlreadySettled``, ``NotRunning`` before the block, ``SettingsError`` for another
        object.
        """
        half = self._begun()
        if not isinstance(outcome, TransactionOutcome):
            raise SettingsError(
                f"a transaction ends with TransactionOutcome.COMMIT, ROLLBACK or UNKNOWN, not with"
                f" {shown(outcome)}"
            )
        if self._ended:
            raise AlreadySettled(
                f"transaction {half.message_id} has ended before, as {self._outcome.name}: call"
                " commit, rollback or leave_open once"
            )
        self._decide(half, outcome)
        if outcome is TransactionOutcome.UNKNOWN:
            await trio.lowlevel.checkpoint()
            return False
        with trio.CancelScope(shield=True):
            self._confirmed = await half.ends.end(
                half.topic, self.receipt, outcome, half.properties
            )
        return self._confirmed

    def _decide(self, half: PreparedHalf, outcome: TransactionOutcome) -> None:
        self._ended, self._outcome = True, outcome
        half.outcomes.decide(half.message_id, outcome)

    def _begun(self) -> PreparedHalf:
        if self._half is None or self._receipt is None:
            raise NotRunning(
                "this transaction has not begun: use it with `async with producer.transaction(…)"
                " as transaction`"
            )
        return self._half

    def abandon(self) -> None:
        """Note that the block will not be run although the half message is stored.

        For ``triomq.sync`` and ``triomq.aio``, whose callers may be interrupted in between.
        """
        if self._half is not None and not self._ended:
            self._decide(self._half, TransactionOutcome.ROLLBACK)

    # The block

    async def __aenter__(self) -> Transaction:
        """Send the half message.

        Raises: as ``Producer.send``; ``SendFailed`` if the half message is less safe than the
        broker promises: it was rolled back.
        """
        if self._half is not None:
            raise NotRunning("this transaction was begun before: make a new one")
        half = self._half = self._prepare()
        half.outcomes.begin(half.message_id)
        try:
            receipt = self._receipt = await half.send()
        except BaseException:
            # A half message may lie there all the same. Its block is not run, so checks of it are
            # answered by "roll back".
            self._decide(half, TransactionOutcome.ROLLBACK)
            raise
        if receipt.status is not SendStatus.STORED:
            await self.end(TransactionOutcome.ROLLBACK)
            raise SendFailed(
                half.topic,
                (),
                reason=(
                    f"the half message is stored as {receipt.status.name} only, so it was rolled"
                    " back and the block was not run"
                ),
            )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        if self._ended:
            await trio.lowlevel.checkpoint_if_cancelled()
        elif error is None:
            await self.end(TransactionOutcome.COMMIT)
        elif isinstance(error, Exception):
            await self.end(TransactionOutcome.ROLLBACK)
        else:  # cancelled or interrupted, perhaps while the local work committed
            self._decide(self._begun(), TransactionOutcome.UNKNOWN)
