"""The pull consumer against a real cluster: positions, commits, seeking, pausing, sharing."""

from __future__ import annotations

import datetime

import pytest
import trio
from scripted_cluster import never, scripted_cluster
from serving import until

from triomq import (
    AlreadySettled,
    ConsumerSettings,
    Message,
    MessageQueue,
    NotRunning,
    OffsetOutOfRange,
    Producer,
    PullConsumer,
    QueueNotAssigned,
    RouteNotFound,
    SettingsError,
    Sql,
    TrioMQError,
)
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.server.requests import Request, Response
from triomq.testing import InProcessCluster, local_cluster

QUEUE = MessageQueue("Numbers", "broker-a", 0)


async def send_numbers(
    cluster: InProcessCluster, count: int, *, queues: int = 1, tag: str | None = None
) -> None:
    await cluster.create_topic("Numbers", queues=queues)
    async with Producer(cluster.namesrv_address, group="numbers") as producer:
        for number in range(count):
            await producer.send("Numbers", b"%d" % number, tag=tag)


async def take(consumer: PullConsumer, count: int) -> list[int]:
    """Poll until ``count`` messages are here; fail if there are more."""
    numbers: list[int] = []
    with trio.fail_after(10):
        while len(numbers) < count:
            numbers += [
                int(message.body)
                for message in await consumer.poll(max_messages=count - len(numbers))
            ]
    return numbers


@pytest.mark.feature("81a", "81b", 94, "176a", "176c", "176d")
async def test_read_any_number_from_any_offset(triomq_cluster: InProcessCluster) -> None:
    await send_numbers(triomq_cluster, 20)
    async with PullConsumer(
        triomq_cluster.namesrv_address, group="readers", consume_from="first"
    ) as consumer:
        assert await consumer.queues("Numbers") == (QUEUE,)
        await consumer.assign([QUEUE])
        assert consumer.assignment == (QUEUE,)
        assert await take(consumer, 3) == [0, 1, 2]
        assert consumer.position(QUEUE) == 3
        await consumer.seek(QUEUE, 12)
        assert consumer.position(QUEUE) == 12
        assert await take(consumer, 8) == list(range(12, 20))
        await consumer.seek_to_begin(QUEUE)
        assert await take(consumer, 1) == [0]
        await consumer.seek_to_end(QUEUE)
        with trio.move_on_after(0.2) as scope:
            await consumer.poll()
        assert scope.cancelled_caught
        assert (await consumer.min_offset(QUEUE), await consumer.max_offset(QUEUE)) == (0, 20)
        with pytest.raises(OffsetOutOfRange, match="0 to 20, not 21"):
            await consumer.seek(QUEUE, 21)


@pytest.mark.feature("81b", "176e")
async def test_commit_decides_where_the_next_one_begins(triomq_cluster: InProcessCluster) -> None:
    await send_numbers(triomq_cluster, 10)
    async with PullConsumer(
        triomq_cluster.namesrv_address, group="readers", consume_from="first", auto_commit=False
    ) as consumer:
        await consumer.assign([QUEUE])
        await take(consumer, 4)
        assert await consumer.committed(QUEUE) in (None, 0)
        await consumer.commit()
        assert await consumer.committed(QUEUE) == 4
        await take(consumer, 2)
    async with PullConsumer(
        triomq_cluster.namesrv_address, group="readers", auto_commit=False
    ) as consumer:
        await consumer.assign([QUEUE])
        assert await take(consumer, 1) == [4]
        await consumer.commit({QUEUE: 8})
        assert await consumer.committed(QUEUE) == 8


async def test_commit_stores_all_it_can_beside_a_broker_that_is_away() -> None:
    async with local_cluster(brokers=2) as cluster:
        await cluster.create_topic("Numbers", queues=1)
        away, here = MessageQueue("Numbers", "broker-a", 0), MessageQueue("Numbers", "broker-b", 0)
        async with PullConsumer(
            cluster.namesrv_address,
            group="readers",
            settings=ConsumerSettings(offset_timeout=0.2),
            auto_commit=False,
        ) as consumer:
            await consumer.assign([away, here])
            await cluster.stop_broker("broker-a")
            with pytest.raises(TrioMQError, match="broker-a"):
                await consumer.commit({away: 3, here: 2})
            assert await consumer.committed(here) == 2


@pytest.mark.feature("176e")
async def test_automatic_commit_stores_what_was_returned(triomq_cluster: InProcessCluster) -> None:
    await send_numbers(triomq_cluster, 10)
    async with PullConsumer(
        triomq_cluster.namesrv_address, group="readers", consume_from="first"
    ) as consumer:
        await consumer.assign([QUEUE])
        await take(consumer, 4)
    with pytest.raises(ZeroDivisionError):  # noqa: PT012  (the block is what is tested)
        async with PullConsumer(triomq_cluster.namesrv_address, group="readers") as consumer:
            await consumer.assign([QUEUE])
            assert await take(consumer, 2) == [4, 5]
            assert await take(consumer, 3) == [6, 7, 8]
            _ = 1 / 0  # the current batch is not done
    async with PullConsumer(triomq_cluster.namesrv_address, group="readers") as consumer:
        await consumer.assign([QUEUE])
        assert await take(consumer, 1) == [6]


