"""Calls of the SDK while a server restarts: its port refuses connections for a moment.

The call's own time limit decides how long it waits.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
from serving import until
from virtual_time import in_virtual_time

import triomq.aio
import triomq.sync
from triomq import (
    ConsumerSettings,
    MessageQueue,
    NoBrokerRegistered,
    NoNameServer,
    Producer,
    ProducerSettings,
    PullConsumer,
)
from triomq.client.core.config import ClientSettings
from triomq.client.core.errors import ConnectionFailed
from triomq.client.core.message_hooks import SendContext
from triomq.testing import InProcessCluster, local_cluster

QUEUE = MessageQueue("Numbers", "broker-a", 0)
PATIENT = ConsumerSettings(offset_timeout=20, client=ClientSettings(route_timeout=20))
SENDING = ProducerSettings(send_timeout=20, client=ClientSettings(route_timeout=20))
AWAY = 0.3
"""seconds that a server is away: some rounds of waiting"""


@asynccontextmanager
async def numbers(**more: Any) -> AsyncIterator[InProcessCluster]:
    """Run a cluster with three messages in a topic of one queue."""
    async with local_cluster(**more) as cluster:
        await cluster.create_topic("Numbers", queues=1)
        async with Producer(cluster.namesrv_address, group="p") as producer:
            for number in range(3):
                await producer.send("Numbers", b"%d" % number, queue=QUEUE)
        yield cluster


@asynccontextmanager
async def reading(
    cluster: InProcessCluster, settings: ConsumerSettings = PATIENT
) -> AsyncIterator[PullConsumer]:
    where = cluster.namesrv_address
    async with PullConsumer(
        where, group="g", consume_from="first", auto_commit=False, settings=settings
    ) as consumer:
        await consumer.assign([QUEUE])
        await consumer.commit({QUEUE: 1})
        yield consumer


async def committed_anew(consumer: PullConsumer) -> int | None:
    await consumer.commit({QUEUE: 2})
    return await consumer.committed(QUEUE)


async def position_after_a_seek(consumer: PullConsumer) -> int:
    await consumer.seek(QUEUE, 2)
    return consumer.position(QUEUE)


LATE = datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC)
CALLS: dict[str, tuple[Callable[[PullConsumer], Awaitable[object]], object]] = {
    "committed": (lambda consumer: consumer.committed(QUEUE), 1),
    "min_offset": (lambda consumer: consumer.min_offset(QUEUE), 0),
    "max_offset": (lambda consumer: consumer.max_offset(QUEUE), 3),
    "offset_for_time": (lambda consumer: consumer.offset_for_time(QUEUE, LATE), 3),
    "seek": (position_after_a_seek, 2),
    "commit": (committed_anew, 2),
}


@in_virtual_time
async def test_questions_about_offsets_wait_for_a_broker_that_restarts() -> None:
    """They are asked at the same time; none fails, and each is answered when the broker is back."""
    found: dict[str, object] = {}
    async with numbers() as cluster, reading(cluster) as consumer:
        name = cluster.brokers[0].name

        async def ask(call: str) -> None:
            found[call] = await CALLS[call][0](consumer)

        await cluster.stop_broker(name)
        async with trio.open_nursery() as nursery:
            for call in CALLS.keys() - {"commit"}:
                nursery.start_soon(ask, call)
            await trio.sleep(AWAY)
            assert found == {}
            await cluster.start_broker(name)
        await cluster.stop_broker(name)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, "commit")
            await trio.sleep(AWAY)
            await cluster.start_broker(name)
    assert found == {call: wanted for call, (_, wanted) in CALLS.items()}


@in_virtual_time
async def test_a_broker_that_left_its_topic_s_route_is_waited_for() -> None:
    """The topic has another broker, so its route continues without this one, and a request has no
    address for a while.
    """
    found: list[int | None] = []
    async with (
        numbers(brokers=2) as cluster,
        PullConsumer(cluster.namesrv_address, group="g", settings=PATIENT) as consumer,
    ):
        async with reading(cluster):
            """Give the group an offset."""
        assert len(await consumer.queues("Numbers")) == 2
        await cluster.stop_broker("broker-a")
        assert len(await consumer.queues("Numbers")) == 1
        assert consumer._member().session.routes.any_address("broker-a") is None
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                found.append(await consumer.committed(QUEUE))

            nursery.start_soon(ask)
            await trio.sleep(AWAY)
            assert found == []
            await cluster.start_broker("broker-a")
    assert found == [1]


@pytest.mark.parametrize("call", CALLS)
@in_virtual_time
async def test_a_broker_that_stays_away_is_an_error_when_the_time_is_over(call: str) -> None:
    settings = ConsumerSettings(offset_timeout=1.5)
    async with numbers() as cluster, reading(cluster, settings) as consumer:
        await cluster.stop_broker(cluster.brokers[0].name)
        with trio.fail_after(10), pytest.raises(ConnectionFailed, match=cluster.brokers[0].address):
            await CALLS[call][0](consumer)


@in_virtual_time
async def test_a_queue_is_assigned_when_its_broker_is_back() -> None:
    assigned: list[int] = []
    async with (
        numbers() as cluster,
        PullConsumer(
            cluster.namesrv_address, group="g", consume_from="latest", settings=PATIENT
        ) as consumer,
    ):
        assert await consumer.queues("Numbers") == (QUEUE,)
        await cluster.stop_broker("broker-a")
        async with trio.open_nursery() as nursery:

            async def assign() -> None:
                await consumer.assign([QUEUE])
                assigned.append(consumer.position(QUEUE))

            nursery.start_soon(assign)
            await trio.sleep(AWAY)
            assert assigned == []
            await cluster.start_broker("broker-a")
    assert assigned == [3]


@in_virtual_time
async def test_the_background_does_not_wait_for_a_broker_that_is_away() -> None:
    """The rebalancer asks about the queues of one broker after the other: a long wait for one would
    hold up the others.
    """
    settings = ConsumerSettings(offset_timeout=600)
    failed = trio.Event()
    async with numbers() as cluster, reading(cluster, settings) as consumer:
        await cluster.stop_broker("broker-a")

        async def ask() -> None:
            with pytest.raises(ConnectionFailed):
                await consumer._member().offsets.max_offset(QUEUE)
            failed.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await until(failed.is_set)


async def start_producer(where: str) -> object:
    async with Producer(where, group="p", settings=SENDING) as producer:
        return len(await producer.queues("Numbers"))


async def send_first(producer: Producer) -> object:
    return (await producer.send("Numbers", b"x")).queue_offset


async def watch(consumer: PullConsumer) -> object:
    async for queues in consumer.watch_queues("Numbers"):
        return len(queues)
    return None


@pytest.mark.feature(66)
async def test_look_ups_of_routes_wait_for_a_name_server_that_restarts() -> None:
    found: dict[str, object] = {}
    async with (
        numbers() as cluster,
        Producer(cluster.namesrv_address, group="p", settings=SENDING) as producer,
        PullConsumer(cluster.namesrv_address, group="g", settings=PATIENT) as consumer,
    ):
        where, name = cluster.namesrv_address, cluster.namesrvs[0].name

        async def note(call: str, ask: Callable[[], Awaitable[object]]) -> None:
            found[call] = await ask()

        await cluster.stop_namesrv(name)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(note, "start", partial(start_producer, where))
            nursery.start_soon(note, "send", partial(send_first, producer))
            nursery.start_soon(note, "queues", partial(consumer.queues, "Numbers"))
            nursery.start_soon(note, "watch", partial(watch, consumer))
            await trio.sleep(AWAY)
            assert found == {}
            # Knows nothing until the broker registers again, up to a second later.
            await cluster.start_namesrv(name)
    assert found == {"start": 1, "send": 3, "queues": (QUEUE,), "watch": 1}


@in_virtual_time
async def test_a_new_producer_waits_for_the_only_broker() -> None:
    """It left its routes when it stopped: name servers know no topic until it is back."""
    found: list[object] = []

    async def send(where: str) -> None:
        async with Producer(where, group="new", settings=SENDING) as producer:
            found.append(await send_first(producer))

    async def ask(where: str) -> None:
        async with PullConsumer(where, group="g", settings=PATIENT) as consumer:
            found.append(await consumer.queues("Numbers"))

    async with numbers() as cluster:
        name = cluster.brokers[0].name
        await cluster.stop_broker(name)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, cluster.namesrv_address)
            nursery.start_soon(ask, cluster.namesrv_address)
            await trio.sleep(AWAY)
            assert found == []
            await cluster.start_broker(name)
        assert sorted(found, key=str) == [(QUEUE,), 3]
        await cluster.stop_broker(name)
        settings = ProducerSettings(client=ClientSettings(route_timeout=0.3))
        async with Producer(cluster.namesrv_address, group="p", settings=settings) as producer:
            with pytest.raises(NoBrokerRegistered):
                await producer.queues("Numbers")


@in_virtual_time
async def test_a_name_server_that_stays_away_is_an_error_when_the_time_is_over() -> None:
    """The reasons stay visible: a send's own limit does not hide them behind a bare timeout."""
    settings = ProducerSettings(send_timeout=0.3, client=ClientSettings(route_timeout=20))
    async with local_cluster() as cluster:
        async with Producer(cluster.namesrv_address, group="p", settings=settings) as producer:
            await cluster.stop_namesrv(cluster.namesrvs[0].name)
            with trio.fail_after(10), pytest.raises(NoNameServer, match=cluster.namesrv_address):
                await producer.send("Numbers", b"x")


