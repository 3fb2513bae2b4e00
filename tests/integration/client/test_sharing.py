"""How the members of a group share work.

Shares are contiguous, pulls run ahead of handlers, and messages stay for other groups.
"""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest
import trio
from brokers import BrokerPeer
from numbered_messages import QUICK
from scripted_cluster import pulled, record, scripted_cluster
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
from triomq.remoting.protocol.bodies.groups import SubscriptionGroupConfig
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.record_reader import decode_records
from triomq.remoting.server.requests import Request, Response
from triomq.testing import InProcessCluster, local_cluster


async def ignore(message: ReceivedMessage) -> None:
    await trio.lowlevel.checkpoint()


@pytest.mark.feature("88a", "88b", "88c")
@pytest.mark.parametrize(
    ("queues", "members", "shares"), [(8, 3, [3, 3, 2]), (4, 5, [1, 1, 1, 1, 0])]
)
async def test_shares_are_contiguous_and_differ_by_one(
    triomq_cluster: InProcessCluster, queues: int, members: int, shares: list[int]
) -> None:
    await triomq_cluster.create_topic("Numbers", queues=queues)
    async with AsyncExitStack() as stack:
        consumers = [
            await stack.enter_async_context(
                PushConsumer(
                    triomq_cluster.namesrv_address,
                    group="shares",
                    subscriptions="Numbers",
                    handler=ignore,
                    settings=QUICK,
                )
            )
            for _ in range(members)
        ]

        def owned() -> list[list[int]]:
            by_id = sorted(consumers, key=lambda consumer: consumer.client_id)
            return [
                [queue.queue_id for queue in consumer.assignment if queue.topic == "Numbers"]
                for consumer in by_id
            ]

        await until(lambda: [len(share) for share in owned()] == shares)
        assert [queue for share in owned() for queue in share] == list(range(queues))


@pytest.mark.feature("80b")
async def test_the_next_batch_is_pulled_while_a_handler_is_busy() -> None:
    pulls: list[int] = []
    busy, done = trio.Event(), trio.Event()

    async def handle(message: ReceivedMessage) -> None:
        busy.set()
        await done.wait()

    def give_one(request: Request) -> Response:
        offset = request.header.queue_offset
        pulls.append(offset)
        return pulled(0, offset + 1, record(offset)) if offset < 5 else pulled(19, offset)

    async with scripted_cluster() as cluster:
        cluster.broker.script[RequestCode.PULL_MESSAGE] = give_one
        async with PushConsumer(
            cluster.namesrv.address,
            group="g",
            subscriptions="T",
            consume_from="first",
            handler=handle,
            concurrency=1,
            settings=QUICK,
        ):
            await busy.wait()
            await until(lambda: 4 in pulls)
            done.set()


@pytest.mark.feature(129)
async def test_a_changed_number_of_retries_holds_for_every_running_member(
    triomq_cluster: InProcessCluster,
) -> None:
    await triomq_cluster.create_topic("Numbers", queues=2)
    tries: dict[int, list[tuple[bytes, int]]] = {0: [], 1: []}

    async def change(retries: int) -> None:
        async with Connector() as connector:
            peer = BrokerPeer(connector, triomq_cluster.broker("broker-a").address)
            config = SubscriptionGroupConfig(group_name="collectors", retry_max_times=retries)
            await peer.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, config.encode())

    def member(number: int) -> PushConsumer:
        async def handle(message: ReceivedMessage) -> None:
            tries[number].append((message.body, message.reconsume_times))
            await message.retry(1)

        return PushConsumer(
            triomq_cluster.namesrv_address,
            group="collectors",
            subscriptions="Numbers",
            consume_from="first",
            handler=handle,
            settings=QUICK,
        )

    async def dead(count: int) -> set[tuple[bytes, int]]:
        async with PullConsumer(
            triomq_cluster.namesrv_address, group="undertaker", consume_from="first"
        ) as reader:
            await reader.assign([MessageQueue("%DLQ%collectors", "broker-a", 0)])
            found: set[tuple[bytes, int]] = set()
            with trio.fail_after(60):
                while len(found) < count:
                    found |= {
                        (message.body, message.reconsume_times) for message in await reader.poll()
                    }
        return found

    def all_tries() -> list[tuple[bytes, int]]:
        return sorted(tries[0] + tries[1])

    await change(1)
    async with (
        member(0) as one,
        member(1) as two,
        Producer(triomq_cluster.namesrv_address, group="numbers") as producer,
    ):
        await until(
            lambda: (
                [
                    sum(queue.topic == "Numbers" for queue in consumer.assignment)
                    for consumer in (one, two)
                ]
                == [1, 1]
            )
        )
        for queue in range(2):
            await producer.send("Numbers", b"before %d" % queue, queue=queue)
        await until(
            lambda: (
                all_tries()
                == [(b"before 0", 0), (b"before 0", 1), (b"before 1", 0), (b"before 1", 1)]
            )
        )
        assert {body for body, reconsumed in tries[0] if not reconsumed} != {
            body for body, reconsumed in tries[1] if not reconsumed
        }
        await change(0)
        for queue in range(2):
            await producer.send("Numbers", b"later %d" % queue, queue=queue)
        assert await dead(4) == {
            (b"before 0", 2),
            (b"before 1", 2),
            (b"later 0", 1),
            (b"later 1", 1),
        }
    assert [try_ for try_ in all_tries() if try_[0].startswith(b"later")] == [
        (b"later 0", 0),
        (b"later 1", 0),
    ]


