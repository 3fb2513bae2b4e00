"""An operator moves a group whose members have prefetched: they handle nothing of it any more."""

from __future__ import annotations

import pytest
import trio
from serving import until

from triomq import (
    ClientSettings,
    ConsumerSettings,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
)
from triomq.client.admin.admin import Admin
from triomq.client.receiving.fetcher import Fetcher
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.headers.offset import ResetOffsetHeader
from triomq.testing import InProcessCluster

COUNT = 40
QUICK = ConsumerSettings(
    cached_messages_max=COUNT, offset_interval=0.1, client=ClientSettings(shutdown_timeout=0.1)
)


async def move(cluster: InProcessCluster, offset: int) -> None:
    async with Admin(cluster.namesrv_address) as admin:
        header = ResetOffsetHeader("g", "T", -1, force=True, queue_id=0, offset=offset)
        address = (await admin.brokers())[0].address
        await admin.ask(address, Code.INVOKE_BROKER_TO_RESET_OFFSET, header)


async def move_when_all_is_pulled(
    cluster: InProcessCluster, consumer: PushConsumer | PullConsumer, offset: int
) -> Fetcher:
    """Move the group, and wait until the member has dropped what it held."""
    assert consumer._membership is not None
    fetcher = consumer._membership.fetcher
    await until(lambda: fetcher.owned()[0].held.position == COUNT)
    held = fetcher.owned()[0]
    await move(cluster, offset)
    await until(lambda: held.lost)
    return fetcher


async def fill(cluster: InProcessCluster) -> None:
    await cluster.create_topic("T", queues=1)
    async with Producer(cluster.namesrv_address, group="p") as producer:
        for number in range(COUNT):
            await producer.send(Message(topic="T", body=b"%d" % number), sharding_key="k")


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("offset", [COUNT, 10, 0])
async def test_members_drop_what_they_hold(
    triomq_cluster: InProcessCluster, ordered: bool, offset: int
) -> None:
    """They handled 34 of 40 skipped messages, in order 31, and the offset went back: their cache
    was full, or their next pull began at the new offset anyway.
    """
    await fill(triomq_cluster)
    seen: list[int] = []
    go_on = trio.Event()

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.queue_offset)
        await go_on.wait()

    async with PushConsumer(
        triomq_cluster.namesrv_address,
        group="g",
        subscriptions="T",
        consume_from="first",
        handler=handle,
        ordered=ordered,
        concurrency=2,
        settings=QUICK,
    ) as consumer:
        begun = 1 if ordered else 2
        await until(lambda: len(seen) == begun)
        fetcher = await move_when_all_is_pulled(triomq_cluster, consumer, offset)
        go_on.set()
        expected = list(range(offset, COUNT))
        await until(lambda: len(seen) >= begun + len(expected))
        await trio.sleep(0.3)
        assert sorted(seen[begun:]) == expected
        queue = fetcher.owned()[0].queue
        await until(lambda: fetcher.owned()[0].stored == COUNT)
    async with PullConsumer(triomq_cluster.namesrv_address, group="g") as administrator:
        await administrator.assign([queue])
        assert await administrator.committed(queue) == COUNT


@pytest.mark.parametrize("offset", [COUNT, 10])
async def test_a_pull_consumer_drops_what_it_holds(
    triomq_cluster: InProcessCluster, offset: int
) -> None:
    await fill(triomq_cluster)
    async with PullConsumer(
        triomq_cluster.namesrv_address,
        group="g",
        subscriptions="T",
        consume_from="first",
        settings=QUICK,
    ) as consumer:
        first = await consumer.poll(max_messages=5)
        assert [message.queue_offset for message in first] == [0, 1, 2, 3, 4]
        await move_when_all_is_pulled(triomq_cluster, consumer, offset)
        rest: list[int] = []
        with trio.move_on_after(0.5):
            while True:
                rest += [message.queue_offset for message in await consumer.poll()]
        assert rest == list(range(offset, COUNT))