@in_virtual_time
async def test_a_send_looks_up_the_route_within_its_own_time_limit() -> None:
    """``send_timeout`` covers look-ups, also where it is longer than ``route_timeout``."""
    settings = ProducerSettings(send_timeout=20, client=ClientSettings(route_timeout=0.1))
    receipts: list[object] = []
    async with (
        numbers() as cluster,
        Producer(cluster.namesrv_address, group="p", settings=settings) as producer,
    ):
        await cluster.stop_namesrv(cluster.namesrvs[0].name)
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                receipts.append(await send_first(producer))

            nursery.start_soon(send)
            await trio.sleep(AWAY)
            assert receipts == []
            await cluster.start_namesrv(cluster.namesrvs[0].name)
    assert receipts == [3]


@in_virtual_time
async def test_a_one_way_message_is_sent_when_the_broker_is_back() -> None:
    patient = {"waitTimeMillsInSendQueue": 60_000}  # nobody would tell that it was refused as busy
    async with (
        numbers(settings=patient) as cluster,
        reading(cluster) as consumer,
        Producer(cluster.namesrv_address, group="p", settings=SENDING) as producer,
    ):
        await producer.send("Numbers", b"x")
        await cluster.stop_broker("broker-a")
        left = trio.Event()

        async def send() -> None:
            await producer.send_oneway("Numbers", b"y")
            left.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            await trio.sleep(AWAY)
            assert not left.is_set()
            await cluster.start_broker("broker-a")
        with trio.fail_after(60):
            while await consumer.max_offset(QUEUE) < 5:
                await trio.sleep(0.01)


