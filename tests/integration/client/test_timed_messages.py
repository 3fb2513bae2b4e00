"""Messages with a time of delivery, sent, consumed and taken back with the SDK."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone

import pytest
import trio
from scripted_cluster import scripted_cluster
from threaded_cluster import cluster_in_a_thread

from triomq import (
    IllegalOperation,
    MessageInvalid,
    PermissionDenied,
    Producer,
    ProducerSettings,
    PullConsumer,
    TimersUnavailable,
    aio,
    sync,
)
from triomq.testing import local_cluster

RECALLS = {"recallMessageEnable": True}


def soon(seconds: float = 0.4) -> datetime:
    return datetime.now(timezone(timedelta(hours=9))) + timedelta(seconds=seconds)


async def received(namesrv: str, topic: str, seconds: float) -> list[bytes]:
    found = []
    async with PullConsumer(namesrv, group="reader", consume_from="first") as consumer:
        await consumer.assign(await consumer.queues(topic))
        with trio.move_on_after(seconds):
            while True:
                found += [message.body for message in await consumer.poll()]
    return found


@pytest.mark.feature("115", "177a", "177c")
async def test_messages_come_at_their_times_unless_they_are_taken_back() -> None:
    async with local_cluster(settings=RECALLS) as cluster:
        namesrv = cluster.namesrv_address
        async with Producer(
            namesrv, group="g", settings=ProducerSettings(auto_batch=True)
        ) as producer:
            third = await producer.send("T", b"third", deliver_at=soon(0.7), queue=0)
            back = await producer.send("T", b"back", delay=timedelta(seconds=0.5), queue=0)
            await producer.send("T", b"second", delay=0.3, queue=0)
            plain = await producer.send("T", b"first", delay=0, queue=0)
            await producer.send("T", b"past", deliver_at=soon(-1), queue=0)
            await producer.recall(back)
            assert third.recall_handle is not None
            with pytest.raises(MessageInvalid, match="has no recall handle"):
                await producer.recall(plain)
            assert await received(namesrv, "T", 1.5) == [b"first", b"past", b"second", b"third"]
            with pytest.raises(IllegalOperation, match="timestamp invalid"):
                await producer.recall(third)


@pytest.mark.feature("177c")
def test_the_other_interfaces_take_back_too() -> None:
    async def with_asyncio(namesrv: str) -> None:
        async with aio.Producer(namesrv, group="g") as producer:
            await producer.recall(await producer.send("T", b"recalled", delay=1, queue=0))

    with cluster_in_a_thread(settings=RECALLS) as namesrv:
        with sync.Producer(namesrv, group="g") as producer:
            producer.recall(producer.send("T", b"recalled", deliver_at=soon(1), queue=0))
            asyncio.run(with_asyncio(namesrv))
            producer.send("T", b"after both", delay=1.1, queue=0)
        with sync.PullConsumer(namesrv, group="reader", consume_from="first") as consumer:
            consumer.assign(consumer.queues("T"))
            assert [message.body for message in consumer.poll(timeout=30)] == [b"after both"]


async def test_brokers_without_timers_give_a_typed_error() -> None:
    async with local_cluster(settings={"timerWheelEnable": False}) as cluster:
        settings = ProducerSettings(retries=0)
        async with Producer(cluster.namesrv_address, group="g", settings=settings) as producer:
            with pytest.raises(Exception) as refused:
                await producer.send("T", b"x", delay=1)
            assert isinstance(refused.value.__cause__ or refused.value, TimersUnavailable)
    async with local_cluster() as cluster, Producer(cluster.namesrv_address, group="g") as producer:
        receipt = await producer.send("T", b"x", delay=60)
        with pytest.raises(PermissionDenied, match="recallMessageEnable=false"):
            await producer.recall(receipt)


@pytest.mark.parametrize(
    "when",
    [
        {"delay": -1},
        {"delay": "1"},
        {"delay": True},
        {"delay": float("nan")},
        {"deliver_at": datetime(2030, 1, 1)},
        {"deliver_at": 5},
        {"delay": 1, "deliver_at": soon()},
        {"delay": 1, "delay_level": 3},
    ],
    ids=" and ".join,
)
async def test_wrong_times_are_refused(when: dict[str, object]) -> None:
    async with scripted_cluster() as cluster:
        async with Producer(cluster.namesrv.address, group="g") as producer:
            with pytest.raises(MessageInvalid, match=r"delay|deliver_at"):
                await producer.send("T", b"x", **when)  # type: ignore[call-overload]