@pytest.mark.feature(53)
async def test_a_consumed_message_is_read_again_by_another_group_and_after_a_rewind(
    triomq_cluster: InProcessCluster,
) -> None:
    await triomq_cluster.create_topic("Numbers", queues=1)
    async with Producer(triomq_cluster.namesrv_address, group="numbers") as producer:
        for number in range(5):
            await producer.send("Numbers", b"%d" % number)
    everything = [b"%d" % number for number in range(5)]

    async def read(group: str, rewind: bool = False) -> list[bytes]:
        async with PullConsumer(
            triomq_cluster.namesrv_address, group=group, consume_from="first"
        ) as consumer:
            (queue,) = await consumer.queues("Numbers")
            await consumer.assign([queue])
            if rewind:
                await consumer.seek(queue, 0)
            found: list[bytes] = []
            with trio.move_on_after(1):
                while len(found) < 5:
                    found += [message.body for message in await consumer.poll()]
            await consumer.commit()
        return found

    assert await read("one") == everything
    assert await read("one") == []
    assert await read("two") == everything
    assert await read("one", rewind=True) == everything


@pytest.mark.feature("84a", "84b", "84c")
async def test_groups_read_the_one_stored_copy_each_at_its_own_pace(
    triomq_cluster: InProcessCluster,
) -> None:
    await triomq_cluster.create_topic("Numbers", queues=1)
    seen: dict[str, list[bytes]] = {"quick": [], "slow": []}
    go_on = trio.Event()

    def member(group: str, wait: bool) -> PushConsumer:
        async def handle(message: ReceivedMessage) -> None:
            seen[group].append(message.body)
            if wait:
                await go_on.wait()

        return PushConsumer(
            triomq_cluster.namesrv_address,
            group=group,
            subscriptions="Numbers",
            consume_from="first",
            handler=handle,
            concurrency=1,
            settings=QUICK,
        )

    async with Producer(triomq_cluster.namesrv_address, group="numbers") as producer:
        for number in range(60):
            await producer.send("Numbers", b"%d" % number)
    everything = [b"%d" % number for number in range(60)]
    (file,) = (triomq_cluster.broker("broker-a").store_dir / "commitlog").iterdir()
    log = file.read_bytes().rstrip(b"\0")
    async with member("quick", False), member("slow", True):
        await until(lambda: seen["quick"] == everything and bool(seen["slow"]))
        assert seen["slow"] == [b"0"]
        assert [
            message.body
            for message in decode_records(file.read_bytes().rstrip(b"\0"))
            if message.topic == "Numbers"
        ] == everything
        assert file.read_bytes().startswith(log)
        go_on.set()
        await until(lambda: seen["slow"] == everything)


@pytest.mark.feature("87c")
async def test_a_member_without_notification_gets_its_share_at_the_next_rebalance() -> None:
    assert ConsumerSettings().rebalance_interval == 20
    settings = ConsumerSettings(rebalance_interval=0.5, rebalance_retry=0.05, client=QUICK.client)

    def owned(consumer: PushConsumer) -> int:
        return sum(queue.topic == "Numbers" for queue in consumer.assignment)

    async with local_cluster(settings={"notifyConsumerIdsChangedEnable": False}) as cluster:
        await cluster.create_topic("Numbers", queues=4)

        def member() -> PushConsumer:
            return PushConsumer(
                cluster.namesrv_address,
                group="g",
                subscriptions="Numbers",
                handler=ignore,
                settings=settings,
            )

        async with member() as first:
            await until(lambda: owned(first) == 4)
            async with member() as second:
                await until(lambda: (owned(first), owned(second)) == (2, 2))
            await until(lambda: owned(first) == 4)