@in_virtual_time
async def test_a_one_way_message_is_given_up_when_the_time_is_over() -> None:
    settings = ProducerSettings(send_timeout=0.3)
    async with (
        numbers() as cluster,
        Producer(cluster.namesrv_address, group="p", settings=settings) as producer,
    ):
        await producer.send("Numbers", b"x")
        await cluster.stop_broker("broker-a")
        with trio.fail_after(10), pytest.raises(ConnectionFailed):
            await producer.send_oneway("Numbers", b"y")


@in_virtual_time
async def test_a_send_without_time_limit_does_not_wait_for_ever() -> None:
    """Without a limit there is one try only, and the look-up has its own limit."""
    tries: list[SendContext] = []

    class Count:
        def before_send(self, context: SendContext) -> None:
            tries.append(context)

        def after_send(self, context: SendContext) -> None:
            """Nothing to do."""

    settings = ProducerSettings(
        send_timeout=None, send_hooks=[Count()], client=ClientSettings(route_timeout=0.1)
    )
    async with (
        numbers() as cluster,
        Producer(cluster.namesrv_address, group="p", settings=settings) as producer,
    ):
        await producer.send("Numbers", b"x")
        await cluster.stop_broker("broker-a")
        tries.clear()
        with trio.move_on_after(1), pytest.raises(ConnectionFailed):
            await producer.send_oneway("Numbers", b"y")
        assert len(tries) == 1
        await cluster.stop_namesrv(cluster.namesrvs[0].name)
        with trio.fail_after(10), pytest.raises(NoNameServer):
            await producer.send("Other", b"y")


