"""The push consumer against a real cluster: delivery, verdicts, groups, rebalance, offsets, long polling, stop."""

from __future__ import annotations

import datetime
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
from serving import until

from triomq import (
    AlreadySettled,
    ConsumerSettings,
    Message,
    MessageQueue,
    NoNameServer,
    NotRunning,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
)
from triomq.client.config import ClientSettings
from triomq.testing import InProcessCluster, local_cluster

QUICK = ConsumerSettings(
    retry_delay=0.05,
    error_delay=0.05,
    rebalance_retry=0.05,
    client=ClientSettings(route_interval=0.5, heartbeat_interval=0.5),
)


async def send_numbers(
    cluster: InProcessCluster, topic: str, numbers: Sequence[int], *, tag: str | None = None
) -> None:
    async with Producer(cluster.namesrv_address, group="numbers") as producer:
        for start in range(0, len(numbers), 50):
            part = numbers[start : start + 50]
            await producer.send_batch([Message(topic=topic, body=b"%d" % number, tag=tag) for number in part])


@asynccontextmanager
async def collecting(
    cluster: InProcessCluster,
    into: list[int],
    *,
    group: str = "collectors",
    topic: str = "Numbers",
    concurrency: int = 4,
) -> AsyncIterator[PushConsumer]:
    """A consumer whose handler notes the numbers."""

    async def handle(message: ReceivedMessage) -> None:
        await trio.lowlevel.checkpoint()
        into.append(int(message.body))

    async with PushConsumer(
        cluster.namesrv_address,
        group=group,
        subscriptions=topic,
        consume_from="first",
        handler=handle,
        concurrency=concurrency,
        settings=QUICK,
    ) as consumer:
        await consumer.wait_assigned()
        yield consumer


async def group_offset(cluster: InProcessCluster, group: str, topic: str) -> int:
    """The sum of the group's stored offsets."""
    async with PullConsumer(cluster.namesrv_address, group=group) as reader:
        return sum([await reader.committed(queue) or 0 for queue in await reader.queues(topic)])


