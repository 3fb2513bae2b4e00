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

from triomq.client import shared_names as _shared
from triomq.sync.idempotency import OnceHandler, OnceTransaction, once
from triomq.sync.producer import Producer
from triomq.sync.pull_consumer import PullConsumer
from triomq.sync.push_consumer import PushConsumer
from triomq.sync.received import BatchHandler, Handler, ReceivedMessage
from triomq.sync.receiving import LeasedMessage
from triomq.sync.running import Probes, run
from triomq.sync.simple_consumer import SimpleConsumer
from triomq.sync.transactions import Transaction

if TYPE_CHECKING:
    from triomq.client.shared_names import *  # noqa: F403 - the names of its __all__
    from triomq.sync.admin import Admin

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

_HOMES = _shared.HOMES | {"Admin": "triomq.sync.admin"}  # Admin imports every request and body


def __getattr__(name: str) -> Any:
    return _shared.load(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted(__all__)
