"""The SDK for asyncio: FastAPI, notebooks, anything with an asyncio loop.

    from triomq.aio import Producer

    async with Producer("ns1:9876", group="web") as producer:
        await producer.send("Orders", b"...")

Each object has one background thread with a Trio loop, which does all the work; so a stalled asyncio loop does not stop heartbeats.  Cancelling
an awaited call cancels it in the Trio loop, too.  A call costs a thread hop (tens of microseconds); consumers hand over lists.
"""

from __future__ import annotations

from triomq.aio.producer import Producer
from triomq.aio.pull_consumer import PullConsumer
from triomq.aio.push_consumer import BatchHandler, Handler, PushConsumer, ReceivedMessage
from triomq.client import Message, MessageQueue, SendReceipt

__all__ = ["BatchHandler", "Handler", "Message", "MessageQueue", "Producer", "PullConsumer", "PushConsumer", "ReceivedMessage", "SendReceipt"]


def __dir__() -> list[str]:
    return sorted(__all__)
