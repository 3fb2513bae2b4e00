"""Numbers in a topic: how tests send them, collect them with a consumer, and count what it did."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import trio

from triomq import (
    ClientSettings,
    ConsumerSettings,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
)
from triomq.testing import InProcessCluster

QUICK = ConsumerSettings(
    retry_delay=0.05,
    error_delay=0.05,
    rebalance_retry=0.05,
    client=ClientSettings(route_interval=0.2, heartbeat_interval=0.5),
)


async def send_numbers(
    cluster: InProcessCluster,
    numbers: Iterable[int],
    topic: str = "Numbers",
    *,
    tag: str | None = None,
) -> None:
    async with Producer(cluster.namesrv_address, group="numbers") as producer:
        for number in numbers:
            await producer.send(topic, b"%d" % number, tag=tag)


@asynccontextmanager
async def collecting(
    cluster: InProcessCluster, into: list[int], **more: object
) -> AsyncIterator[PushConsumer]:
    """Yield a consumer whose handler notes the numbers."""

    async def handle(message: ReceivedMessage) -> None:
        await trio.lowlevel.checkpoint()
        into.append(int(message.body))

    arguments: dict[str, object] = {
        "group": "collectors", "subscriptions": "Numbers", "consume_from": "first",
        "handler": handle, "settings": QUICK, **more,
    }  # fmt: skip
    async with PushConsumer(cluster.namesrv_address, **arguments) as consumer:  # type: ignore[arg-type]
        await consumer.wait_assigned()
        yield consumer


async def group_offset(cluster: InProcessCluster, group: str, topic: str = "Numbers") -> int:
    """Return the sum of the group's stored offsets."""
    async with PullConsumer(cluster.namesrv_address, group=group) as reader:
        return sum([await reader.committed(queue) or 0 for queue in await reader.queues(topic)])
