"""Requests of a broker to a running consumer, through a real broker.

They ask for its state and its offsets, set other offsets, and have it handle one message.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from brokers import BrokerPeer
from serving import until

from triomq import (
    ConsumerSettings,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
)
from triomq.remoting.client.connector import Connector
from triomq.remoting.protocol.bodies.offsets import ConsumerStatus
from triomq.remoting.protocol.bodies.running import ConsumeDirectlyResult, ConsumerRunning
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.client import (
    ConsumeDirectlyHeader,
    ConsumerRunningHeader,
    ConsumerStatusHeader,
)
from triomq.remoting.protocol.headers.offset import ResetOffsetHeader
from triomq.testing import InProcessCluster, local_cluster

QUEUE = MessageQueue("Numbers", "broker-a", 0)


@asynccontextmanager
async def asking(cluster: InProcessCluster) -> AsyncIterator[BrokerPeer]:
    async with Connector() as connector:
        yield BrokerPeer(connector, cluster.broker("broker-a").address)


async def send_numbers(cluster: InProcessCluster, count: int) -> list[str]:
    """Send to one queue; return the offset ids."""
    async with Producer(cluster.namesrv_address, group="numbers") as producer:
        return [
            (await producer.send("Numbers", b"%d" % number, tag="t")).offset_message_id or ""
            for number in range(count)
        ]


@pytest.mark.parametrize("ordered", [False, True])
async def test_the_running_state_of_a_consumer(
    triomq_cluster: InProcessCluster, ordered: bool
) -> None:
    await triomq_cluster.create_topic("Numbers", queues=1)
    await send_numbers(triomq_cluster, 5)
    async with (
        PushConsumer(
            triomq_cluster.namesrv_address,
            group="asked",
            subscriptions={"Numbers": "t"},
            consume_from="first",
            ordered=ordered,
        ) as consumer,
        asking(triomq_cluster) as peer,
    ):
        with trio.fail_after(10):
            await (await anext(consumer)).ack()
            await until(lambda: consumer.statistics().unsettled == 4)
        header = ConsumerRunningHeader("asked", consumer.client_id, True)
        answer = await peer.call(RequestCode.GET_CONSUMER_RUNNING_INFO, header)
    running = ConsumerRunning.decode(answer.body)
    state = running.queues[QUEUE]
    assert (
        state.cached_count,
        state.cached_min_offset,
        state.cached_max_offset,
        state.commit_offset,
    ) == (4, 1, 4, 1)
    assert state.locked is ordered
    assert not state.dropped
    assert 0 < state.last_pull_timestamp <= state.last_consume_timestamp + 60_000
    assert {entry.topic: entry.sub_string for entry in running.subscriptions} == {
        "Numbers": "t",
        "%RETRY%asked": "*",
    }
    assert running.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
    assert running.properties["PROP_CONSUMEORDERLY"] == str(ordered).lower()
    assert running.properties["PROP_NAMESERVER_ADDR"] == triomq_cluster.namesrv_address
    assert running.properties["pullBatchSize"] == "32"
    assert "pull Numbers broker-a 0" in (running.jstack or "")
    assert running.rates["Numbers"].pull_tps > 0


async def test_offsets_of_push_and_pull_consumers(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("Numbers", queues=1)
    await send_numbers(triomq_cluster, 6)

    async def handle(message: ReceivedMessage) -> None:
        await trio.lowlevel.checkpoint()

    async with (
        PushConsumer(
            triomq_cluster.namesrv_address,
            group="asked",
            subscriptions="Numbers",
            consume_from="first",
            handler=handle,
        ) as push,
        PullConsumer(
            triomq_cluster.namesrv_address,
            group="poller",
            subscriptions="Numbers",
            consume_from="first",
        ) as pull,
        asking(triomq_cluster) as peer,
    ):
        with trio.fail_after(10):
            taken = 0
            while taken < 2:  # at the first request a broker may know one of them only
                taken += len(await pull.poll(max_messages=2 - taken))
            await pull.poll(max_messages=1)
        await until(
            lambda: (
                push.statistics().unsettled == 0 and push.statistics().topics["Numbers"].done == 6
            )
        )
        for group, member, wanted in (("asked", push.client_id, 6), ("poller", None, 2)):
            header = ConsumerStatusHeader("Numbers", group)
            body = (await peer.call(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, header)).body
            ((client_id, offsets),) = ConsumerStatus.decode(body).consumer_table.items()
            assert member in (None, client_id)
            assert offsets == {QUEUE: wanted}


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_broker_moves_the_offsets_of_running_consumers(ordered: bool) -> None:
    """Older brokers do it so: they send the offsets to the members instead of answering the next
    pull.
    """
    async with local_cluster(settings={"useServerSideResetOffset": False}) as cluster:
        await cluster.create_topic("Numbers", queues=1)
        await send_numbers(cluster, 5)
        seen: list[int] = []

        async def handle(message: ReceivedMessage) -> None:
            await trio.lowlevel.checkpoint()
            seen.append(int(message.body))

        async with (
            PushConsumer(
                cluster.namesrv_address, group="asked", subscriptions="Numbers",
                consume_from="first", handler=handle,
                ordered=ordered, concurrency=1,
            ),
            asking(cluster) as peer,
        ):  # fmt: skip
            await until(lambda: len(seen) == 5)
            header = ResetOffsetHeader("asked", "Numbers", 0, force=True)
            answer = await peer.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
            assert answer.code == 0, answer.remark
            await until(lambda: len(seen) == 10)
    assert seen == [*range(5), *range(5)]


async def test_handling_one_message_on_demand(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("Numbers", queues=1)
    ids = await send_numbers(triomq_cluster, 4)
    handled: list[tuple[int, int]] = []

    async def handle(message: ReceivedMessage) -> None:
        await trio.lowlevel.checkpoint()
        handled.append((int(message.body), message.queue.queue_id))
        if message.body == b"1":
            raise ValueError("cannot")
        if message.body == b"2":
            await message.retry()
        if message.body == b"3":
            await message.ack()

    async def ask(peer: BrokerPeer, client_id: str, message_id: str) -> ConsumeDirectlyResult:
        header = ConsumeDirectlyHeader(
            consumer_group="asked", client_id=client_id, message_id=message_id
        )
        answer = await peer.call(RequestCode.CONSUME_MESSAGE_DIRECTLY, header)
        assert answer.code == 0, answer.remark
        return ConsumeDirectlyResult.decode(answer.body)

    settings = ConsumerSettings(max_reconsume_times=0)
    async with (
        PushConsumer(
            triomq_cluster.namesrv_address, group="asked", subscriptions="Numbers", handler=handle,
            consume_from="first",
            settings=settings,
        ) as consumer,
        asking(triomq_cluster) as peer,
    ):  # fmt: skip
        await until(lambda: len(handled) == 4 and consumer.statistics().unsettled == 0)
        handled.clear()
        results = [await ask(peer, consumer.client_id, message_id) for message_id in ids]
        assert [result.consume_result for result in results] == [
            "CR_SUCCESS", "CR_THROW_EXCEPTION", "CR_LATER", "CR_SUCCESS",
        ]  # fmt: skip
        assert "ValueError: cannot" in (results[1].remark or "")
        assert handled == [(number, 0) for number in range(4)]
        assert consumer.statistics().unsettled == 0
    async with (
        PushConsumer(
            triomq_cluster.namesrv_address, group="asked", subscriptions="Numbers"
        ) as iterating,
        asking(triomq_cluster) as peer,
    ):
        header = ConsumeDirectlyHeader(
            consumer_group="asked", client_id=iterating.client_id, message_id=ids[0]
        )
        refused = await peer.call(RequestCode.CONSUME_MESSAGE_DIRECTLY, header)
        assert (refused.code, "has no handler" in (refused.remark or "")) == (1, True)