async def test_iteration_counts_earlier_messages_as_done(triomq_cluster: InProcessCluster) -> None:
    await send_numbers(triomq_cluster, 5)
    seen = []
    async with PullConsumer(
        triomq_cluster.namesrv_address,
        group="readers",
        subscriptions="Numbers",
        consume_from="first",
    ) as consumer:
        with trio.fail_after(10):
            async for message in consumer:
                assert message.settled
                with pytest.raises(AlreadySettled, match="commit"):
                    await message.ack()
                seen.append(int(message.body))
                if len(seen) == 5:
                    break
        await consumer.commit()
        assert await consumer.committed(QUEUE) == 5
    assert seen == [0, 1, 2, 3, 4]


@pytest.mark.feature("176b", "176f")
async def test_members_share_queues_and_a_paused_queue_returns_nothing(
    triomq_cluster: InProcessCluster,
) -> None:
    await send_numbers(triomq_cluster, 40, queues=4)
    async with PullConsumer(
        triomq_cluster.namesrv_address,
        group="readers",
        subscriptions={"Numbers": "*"},
        consume_from="first",
    ) as consumer:
        with trio.fail_after(10):
            await consumer.wait_assigned()
            await until(lambda: len(consumer.assignment) == 4)
        consumer.pause(QUEUE)
        consumer.pause(QUEUE)
        messages = []
        with trio.fail_after(10):
            while len(messages) < 30:
                messages += await consumer.poll(max_messages=5)
        assert {message.queue.queue_id for message in messages} == {1, 2, 3}
        with trio.move_on_after(0.2) as scope:
            await consumer.poll()
        assert scope.cancelled_caught
        consumer.resume(QUEUE)
        await take(consumer, 10)
        assert consumer.position(QUEUE) == 10
        async with PullConsumer(
            triomq_cluster.namesrv_address,
            group="readers",
            subscriptions="Numbers",
            consume_from="first",
        ) as other:
            await until(lambda: len(consumer.assignment) == len(other.assignment) == 2)
            lost = (set(await consumer.queues("Numbers")) - set(consumer.assignment)).pop()
            with pytest.raises(QueueNotAssigned, match="assignment"):
                consumer.position(lost)


async def test_offset_by_time(triomq_cluster: InProcessCluster) -> None:
    await send_numbers(triomq_cluster, 5)
    await trio.sleep(0.02)
    between = datetime.datetime.now(datetime.UTC)
    await trio.sleep(0.02)
    await send_numbers(triomq_cluster, 5)
    async with PullConsumer(triomq_cluster.namesrv_address, group="readers") as consumer:
        await consumer.assign([QUEUE])
        assert await consumer.offset_for_time(QUEUE, between) == 5
        with pytest.raises(SettingsError, match="time zone"):
            await consumer.offset_for_time(QUEUE, datetime.datetime(2026, 1, 1))


async def test_tags_are_checked(triomq_cluster: InProcessCluster) -> None:
    await send_numbers(triomq_cluster, 3, tag="Aa")
    async with Producer(triomq_cluster.namesrv_address, group="numbers") as producer:
        await producer.send_batch(
            [Message(topic="Numbers", body=b"%d" % number, tag="BB") for number in (3, 4)]
        )
    async with PullConsumer(
        triomq_cluster.namesrv_address, group="readers", consume_from="first"
    ) as consumer:
        await consumer.assign([QUEUE], tags="BB")
        assert await take(consumer, 2) == [3, 4]


async def test_wrong_use_raises_clear_errors(triomq_cluster: InProcessCluster) -> None:
    await send_numbers(triomq_cluster, 1)
    consumer = PullConsumer(triomq_cluster.namesrv_address, group="readers")
    with pytest.raises(NotRunning, match="async with"):
        await consumer.poll()
    async with consumer:
        with pytest.raises(RouteNotFound):
            await consumer.assign([MessageQueue("Nowhere", "broker-a", 0)])
        with pytest.raises(RouteNotFound):
            await consumer.queues("Nowhere")
        await consumer.assign([QUEUE])
        with pytest.raises(SettingsError, match="exclude each other"):
            await consumer.subscribe("Numbers")
    async with PullConsumer(triomq_cluster.namesrv_address, group="readers") as sharing:
        await sharing.subscribe("Numbers")
        with pytest.raises(SettingsError, match="exclude each other"):
            await sharing.assign([QUEUE])
        with trio.fail_after(10):
            await sharing.wait_assigned()
        assert sharing.assignment == (QUEUE,)
    with pytest.raises(NotRunning):
        await consumer.poll()


async def test_the_beginning_can_be_committed(triomq_cluster: InProcessCluster) -> None:
    """Brokers answer 0 for a young queue, whether it is stored or not; later they would not."""
    await send_numbers(triomq_cluster, 3)
    async with PullConsumer(
        triomq_cluster.namesrv_address, group="readers", consume_from="first"
    ) as consumer:
        await consumer.assign([QUEUE])
        assert await take(consumer, 2) == [0, 1]
        await consumer.seek(QUEUE, 0)
        assert await consumer.committed(QUEUE) is None
        await consumer.commit()
        assert await consumer.committed(QUEUE) == 0


