"""The SDK without ``async``: for scripts, threads, Spark's executors.

    from triomq.sync import Producer

    with Producer("ns1:9876", group="jobs") as producer:
        producer.send("Orders", b"...", timeout=5)

Each object has one background thread with a Trio loop, which its ``with`` block starts and joins;
an object of ``triomq`` in that loop does all the work. Any number of threads may use one object. A
call that takes longer than its ``timeout`` is cancelled and raises ``CallTimeout``; Ctrl-C cancels
the waiting call and leaves the object usable. Make objects after a fork, in the process that uses
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from triomq.client import (
    CheckedMessage,
    CheckHandler,
    LocalWork,
    Message,
    MessageQueue,
    MessageView,
    SendReceipt,
    TransactionOutcome,
    TransactionResult,
)
from triomq.sync.idempotency import OnceHandler, OnceTransaction, once
from triomq.sync.producer import Producer
from triomq.sync.pull_consumer import PullConsumer
from triomq.sync.push_consumer import PushConsumer
from triomq.sync.received import BatchHandler, Handler, ReceivedMessage
from triomq.sync.receiving import LeasedMessage
from triomq.sync.simple_consumer import SimpleConsumer
from triomq.sync.transactions import Transaction

if TYPE_CHECKING:
    from triomq.sync.admin import Admin

__all__ = [
    "Admin",
    "BatchHandler",
    "CheckHandler",
    "CheckedMessage",
    "Handler",
    "LeasedMessage",
    "LocalWork",
    "Message",
    "MessageQueue",
    "MessageView",
    "OnceHandler",
    "OnceTransaction",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "ReceivedMessage",
    "SendReceipt",
    "SimpleConsumer",
    "Transaction",
    "TransactionOutcome",
    "TransactionResult",
    "once",
]


def __getattr__(name: str) -> Any:
    if name != "Admin":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from triomq.sync.admin import Admin  # on first use: Admin imports every request and body

    return Admin


def __dir__() -> list[str]:
    return sorted(__all__)
