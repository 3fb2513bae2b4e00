"""A topic grows and shrinks under running clients: they follow, nothing is lost, and a new queue is
read from its first message on.
"""

from __future__ import annotations

import pytest
import trio

from triomq.client.core.config import ClientSettings, ConsumerSettings, ProducerSettings
from triomq.client.receiving.received import ReceivedMessage
from triomq.client.sdk.producer import Producer
from triomq.client.sdk.push_consumer import PushConsumer
from triomq.testing import local_cluster

QUICK = ClientSettings(route_interval=0.1)


@pytest.mark.feature("10a")
async def test_running_clients_follow_the_number_of_queues() -> None:
    got: list[bytes] = []
    sent: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        got.append(message.body)

    async with (
        local_cluster() as cluster,
        Producer(
            cluster.namesrv_address, group="p", settings=ProducerSettings(client=QUICK)
        ) as producer,
        cluster.admin() as admin,
        trio.open_nursery() as nursery,
    ):
        await cluster.create_topic("orders", queues=2)
        settings = ConsumerSettings(client=QUICK, rebalance_interval=0.1)

        async def send_to(expected: set[int]) -> None:
            """Send until exactly these queues were used by the last messages."""
            with trio.fail_after(10):
                used: list[int] = []
                while set(used[-len(expected) * 2 :]) != expected or len(used) < len(expected) * 2:
                    body = b"%d" % len(sent)
                    used.append((await producer.send("orders", body)).queue.queue_id)
                    sent.append(body)
                    await trio.sleep(0.005)

        async def all_consumed() -> None:
            with trio.fail_after(10):
                while set(got) != set(sent):
                    await trio.sleep(0.01)

        async def reads(expected: set[int]) -> None:
            with trio.fail_after(10):
                while {
                    queue.queue_id for queue in consumer.assignment if queue.topic == "orders"
                } != expected:
                    await trio.sleep(0.01)

        async with PushConsumer(
            cluster.namesrv_address, group="g", subscriptions="orders", settings=settings
        ) as consumer:
            nursery.start_soon(consumer.run, handle)
            await consumer.wait_assigned()
            await send_to({0, 1})
            await all_consumed()
            await admin.update_topic("orders", write_queues=4, read_queues=4)
            await send_to({0, 1, 2, 3})  # also before the consumer knows of the new queues
            await all_consumed()
            await reads({0, 1, 2, 3})
            await admin.update_topic("orders", write_queues=1)
            await send_to({0})
            await all_consumed()
            await reads({0, 1, 2, 3})
            await admin.update_topic("orders", read_queues=1)
            await reads({0})
            await send_to({0})
            await all_consumed()
            assert len(got) == len(sent), "and nothing came twice"
            nursery.cancel_scope.cancel()