async def test_after_a_commit_with_unknown_outcome_the_next_one_is_sent() -> None:
    queue = MessageQueue("T", "broker-a", 0)
    code = RequestCode.UPDATE_CONSUMER_OFFSET
    async with scripted_cluster() as cluster:
        broker = cluster.broker
        async with PullConsumer(
            cluster.namesrv.address, group="readers", auto_commit=False
        ) as consumer:
            await consumer.assign([queue])
            await consumer.commit({queue: 1})
            await consumer.commit({queue: 1})
            assert broker.count(code) == 1, "it knows that"

            at_once, broker.script[code] = broker.script[code], never
            async with trio.open_nursery() as nursery:
                nursery.start_soon(consumer.commit, {queue: 2})
                await until(lambda: broker.count(code) == 2)
                nursery.cancel_scope.cancel()
            broker.script[code] = at_once
            await consumer.commit({queue: 1})
            assert broker.count(code) == 3

            answer = trio.Event()

            async def late(request: Request) -> Response:
                await answer.wait()
                return Response()

            broker.script[code] = (
                late  # the answer to the first must not hide that the second was given up
            )
            async with trio.open_nursery() as nursery:
                nursery.start_soon(consumer.commit, {queue: 3})
                await until(lambda: broker.count(code) == 4)
                async with trio.open_nursery() as given_up:
                    given_up.start_soon(consumer.commit, {queue: 2})
                    await until(lambda: broker.count(code) == 5)
                    given_up.cancel_scope.cancel()
                answer.set()
            broker.script[code] = at_once
            await consumer.commit({queue: 3})
            assert broker.count(code) == 6
            await consumer.commit({queue: 3})
            assert broker.count(code) == 6
            offsets = [header.commit_offset for header in broker.headers(code)]  # type: ignore[attr-defined]
            assert offsets == [1, 2, 1, 3, 2, 3]


async def test_an_assignment_of_missing_queues_changes_nothing(
    triomq_cluster: InProcessCluster,
) -> None:
    """A queue that does not exist has no messages, and a poll of it would wait for ever."""
    await send_numbers(triomq_cluster, 3)
    async with PullConsumer(
        triomq_cluster.namesrv_address, group="readers", consume_from="first"
    ) as consumer:
        await consumer.assign([QUEUE])
        for wrong, complaint in (
            (
                MessageQueue("Numbers", "broker-a", 1),
                (
                    r"^topic 'Numbers' has a route, but broker broker-a has no queue 1 that may be"
                    r" read: take queues from `await consumer.queues\('Numbers'\)`; there are 1"
                    r" now, on broker-a"
                ),
            ),
            (MessageQueue("Numbers", "broker-z", 0), "broker-z has no queue 0"),
            (MessageQueue("Nothing", "broker-a", 0), "no broker offers topic 'Nothing'"),
        ):
            with pytest.raises(RouteNotFound, match=complaint):
                await consumer.assign([QUEUE, wrong])
            assert consumer.assignment == (QUEUE,)
        with pytest.raises(SettingsError, match="does not filter by properties"):
            await consumer.assign([QUEUE], tags=Sql("a = 1"))
        assert await take(consumer, 3) == [0, 1, 2]


@pytest.mark.parametrize("method", ["committed", "min_offset", "max_offset", "offset_for_time"])
async def test_offsets_can_be_asked_for_before_any_topic_is_known(
    triomq_cluster: InProcessCluster, method: str
) -> None:
    """A consumer that has neither subscribed nor asked for queues finds the route itself."""
    await send_numbers(triomq_cluster, 3)
    namesrv = triomq_cluster.namesrv_address
    async with PullConsumer(namesrv, group="readers", consume_from="first") as first:
        await first.assign([QUEUE])
        assert await take(first, 2) == [0, 1]
        await first.commit()
    now = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
    arguments = (now,) if method == "offset_for_time" else ()
    wanted = {"committed": 2, "min_offset": 0, "max_offset": 3, "offset_for_time": 3}[method]
    async with PullConsumer(namesrv, group="readers") as consumer:
        assert await getattr(consumer, method)(QUEUE, *arguments) == wanted
    async with PullConsumer(namesrv, group="strangers") as consumer:
        assert await consumer.committed(QUEUE) is None
    # A name that no route ever had is not waited for.
    settings = ConsumerSettings(offset_timeout=600)
    async with PullConsumer(namesrv, group="readers", settings=settings) as consumer:
        with pytest.raises(
            RouteNotFound, match=r"no broker offers topic 'Nothing': check the spelling"
        ):
            await getattr(consumer, method)(MessageQueue("Nothing", "broker-a", 0), *arguments)
        with pytest.raises(
            RouteNotFound,
            match=(
                r"^topic 'Numbers' has a route, but broker broker-z is in no route: the topic is on"
                r" broker-a now"
            ),
        ):
            await getattr(consumer, method)(MessageQueue("Numbers", "broker-z", 0), *arguments)
