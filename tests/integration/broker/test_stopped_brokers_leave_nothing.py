"""What is left in memory of a broker that ended in this process: nothing, or a test run with many
clusters would grow with each of them.
"""

from __future__ import annotations

import gc

import pytest
import trio

from triomq import ClientSettings, ConsumerSettings, Producer, PushConsumer, ReceivedMessage
from triomq.broker.services.held_pulls import HeldPulls
from triomq.testing import local_cluster


def brokers_in_memory() -> int:
    gc.collect()
    return sum(type(candidate) is HeldPulls for candidate in gc.get_objects())


@pytest.mark.parametrize("crash", [False, True])
async def test_brokers_that_ended_are_collected(crash: bool) -> None:
    before = brokers_in_memory()
    arrived = trio.Event()

    async def handle(message: ReceivedMessage) -> None:
        arrived.set()

    async with local_cluster() as cluster:
        await cluster.create_topic("T", queues=2)
        settings = ConsumerSettings(client=ClientSettings(heartbeat_interval=0.5))
        async with (
            PushConsumer(
                cluster.namesrv_address,
                group="g",
                subscriptions="T",
                consume_from="first",
                handler=handle,
                settings=settings,
            ) as consumer,
            Producer(cluster.namesrv_address, group="p") as producer,
        ):
            await consumer.wait_assigned()  # its pulls are held now, or soon
            with trio.fail_after(30):
                while not arrived.is_set():  # one of them is woken, and leaves its deadline behind
                    await producer.send("T", b"x")
                    await trio.sleep(0.05)
        await (cluster.crash_broker if crash else cluster.stop_broker)("broker-a")
        with trio.fail_after(30):
            while brokers_in_memory() > before:
                await trio.sleep(0.05)
