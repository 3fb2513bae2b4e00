"""A member that stood still for so long that its broker gave its queues to others."""

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
from triomq.client.core import heartbeats
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.headers.offset import UpdateConsumerOffsetHeader
from triomq.testing import InProcessCluster

COUNT, OTHERS = 20, 12
PAUSE_SECONDS = 0.6


@pytest.mark.parametrize("ordered", [False, True])
async def test_it_goes_on_where_the_group_is_by_now(
    triomq_cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch, ordered: bool
) -> None:
    """It stored its old offset and handled again what others had handled."""
    monkeypatch.setattr(heartbeats, "FORGOTTEN_SECONDS", PAUSE_SECONDS)
    await triomq_cluster.create_topic("T", queues=1)
    address = triomq_cluster.namesrv_address
    async with Producer(address, group="p") as producer:
        for number in range(COUNT):
            await producer.send(Message(topic="T", body=b"%d" % number), sharding_key="k")
    seen: list[int] = []
    go_on = trio.Event()

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.queue_offset)
        if message.queue_offset == 5:
            await go_on.wait()

    settings = ConsumerSettings(
        offset_interval=0.05, client=ClientSettings(heartbeat_interval=60.0, shutdown_timeout=0.1)
    )
    async with PushConsumer(
        address,
        group="g",
        subscriptions="T",
        consume_from="first",
        handler=handle,
        ordered=ordered,
        concurrency=1,
        settings=settings,
    ) as consumer:
        await until(lambda: 5 in seen)
        assert consumer._membership is not None
        fetcher = consumer._membership.fetcher
        held = fetcher.owned()[0]
        await trio.sleep(PAUSE_SECONDS)
        async with Admin(address) as admin:
            await admin.ask(
                (await admin.brokers())[0].address,
                Code.UPDATE_CONSUMER_OFFSET,
                UpdateConsumerOffsetHeader("g", "T", 0, OTHERS),
            )
        running = triomq_cluster.broker("broker-a")._running
        assert running is not None
        running.ready.drop_connections()  # type: ignore[attr-defined]
        await until(lambda: held.lost)
        go_on.set()
        await until(lambda: COUNT - 1 in seen)
        assert seen == [*range(6), *range(OTHERS, COUNT)]
        queue = held.queue
        await until(lambda: fetcher.owned()[0].stored == COUNT)
    async with PullConsumer(address, group="g") as administrator:
        await administrator.assign([queue])
        assert await administrator.committed(queue) == COUNT
