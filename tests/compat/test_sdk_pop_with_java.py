"""POP of our SDK on an unmodified Java broker 5.5.0: push and simple consumers, and in one group
with Java's own consumer.
"""

from __future__ import annotations

from collections import Counter

import pytest
import trio
from java_consumers import java_consumer
from mqadmin_calls import mqadmin

from triomq import (
    ConsumerSettings,
    Producer,
    PushConsumer,
    ReceiptExpired,
    ReceivedMessage,
    SimpleConsumer,
)
from triomq.client.admin.admin import Admin

pytestmark = [pytest.mark.compat, pytest.mark.timeout(240)]


async def create(namesrv: str, topic: str, queues: int = 1) -> None:
    async with Admin(namesrv) as admin:
        await admin.create_topic(
            topic, cluster="TestCluster", read_queues=queues, write_queues=queues
        )


@pytest.mark.loss
async def test_push_consumers_share_a_queue_of_a_java_broker(java_cluster: str) -> None:
    await create(java_cluster, "PopPush")
    deliveries: list[tuple[bytes, int]] = []
    dead: list[bytes] = []
    members = Counter[int]()

    def handler_of(member: int):  # type: ignore[no-untyped-def]
        async def handle(message: ReceivedMessage) -> None:
            members[member] += 1
            deliveries.append((message.body, message.reconsume_times))
            await trio.sleep(0.01)
            if message.body == b"005" and message.reconsume_times < 2:
                await message.retry(1)
            if message.body == b"007":
                await message.dead_letter()
            if message.body == b"009":
                await trio.sleep(8)  # longer than the invisible time

        return handle

    async def bury(message: ReceivedMessage) -> None:
        dead.append(message.body)
        await trio.lowlevel.checkpoint()

    settings = ConsumerSettings(pop_invisible=5.0)
    options = {
        "group": "pop-push", "subscriptions": "PopPush", "consume_from": "first", "mode": "pop",
        "settings": settings, "concurrency": 2,
    }  # fmt: skip
    bodies = [b"%03d" % number for number in range(100)]
    async with (
        PushConsumer(java_cluster, handler=handler_of(0), **options),  # type: ignore[arg-type]
        PushConsumer(java_cluster, handler=handler_of(1), **options),  # type: ignore[arg-type]
        PushConsumer(java_cluster, handler=handler_of(2), **options) as third,  # type: ignore[arg-type]
        Producer(java_cluster, group="sdk-producer") as producer,
    ):
        for body in bodies:
            await producer.send("PopPush", body)
        with trio.fail_after(90):
            while len(deliveries) < 102:
                await trio.sleep(0.05)
        await trio.sleep(12)  # what was not acknowledged would be here again
        assert third.statistics().unsettled == 0
    expected = [(body, 0) for body in bodies] + [(b"005", 1), (b"005", 2)]
    assert sorted(deliveries) == sorted(expected)
    assert all(members[member] for member in range(3)), members
    async with PushConsumer(
        java_cluster, group="pop-undertakers", subscriptions="%DLQ%pop-push", handler=bury,
        consume_from="first", mode="pop",
    ):  # fmt: skip
        with trio.fail_after(60):
            while not dead:
                await trio.sleep(0.05)
    assert dead == [b"007"]


@pytest.mark.loss
async def test_a_simple_consumer_of_a_java_broker(java_cluster: str) -> None:
    await create(java_cluster, "PopSimple", queues=2)
    async with (
        SimpleConsumer(
            java_cluster, group="pop-simple", subscriptions="PopSimple", consume_from="first"
        ) as consumer,
        Producer(java_cluster, group="sdk-producer") as producer,
    ):
        assert await consumer.receive(timeout=1) == []
        for number in range(4):
            await producer.send("PopSimple", b"%d" % number)
        found = []
        with trio.fail_after(30):
            while len(found) < 4:
                found += await consumer.receive(invisible=8)
        acked, changed, returned, forgotten = found
        await acked.ack()
        await changed.change_invisible(60)
        await returned.change_invisible(0)
        (again,) = await consumer.receive(timeout=30)
        assert (again.body, again.reconsume_times) == (returned.body, 1)
        await again.ack()
        (last,) = await consumer.receive(timeout=40)
        assert (last.body, last.reconsume_times) == (forgotten.body, 1)
        with pytest.raises(ReceiptExpired):
            await forgotten.ack()
        await last.ack()
        assert await consumer.receive(timeout=8) == []
        await changed.ack()


