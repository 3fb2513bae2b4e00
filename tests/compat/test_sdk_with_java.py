"""Our SDK against an unmodified Java broker 5.5.0, and both kinds of client in one group of
work.
"""

from __future__ import annotations

import time

import pytest
import trio
from processes import java_peer

from triomq import Producer, PushConsumer
from triomq.client.admin.admin import Admin

pytestmark = [pytest.mark.compat, pytest.mark.timeout(240)]

COUNT = 60


async def consume_until(namesrv: str, topic: str, group: str, wanted: int) -> dict[str, bytes]:
    got: dict[str, bytes] = {}
    with trio.fail_after(60):
        async with PushConsumer(
            namesrv, group=group, subscriptions={topic: "*"}, consume_from="first"
        ) as consumer:
            async for message in consumer:
                got[message.message_id] = message.body
                await message.ack()
                if len(got) == wanted:
                    break
    return got


@pytest.mark.loss
@pytest.mark.compatible("send", "push", "group goes on", peer="java-server-5.5.0")
@pytest.mark.feature("65a", "80a")
async def test_sdk_sends_and_consumes_through_java(java_cluster: str) -> None:
    async with Admin(java_cluster) as admin:
        await admin.create_topic("SdkTopic", cluster="TestCluster", read_queues=4, write_queues=4)
    async with Producer(java_cluster, group="sdk-producer") as producer:
        receipts = [
            await producer.send(
                "SdkTopic", f"body-{number}".encode(), tag="TagA", keys=[f"key-{number}"]
            )
            for number in range(COUNT)
        ]
    assert {receipt.status.name for receipt in receipts} == {"STORED"}
    assert {receipt.queue.queue_id for receipt in receipts} == {0, 1, 2, 3}
    got = await consume_until(java_cluster, "SdkTopic", "sdk-group", COUNT)
    assert got == {
        receipt.message_id: f"body-{number}".encode() for number, receipt in enumerate(receipts)
    }
    # The committed offsets live on the Java broker: a second member of the group sees only what
    # came later.
    async with Producer(java_cluster, group="sdk-producer") as producer:
        later = await producer.send("SdkTopic", b"later")
    assert await consume_until(java_cluster, "SdkTopic", "sdk-group", 1) == {
        later.message_id: b"later"
    }


@pytest.mark.loss
@pytest.mark.compatible("send", peer="java-server-5.5.0")
async def test_java_reads_what_the_sdk_wrote(java_cluster: str) -> None:
    topic = f"Mixed{time.time_ns()}"  # a second try must not find the messages of the first
    async with Admin(java_cluster) as admin:
        await admin.create_topic(topic, cluster="TestCluster", read_queues=2, write_queues=2)
    async with Producer(java_cluster, group="sdk-producer") as producer:
        sent = {
            (
                await producer.send(
                    topic, f"from-python-{number}".encode(), tag="py", keys=[f"k{number}"]
                )
            ).message_id
            for number in range(10)
        }
    lines = await trio.to_thread.run_sync(
        lambda: java_peer(
            "5.5.0", "consume", java_cluster, topic, f"reader-{topic}", "py", "10", "60"
        )
    )
    got = [line for line in lines if line[0] == "GOT"]
    assert {line[1] for line in got} == sent
    assert {line[7] for line in got} == {f"from-python-{number}" for number in range(10)}
