"""The SDK for asyncio: FastAPI, notebooks, any program with an asyncio loop.

    from triomq.aio import Producer

    async with Producer("ns1:9876", group="web") as producer:
        await producer.send("Orders", b"...")

Each object has one background thread with a Trio loop, which does all the work, so a stalled
asyncio loop does not stop heartbeats. Cancelling an awaited call also cancels it in the Trio loop.
A call costs a hop between threads (tens of microseconds); consumers hand over lists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from triomq.aio.idempotency import OnceHandler, OnceTransaction, once
from triomq.aio.producer import Producer
from triomq.aio.pull_consumer import PullConsumer
from triomq.aio.push_consumer import PushConsumer
from triomq.aio.received import BatchHandler, Handler, ReceivedMessage
from triomq.aio.receiving import LeasedMessage
from triomq.aio.simple_consumer import SimpleConsumer
from triomq.aio.transactions import Transaction
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

if TYPE_CHECKING:
    from triomq.aio.admin import Admin

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
    from triomq.aio.admin import Admin  # on first use: Admin imports every request and body

    return Admin


def __dir__() -> list[str]:
    return sorted(__all__)
