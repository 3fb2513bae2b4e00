"""Verdicts, batches and shared groups of our SDK on an unmodified Java broker 5.5.0, next to the
official consumer.
"""

from __future__ import annotations

import pytest
import trio
from processes import java_peer
from serving import until

from triomq import Message, Producer, PullConsumer, PushConsumer, ReceivedMessage
from triomq.client.admin.admin import Admin

pytestmark = [pytest.mark.compat, pytest.mark.timeout(240)]


@pytest.mark.loss
@pytest.mark.compatible("retry", "dead letter", peer="java-server-5.5.0")
@pytest.mark.feature("124b", 126)
async def test_failed_messages_come_again_and_dead_ones_are_laid_aside(java_cluster: str) -> None:
    async with Admin(java_cluster) as admin:
        await admin.create_topic(
            "Settlements", cluster="TestCluster", read_queues=2, write_queues=2
        )
    deliveries: list[tuple[bytes, int, str]] = []

    async def handle(message: ReceivedMessage) -> None:
        deliveries.append((message.body, message.reconsume_times, message.topic))
        if message.body == b"again" and message.reconsume_times == 0:
            await message.retry(1)
        if message.body == b"dead":
            await message.dead_letter()

    async with PushConsumer(
        java_cluster,
        group="settlements",
        subscriptions="Settlements",
        consume_from="first",
        handler=handle,
    ):
        async with Producer(java_cluster, group="sdk-producer") as producer:
            receipt = await producer.send("Settlements", b"dead", keys=["d"])
            await producer.send("Settlements", b"again")
            await producer.send("Settlements", b"good")
        with trio.fail_after(60):
            while len(deliveries) < 4:
                await trio.sleep(0.05)
    assert sorted(deliveries) == [
        (b"again", 0, "Settlements"),
        (b"again", 1, "Settlements"),
        (b"dead", 0, "Settlements"),
        (b"good", 0, "Settlements"),
    ]
    async with PullConsumer(java_cluster, group="undertaker", consume_from="first") as reader:
        await reader.assign(await reader.queues("%DLQ%settlements"))
        with trio.fail_after(20):
            dead = (await reader.poll())[0]
    assert (dead.body, dead.message_id, dead.keys) == (b"dead", receipt.message_id, ("d",))


@pytest.mark.loss
@pytest.mark.compatible("batch", "send one-way", "lite seek", peer="java-server-5.5.0")
@pytest.mark.feature("161a")
async def test_batches_and_one_way_messages_through_java(java_cluster: str) -> None:
    async with Admin(java_cluster) as admin:
        await admin.create_topic("Batches", cluster="TestCluster", read_queues=1, write_queues=1)
    async with Producer(java_cluster, group="sdk-producer") as producer:
        receipts = await producer.send_batch(
            [Message(topic="Batches", body=b"%d" % number, tag="b") for number in range(50)]
        )
        await producer.send_oneway("Batches", b"50")
        await producer.send("Batches", b"51" * 4000)
    assert [receipt.queue_offset for receipt in receipts] == list(range(50))
    assert len({receipt.offset_message_id for receipt in receipts}) == 50
    async with PullConsumer(java_cluster, group="batch-reader", consume_from="first") as reader:
        queues = await reader.queues("Batches")
        await reader.assign(queues)
        messages: list[ReceivedMessage] = []
        with trio.fail_after(30):
            while len(messages) < 52:
                messages += await reader.poll(max_messages=100)
        await reader.seek(queues[0], 7)
        with trio.fail_after(30):
            assert (await reader.poll(max_messages=1))[0].body == b"7"
    assert [message.body for message in messages[:50]] == [b"%d" % number for number in range(50)]
    # The broker works on requests of one connection side by side, and the producer did not wait
    # for the one-way message.
    assert {message.body for message in messages[50:]} == {b"50", b"51" * 4000}
    assert [message.message_id for message in messages[:50]] == [
        receipt.message_id for receipt in receipts
    ]


@pytest.mark.loss
@pytest.mark.compatible("shares AVG", peer="java-server-5.5.0")
@pytest.mark.feature("88c")
async def test_a_java_consumer_and_ours_share_one_group(java_cluster: str) -> None:
    """Both must compute the same division, or messages are consumed twice or never."""
    async with Admin(java_cluster) as admin:
        await admin.create_topic("Shared", cluster="TestCluster", read_queues=8, write_queues=8)
    ours: list[bytes] = []
    theirs: list[list[str]] = []

    async def handle(message: ReceivedMessage) -> None:
        await trio.lowlevel.checkpoint()
        ours.append(message.body)

    async def run_java() -> None:
        theirs.extend(
            await trio.to_thread.run_sync(
                lambda: java_peer(
                    "5.5.0",
                    "consume",
                    java_cluster,
                    "Shared",
                    "shared",
                    "*",
                    "40",
                    "90",
                    seconds=120,
                )
            )
        )

    async with (
        trio.open_nursery() as nursery,
        PushConsumer(
            java_cluster,
            group="shared",
            subscriptions="Shared",
            consume_from="first",
            handler=handle,
        ) as us,
    ):
        await us.wait_assigned()
        assert sum(queue.topic == "Shared" for queue in us.assignment) == 8
        nursery.start_soon(run_java)
        with trio.fail_after(60):
            while sum(queue.topic == "Shared" for queue in us.assignment) != 4:
                await trio.sleep(0.05)
        await trio.sleep(2)  # the Java consumer's first pull is half a second after its rebalance
        async with Producer(java_cluster, group="sdk-producer") as producer:
            for number in range(80):
                await producer.send("Shared", b"%d" % number)
        await until(lambda: len(ours) >= 40)
    got = [line[7].encode() for line in theirs if line[0] == "GOT"]
    assert sorted([*ours, *got]) == sorted(b"%d" % number for number in range(80))
    assert len(ours) == len(got) == 40
