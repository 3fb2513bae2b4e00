"""The push consumer against a real cluster: delivery, settlement, groups, rebalance, offsets."""

from __future__ import annotations

import logging

import pytest
import trio
from numbered_messages import QUICK, collecting, group_offset, send_numbers
from serving import until

from triomq import AlreadySettled, ConsumerSettings, NotRunning, PushConsumer, ReceivedMessage
from triomq.testing import InProcessCluster, Simulation, local_cluster, simulate


async def test_iteration_settles_each_message(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("Numbers", queues=2)
    await send_numbers(triomq_cluster, range(5), tag="t")
    seen = []
    async with PushConsumer(
        triomq_cluster.namesrv_address,
        group="readers",
        subscriptions={"Numbers": "t || u"},
        consume_from="first",
    ) as consumer:
        with trio.fail_after(10):
            async for message in consumer:
                async with message:
                    seen.append(int(message.body))
                assert message.settled
                assert not message.lost
                with pytest.raises(AlreadySettled, match=message.message_id):
                    await message.ack()
                if len(seen) == 5:
                    break
        assert consumer.statistics().unsettled == 0
        assert consumer.statistics().queues == len(consumer.assignment) >= 2
    assert sorted(seen) == list(range(5))
    with pytest.raises(NotRunning):
        _ = consumer.assignment


@pytest.mark.feature(82, "87a", "88c")
async def test_two_members_share_the_queues_and_the_messages(
    triomq_cluster: InProcessCluster,
) -> None:
    await triomq_cluster.create_topic("Numbers", queues=8)
    mine: list[int] = []
    yours: list[int] = []
    async with collecting(triomq_cluster, mine) as me, collecting(triomq_cluster, yours) as you:

        def owned(consumer: PushConsumer) -> list[int]:
            return [queue.queue_id for queue in consumer.assignment if queue.topic == "Numbers"]

        await until(lambda: len(owned(me)) == len(owned(you)) == 4)
        assert sorted(owned(me) + owned(you)) == list(range(8))
        assert owned(me) in ([0, 1, 2, 3], [4, 5, 6, 7])
        for number in range(100):
            await send_numbers(triomq_cluster, [number])
        await until(lambda: len(mine) + len(yours) >= 100)
    assert sorted(mine + yours) == list(range(100))
    assert 25 <= len(mine) <= 75


@pytest.mark.feature("87b")
async def test_when_a_member_leaves_the_others_take_its_queues_at_once(
    triomq_cluster: InProcessCluster,
) -> None:
    await triomq_cluster.create_topic("Numbers", queues=4)
    seen: list[int] = []
    async with collecting(triomq_cluster, seen) as survivor:
        async with collecting(triomq_cluster, seen):
            await until(lambda: sum(queue.topic == "Numbers" for queue in survivor.assignment) == 2)
        await until(lambda: sum(queue.topic == "Numbers" for queue in survivor.assignment) == 4)
        await send_numbers(triomq_cluster, range(40))
        await until(lambda: len(seen) >= 40)
    assert sorted(seen) == list(range(40))


@pytest.mark.feature("84a")
async def test_each_of_two_groups_gets_every_message(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("Numbers", queues=4)
    await send_numbers(triomq_cluster, range(60))
    mine: list[int] = []
    yours: list[int] = []
    async with (
        collecting(triomq_cluster, mine, group="one"),
        collecting(triomq_cluster, yours, group="two"),
    ):
        await until(lambda: len(mine) >= 60 and len(yours) >= 60)
    assert sorted(mine) == sorted(yours) == list(range(60))


@pytest.mark.feature("90a")
async def test_offsets_are_resumed_after_consumer_and_broker_restart(
    triomq_cluster: InProcessCluster,
) -> None:
    await triomq_cluster.create_topic("Numbers", queues=4)
    first: list[int] = []
    second: list[int] = []
    await send_numbers(triomq_cluster, range(50))
    async with collecting(triomq_cluster, first):
        await until(lambda: len(first) >= 50)
    assert await group_offset(triomq_cluster, "collectors") == 50
    await triomq_cluster.stop_broker("broker-a")
    await triomq_cluster.start_broker("broker-a")
    await send_numbers(triomq_cluster, range(50, 80))
    async with collecting(triomq_cluster, second):
        await until(lambda: len(second) >= 30)
    assert sorted(first) == list(range(50))
    assert sorted(second) == list(range(50, 80))


@pytest.mark.feature("89a", "89b")
async def test_messages_held_by_a_consumer_that_dies_come_again(
    triomq_cluster: InProcessCluster,
) -> None:
    await triomq_cluster.create_topic("Numbers", queues=1)
    await send_numbers(triomq_cluster, range(10))
    async with PushConsumer(
        triomq_cluster.namesrv_address,
        group="collectors",
        subscriptions="Numbers",
        consume_from="first",
    ) as consumer:
        with trio.fail_after(10):
            taken = [await anext(consumer) for _ in range(6)]
        for message in taken:
            if int(message.body) != 2:
                await message.ack()
    assert await taken[2].ack() is False
    assert taken[2].lost
    assert await group_offset(triomq_cluster, "collectors") == 2
    again: list[int] = []
    async with collecting(triomq_cluster, again):
        await until(lambda: len(again) >= 8)
    assert sorted(again) == list(range(2, 10))


@pytest.mark.feature("124a", "124b")
async def test_a_message_sent_back_comes_again_through_the_retry_topic(
    triomq_cluster: InProcessCluster,
) -> None:
    await triomq_cluster.create_topic("Numbers", queues=1)
    tries: list[tuple[int, str, str]] = []
    done: list[int] = []

    async def handle(message: ReceivedMessage) -> None:
        number = int(message.body)
        if number == 3:
            tries.append((message.reconsume_times, message.topic, message.message_id))
            if len(tries) == 1:
                assert await message.retry(1)
                return
        done.append(number)

    others: list[int] = []
    async with (
        collecting(triomq_cluster, others, group="others"),
        PushConsumer(
            triomq_cluster.namesrv_address,
            group="collectors",
            subscriptions="Numbers",
            consume_from="first",
            handler=handle,
            settings=QUICK,
        ) as consumer,
    ):
        await send_numbers(triomq_cluster, range(6))
        await until(lambda: len(done) >= 6)
        assert "%RETRY%collectors" in {queue.topic for queue in consumer.assignment}
        await send_numbers(triomq_cluster, [6])  # behind whatever else the topic has got
        await until(lambda: 6 in done and 6 in others)
    assert sorted(done) == list(range(7))
    assert sorted(others) == list(range(7))
    assert [(times, topic) for times, topic, _ in tries] == [(0, "Numbers"), (1, "Numbers")]
    assert tries[0][2] == tries[1][2]
    assert await group_offset(triomq_cluster, "collectors") == 7


@pytest.mark.feature("130b", "137a", "137b")
async def test_a_slow_application_stops_the_pulls_and_loses_nothing(
    triomq_cluster: InProcessCluster,
) -> None:
    await triomq_cluster.create_topic("Numbers", queues=1)
    await send_numbers(triomq_cluster, range(400))
    settings = ConsumerSettings(cached_messages_max=50, pull_batch=16)
    async with PushConsumer(
        triomq_cluster.namesrv_address,
        group="slow",
        subscriptions="Numbers",
        consume_from="first",
        settings=settings,
    ) as consumer:
        await until(lambda: consumer.statistics().unsettled > 50)
        await trio.sleep(0.2)
        assert consumer.statistics().unsettled <= 50 + 16
        seen = []
        with trio.fail_after(20):
            while len(seen) < 400:
                for message in await consumer.take(max_messages=10):
                    seen.append(int(message.body))
                    message.ack_nowait()
    assert seen == list(range(400))


@pytest.mark.feature("8c")
async def test_a_consumer_finds_topics_and_queues_that_come_later(
    triomq_cluster: InProcessCluster,
) -> None:
    seen: list[int] = []

    async def handle(message: ReceivedMessage) -> None:
        await trio.lowlevel.checkpoint()
        seen.append(int(message.body))

    async with PushConsumer(
        triomq_cluster.namesrv_address,
        group="early",
        subscriptions="Numbers",
        consume_from="first",
        handler=handle,
        settings=QUICK,
    ) as consumer:
        await triomq_cluster.create_topic("Numbers", queues=1)
        await send_numbers(triomq_cluster, [1])
        await until(lambda: seen == [1])
        await triomq_cluster.create_topic("Numbers", queues=3)
        await until(lambda: sum(queue.topic == "Numbers" for queue in consumer.assignment) == 3)


async def test_a_consumer_survives_the_restart_of_its_broker(
    triomq_cluster: InProcessCluster,
) -> None:
    await triomq_cluster.create_topic("Numbers", queues=2)
    seen: list[int] = []
    async with collecting(triomq_cluster, seen):
        await send_numbers(triomq_cluster, range(20))
        await until(lambda: len(seen) >= 20)
        await triomq_cluster.stop_broker("broker-a")
        await triomq_cluster.start_broker("broker-a")
        await send_numbers(triomq_cluster, range(20, 40))
        await until(lambda: len(set(seen)) >= 40)
    assert set(seen) == set(range(40))


async def test_an_unsettled_message_goes_back_after_the_consume_timeout(
    triomq_cluster: InProcessCluster, caplog: pytest.LogCaptureFixture
) -> None:
    await triomq_cluster.create_topic("Numbers", queues=1)
    await send_numbers(triomq_cluster, range(3))
    settings = ConsumerSettings(consume_timeout=0.2)
    with caplog.at_level(logging.WARNING):
        async with PushConsumer(
            triomq_cluster.namesrv_address,
            group="forgetful",
            subscriptions="Numbers",
            consume_from="first",
            settings=settings,
        ) as consumer:
            with trio.fail_after(10):
                forgotten = await anext(consumer)
            await until(lambda: "was not settled for 0.2 s" in caplog.text)
            await until(lambda: consumer.statistics().unsettled == 2)
            assert await forgotten.ack() is False
    assert forgotten.message_id in caplog.text


@pytest.mark.feature("90a", "90b")
def test_a_group_continues_where_it_stopped_even_days_later() -> None:
    """Consumer and cluster are away for two days of virtual time."""

    async def days(simulation: Simulation) -> tuple[list[int], list[int]]:
        first: list[int] = []
        second: list[int] = []
        async with local_cluster() as cluster:
            await cluster.create_topic("Numbers", queues=2)
            await send_numbers(cluster, range(50))
            async with collecting(cluster, first):
                await until(lambda: len(first) >= 50)
            await cluster.stop_broker("broker-a")
            await cluster.stop_namesrv("namesrv-1")
            await trio.sleep(2 * 86_400)
            await cluster.start_namesrv("namesrv-1")
            await cluster.start_broker("broker-a")
            await send_numbers(cluster, range(50, 60))
            async with collecting(cluster, second):
                await until(lambda: len(second) >= 10)
        return first, second

    first, second = simulate(1, days)
    assert (sorted(first), sorted(second)) == (list(range(50)), list(range(50, 60)))
