"""Where a new group begins: ``consume_from`` on young, old and later queues."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
from scripted_cluster import ScriptedCluster, ScriptedServer, refuse, scripted_cluster
from serving import until

import triomq.aio
import triomq.sync
from triomq import (
    ConsumerSettings,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
)
from triomq.client.core.config import ClientSettings
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.headers.offset import (
    OffsetResponseHeader,
    QueryConsumerOffsetHeader,
    UpdateConsumerOffsetHeader,
)
from triomq.remoting.protocol.headers.pull import PullMessageHeader
from triomq.remoting.server.requests import Request, Response
from triomq.testing import InProcessCluster, local_cluster, server_in_thread

QUICK = ConsumerSettings(
    offset_interval=600,  # whatever is stored in time was stored at once
    rebalance_interval=0.2,
    client=ClientSettings(route_interval=0.1),
)


async def send_numbers(
    cluster: InProcessCluster, *numbers: int, queue: int | None = None, topic: str = "Numbers"
) -> None:
    async with Producer(cluster.namesrv_address, group="numbers") as producer:
        for number in numbers:
            await producer.send(Message(topic=topic, body=b"%d" % number), queue=queue)


@asynccontextmanager
async def collecting(
    cluster: InProcessCluster, into: list[int], **more: object
) -> AsyncIterator[PushConsumer]:
    async def handle(message: ReceivedMessage) -> None:
        await trio.lowlevel.checkpoint()
        into.append(int(message.body))

    arguments: dict[str, object] = {
        "group": "g",
        "subscriptions": "Numbers",
        "consume_from": "last",
        "handler": handle,
        "settings": QUICK,
        **more,
    }
    async with PushConsumer(cluster.namesrv_address, **arguments) as consumer:  # type: ignore[arg-type]
        yield consumer


@pytest.mark.feature("91b")
@pytest.mark.parametrize("word", ["last", "latest"])
async def test_the_last_of_a_young_queue_is_its_end_when_the_consumer_starts(
    triomq_cluster: InProcessCluster, word: str
) -> None:
    """A message sent inside the block comes, whether or not the consumer has its share yet."""
    await triomq_cluster.create_topic("Numbers", queues=4)
    await send_numbers(triomq_cluster, *range(8))
    seen: list[int] = []
    async with collecting(triomq_cluster, seen, consume_from=word) as consumer:
        await send_numbers(triomq_cluster, *range(8, 16))
        await consumer.wait_assigned()
        await send_numbers(triomq_cluster, *range(16, 20))
        await until(lambda: len(seen) >= 12)
    assert sorted(seen) == list(range(8, 20))


@pytest.mark.feature("91c")
async def test_an_instant_applies_to_a_young_queue_too(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("Numbers", queues=1)
    await send_numbers(triomq_cluster, 0, 1)
    await trio.sleep(0.02)
    between = datetime.datetime.now(datetime.UTC)
    await trio.sleep(0.02)
    await send_numbers(triomq_cluster, 2, 3)
    seen: list[int] = []
    async with collecting(triomq_cluster, seen, consume_from=between):
        await until(lambda: len(seen) >= 2)
    assert sorted(seen) == [2, 3]


async def test_a_group_that_got_nothing_yet_continues_where_it_began(
    triomq_cluster: InProcessCluster,
) -> None:
    """The beginning of every queue is stored at once, so the group is not new at its next start."""
    await triomq_cluster.create_topic("Numbers", queues=4)
    await send_numbers(triomq_cluster, *range(8))
    with trio.CancelScope() as crash:
        async with collecting(triomq_cluster, []):
            crash.cancel()
            await trio.sleep_forever()
    await send_numbers(triomq_cluster, *range(8, 16))
    seen: list[int] = []
    async with collecting(triomq_cluster, seen):
        await until(lambda: len(seen) >= 8)
    assert sorted(seen) == list(range(8, 16))


@pytest.mark.feature("91b")
async def test_members_that_start_together_begin_together(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("Numbers", queues=8)
    await send_numbers(triomq_cluster, *range(16))
    seen: list[int] = []
    running: list[PushConsumer] = []
    ready = trio.Event()
    async with trio.open_nursery() as nursery:

        async def member() -> None:
            async with collecting(triomq_cluster, seen) as consumer:
                await consumer.wait_assigned()
                running.append(consumer)
                await ready.wait()

        for _ in range(3):
            nursery.start_soon(member)
        await until(lambda: len(running) == 3)
        await send_numbers(triomq_cluster, *range(16, 32))
        await until(lambda: len(set(seen)) >= 16)
        ready.set()
    assert set(seen) == set(range(16, 32))


@pytest.mark.parametrize("away", [False, True], ids=["running", "away"])
async def test_queues_that_come_after_the_group_lose_nothing(
    triomq_cluster: InProcessCluster, away: bool
) -> None:
    """A topic gets more queues, and messages in them, before a member of the group knows of these
    queues.
    """
    await triomq_cluster.create_topic("Numbers", queues=1)
    await send_numbers(triomq_cluster, 0, 1)
    seen: list[int] = []

    async def grow() -> None:
        await triomq_cluster.create_topic("Numbers", queues=2)
        await send_numbers(triomq_cluster, 2, 3, queue=1)

    async with collecting(triomq_cluster, seen):
        if not away:
            await grow()
            await until(lambda: len(seen) >= 2)
    if away:
        await grow()
        async with collecting(triomq_cluster, seen):
            await until(lambda: len(seen) >= 2)
    assert sorted(seen) == [2, 3]


async def test_a_topic_that_comes_after_the_group_loses_nothing(
    triomq_cluster: InProcessCluster,
) -> None:
    seen: list[int] = []
    async with collecting(triomq_cluster, seen, subscriptions="Later"):
        await triomq_cluster.create_topic("Later", queues=1)
        await send_numbers(triomq_cluster, 0, 1, topic="Later")
        await until(lambda: len(seen) >= 2)
    assert sorted(seen) == [0, 1]


@pytest.mark.feature("91b")
async def test_a_topic_that_is_subscribed_later_begins_at_its_end(
    triomq_cluster: InProcessCluster,
) -> None:
    await triomq_cluster.create_topic("Numbers", queues=1)
    await triomq_cluster.create_topic("Other", queues=1)
    await send_numbers(triomq_cluster, 0, 1, topic="Other")
    seen: list[int] = []
    async with collecting(triomq_cluster, seen) as consumer:
        await consumer.subscribe("Other")
        await send_numbers(triomq_cluster, 2, topic="Other")
        await until(lambda: bool(seen))
    assert seen == [2]


@pytest.mark.feature("91b")
async def test_a_pull_consumer_that_subscribes_begins_at_the_end(
    triomq_cluster: InProcessCluster,
) -> None:
    await triomq_cluster.create_topic("Numbers", queues=1)
    await send_numbers(triomq_cluster, 0, 1)
    async with PullConsumer(triomq_cluster.namesrv_address, group="g", settings=QUICK) as consumer:
        await consumer.subscribe("Numbers")
        await send_numbers(triomq_cluster, 2)
        with trio.fail_after(10):
            assert [message.body for message in await consumer.poll()] == [b"2"]


async def test_a_group_with_an_offset_in_one_queue_is_not_new_to_the_others(
    triomq_cluster: InProcessCluster,
) -> None:
    """Only the broker's rule can tell which queues are newer than the group: in doubt messages are
    delivered.
    """
    await triomq_cluster.create_topic("Numbers", queues=3)
    async with PullConsumer(triomq_cluster.namesrv_address, group="g", auto_commit=False) as reader:
        one = MessageQueue("Numbers", "broker-a", 1)
        await reader.assign([one])
        await reader.commit({one: 0})
    await send_numbers(triomq_cluster, 0, queue=0)
    await send_numbers(triomq_cluster, 2, queue=2)
    seen: list[int] = []
    async with collecting(triomq_cluster, seen):
        await until(lambda: len(seen) >= 2)
    assert sorted(seen) == [0, 2]


@pytest.mark.parametrize("start", ["last", datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC)])
async def test_messages_in_the_retry_topic_are_newer_than_the_group(
    triomq_cluster: InProcessCluster, start: str | datetime.datetime
) -> None:
    """The retry topic is read from its beginning, wherever the group begins in its topics."""
    await triomq_cluster.create_topic("Numbers", queues=1)
    await triomq_cluster.create_topic("%RETRY%g", queues=1)
    await send_numbers(triomq_cluster, 1, topic="%RETRY%g")
    seen: list[int] = []
    async with collecting(triomq_cluster, seen, consume_from=start):
        await until(lambda: bool(seen))
    assert seen == [1]


async def test_a_broadcasting_member_reads_queues_that_came_later_from_their_beginning(
    triomq_cluster: InProcessCluster, tmp_path: Path
) -> None:
    await triomq_cluster.create_topic("Numbers", queues=1)
    await send_numbers(triomq_cluster, 0, 1)
    seen: list[int] = []
    settings = ConsumerSettings(
        offset_dir=str(tmp_path), rebalance_interval=0.2, client=ClientSettings(route_interval=0.1)
    )
    async with collecting(triomq_cluster, seen, broadcast=True, settings=settings):
        await triomq_cluster.create_topic("Numbers", queues=2)
        await send_numbers(triomq_cluster, 2, 3, queue=1)
        await send_numbers(triomq_cluster, 4, queue=0)
        await until(lambda: len(seen) >= 3)
        async with PullConsumer(
            triomq_cluster.namesrv_address, group="g", auto_commit=False
        ) as reader:
            assert [await reader.committed(queue) for queue in await reader.queues("Numbers")] == [
                None,
                None,
            ], "offsets are the member's own"
    assert sorted(seen) == [2, 3, 4]


@pytest.mark.feature("91b")
async def test_queues_that_are_assigned_begin_at_their_end_and_later_ones_at_their_beginning(
    triomq_cluster: InProcessCluster,
) -> None:
    await triomq_cluster.create_topic("Numbers", queues=1)
    await send_numbers(triomq_cluster, 0, 1)
    async with PullConsumer(
        triomq_cluster.namesrv_address, group="g", consume_from="latest", settings=QUICK
    ) as consumer:
        (queue,) = await consumer.queues("Numbers")
        await consumer.assign([queue])
        assert consumer.position(queue) == 2
        with trio.fail_after(10):
            while await consumer.committed(queue) != 2:
                await trio.sleep(0.01)
        await triomq_cluster.create_topic("Numbers", queues=2)
        await send_numbers(triomq_cluster, 2, queue=1)
        later = MessageQueue("Numbers", "broker-a", 1)
        await consumer.assign([queue, later])
        assert consumer.position(later) == 0


async def test_without_automatic_commits_no_beginning_is_stored(
    triomq_cluster: InProcessCluster,
) -> None:
    await triomq_cluster.create_topic("Numbers", queues=1)
    await send_numbers(triomq_cluster, 0, 1)
    queue = MessageQueue("Numbers", "broker-a", 0)
    async with PullConsumer(
        triomq_cluster.namesrv_address, group="g", subscriptions="Numbers", auto_commit=False
    ) as consumer:
        await consumer.wait_assigned()
        assert consumer.position(queue) == 2
        assert await consumer.committed(queue) is None
    async with PullConsumer(
        triomq_cluster.namesrv_address, group="h", subscriptions="Numbers"
    ) as consumer:
        assert await consumer.committed(queue) == 2


def no_offsets(cluster: ScriptedCluster) -> None:
    """Let the broker have seven messages, and no offset of any group."""
    cluster.broker.script[RequestCode.GET_MAX_OFFSET] = lambda request: Response(
        0, OffsetResponseHeader(7)
    )
    cluster.broker.script[RequestCode.QUERY_CONSUMER_OFFSET] = refuse(ResponseCode.QUERY_NOT_FOUND)


async def test_a_broker_that_cannot_say_where_a_queue_ends_leaves_the_beginning_open() -> None:
    """Nothing is stored for the group then, and the consumer starts all the same."""
    async with scripted_cluster() as cluster:
        no_offsets(cluster)
        cluster.broker.script[RequestCode.GET_MAX_OFFSET] = refuse(ResponseCode.SYSTEM_ERROR)
        async with PushConsumer(cluster.namesrv.address, group="g", subscriptions="T"):
            await until(lambda: cluster.broker.count(RequestCode.GET_MAX_OFFSET) > 1)
        assert cluster.broker.count(RequestCode.UPDATE_CONSUMER_OFFSET) == 0


@pytest.mark.parametrize("code", [RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.GET_MAX_OFFSET])
async def test_if_one_broker_cannot_be_asked_all_queues_are_left_to_the_brokers(
    code: RequestCode,
) -> None:
    """The group may have its offsets on that broker. The other one has a young queue, and answers 0
    unless it is asked exactly.
    """

    def young(request: Request) -> Response:
        header = request.header
        assert isinstance(header, QueryConsumerOffsetHeader)
        if header.set_zero_if_not_found is False:
            return Response(ResponseCode.QUERY_NOT_FOUND)
        return Response(0, OffsetResponseHeader(0))

    async with scripted_cluster(brokers=2) as cluster:
        no_offsets(cluster)
        first, second = cluster.brokers
        first.script[RequestCode.QUERY_CONSUMER_OFFSET] = young
        second.script[RequestCode.GET_MAX_OFFSET] = lambda request: Response(
            0, OffsetResponseHeader(7)
        )
        second.script[RequestCode.QUERY_CONSUMER_OFFSET] = young
        second.script[code] = refuse(ResponseCode.SYSTEM_ERROR)
        async with PushConsumer(
            cluster.namesrv.address, group="g", subscriptions="T", settings=QUICK
        ):
            await until(lambda: first.count(RequestCode.PULL_MESSAGE) >= 1)
        pull = first.headers(RequestCode.PULL_MESSAGE)[0]
        assert isinstance(pull, PullMessageHeader)
        assert pull.queue_offset == 0


async def test_a_member_that_begins_late_does_not_move_the_beginning_of_another() -> None:
    """The ends are asked for before it is certain that the group is new: messages for another
    member, which begins meanwhile, are behind them.
    """
    async with scripted_cluster(brokers=2) as cluster:
        ends = {broker.name: 3 for broker in cluster.brokers}

        def unknown(broker: ScriptedServer, request: Request) -> Response:
            ends[broker.name] += 1
            return Response(ResponseCode.QUERY_NOT_FOUND)

        for broker in cluster.brokers:
            broker.script[RequestCode.GET_MAX_OFFSET] = lambda request, name=broker.name: Response(
                0, OffsetResponseHeader(ends[name])
            )  # type: ignore[misc]
            broker.script[RequestCode.QUERY_CONSUMER_OFFSET] = partial(unknown, broker)
        async with PushConsumer(
            cluster.namesrv.address, group="g", subscriptions="T", settings=QUICK
        ):
            await until(
                lambda: all(broker.count(RequestCode.PULL_MESSAGE) for broker in cluster.brokers)
            )
        begun = [
            header.commit_offset
            for header in cluster.brokers[1].headers(RequestCode.UPDATE_CONSUMER_OFFSET)
            if isinstance(header, UpdateConsumerOffsetHeader)
        ]
        assert set(begun) == {3}


async def test_a_beginning_that_is_not_stored_is_stored_by_the_queue_s_owner() -> None:
    async with scripted_cluster() as cluster:
        no_offsets(cluster)
        stores = [refuse(ResponseCode.SYSTEM_ERROR), lambda request: Response()]
        cluster.broker.script[RequestCode.UPDATE_CONSUMER_OFFSET] = lambda request: (
            stores.pop(0) if len(stores) > 1 else stores[0]
        )(request)
        async with PushConsumer(
            cluster.namesrv.address, group="g", subscriptions="T", settings=QUICK
        ):
            await until(lambda: cluster.broker.count(RequestCode.UPDATE_CONSUMER_OFFSET) == 2)
        stored = [
            header.commit_offset
            for header in cluster.broker.headers(RequestCode.UPDATE_CONSUMER_OFFSET)
            if isinstance(header, UpdateConsumerOffsetHeader)
        ]
        assert stored == [7, 7]


@pytest.mark.feature("91b")
def test_last_means_the_end_for_sync_and_aio_consumers() -> None:
    async def under_asyncio(where: str) -> list[bytes]:
        async with (
            triomq.aio.PullConsumer(
                where, group="a", subscriptions="Numbers", consume_from="latest"
            ) as consumer,
            triomq.aio.Producer(where, group="p") as producer,
        ):
            await producer.send("Numbers", b"aio")
            async with asyncio.timeout(10):
                return [message.body for message in await consumer.poll()]

    with server_in_thread() as cluster:
        where = cluster.namesrv_address
        with triomq.sync.Producer(where, group="p") as producer:
            producer.send("Numbers", b"old")
            with triomq.sync.PullConsumer(
                where, group="s", subscriptions="Numbers", consume_from="last"
            ) as consumer:
                producer.send("Numbers", b"sync")
                assert [message.body for message in consumer.poll(timeout=10)] == [b"sync"]
            assert asyncio.run(under_asyncio(where)) == [b"aio"]


async def test_a_group_that_begins_while_a_broker_is_away_loses_nothing_there() -> None:
    """Its queues cannot be asked for; they are left to the brokers' rule."""
    async with local_cluster(brokers=2) as cluster:
        await cluster.create_topic("Numbers", queues=1)
        await cluster.stop_broker("broker-b")
        seen: list[int] = []
        async with collecting(cluster, seen):
            await cluster.start_broker("broker-b")
            await send_numbers(cluster, *range(6))
            await until(lambda: len(seen) >= 6)
        assert sorted(seen) == list(range(6))
