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
from triomq.aio.running import Probes, run
from triomq.aio.simple_consumer import SimpleConsumer
from triomq.aio.transactions import Transaction
from triomq.client import shared_names as _shared

if TYPE_CHECKING:
    from triomq.aio.admin import Admin
    from triomq.client.shared_names import *  # noqa: F403 - the names of its __all__

__all__ = [
    "Admin",
    "BatchHandler",
    "Handler",
    "LeasedMessage",
    "OnceHandler",
    "OnceTransaction",
    "Probes",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "ReceivedMessage",
    "SimpleConsumer",
    "Transaction",
    "once",
    "run",
]
__all__ += _shared.__all__

_HOMES = _shared.HOMES | {"Admin": "triomq.aio.admin"}  # Admin imports every request and body


def __getattr__(name: str) -> Any:
    return _shared.load(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted(__all__)
