"""How the clients of a fault test send, and their settings: short times, no retries of
their own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import trio
from fault_history import Outcome

from triomq import Producer, ProducerSettings
from triomq.client.core.config import ClientSettings, ConsumerSettings
from triomq.client.core.errors import BrokerError, NoNameServer, SendError, TrioMQError
from triomq.client.sending.receipt import SendReceipt, SendStatus

CLIENT = ClientSettings(
    request_timeout=2.0,
    route_timeout=2.0,
    route_interval=1.0,
    heartbeat_interval=2.0,
    shutdown_timeout=2.0,
)
CONSUMER = ConsumerSettings(
    suspend=2.0,
    pull_timeout=4.0,
    error_delay=0.3,
    rebalance_interval=2.0,
    offset_interval=0.5,
    offset_timeout=2.0,
    lock_interval=2.0,
    retry_delay=0.5,
    client=CLIENT,
)
PRODUCER = ProducerSettings(send_timeout=2.0, retries=0, client=CLIENT)
OUTCOMES = {
    SendStatus.STORED: Outcome.ACKNOWLEDGED,
    SendStatus.SLAVE_NOT_AVAILABLE: Outcome.STORED,
    SendStatus.FLUSH_SLAVE_TIMEOUT: Outcome.STORED,
    SendStatus.FLUSH_DISK_TIMEOUT: Outcome.DOUBTFUL,
}


@asynccontextmanager
async def producing(namesrv: str) -> AsyncIterator[Producer]:
    """A producer, as soon as the name server answers it."""
    async with AsyncExitStack() as stack:
        while True:
            try:
                producer = await stack.enter_async_context(
                    Producer(namesrv, group="faults", settings=PRODUCER)
                )
                break
            except NoNameServer:
                await trio.sleep(0.2)
        yield producer


async def send(
    producer: Producer, topic: str, body: bytes, **how: Any
) -> tuple[Outcome, SendReceipt | None]:
    """Send once, as ``Producer.send`` does; return what the sender knows then."""
    try:
        receipt = await producer.send(topic, body, **how)
        return OUTCOMES[receipt.status], receipt
    except SendError as error:
        return Outcome.DOUBTFUL if error.maybe_stored else Outcome.REFUSED if isinstance(
            error.__cause__, BrokerError
        ) else Outcome.UNSENT, None
    except BrokerError:
        return Outcome.REFUSED, None
    except TrioMQError:  # no route
        return Outcome.UNSENT, None
