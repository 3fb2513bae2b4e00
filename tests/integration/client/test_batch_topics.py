"""The SDK and topics with batch consume queues.

Batches are sent as one record, and consumers take them apart.
"""

from __future__ import annotations

from itertools import pairwise

import trio

from triomq import (
    Message,
    MessageQueue,
    Producer,
    ProducerSettings,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
)
from triomq.testing import InProcessCluster

TOPIC = "Batches"
QUEUE = MessageQueue(TOPIC, "broker-a", 0)


async def test_every_message_of_a_batch_comes_with_its_own_offset(
    triomq_cluster: InProcessCluster,
) -> None:
    """A consumer that begins in the middle of a record gets the rest of it, and nothing before."""
    async with triomq_cluster.admin() as admin:
        await admin.create_topic(TOPIC, queues=1, attributes="+queue.type=BatchCQ")
    async with Producer(triomq_cluster.namesrv_address, group="P") as producer:
        await producer.send_batch(
            [
                Message(topic=TOPIC, body=b"%d" % number, tag="TagA", keys=(f"k{number}",))
                for number in range(5)
            ]
        )
        await producer.send(TOPIC, b"5")
        receipts = await producer.send_batch(
            [Message(topic=TOPIC, body=b"%d" % number) for number in range(6, 9)]
        )
        assert [receipt.queue_offset for receipt in receipts] == [6, 7, 8]
    for start in range(9):
        async with PullConsumer(
            triomq_cluster.namesrv_address, group=f"C{start}", consume_from="first"
        ) as consumer:
            await consumer.assign([QUEUE])
            await consumer.seek(QUEUE, start)
            found = []
            with trio.fail_after(10):
                while len(found) < 9 - start:
                    found += await consumer.poll(max_messages=20)
            assert [(message.queue_offset, message.body) for message in found] == [
                (number, b"%d" % number) for number in range(start, 9)
            ]
            if not start:
                assert [message.tag for message in found] == ["TagA"] * 5 + [None] * 4
                assert [message.keys for message in found[:2]] == [("k0",), ("k1",)]


async def test_one_message_of_a_batch_is_delivered_again(triomq_cluster: InProcessCluster) -> None:
    """The message that failed is sent back, not the record that it was in."""
    async with triomq_cluster.admin() as admin:
        await admin.create_topic(TOPIC, queues=1, attributes="+queue.type=BatchCQ")
    seen: list[tuple[bytes, int]] = []
    done = trio.Event()

    async def handle(message: ReceivedMessage) -> None:
        seen.append((message.body, message.reconsume_times))
        if message.body == b"1" and not message.reconsume_times:
            await message.retry(delay_level=1)
        elif message.reconsume_times:
            done.set()

    async with PushConsumer(
        triomq_cluster.namesrv_address,
        group="C",
        consume_from="first",
        subscriptions=TOPIC,
        handler=handle,
    ) as consumer:
        await consumer.wait_assigned()
        async with Producer(triomq_cluster.namesrv_address, group="P") as producer:
            await producer.send_batch(
                [Message(topic=TOPIC, body=b"%d" % number) for number in range(3)]
            )
        with trio.fail_after(20):
            await done.wait()
    assert sorted(seen) == [(b"0", 0), (b"1", 0), (b"1", 1), (b"2", 0)]


async def test_automatic_batches_are_filtered_by_their_tag(
    triomq_cluster: InProcessCluster,
) -> None:
    """All messages of such a batch have the same tag, so their record has it, too."""
    async with triomq_cluster.admin() as admin:
        await admin.create_topic(TOPIC, queues=1, attributes="+queue.type=BatchCQ")
    sent: list[bytes] = []
    async with Producer(
        triomq_cluster.namesrv_address, group="P", settings=ProducerSettings(auto_batch=True)
    ) as producer:
        async with trio.open_nursery() as nursery:
            for number in range(40):

                async def send(number: int = number) -> None:
                    await producer.send(TOPIC, b"%d" % number, tag="TagA" if number % 2 else "TagB")

                sent.append(b"%d" % number)
                nursery.start_soon(send)
    async with PullConsumer(
        triomq_cluster.namesrv_address,
        group="C",
        subscriptions={TOPIC: "TagA"},
        consume_from="first",
    ) as consumer:
        found: list[ReceivedMessage] = []
        with trio.fail_after(20):
            while len(found) < 20:
                found += await consumer.poll(max_messages=100)
    assert sorted((message.tag, message.body) for message in found) == sorted(
        ("TagA", body) for body in sent[1::2]
    )
    offsets = sorted(message.queue_offset for message in found)
    assert 1 in {second - first for first, second in pairwise(offsets)}, (
        "messages of one tag lie side by side, since they came as batches"
    )
