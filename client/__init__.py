"""The SDK: ``Producer``, consumers, ``Admin``, and what they take, return and raise.

Names are loaded on first use. Those of the Trio interface are here, the others in ``shared_names``.
"""

from typing import TYPE_CHECKING, Any

from triomq.client import shared_names as _shared

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin
    from triomq.client.idempotency.once import OnceHandler, OnceTransaction, once
    from triomq.client.receiving.delivery import BatchHandler, Handler
    from triomq.client.receiving.pop.leased_message import LeasedMessage
    from triomq.client.receiving.received import ReceivedMessage
    from triomq.client.runner.probes import Probes
    from triomq.client.runner.running import run
    from triomq.client.sdk.producer import Producer
    from triomq.client.sdk.pull_consumer import PullConsumer
    from triomq.client.sdk.push_consumer import PushConsumer
    from triomq.client.sdk.simple_consumer import SimpleConsumer
    from triomq.client.shared_names import *  # noqa: F403 - the names of its __all__
    from triomq.client.transactions.transaction import Transaction

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

_HOMES = _shared.HOMES | {
    "Admin": "triomq.client.admin.admin",
    "BatchHandler": "triomq.client.receiving.delivery",
    "Handler": "triomq.client.receiving.delivery",
    "LeasedMessage": "triomq.client.receiving.pop.leased_message",
    "OnceHandler": "triomq.client.idempotency.once",
    "OnceTransaction": "triomq.client.idempotency.once",
    "Probes": "triomq.client.runner.probes",
    "Producer": "triomq.client.sdk.producer",
    "PullConsumer": "triomq.client.sdk.pull_consumer",
    "PushConsumer": "triomq.client.sdk.push_consumer",
    "ReceivedMessage": "triomq.client.receiving.received",
    "SimpleConsumer": "triomq.client.sdk.simple_consumer",
    "Transaction": "triomq.client.transactions.transaction",
    "once": "triomq.client.idempotency.once",
    "run": "triomq.client.runner.running",
}


def __getattr__(name: str) -> Any:
    return _shared.load(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted(__all__)