def blocking_calls(where: str, begun: Callable[[], None]) -> list[object]:
    """Ask as an application without Trio does; ``begun`` is called when the first question
    is due.
    """
    with (
        triomq.sync.PullConsumer(
            where, group="s", consume_from="first", auto_commit=False, settings=PATIENT
        ) as consumer,
        triomq.sync.Producer(where, group="p", settings=SENDING) as producer,
    ):
        consumer.assign([QUEUE])
        producer.queues("Numbers")
        begun()
        assert producer.send("Numbers", b"x").queue_offset == 3
        consumer.commit({QUEUE: 2})
        consumer.seek(QUEUE, 1)
        return [consumer.committed(QUEUE), consumer.position(QUEUE), consumer.max_offset(QUEUE)]


def calls_under_asyncio(where: str, begun: Callable[[], None]) -> list[object]:
    async def main() -> list[object]:
        async with (
            triomq.aio.PullConsumer(
                where, group="a", consume_from="first", auto_commit=False, settings=PATIENT
            ) as consumer,
            triomq.aio.Producer(where, group="p", settings=SENDING) as producer,
        ):
            await consumer.assign([QUEUE])
            await producer.queues("Numbers")
            begun()
            assert (await producer.send("Numbers", b"x")).queue_offset == 3
            await consumer.commit({QUEUE: 2})
            await consumer.seek(QUEUE, 1)
            return [
                await consumer.committed(QUEUE),
                await consumer.position(QUEUE),
                await consumer.max_offset(QUEUE),
            ]

    return asyncio.run(main())


@pytest.mark.parametrize("calls", [blocking_calls, calls_under_asyncio])
async def test_calls_of_sync_and_aio_wait_as_well(
    calls: Callable[[str, Callable[[], None]], list[object]],
) -> None:
    async with numbers() as cluster:
        stopped = trio.Event()
        found: list[object] = []

        def begun() -> None:
            trio.from_thread.run(cluster.stop_broker, "broker-a")
            trio.from_thread.run_sync(stopped.set)

        async def run() -> None:
            found.extend(await trio.to_thread.run_sync(calls, cluster.namesrv_address, begun))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await stopped.wait()
            await trio.sleep(AWAY)
            assert found == []
            await cluster.start_broker("broker-a")
    assert found == [2, 1, 4]


def blocking_start(where: str) -> str:
    with triomq.sync.Producer(where, group="p", settings=SENDING) as producer:
        return producer.client_id


def start_under_asyncio(where: str) -> str:
    async def main() -> str:
        async with triomq.aio.PullConsumer(where, group="a", settings=PATIENT) as consumer:
            return consumer.client_id

    return asyncio.run(main())


@pytest.mark.parametrize("start", [blocking_start, start_under_asyncio])
async def test_starts_of_sync_and_aio_wait_for_a_name_server(start: Callable[[str], str]) -> None:
    started: list[str] = []
    async with local_cluster(brokers=0) as cluster:
        await cluster.stop_namesrv(cluster.namesrvs[0].name)

        async def run() -> None:
            started.append(await trio.to_thread.run_sync(start, cluster.namesrv_address))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await trio.sleep(AWAY)
            assert started == []
            await cluster.start_namesrv(cluster.namesrvs[0].name)
    assert len(started) == 1


async def test_a_cancelled_call_is_cancelled_and_does_not_wait() -> None:
    async with numbers() as cluster, reading(cluster) as consumer:
        await cluster.stop_broker("broker-a")
        for call, _ in CALLS.values():
            with trio.CancelScope() as scope:
                scope.cancel()
                await call(consumer)
            assert scope.cancelled_caught


@in_virtual_time
async def test_the_deadline_of_the_caller_s_scope_counts() -> None:
    """The reason is raised just before that deadline, instead of a bare cancellation."""
    settings = ConsumerSettings(client=ClientSettings(route_timeout=20))
    async with numbers() as cluster, reading(cluster, settings) as consumer:
        await cluster.stop_broker("broker-a")
        with trio.move_on_after(1.0) as scope, pytest.raises(ConnectionFailed):
            await consumer.max_offset(QUEUE)
        assert not scope.cancelled_caught
        await cluster.stop_namesrv(cluster.namesrvs[0].name)
        with trio.move_on_after(1.0) as scope, pytest.raises(NoNameServer):
            await consumer.queues("Numbers")
        assert not scope.cancelled_caught