@pytest.mark.loss
async def test_an_orderly_group_of_a_java_broker(java_cluster: str) -> None:
    await create(java_cluster, "PopOrderly")
    seen: list[bytes] = []
    members = Counter[int]()

    def handler_of(member: int):  # type: ignore[no-untyped-def]
        async def handle(message: ReceivedMessage) -> None:
            seen.append(message.body)
            members[member] += 1
            await trio.sleep(0.005)
            if message.body == b"010" and message.reconsume_times == 0:
                raise ZeroDivisionError

        return handle

    options = {
        "group": "pop-orderly", "subscriptions": "PopOrderly", "consume_from": "first",
        "mode": "pop", "ordered": True, "settings": ConsumerSettings(suspend_queue=0.1),
    }  # fmt: skip
    bodies = [b"%03d" % number for number in range(60)]
    async with (
        PushConsumer(java_cluster, handler=handler_of(0), **options),  # type: ignore[arg-type]
        PushConsumer(java_cluster, handler=handler_of(1), **options),  # type: ignore[arg-type]
        Producer(java_cluster, group="sdk-producer") as producer,
    ):
        for body in bodies:
            await producer.send("PopOrderly", body)
        with trio.fail_after(60):
            while len(seen) < 61:
                await trio.sleep(0.05)
        await trio.sleep(1)
    assert seen == sorted([*bodies, b"010"])


@pytest.mark.loss
async def test_one_group_of_ours_and_java_s_consumers(java_cluster: str) -> None:
    topic, group = "PopMixed", "pop-mixed"
    await create(java_cluster, topic)
    async with Admin(java_cluster) as admin:
        await admin.update_group(group, lambda config: config)
    options = "-c", "TestCluster", "-t", topic, "-g", group, "-m", "pop", "-n", java_cluster
    done = await mqadmin("setConsumeMode", *options)
    assert "consume mode[POP]" in done.out, done
    seen: list[str] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.body.decode())
        await trio.sleep(0.02)

    async with (
        java_consumer(
            "5.5.0", java_cluster, topic, group, define=["peer.pop=true"], work_ms=20
        ) as theirs,
        PushConsumer(
            java_cluster, group=group, subscriptions=topic, handler=handle, concurrency=1,
            mode="pop",
        ),
        Producer(java_cluster, group="sdk-producer") as producer,
    ):  # fmt: skip
        await trio.sleep(3)
        for number in range(200):
            await producer.send(topic, b"%d" % number)
            await trio.sleep(0.005)
        with trio.fail_after(60):
            while len(seen) + len(theirs.got) < 200:
                await trio.sleep(0.05)
        await trio.sleep(1)
        counts = Counter([*seen, *(got[3] for got in theirs.got)])
        assert counts == Counter({str(number): 1 for number in range(200)})
        assert seen
        assert theirs.got


async def test_members_of_a_java_broker_that_consume_differently_say_so(
    java_cluster: str, caplog: pytest.LogCaptureFixture
) -> None:
    await create(java_cluster, "Differing")

    def texts() -> str:
        return " ".join(one.message for one in caplog.records if "agreement" in one.name)

    async with (
        PushConsumer(java_cluster, group="differing", subscriptions={"Differing": "a"}) as pulls,
        PushConsumer(
            java_cluster, group="differing", subscriptions={"Differing": "b"}, mode="pop"
        ) as pops,
    ):
        with trio.fail_after(60):
            while not ("pops, and this one pulls" in texts() and "pulls, and this" in texts()):
                await trio.sleep(0.05)
        for text in ("subscribes to Differing with 'a'", "subscribes to Differing with 'b'"):
            assert text in texts()
        assert f"({pulls.client_id})" in texts()
        assert f"({pops.client_id})" in texts()
