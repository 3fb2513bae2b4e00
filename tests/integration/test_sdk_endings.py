"""What happens at the edges of a consumer's life: callbacks that fail, waiting and iterating while it stops."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator

import pytest
import trio
from scripted_cluster import refuse, scripted_cluster
from serving import until
from threaded_cluster import cluster_in_a_thread

from triomq import (
    AssignmentChange,
    ClientSettings,
    ConsumerSettings,
    NotRunning,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SettingsError,
    aio,
    sync,
)
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.testing import InProcessCluster

QUICK = ConsumerSettings(
    retry_delay=0.05, error_delay=0.05, rebalance_retry=0.05, lock_retry=0.05, offset_interval=0.1,
    client=ClientSettings(route_interval=0.5, heartbeat_interval=0.5, shutdown_timeout=2.0),
)  # fmt: skip


@pytest.fixture
def namesrv() -> Iterator[str]:
    with cluster_in_a_thread() as address:
        yield address


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_failing_on_assignment_is_logged_and_the_consumer_goes_on(
    ordered: bool, triomq_cluster: InProcessCluster, caplog: pytest.LogCaptureFixture
) -> None:
    await triomq_cluster.create_topic("T", queues=2)
    seen: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        await trio.lowlevel.checkpoint()
        seen.append(message.body)

    def notice(change: AssignmentChange) -> None:
        raise LookupError("no such dashboard")

    async with (
        PushConsumer(
            triomq_cluster.namesrv_address, group="g", subscriptions="T", consume_from="first", ordered=ordered,
            handler=handle, on_assignment=notice, settings=QUICK,
        ) as consumer,
        Producer(triomq_cluster.namesrv_address, group="p") as producer,
    ):  # fmt: skip
        await consumer.wait_assigned()
        await producer.send("T", b"x")
        await until(lambda: seen == [b"x"])
    assert "on_assignment of group g failed" in caplog.text
    assert "no such dashboard" in caplog.text


async def test_waiting_for_a_share_outside_of_the_block_and_while_it_ends() -> None:
    async with scripted_cluster() as cluster:
        cluster.broker.script[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = refuse(ResponseCode.SYSTEM_ERROR)
        consumer = PushConsumer(cluster.namesrv.address, group="g", subscriptions="T", settings=QUICK)
        with pytest.raises(NotRunning, match="async with"):
            await consumer.wait_assigned()
        outcomes: list[str] = []

        async def wait() -> None:
            try:
                await consumer.wait_assigned()
            except NotRunning as error:
                outcomes.append(str(error))

        async with trio.open_nursery() as nursery:
            async with consumer:
                nursery.start_soon(wait)
                await until(lambda: cluster.broker.count(RequestCode.GET_CONSUMER_LIST_BY_GROUP) > 0)
        assert outcomes == ["this consumer is stopping, and had no share of the queues yet"]
        with pytest.raises(NotRunning):
            await consumer.wait_assigned()
        async with PullConsumer(cluster.namesrv.address, group="g", settings=QUICK) as puller:
            with pytest.raises(SettingsError, match="nothing is subscribed"):
                await puller.wait_assigned()


async def test_locks_of_queues_that_could_not_be_begun_are_given_up() -> None:
    async with scripted_cluster() as cluster:
        cluster.broker.script[RequestCode.QUERY_CONSUMER_OFFSET] = refuse(ResponseCode.SYSTEM_ERROR)
        async with PushConsumer(
            cluster.namesrv.address, group="g", subscriptions="T", ordered=True, settings=QUICK
        ) as consumer:
            await until(lambda: cluster.broker.count(RequestCode.UNLOCK_BATCH_MQ) > 0)
            assert consumer.assignment == ()


@pytest.mark.parametrize("kind", ["push", "pull"])
def test_a_blocking_iteration_ends_when_the_consumer_is_stopped(kind: str, namesrv: str) -> None:
    with sync.Producer(namesrv, group="p") as producer:
        producer.send("T", b"x")
    make = sync.PushConsumer if kind == "push" else sync.PullConsumer
    consumer = make(namesrv, group="g", subscriptions="T", consume_from="first", settings=QUICK)
    with pytest.raises(NotRunning):
        next(iter(consumer))  # before its start that is a mistake
    consumer.start()
    outcome: list[object] = []
    begun = threading.Event()

    def iterate() -> None:
        try:
            for message in consumer:
                outcome.append(message.body)
                begun.set()
            outcome.append("end")
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=iterate)
    thread.start()
    assert begun.wait(30)
    consumer.stop()
    thread.join(30)
    assert outcome == [b"x", "end"]
    assert list(consumer) == []


@pytest.mark.parametrize("kind", ["push", "pull"])
def test_an_asyncio_iteration_ends_when_the_consumer_is_stopped(kind: str, namesrv: str) -> None:
    async def main() -> list[object]:
        outcome: list[object] = []
        begun = asyncio.Event()
        async with aio.Producer(namesrv, group="p") as producer:
            await producer.send("T", b"x")
        make = aio.PushConsumer if kind == "push" else aio.PullConsumer
        consumer = make(namesrv, group="g", subscriptions="T", consume_from="first", settings=QUICK)

        async def iterate() -> None:
            async for message in consumer:
                outcome.append(message.body)
                begun.set()
            outcome.append("end")

        async with consumer:
            task = asyncio.create_task(iterate())
            await asyncio.wait_for(begun.wait(), 30)
        await asyncio.wait_for(task, 30)
        return outcome

    assert asyncio.run(main()) == [b"x", "end"]


async def test_a_handler_that_fails_after_its_ack_is_not_said_to_get_the_message_again(
    triomq_cluster: InProcessCluster, caplog: pytest.LogCaptureFixture
) -> None:
    done = trio.Event()

    async def handle(message: ReceivedMessage) -> None:
        if message.body == b"acked":
            await message.ack()
        done.set()
        raise LookupError("too late")

    await triomq_cluster.create_topic("T", queues=1)
    for body, words in ((b"acked", "its verdict stands"), (b"open", "the message comes again")):
        done = trio.Event()
        caplog.clear()
        with caplog.at_level(logging.ERROR):
            async with (
                PushConsumer(
                    triomq_cluster.namesrv_address, group=body.decode(), subscriptions="T", consume_from="first",
                    handler=handle, settings=QUICK,
                ),
                Producer(triomq_cluster.namesrv_address, group="p") as producer,
            ):  # fmt: skip
                await producer.send("T", body)
                await until(lambda words=words: words in caplog.text)  # type: ignore[misc]
