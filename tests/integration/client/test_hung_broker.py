"""Beside a broker that hangs, a consumer works on with the other one: real sockets, scripted
servers, and time limits that are longer than a test may take.
"""

from __future__ import annotations

import pytest
import trio
from scripted_cluster import (
    ScriptedCluster,
    ScriptedServer,
    never,
    pulled,
    record,
    scripted_cluster,
)
from serving import until

from triomq import (
    ClientSettings,
    ConsumerSettings,
    Producer,
    PushConsumer,
    ReceivedMessage,
    TrioMQError,
)
from triomq.client.core.errors import RequestTimeout
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.server.requests import Request, Response

LONG = 600.0
SETTINGS = ConsumerSettings(
    offset_interval=0.05,
    offset_timeout=LONG,
    rebalance_retry=0.05,
    lock_retry=0.05,
    client=ClientSettings(heartbeat_interval=0.05),
)


async def handle(message: ReceivedMessage) -> None:
    await trio.lowlevel.checkpoint()


def consumer(cluster: ScriptedCluster, *, ordered: bool = False) -> PushConsumer:
    return PushConsumer(
        cluster.namesrv.address,
        group="g",
        subscriptions="T",
        consume_from="first",
        ordered=ordered,
        handler=handle,
        settings=SETTINGS,
    )


def feed(server: ScriptedServer, ends: int = 1) -> None:
    """Have a queue of that many messages."""

    async def play(request: Request) -> Response:
        await trio.sleep(0.01)
        offset: int = request.header.queue_offset
        return pulled(0, offset + 1, record(offset)) if offset < ends else pulled(19, offset)

    server.script[RequestCode.PULL_MESSAGE] = play


def stored(server: ScriptedServer) -> list[int]:
    headers = server.headers(RequestCode.UPDATE_CONSUMER_OFFSET)
    return [header.commit_offset for header in headers]  # type: ignore[attr-defined]


async def test_its_offsets_do_not_delay_those_of_the_other() -> None:
    async with scripted_cluster(brokers=2) as cluster:
        hung, well = cluster.brokers
        hung.script[RequestCode.UPDATE_CONSUMER_OFFSET] = never
        feed(hung)
        feed(well, 0)
        async with consumer(cluster):
            await until(lambda: bool(stored(hung)))
            for ends in (1, 2, 3):
                feed(well, ends)
                await until(lambda ends=ends: stored(well)[-1:] == [ends])
            assert len(stored(hung)) <= 2  # the first offset, and one request of the rounds


@pytest.mark.parametrize("ordered", [False, True])
async def test_the_queues_of_the_other_are_consumed(ordered: bool) -> None:
    """From the start of the consumer on, which waits for a heartbeat once."""
    async with scripted_cluster(brokers=2) as cluster:
        hung, well = cluster.brokers
        hung.script.update(dict.fromkeys(hung.script, lambda request: None))
        feed(well)
        async with consumer(cluster, ordered=ordered) as member:
            await until(lambda: stored(well)[-1:] == [1])
            assert {queue.broker_name for queue in member.assignment} == {well.name}
            hung.script.update(well.script)
            await until(lambda: stored(hung)[-1:] == [1])


async def test_tasks_that_wait_for_a_heartbeat_share_its_failure() -> None:
    async with scripted_cluster() as cluster:
        broker = cluster.broker
        broker.script[RequestCode.HEART_BEAT] = never
        async with Producer(cluster.namesrv.address, group="p") as producer:
            heartbeats = producer._running().session.heartbeats
            before = broker.count(RequestCode.HEART_BEAT)
            failures: list[TrioMQError] = []

            async def ensure() -> None:
                with pytest.raises(RequestTimeout) as caught:
                    await heartbeats.ensure(broker.address)
                failures.append(caught.value)

            async with trio.open_nursery() as nursery:
                for _ in range(8):
                    nursery.start_soon(ensure)
            assert broker.count(RequestCode.HEART_BEAT) == before + 1
            assert failures == failures[:1] * 8
