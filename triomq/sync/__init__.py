"""The SDK without `async`: for scripts, threads, Spark's executors.

    from triomq.sync import Producer

    with Producer("ns1:9876", group="jobs") as producer:
        producer.send("Orders", b"...", timeout=5)

Each object has one background thread with a Trio loop, started and joined by its `with` block; the objects of `triomq` do all the work.  Any
number of threads may use one object.  A call that takes longer than its `timeout` is cancelled and raises `CallTimeout`; Ctrl-C cancels
the waiting call and leaves the object usable.  Make objects after a fork, in the process that uses them.
"""

from __future__ import annotations

from triomq.client import Message, MessageQueue, SendReceipt
from triomq.sync.producer import Producer
from triomq.sync.pull_consumer import PullConsumer
from triomq.sync.push_consumer import BatchHandler, Handler, PushConsumer, ReceivedMessage

__all__ = ["BatchHandler", "Handler", "Message", "MessageQueue", "Producer", "PullConsumer", "PushConsumer", "ReceivedMessage", "SendReceipt"]


def __dir__() -> list[str]:
    return sorted(__all__)
