"""Start and end of a consumer: failing callbacks, waiting and iterating while it stops.

Brokers that come back belong to it, too.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import suppress

import attrs
import pytest
import trio
import trio.testing
from scripted_cluster import refuse, scripted_cluster
from serving import until

from triomq import (
    AssignmentChange,
    ClientSettings,
    ConsumerSettings,
    MessageQueue,
    NotRunning,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SettingsError,
    aio,
    sync,
)
from triomq.client.core.errors import ConnectionFailed, ConnectionLost
from triomq.client.receiving.assignment import Assignment
from triomq.client.receiving.membership import Membership
from triomq.client.receiving.offsets import OffsetStore
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.server.requests import Request, Response
from triomq.testing import InProcessCluster

QUICK = ConsumerSettings(
    retry_delay=0.05, error_delay=0.05, rebalance_retry=0.05, lock_retry=0.05, offset_interval=0.1,
    client=ClientSettings(route_interval=0.5, heartbeat_interval=0.5, shutdown_timeout=2.0),
)  # fmt: skip


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_failing_on_assignment_is_logged_and_the_consumer_continues(
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
            triomq_cluster.namesrv_address, group="g", subscriptions="T", consume_from="first",
            ordered=ordered,
            handler=handle, on_assignment=notice, settings=QUICK,
        ) as consumer,
        Producer(triomq_cluster.namesrv_address, group="p") as producer,
    ):  # fmt: skip
        await consumer.wait_assigned()
        await producer.send("T", b"x")
        await until(lambda: seen == [b"x"])
    assert "on_assignment of group g failed" in caplog.text
    assert "no such dashboard" in caplog.text


@pytest.mark.parametrize("kind", [Producer, PullConsumer])
async def test_leaving_a_block_that_was_not_entered_is_an_error(
    kind: type[Producer | PullConsumer],
) -> None:
    with pytest.raises(NotRunning, match="was not started"):
        await kind("127.0.0.1:1", group="g").__aexit__(None, None, None)


async def test_waiting_for_a_share_outside_of_the_block_and_while_it_ends() -> None:
    async with scripted_cluster() as cluster:
        cluster.broker.script[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = refuse(
            ResponseCode.SYSTEM_ERROR
        )
        consumer = PushConsumer(
            cluster.namesrv.address, group="g", subscriptions="T", settings=QUICK
        )
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
                await until(
                    lambda: cluster.broker.count(RequestCode.GET_CONSUMER_LIST_BY_GROUP) > 0
                )
        assert outcomes == ["this consumer is stopping, and had no share of the queues yet"]
        with pytest.raises(NotRunning):
            await consumer.wait_assigned()
        async with PullConsumer(cluster.namesrv.address, group="g", settings=QUICK) as puller:
            with pytest.raises(SettingsError, match="nothing is subscribed"):
                await puller.wait_assigned()


async def test_locks_of_queues_without_a_start_offset_are_released() -> None:
    async with scripted_cluster() as cluster:
        cluster.broker.script[RequestCode.QUERY_CONSUMER_OFFSET] = refuse(ResponseCode.SYSTEM_ERROR)
        async with PushConsumer(
            cluster.namesrv.address, group="g", subscriptions="T", ordered=True, settings=QUICK
        ) as consumer:
            await until(lambda: cluster.broker.count(RequestCode.UNLOCK_BATCH_MQ) > 0)
            assert consumer.assignment == ()


async def test_a_broker_that_comes_back_gets_the_offset_again_and_moves_no_reader(
    triomq_cluster: InProcessCluster,
) -> None:
    """A reader that went back continues from there, whatever offset the broker has."""
    await triomq_cluster.create_topic("T", queues=1)
    queue = MessageQueue("T", "broker-a", 0)
    address = triomq_cluster.namesrv_address
    async with Producer(address, group="p") as producer:
        for number in range(30):
            await producer.send("T", b"%d" % number)
    settings = attrs.evolve(QUICK, offset_interval=60.0)
    async with PullConsumer(
        address, group="g", subscriptions="T", consume_from="first", settings=settings
    ) as consumer:
        got: list[int] = []

        async def read(count: int) -> None:
            with trio.fail_after(30):
                while len(got) < count:
                    got.extend(
                        message.queue_offset
                        for message in await consumer.poll(max_messages=min(5, count - len(got)))
                    )

        await read(30)
        await consumer.commit()
        await consumer.seek(queue, 0)
        got.clear()
        await read(7)
        running = triomq_cluster.broker("broker-a")._running
        assert running is not None
        running.ready.drop_connections()  # type: ignore[attr-defined]
        committed: int | None = 30
        with trio.fail_after(30):
            while committed == 30:
                await trio.sleep(0.02)
                with suppress(ConnectionFailed, ConnectionLost):
                    committed = await consumer.committed(queue)
        assert committed == 5
        await read(30)
        assert got == list(range(30))


async def test_a_reader_that_commits_nothing_stores_nothing_on_a_broker_that_comes_back(
    triomq_cluster: InProcessCluster,
) -> None:
    await triomq_cluster.create_topic("T", queues=1)
    queue = MessageQueue("T", "broker-a", 0)

    def reader() -> PullConsumer:
        return PullConsumer(
            triomq_cluster.namesrv_address, group="g", settings=QUICK, auto_commit=False
        )

    async def commit(offset: int) -> None:
        async with reader() as another:
            await another.assign([queue])
            await another.commit({queue: offset})

    async with Producer(triomq_cluster.namesrv_address, group="p") as producer:
        for number in range(30):
            await producer.send("T", b"%d" % number)
    await commit(10)
    async with reader() as consumer:
        await consumer.assign([queue])
        await commit(25)
        running = triomq_cluster.broker("broker-a")._running
        assert running is not None
        running.ready.drop_connections()  # type: ignore[attr-defined]
        assert consumer._membership is not None
        owned = consumer._membership.fetcher.owned()[0]
        await until(lambda: owned.stored == -1)  # the broker is back, with an unknown offset
        assert await consumer.committed(queue) == 25


async def test_a_reset_while_handlers_end_is_stored_and_pulls_nothing(
    triomq_cluster: InProcessCluster,
) -> None:
    await triomq_cluster.create_topic("T", queues=1)
    queue = MessageQueue("T", "broker-a", 0)
    address = triomq_cluster.namesrv_address
    seen: list[int] = []
    go_on = trio.Event()

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.queue_offset)
        if len(seen) == 1:
            await go_on.wait()

    async with Producer(address, group="p") as producer:
        for number in range(5):
            await producer.send("T", b"%d" % number)
    async with PushConsumer(
        address, group="g", subscriptions="T", consume_from="first", handler=handle, concurrency=2,
        settings=attrs.evolve(QUICK, client=attrs.evolve(QUICK.client, shutdown_timeout=30.0,
        farewell_timeout=30.0)),
    ) as consumer:  # fmt: skip
        await until(lambda: len(seen) == 5)
        member = consumer._membership
        assert member is not None
        pulling: list[str] = []

        async def reset_late(member: Membership) -> None:
            await until(lambda: member.fetcher.assignments[queue].scope.cancel_called)
            await member.reset({queue: 2})
            pulling.extend(
                task.name
                for task in member.fetcher.nursery.child_tasks
                if task.name.startswith("pull T")
            )
            go_on.set()

        member.nursery.start_soon(reset_late, member)
    assert pulling == []
    assert sorted(seen) == [0, 1, 2, 3, 4]
    async with PullConsumer(address, group="g") as administrator:
        await administrator.assign([queue])
        assert await administrator.committed(queue) == 2


@pytest.mark.parametrize("kind", ["push", "pull"])
async def test_a_reset_while_the_consumer_stops_is_stored(kind: str) -> None:
    async with scripted_cluster() as cluster:
        queue = MessageQueue("T", "broker-a", 0)
        outcomes: list[object] = []
        members: list[Membership] = []
        ended = trio.Event()

        async def reset(asked: Request) -> Response:
            if ended.is_set() and not outcomes:
                outcomes.append("asked")
                try:
                    outcomes.append(await members[0].reset({queue: 3}))
                except Exception as error:
                    outcomes.append(error)
            return Response()

        settings = attrs.evolve(
            QUICK, offset_interval=60.0, client=attrs.evolve(QUICK.client, farewell_timeout=30.0)
        )
        make = PushConsumer if kind == "push" else PullConsumer
        async with make(
            cluster.namesrv.address, group="g", subscriptions="T", settings=settings
        ) as consumer:
            await consumer.wait_assigned()
            assert consumer._membership is not None
            members.append(consumer._membership)
            await until(lambda: queue in members[0].fetcher.assignments)
            cluster.broker.script[RequestCode.UPDATE_CONSUMER_OFFSET] = reset
            # The first offset.
            await until(lambda: kind == "pull" or members[0].fetcher.assignments[queue].stored == 0)
            members[0].fetcher.assignments[queue].stored = -1  # so that there is something to store
            members[0].fetcher.assignments[queue].committable = 0
            ended.set()
        assert outcomes == ["asked", [queue]]
        headers = cluster.broker.headers(RequestCode.UPDATE_CONSUMER_OFFSET)
        assert [header.commit_offset for header in headers][-1] == 3  # type: ignore[attr-defined]


async def test_an_offset_that_cannot_be_stored_does_not_affect_the_others_or_the_locks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store_one = OffsetStore.store_one
    tried: list[str] = []

    async def fail_once(self: OffsetStore, assignment: Assignment) -> None:
        tried.append(assignment.queue.broker_name)
        if assignment.queue.broker_name == "broker-a":
            raise LookupError("a mistake of ours")
        await trio.testing.wait_all_tasks_blocked()  # the failure comes first
        await store_one(self, assignment)

    async with scripted_cluster(brokers=2) as cluster:
        settings = attrs.evolve(
            QUICK, offset_interval=60.0, client=attrs.evolve(QUICK.client, farewell_timeout=30.0)
        )
        members: list[Membership] = []

        async def consume_and_leave() -> None:
            async with PushConsumer(
                cluster.namesrv.address,
                group="g",
                subscriptions="T",
                ordered=True,
                settings=settings,
            ) as consumer:
                await until(lambda: len(consumer.assignment) == 2)
                assert consumer._membership is not None
                members.append(consumer._membership)
                # The first offsets.
                await until(
                    lambda: all(assignment.stored == 0 for assignment in members[0].fetcher.owned())
                )
                for assignment in members[0].fetcher.owned():
                    assignment.stored = -1
                monkeypatch.setattr(OffsetStore, "store_one", fail_once)

        with pytest.raises(LookupError, match="a mistake of ours"):
            await consume_and_leave()
        assert sorted(tried) == ["broker-a", "broker-b"]
        assert [broker.count(RequestCode.UPDATE_CONSUMER_OFFSET) for broker in cluster.brokers] == [
            1,
            2,
        ]
        assert [broker.count(RequestCode.UNLOCK_BATCH_MQ) for broker in cluster.brokers] == [1, 1]
        assert members[0].fetcher.owned() == []


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


async def test_the_log_of_a_handler_that_fails_after_its_ack_promises_no_retry(
    triomq_cluster: InProcessCluster, caplog: pytest.LogCaptureFixture
) -> None:
    done = trio.Event()

    async def handle(message: ReceivedMessage) -> None:
        if message.body == b"acked":
            await message.ack()
        done.set()
        raise LookupError("too late")

    await triomq_cluster.create_topic("T", queues=1)
    for body, words in (
        (b"acked", "the message stays settled"),
        (b"open", "the message comes again"),
    ):
        done = trio.Event()
        caplog.clear()
        with caplog.at_level(logging.ERROR):
            async with (
                PushConsumer(
                    triomq_cluster.namesrv_address, group=body.decode(), subscriptions="T",
                    consume_from="first",
                    handler=handle, settings=QUICK,
                ),
                Producer(triomq_cluster.namesrv_address, group="p") as producer,
            ):  # fmt: skip
                await producer.send("T", body)
                await until(lambda words=words: words in caplog.text)  # type: ignore[misc]
