"""Durability: what a sender may wait for before its message counts as stored."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Protocol, TypeAlias

from triomq.broker.store.core.errors import FlushFailed
from triomq.remoting.protocol import refused_sends


class DurabilityResult(enum.Enum):
    """How the wait ended. The message is stored on this broker in every case."""

    DURABLE = "durable"
    FLUSH_DISK_TIMEOUT = "flush disk timeout"
    """The disk has not confirmed the message in time."""
    SLAVE_NOT_AVAILABLE = "slave not available"
    """Fewer slaves than wanted are connected, or close enough behind. Only replication says so."""
    FLUSH_SLAVE_TIMEOUT = "flush slave timeout"
    """The slaves have not confirmed the message in time. Only replication says so."""
    NOT_CONFIRMED = refused_sends.NOT_CONFIRMED
    """Not every broker that may become master has the message. Only controller mode says so."""


OnDurable: TypeAlias = "Callable[[DurabilityResult | FlushFailed], None]"
"""Called once with the result, or with the error of the fsync. Must not raise."""


class Durability(Protocol):
    """Decides when messages are safe: the store alone, or the store and the slaves."""

    def refusal(self) -> str:
        """Return why no message may be stored now; an empty string if messages may be stored."""
        ...

    def durable_now(self, log_end: int) -> bool:
        """Return whether the sender of messages up to ``log_end`` need not wait."""
        ...

    def when_durable(self, log_end: int, on_durable: OnDurable) -> None:
        """Call ``on_durable`` when the log is safe up to ``log_end``, or the time for that is over.

        At once if the result is known, otherwise later and in the order of the log.

        Raises: FlushFailed, if an earlier fsync has failed. Checkpoint: never.
        """
        ...