@pytest.mark.feature(1, "80a")
async def test_a_handler_gets_every_message(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("Numbers", queues=4)
    seen: list[int] = []
    async with collecting(triomq_cluster, seen):
        await send_numbers(triomq_cluster, "Numbers", range(300))
        await until(lambda: len(seen) >= 300)
    assert sorted(seen) == list(range(300))


@pytest.mark.feature("80a")
async def test_iteration_with_verdicts(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("Numbers", queues=2)
    await send_numbers(triomq_cluster, "Numbers", range(5), tag="t")
    seen = []
    async with PushConsumer(
        triomq_cluster.namesrv_address, group="readers", subscriptions={"Numbers": "t || u"}, consume_from="first"
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


@pytest.mark.feature(117)
async def test_only_the_subscribed_tags_arrive(triomq_cluster: InProcessCluster) -> None:
    """`Aa` and `BB` have the same hash: the broker lets both through, the client does not."""
    await triomq_cluster.create_topic("Numbers", queues=1)
    for number, tag in enumerate(["Aa", "BB", "C", None, "Aa"]):
        await send_numbers(triomq_cluster, "Numbers", [number], tag=tag)
    seen = []
    async with PushConsumer(
        triomq_cluster.namesrv_address, group="readers", subscriptions={"Numbers": "Aa"}, consume_from="first"
    ) as consumer:
        with trio.fail_after(10):
            while len(seen) < 2:
                message = await anext(consumer)
                seen.append((message.tag, int(message.body)))
                await message.ack()
    assert seen == [("Aa", 0), ("Aa", 4)]
    assert await group_offset(triomq_cluster, "readers", "Numbers") == 5


@pytest.mark.feature(82, 87, 88)
async def test_two_members_share_the_queues_and_the_messages(triomq_cluster: InProcessCluster) -> None:
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
            await send_numbers(triomq_cluster, "Numbers", [number])
        await until(lambda: len(mine) + len(yours) >= 100)
    assert sorted(mine + yours) == list(range(100))
    assert 25 <= len(mine) <= 75


@pytest.mark.feature(87, 89)
async def test_when_a_member_leaves_the_others_take_its_queues_at_once(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("Numbers", queues=4)
    seen: list[int] = []
    async with collecting(triomq_cluster, seen) as survivor:
        async with collecting(triomq_cluster, seen):
            await until(lambda: sum(queue.topic == "Numbers" for queue in survivor.assignment) == 2)
        await until(lambda: sum(queue.topic == "Numbers" for queue in survivor.assignment) == 4)
        await send_numbers(triomq_cluster, "Numbers", range(40))
        await until(lambda: len(seen) >= 40)
    assert sorted(seen) == list(range(40))


@pytest.mark.feature(84)
async def test_two_groups_get_everything_each(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("Numbers", queues=4)
    await send_numbers(triomq_cluster, "Numbers", range(60))
    mine: list[int] = []
    yours: list[int] = []
    async with collecting(triomq_cluster, mine, group="one"), collecting(triomq_cluster, yours, group="two"):
        await until(lambda: len(mine) >= 60 and len(yours) >= 60)
    assert sorted(mine) == sorted(yours) == list(range(60))


@pytest.mark.feature(86)
async def test_a_held_pull_is_answered_when_a_message_arrives(triomq_cluster: InProcessCluster) -> None:
    """Four long polls are parked at the broker for 15 s each; the message comes long before."""
    await triomq_cluster.create_topic("Numbers", queues=4)
    seen: list[int] = []
    async with collecting(triomq_cluster, seen) as consumer:
        assert sum(queue.topic == "Numbers" for queue in consumer.assignment) == 4
        await trio.sleep(0.2)
        with trio.fail_after(5):
            await send_numbers(triomq_cluster, "Numbers", [7])
            await until(lambda: seen == [7])


@pytest.mark.feature(90)
async def test_offsets_are_resumed_after_consumer_and_broker_restart(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("Numbers", queues=4)
    first: list[int] = []
    second: list[int] = []
    await send_numbers(triomq_cluster, "Numbers", range(50))
    async with collecting(triomq_cluster, first):
        await until(lambda: len(first) >= 50)
    assert await group_offset(triomq_cluster, "collectors", "Numbers") == 50
    await triomq_cluster.stop_broker("broker-a")
    await triomq_cluster.start_broker("broker-a")
    await send_numbers(triomq_cluster, "Numbers", range(50, 80))
    async with collecting(triomq_cluster, second):
        await until(lambda: len(second) >= 30)
    assert sorted(first) == list(range(50))
    assert sorted(second) == list(range(50, 80))


@pytest.mark.feature(92)
async def test_what_a_dying_consumer_had_in_hand_comes_again(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("Numbers", queues=1)
    await send_numbers(triomq_cluster, "Numbers", range(10))
    async with PushConsumer(
        triomq_cluster.namesrv_address, group="collectors", subscriptions="Numbers", consume_from="first"
    ) as consumer:
        with trio.fail_after(10):
            taken = [await anext(consumer) for _ in range(6)]
        for message in taken:
            if int(message.body) != 2:
                await message.ack()
    assert await taken[2].ack() is False
    assert taken[2].lost
    assert await group_offset(triomq_cluster, "collectors", "Numbers") == 2
    again: list[int] = []
    async with collecting(triomq_cluster, again):
        await until(lambda: len(again) >= 8)
    assert sorted(again) == list(range(2, 10))


@pytest.mark.feature(92, 124)
async def test_a_message_sent_back_comes_again_through_the_retry_topic(triomq_cluster: InProcessCluster) -> None:
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

    async with PushConsumer(
        triomq_cluster.namesrv_address,
        group="collectors",
        subscriptions="Numbers",
        consume_from="first",
        handler=handle,
        settings=QUICK,
    ) as consumer:
        await send_numbers(triomq_cluster, "Numbers", range(6))
        await until(lambda: len(done) >= 6)
        assert "%RETRY%collectors" in {queue.topic for queue in consumer.assignment}
    assert sorted(done) == list(range(6))
    assert [(times, topic) for times, topic, _ in tries] == [(0, "Numbers"), (1, "Numbers")]
    assert tries[0][2] == tries[1][2]
    assert await group_offset(triomq_cluster, "collectors", "Numbers") == 6


async def test_start_points(triomq_cluster: InProcessCluster) -> None:
    """A young queue is read from its beginning whatever the group wants: so brokers answer, and an offset that is stored wins."""
    await triomq_cluster.create_topic("Numbers", queues=1)
    await send_numbers(triomq_cluster, "Numbers", range(3))
    seen: dict[str, int] = {}
    instant = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
    starts: dict[str, str | datetime.datetime] = {"first": "first", "last": "last", "late": instant}
    for name, start in starts.items():
        async with PushConsumer(
            triomq_cluster.namesrv_address, group=f"start-{name}", subscriptions="Numbers", consume_from=start
        ) as consumer:
            with trio.fail_after(10):
                message = await anext(consumer)
                seen[name] = message.queue_offset
    assert seen == {"first": 0, "last": 0, "late": 0}


@pytest.mark.feature(137)
async def test_a_slow_application_stops_the_pulls_and_loses_nothing(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("Numbers", queues=1)
    await send_numbers(triomq_cluster, "Numbers", range(400))
    settings = ConsumerSettings(cached_messages_max=50, pull_batch=16)
    async with PushConsumer(
        triomq_cluster.namesrv_address, group="slow", subscriptions="Numbers", consume_from="first", settings=settings
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


@pytest.mark.feature(8)
async def test_a_consumer_finds_topics_and_queues_that_come_later(triomq_cluster: InProcessCluster) -> None:
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
        await send_numbers(triomq_cluster, "Numbers", [1])
        await until(lambda: seen == [1])
        await triomq_cluster.create_topic("Numbers", queues=3)
        await until(lambda: sum(queue.topic == "Numbers" for queue in consumer.assignment) == 3)


@pytest.mark.feature(3, 8)
async def test_a_consumer_survives_the_restart_of_its_broker(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("Numbers", queues=2)
    seen: list[int] = []
    async with collecting(triomq_cluster, seen):
        await send_numbers(triomq_cluster, "Numbers", range(20))
        await until(lambda: len(seen) >= 20)
        await triomq_cluster.stop_broker("broker-a")
        await triomq_cluster.start_broker("broker-a")
        await send_numbers(triomq_cluster, "Numbers", range(20, 40))
        await until(lambda: len(set(seen)) >= 40)
    assert set(seen) == set(range(40))


async def test_starting_without_name_server_fails_early() -> None:
    async with local_cluster(brokers=0) as cluster:
        address = cluster.namesrv_address
        await cluster.stop_namesrv("namesrv-1")
        with pytest.raises(NoNameServer, match="mqnamesrv"):
            async with PushConsumer(address, group="g", subscriptions="Numbers"):
                raise AssertionError("must not start")


async def test_a_cancelled_consumer_stores_offsets_and_unregisters(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("Numbers", queues=1)
    await send_numbers(triomq_cluster, "Numbers", range(5))
    seen: list[int] = []
    with trio.fail_after(10), trio.CancelScope() as scope:
        async with collecting(triomq_cluster, seen):
            await until(lambda: len(seen) >= 5)
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert await group_offset(triomq_cluster, "collectors", "Numbers") == 5


async def test_running_handlers_may_finish_and_others_do_not_begin(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("Numbers", queues=1)
    await send_numbers(triomq_cluster, "Numbers", range(10))
    begun: list[int] = []
    done: list[int] = []
    go_on = trio.Event()

    async def handle(message: ReceivedMessage) -> None:
        begun.append(int(message.body))
        await go_on.wait()
        done.append(int(message.body))

    async with trio.open_nursery() as nursery:
        async with PushConsumer(
            triomq_cluster.namesrv_address,
            group="collectors",
            subscriptions="Numbers",
            consume_from="first",
            handler=handle,
            concurrency=3,
        ):
            await until(lambda: len(begun) == 3)

            async def release() -> None:
                await trio.sleep(0.1)
                go_on.set()

            nursery.start_soon(release)
    assert sorted(begun) == sorted(done) == [0, 1, 2]
    assert await group_offset(triomq_cluster, "collectors", "Numbers") == 3


async def test_a_handler_that_hangs_does_not_hold_up_the_end(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("Numbers", queues=1)
    await send_numbers(triomq_cluster, "Numbers", range(2))
    begun = trio.Event()

    async def handle(message: ReceivedMessage) -> None:
        begun.set()
        await trio.sleep_forever()

    settings = ConsumerSettings(client=ClientSettings(shutdown_timeout=0.1))
    with trio.fail_after(5):
        async with PushConsumer(
            triomq_cluster.namesrv_address,
            group="collectors",
            subscriptions="Numbers",
            consume_from="first",
            handler=handle,
            settings=settings,
        ):
            await begun.wait()
    assert await group_offset(triomq_cluster, "collectors", "Numbers") == 0


async def test_a_message_without_verdict_goes_back_after_the_consume_timeout(
    triomq_cluster: InProcessCluster, caplog: pytest.LogCaptureFixture
) -> None:
    await triomq_cluster.create_topic("Numbers", queues=1)
    await send_numbers(triomq_cluster, "Numbers", range(3))
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
            await until(lambda: "has had no verdict for 0.2 s" in caplog.text)
            await until(lambda: consumer.statistics().unsettled == 2)
            assert await forgotten.ack() is False
    assert forgotten.message_id in caplog.text


async def test_the_first_offset_of_a_young_queue_is_stored_at_once(triomq_cluster: InProcessCluster) -> None:
    """Though the broker says 0 to everyone, stored or not: when the queue is not young any more the group still begins where it began."""
    await triomq_cluster.create_topic("Numbers", queues=1)
    await send_numbers(triomq_cluster, "Numbers", range(3))
    queue = MessageQueue("Numbers", "broker-a", 0)
    async with PullConsumer(triomq_cluster.namesrv_address, group="young") as reader:
        assert await reader.committed(queue) is None
    settings = ConsumerSettings(offset_interval=600)
    async with PushConsumer(triomq_cluster.namesrv_address, group="young", subscriptions="Numbers", settings=settings) as consumer:
        await consumer.wait_assigned()
        assert consumer._membership is not None
        offsets = consumer._membership.offsets
        with trio.fail_after(30):
            while await offsets.stored(queue, exactly=True) < 0:  # noqa: ASYNC110 - asked over the wire
                await trio.sleep(0.01)
        assert await offsets.stored(queue, exactly=True) == 0
