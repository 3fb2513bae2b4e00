"""Java's form of a transaction: a message, a function for the local work, an argument.

``called`` runs such a function of the application, or a check handler, which may be async or plain.

Source: client/…/producer/TransactionListener.java, TransactionSendResult.java;
impl/producer/DefaultMQProducerImpl.java#sendMessageInTransaction.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable

import attrs
import trio

from triomq.client.core.arguments import is_async, shown
from triomq.client.core.errors import SettingsError
from triomq.client.sending.receipt import SendReceipt
from triomq.client.transactions.outcomes import TransactionOutcome
from triomq.remoting.protocol.message import Message

logger = logging.getLogger(__name__)

LocalWork = Callable[[Message, object], TransactionOutcome | Awaitable[TransactionOutcome]]
"""Does the local work of ``send_in_transaction`` and returns how it ended (Java:
``executeLocalTransaction``). It gets the message and the argument.
"""


@attrs.frozen
class TransactionResult:
    """What ``send_in_transaction`` returns (Java: ``TransactionSendResult``)."""

    receipt: SendReceipt
    """where the half message is stored"""
    outcome: TransactionOutcome
    """what the local work returned; UNKNOWN if it raised an exception"""
    confirmed: bool
    """whether the broker confirmed the outcome"""


def check_local(local: object) -> None:
    """Refuse local work that cannot be called. Raises: ``SettingsError``."""
    if not callable(local):
        raise SettingsError(
            f"local must be a function (message, argument) -> TransactionOutcome, not"
            f" {shown(local)}"
        )


async def outcome_of(work: Callable[[], Awaitable[object]]) -> TransactionOutcome:
    """Run local work. An exception is logged and counts as UNKNOWN, as in Java."""
    try:
        return known_outcome(await work())
    except Exception as error:  # any error of the application
        return failed_outcome(error)


def failed_outcome(error: Exception) -> TransactionOutcome:
    """Log an error of local work, and return what it counts as."""
    logger.error("the local work of a transaction failed; the broker will ask", exc_info=error)
    return TransactionOutcome.UNKNOWN


def known_outcome(outcome: object) -> TransactionOutcome:
    """Return the outcome; UNKNOWN, with a log line, for anything else."""
    if isinstance(outcome, TransactionOutcome):
        return outcome
    logger.error(
        "local work must return TransactionOutcome.COMMIT, ROLLBACK or UNKNOWN, not %s; the broker"
        " will ask",
        shown(outcome),
    )
    return TransactionOutcome.UNKNOWN


async def called(
    function: Callable[..., object],
    *arguments: object,
    threads: trio.CapacityLimiter | None = None,
    abandon: bool = False,
) -> object:
    """Return what a function of the application returns; a plain one, which may block, runs in a
    worker thread.

    ``abandon``: whether a cancelled call leaves its thread alone instead of waiting for it.

    Checkpoint: always.
    """
    if is_async(function):
        outcome = function(*arguments)
    else:
        outcome = await trio.to_thread.run_sync(
            function, *arguments, limiter=threads, abandon_on_cancel=abandon
        )
    return await outcome if inspect.isawaitable(outcome) else outcome
