"""Rules of consuming that need broker and consumer together.

They are about where a group begins, tags, growing delays, the group's settings, bursts, duplicates.
"""

from __future__ import annotations

import datetime
from itertools import pairwise

import pytest
import trio
from brokers import BrokerPeer
from numbered_messages import QUICK, collecting, group_offset, send_numbers
from serving import until
from virtual_time import in_virtual_time

from triomq import (
    ClientSettings,
    ConsumerSettings,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    ReceivedMessage,
)
from triomq.broker.store import opening
from triomq.remoting.client.connector import Connector
from triomq.remoting.protocol.bodies.groups import SubscriptionGroupConfig
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import Command
from triomq.testing import InProcessCluster, local_cluster


@pytest.mark.feature("91a", "91b", "91c")
async def test_where_a_group_begins_in_a_queue_that_is_no_longer_young(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For a broker whose log is not in memory the first message counts as old, so ``consume_from``
    decides.
    """
    monkeypatch.setattr(opening, "memory_bytes", lambda: 0)
    async with local_cluster() as cluster:
        await cluster.create_topic("Numbers", queues=1)
        await send_numbers(cluster, range(10))
        await trio.sleep(0.02)
        between = datetime.datetime.now(datetime.UTC)
        await trio.sleep(0.02)
        await send_numbers(cluster, range(10, 20))
        first: list[int] = []
        last: list[int] = []
        late: list[int] = []
        async with (
            collecting(cluster, first, group="g1"),
            collecting(cluster, last, group="g2", consume_from="last"),
            collecting(cluster, late, group="g3", consume_from=between),
        ):
            await send_numbers(cluster, range(20, 25))
            await until(lambda: len(first) >= 25 and len(last) >= 5 and len(late) >= 15)
        assert sorted(first) == list(range(25))
        assert sorted(last) == list(range(20, 25))
        assert sorted(late) == list(range(10, 25))
        # The start was stored, so the group goes on there although nothing has been consumed by
        # this member.
        idle: list[int] = []
        async with (
            collecting(cluster, idle, group="g4", consume_from="last"),
            PullConsumer(cluster.namesrv_address, group="g4") as reader,
        ):
            (queue,) = await reader.queues("Numbers")
            with trio.fail_after(10):
                while await reader.committed(queue) != 25:
                    await trio.sleep(0.01)


@pytest.mark.feature("117a", "117b", "117c", 118)
async def test_tags_are_compared_by_hash_and_then_by_text(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("Numbers", queues=1)
    for number, tag in enumerate(["Aa", "BB", "C", None, "Aa", "C"]):
        await send_numbers(triomq_cluster, range(number, number + 1), tag=tag)
    one: list[int] = []
    two: list[int] = []
    every: list[int] = []
    async with (
        collecting(triomq_cluster, one, group="g1", subscriptions={"Numbers": "Aa"}),
        collecting(triomq_cluster, two, group="g2", subscriptions={"Numbers": "BB || C"}),
        collecting(triomq_cluster, every, group="g3", subscriptions={"Numbers": "*"}),
    ):
        await until(lambda: (len(one), len(two), len(every)) == (2, 3, 6))
        await trio.sleep(0.05)
    assert (sorted(one), sorted(two), sorted(every)) == ([0, 4], [1, 2, 5], [0, 1, 2, 3, 4, 5])
    assert await group_offset(triomq_cluster, "g1") == 6, "what is filtered out is done, too"


class BytesPulled:
    """An RPC hook that adds up the bytes of answers to pulls."""

    def __init__(self) -> None:
        self.count = 0

    def before_request(self, address: str, command: Command) -> None:
        """Leave requests unchanged."""

    def after_response(self, address: str, command: Command, answer: Command) -> None:
        if command.code == RequestCode.PULL_MESSAGE:
            self.count += len(answer.body)


@pytest.mark.feature(123)
async def test_a_rare_tag_transfers_few_bytes(triomq_cluster: InProcessCluster) -> None:
    """The bytes on the wire are counted, because a consumer that drops other tags itself gets the
    same messages from a broker that filters nothing.
    """
    await triomq_cluster.create_topic("Numbers", queues=1)
    async with Producer(triomq_cluster.namesrv_address, group="numbers") as producer:
        for start in range(0, 1000, 100):
            await producer.send_batch(
                [
                    Message(
                        topic="Numbers",
                        body=b"x" * 500,
                        tag="rare" if number % 100 == 0 else "common",
                    )
                    for number in range(start, start + 100)
                ]
            )
    pulled: dict[str, int] = {}
    for expression, count in (("rare", 10), ("*", 1000)):
        counter = BytesPulled()
        async with PullConsumer(
            triomq_cluster.namesrv_address,
            group=f"g{count}",
            subscriptions={"Numbers": expression},
            consume_from="first",
            settings=ConsumerSettings(client=ClientSettings(rpc_hooks=(counter,))),
        ) as consumer:
            seen = 0
            with trio.fail_after(10):
                while seen < count:
                    seen += len(await consumer.poll())
        assert seen == count
        pulled[expression] = counter.count
    assert pulled["*"] > 1000 * 500
    assert 10 * 500 < pulled["rare"] < pulled["*"] / 90


@pytest.mark.feature(128)
async def test_delays_grow_with_each_try() -> None:
    """The first three retries have levels 3, 4 and 5; here they are short."""
    async with local_cluster(settings={"messageDelayLevel": "1s 1s 1s 2s 3s"}) as cluster:
        await cluster.create_topic("Numbers", queues=1)
        came: list[tuple[int, float]] = []

        async def handle(message: ReceivedMessage) -> None:
            came.append((message.reconsume_times, trio.current_time()))
            if message.reconsume_times == 0:
                # Beyond consume_timeout: the message comes again without being settled.
                await trio.sleep_forever()
            if message.reconsume_times < 2:
                raise ValueError("not yet")

        settings = ConsumerSettings(
            consume_timeout=0.3, client=ClientSettings(shutdown_timeout=0.1)
        )
        async with collecting(cluster, [], handler=handle, settings=settings) as consumer:
            await send_numbers(cluster, range(1))
            await until(lambda: len(came) == 3 and consumer.statistics().unsettled == 0)
    assert [times for times, _ in came] == [0, 1, 2]
    gaps = [later[1] - earlier[1] for earlier, later in pairwise(came)]
    # Level 3, after consume_timeout, is not shorter than it should be; the broker counts in ms.
    assert gaps[0] >= 0.3 + 1.0 - 0.01
    assert gaps[1] >= 1.9  # level 4
    assert gaps[1] > gaps[0] - 0.4


@pytest.mark.feature(126)
async def test_the_group_s_number_of_retries_applies_to_its_members(
    triomq_cluster: InProcessCluster,
) -> None:
    await triomq_cluster.create_topic("Numbers", queues=1)
    tries: list[int] = []

    async def handle(message: ReceivedMessage) -> None:
        tries.append(message.reconsume_times)
        await message.retry(1)

    async with Connector() as connector:
        peer = BrokerPeer(connector, triomq_cluster.broker("broker-a").address)
        config = SubscriptionGroupConfig(group_name="collectors", retry_max_times=1)
        await peer.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, config.encode())
    async with collecting(triomq_cluster, [], handler=handle):
        await send_numbers(triomq_cluster, range(1))
        await until(lambda: tries == [0, 1])
        async with PullConsumer(
            triomq_cluster.namesrv_address, group="undertaker", consume_from="first"
        ) as reader:
            await reader.assign(await reader.queues("%DLQ%collectors"))
            with trio.fail_after(10):
                (dead,) = await reader.poll()
    assert (dead.body, dead.reconsume_times) == (b"0", 2)


@pytest.mark.feature(140)
async def test_a_burst_is_stored_and_then_handled(triomq_cluster: InProcessCluster) -> None:
    """While ten messages are sent, one may be handled."""
    await triomq_cluster.create_topic("Numbers", queues=2)
    seen: list[int] = []
    allowed = trio.Semaphore(0)

    async def handle(message: ReceivedMessage) -> None:
        await allowed.acquire()
        seen.append(int(message.body))

    async with (
        collecting(triomq_cluster, seen, handler=handle, concurrency=4) as consumer,
        Producer(triomq_cluster.namesrv_address, group="numbers") as producer,
    ):
        for start in range(0, 800, 10):
            await producer.send_batch(
                [
                    Message(topic="Numbers", body=b"%d" % number)
                    for number in range(start, start + 10)
                ]
            )
            allowed.release()
        assert len(seen) <= 80
        for _ in range(720):
            allowed.release()
        await until(lambda: len(seen) >= 800)
        await until(lambda: consumer.statistics().topics["Numbers"].done == 800)
        assert consumer.statistics().topics["Numbers"].failed == 0
    assert sorted(seen) == list(range(800))


@pytest.mark.feature("95b")
async def test_a_handler_that_remembers_ids_handles_each_message_once(
    triomq_cluster: InProcessCluster,
) -> None:
    """A retry, a message sent twice, and members that come and go give more deliveries than
    messages.
    """
    await triomq_cluster.create_topic("Numbers", queues=4)
    deliveries = 0
    done: dict[str, int] = {}

    async def handle(message: ReceivedMessage) -> None:
        nonlocal deliveries
        deliveries += 1
        await trio.lowlevel.checkpoint()
        if message.message_id in done:
            return
        if message.body == b"7" and message.reconsume_times == 0:
            done[message.message_id] = int(message.body)
            await message.retry(1)  # handled, but not acked
            return
        done[message.message_id] = int(message.body)

    async with (
        collecting(triomq_cluster, [], handler=handle),
        Producer(triomq_cluster.namesrv_address, group="numbers") as producer,
    ):
        twice = producer.new_message_id()
        for number in range(40):
            message_id = twice if number == 20 else None
            await producer.send("Numbers", b"%d" % number, message_id=message_id)
        await producer.send("Numbers", b"20", message_id=twice)
        async with collecting(triomq_cluster, [], handler=handle):
            await until(lambda: len(done) == 40 and deliveries >= 42)
    assert sorted(done.values()) == list(range(40))


@in_virtual_time
async def test_consumers_of_a_broker_that_was_away_continue_where_they_were(
    triomq_cluster: InProcessCluster,
) -> None:
    """One of two brokers crashes before it has written its offsets. Its queues stay with their
    owner, so nothing comes twice.
    """
    async with local_cluster(brokers=2) as cluster:
        await cluster.create_topic("Numbers", queues=2)
        seen: list[int] = []
        settings = ConsumerSettings(
            rebalance_interval=0.3,
            rebalance_retry=0.1,
            error_delay=0.1,
            offset_interval=0.1,
            client=QUICK.client,
        )
        async with collecting(cluster, seen, settings=settings) as consumer:
            await send_numbers(cluster, range(100))
            await until(lambda: len(seen) == 100)
            await trio.sleep(0.3)
            await cluster.crash_broker("broker-b")
            await trio.sleep(1.0)  # routes and several rounds without it
            assert {
                queue.broker_name for queue in consumer.assignment if queue.topic == "Numbers"
            } == {"broker-a", "broker-b"}
            await cluster.start_broker("broker-b")
            async with Producer(cluster.namesrv_address, group="numbers") as producer:
                for number in range(100, 120):
                    await producer.send(
                        "Numbers",
                        b"%d" % number,
                        queue=MessageQueue("Numbers", "broker-b", number % 2),
                    )
            await until(lambda: len(seen) >= 120)
            async with PullConsumer(cluster.namesrv_address, group="collectors") as reader:
                queues = await reader.queues("Numbers")
                with trio.fail_after(10):
                    while sum([await reader.committed(queue) or 0 for queue in queues]) != 120:
                        await trio.sleep(0.05)
        assert sorted(seen) == list(range(120))
