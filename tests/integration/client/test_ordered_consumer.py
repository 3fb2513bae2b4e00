"""Ordered consumers against a real cluster: turns, locks, failures, changing members, restarts."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from serving import until

from triomq import (
    ConsumerSettings,
    Message,
    MessageQueue,
    Producer,
    ProducerSettings,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    TrioMQError,
)
from triomq.client.core.config import ClientSettings
from triomq.testing import InProcessCluster, local_cluster

QUICK = ConsumerSettings(
    error_delay=0.05,
    rebalance_retry=0.05,
    lock_retry=0.05,
    lock_interval=0.2,
    suspend_queue=0.05,
    client=ClientSettings(route_interval=0.5, heartbeat_interval=0.5),
)


async def send_steps(cluster: InProcessCluster, keys: int, steps: range) -> None:
    """Send ``key:step`` for every key, each key's steps in order to one queue."""
    async with Producer(cluster.namesrv_address, group="orders") as producer:
        for step in steps:
            async with trio.open_nursery() as nursery:
                for key in range(keys):
                    message = Message(topic="Orders", body=b"%d:%d" % (key, step))
                    nursery.start_soon(_send, producer, message, f"order-{key}")


async def _send(producer: Producer, message: Message, key: str) -> None:
    await producer.send(message, sharding_key=key)


class Journal:
    """The messages in the order in which handlers began.

    It also records whether two handlers ever worked on one queue at a time.
    """

    def __init__(self) -> None:
        self.steps: dict[int, list[int]] = defaultdict(list)
        self.queues: dict[int, set[tuple[str, int]]] = defaultdict(set)
        """Key -> queues that its messages came from."""
        self.working: set[tuple[str, int]] = set()
        self.overlaps = 0
        self.side_by_side = 0

    @property
    def count(self) -> int:
        return sum(map(len, self.steps.values()))

    async def handle(self, message: ReceivedMessage) -> None:
        queue = (message.queue.broker_name, message.queue.queue_id)
        self.overlaps += queue in self.working
        self.working.add(queue)
        self.side_by_side = max(self.side_by_side, len(self.working))
        key, step = map(int, message.body.split(b":"))
        self.steps[key].append(step)
        self.queues[key].add(queue)
        await trio.sleep(random.random() * 0.003)
        self.working.discard(queue)


@asynccontextmanager
async def ordered(
    cluster: InProcessCluster, journal: Journal, **more: object
) -> AsyncIterator[PushConsumer]:
    arguments: dict[str, object] = {
        "group": "ordered", "subscriptions": "Orders", "consume_from": "first",
        "handler": journal.handle,
        "ordered": True, "concurrency": 8, "settings": QUICK, **more,
    }  # fmt: skip
    async with PushConsumer(cluster.namesrv_address, **arguments) as consumer:  # type: ignore[arg-type]
        yield consumer


@pytest.mark.feature("97a", "97b", "98a", "101a", "101b")
async def test_each_queue_is_handled_in_order_and_queues_side_by_side(
    triomq_cluster: InProcessCluster,
) -> None:
    await triomq_cluster.create_topic("Orders", queues=4)
    journal = Journal()
    async with ordered(triomq_cluster, journal):
        await send_steps(triomq_cluster, keys=12, steps=range(15))
        await until(lambda: journal.count >= 12 * 15)
    assert all(steps == list(range(15)) for steps in journal.steps.values())
    assert [len(queues) for queues in journal.queues.values()] == [1] * 12
    assert journal.overlaps == 0
    assert journal.side_by_side > 1


@pytest.mark.feature(103)
async def test_without_ordered_the_same_topic_is_handled_side_by_side(
    triomq_cluster: InProcessCluster,
) -> None:
    """This shows that the journal detects it."""
    await triomq_cluster.create_topic("Orders", queues=1)
    await send_steps(triomq_cluster, keys=8, steps=range(5))
    journal = Journal()
    async with ordered(triomq_cluster, journal, ordered=False):
        await until(lambda: journal.count >= 40)
    assert journal.overlaps > 0


@pytest.mark.feature(96)
async def test_one_queue_gives_one_order_for_all(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("Orders", queues=1)
    seen: list[int] = []

    async def handle(message: ReceivedMessage) -> None:
        await trio.lowlevel.checkpoint()
        seen.append(int(message.body))

    async with (
        Producer(triomq_cluster.namesrv_address, group="orders") as producer,
        ordered(triomq_cluster, Journal(), handler=handle),
    ):
        for start in range(0, 1000, 100):
            await producer.send_batch(
                [Message(topic="Orders", body=b"%d" % n) for n in range(start, start + 100)]
            )
        await until(lambda: len(seen) >= 1000)
    assert seen == list(range(1000))


@pytest.mark.feature("98a", "102a")
async def test_a_failing_message_holds_back_its_queue_only(
    triomq_cluster: InProcessCluster,
) -> None:
    await triomq_cluster.create_topic("Orders", queues=2)
    async with Producer(triomq_cluster.namesrv_address, group="orders") as producer:
        for number, queue in itertools.product(range(5), range(2)):
            await producer.send("Orders", b"%d" % number, queue=queue)
    tries: list[tuple[int, int, int]] = []

    async def handle(message: ReceivedMessage) -> None:
        await trio.lowlevel.checkpoint()
        tries.append((message.queue.queue_id, int(message.body), message.reconsume_times))
        if message.queue.queue_id == 1 and message.body == b"1" and message.reconsume_times < 3:
            raise ValueError("the downstream is out")

    async with ordered(triomq_cluster, Journal(), handler=handle) as consumer:
        await until(lambda: len(tries) == 13)
        await until(lambda: consumer.statistics().unsettled == 0)
        rates = consumer.statistics().topics["Orders"]
        assert (rates.done, rates.failed) == (10, 3)
    assert [entry[1:] for entry in tries if entry[0] == 0] == [(number, 0) for number in range(5)]
    assert [entry[1:] for entry in tries if entry[0] == 1] == [
        (0, 0), (1, 0), (1, 1), (1, 2), (1, 3), (2, 0), (3, 0), (4, 0),
    ]  # fmt: skip


@pytest.mark.feature("102b", 126)
async def test_after_its_last_delivery_a_message_is_a_dead_letter_and_the_queue_continues(
    triomq_cluster: InProcessCluster,
) -> None:
    await triomq_cluster.create_topic("Orders", queues=1)
    async with Producer(triomq_cluster.namesrv_address, group="orders") as producer:
        for number in range(4):
            await producer.send("Orders", b"%d" % number)
    tries: list[tuple[int, int]] = []

    async def handle(message: ReceivedMessage) -> None:
        tries.append((int(message.body), message.reconsume_times))
        if message.body == b"1":
            await message.retry(pause=0.01)
        if message.body == b"2":
            await message.dead_letter()

    settings = ConsumerSettings(max_reconsume_times=2)
    async with ordered(triomq_cluster, Journal(), handler=handle, settings=settings):
        await until(lambda: len(tries) == 6)
    assert tries == [(0, 0), (1, 0), (1, 1), (1, 2), (2, 0), (3, 0)]
    async with PullConsumer(
        triomq_cluster.namesrv_address, group="undertaker", consume_from="first"
    ) as reader:
        await reader.assign(await reader.queues("%DLQ%ordered"))
        dead: list[bytes] = []
        with trio.fail_after(10):
            while len(dead) < 2:
                dead += [message.body for message in await reader.poll()]
    assert dead == [b"1", b"2"]


async def test_batches_and_iteration_keep_the_order(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("Orders", queues=2)
    async with Producer(triomq_cluster.namesrv_address, group="orders") as producer:
        for number, queue in itertools.product(range(20), range(2)):
            await producer.send("Orders", b"%d" % number, queue=queue)
    seen: dict[int, list[int]] = {0: [], 1: []}
    failed = set()

    async def handle(messages: list[ReceivedMessage]) -> None:
        await trio.lowlevel.checkpoint()
        (queue,) = {message.queue.queue_id for message in messages}
        assert len(messages) <= 5
        for message in messages:
            if message.body == b"7" and queue not in failed:
                failed.add(queue)
                raise ValueError("the rest of the batch comes again")
            seen[queue].append(int(message.body))
            await message.ack()

    async with ordered(triomq_cluster, Journal(), handler=None, batch_handler=handle, batch_max=5):
        await until(lambda: sum(map(len, seen.values())) == 40)
    assert seen == {0: list(range(20)), 1: list(range(20))}

    again: dict[int, list[int]] = {0: [], 1: []}
    async with ordered(triomq_cluster, Journal(), handler=None, group="readers") as consumer:
        with trio.fail_after(10):
            first, second = await anext(consumer), await anext(consumer)
            assert first.queue != second.queue  # one message of each queue is out
            with trio.move_on_after(0.1) as scope:
                await anext(consumer)
            assert scope.cancelled_caught
            for message in (first, second):
                again[message.queue.queue_id].append(int(message.body))
                await message.ack()
            while sum(map(len, again.values())) < 40:
                async with await anext(consumer) as message:
                    again[message.queue.queue_id].append(int(message.body))
    assert again == seen


@pytest.mark.feature("89b", "100b")
async def test_a_queue_moves_only_when_its_last_handler_has_ended(
    triomq_cluster: InProcessCluster,
) -> None:
    await triomq_cluster.create_topic("Orders", queues=2)
    async with Producer(triomq_cluster.namesrv_address, group="orders") as producer:
        for number, queue in itertools.product(range(3), range(2)):
            await producer.send("Orders", b"%d" % number, queue=queue)
    go_on = trio.Event()
    begun: list[tuple[str, int, int]] = []

    async def slow(message: ReceivedMessage) -> None:
        begun.append(("first", message.queue.queue_id, int(message.body)))
        await go_on.wait()

    async def fast(message: ReceivedMessage) -> None:
        await trio.lowlevel.checkpoint()
        begun.append(("second", message.queue.queue_id, int(message.body)))

    async with ordered(triomq_cluster, Journal(), handler=slow) as first:
        await until(lambda: len(begun) == 2)
        async with ordered(triomq_cluster, Journal(), handler=fast) as second:
            await trio.sleep(0.3)  # the second member asks for its queue again and again
            assert len(begun) == 2
            assert not [queue for queue in second.assignment if queue.topic == "Orders"]
            go_on.set()
            await until(lambda: len(begun) == 6)
            owners = {
                queue: {who for who, number, _ in begun if number == queue} for queue in range(2)
            }
            # One queue stayed, the other moved.
            assert sorted(map(len, owners.values())) == [1, 2]
            mine = {
                queue
                for queue in (*first.assignment, *second.assignment)
                if queue.topic == "Orders"
            }
            assert len(mine) == 2
    for queue in range(2):
        # In order, nothing twice.
        assert [step for _, number, step in begun if number == queue] == [0, 1, 2]


@pytest.mark.feature("98c", "100a")
async def test_order_holds_while_members_come_and_go(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("Orders", queues=6)
    journal = Journal()
    steps = 60
    async with trio.open_nursery() as nursery, ordered(triomq_cluster, journal):
        nursery.start_soon(send_steps, triomq_cluster, 12, range(steps))
        for _ in range(4):
            async with ordered(triomq_cluster, journal), ordered(triomq_cluster, journal):
                await trio.sleep(0.2)
        await until(lambda: journal.count >= 12 * steps)
    assert all(handled == list(range(steps)) for handled in journal.steps.values())
    assert journal.overlaps == 0


@pytest.mark.feature("98b")
async def test_order_holds_over_the_restart_of_the_broker(triomq_cluster: InProcessCluster) -> None:
    """The broker forgets the locks; they are taken anew, and cached messages are handled on. A
    message whose offset was not stored may come twice.
    """
    await triomq_cluster.create_topic("Orders", queues=2)
    journal = Journal()
    async with ordered(triomq_cluster, journal):
        await send_steps(triomq_cluster, keys=4, steps=range(10))
        await until(lambda: journal.count >= 10)
        await triomq_cluster.stop_broker("broker-a")
        await triomq_cluster.start_broker("broker-a")
        await send_steps(triomq_cluster, keys=4, steps=range(10, 20))
        await until(
            lambda: (
                all(steps[-1:] == [19] for steps in journal.steps.values())
                and len(journal.steps) == 4
            )
        )
    assert journal.overlaps == 0
    for steps in journal.steps.values():
        assert list(dict.fromkeys(steps)) == list(range(20))


@pytest.mark.feature("98b", "99a", "99b", "99c")
async def test_sends_of_a_key_fail_while_its_broker_is_away_and_its_order_holds() -> None:
    """For strict order each key has its queue. Sends to a broker that is away fail and go nowhere
    else; those of other keys work.
    """
    async with local_cluster(brokers=2) as cluster:
        await cluster.create_topic("Orders", queues=1)
        homes = [MessageQueue("Orders", name, 0) for name in ("broker-a", "broker-b")]
        journal = Journal()
        settings = ProducerSettings(send_timeout=1.0)
        async with (
            ordered(cluster, journal),
            Producer(cluster.namesrv_address, group="orders", settings=settings) as producer,
        ):
            for step in range(5):
                for key, home in enumerate(homes):
                    await producer.send("Orders", b"%d:%d" % (key, step), queue=home)
            await until(lambda: journal.count == 10)
            await cluster.stop_broker("broker-b")
            with pytest.raises(TrioMQError):
                await producer.send("Orders", b"1:5", queue=homes[1])
            for step in range(5, 10):
                await producer.send("Orders", b"0:%d" % step, queue=homes[0])
            await until(lambda: len(journal.steps[0]) == 10)
            await cluster.start_broker("broker-b")
            for step in range(5, 10):
                with trio.fail_after(10):
                    while True:
                        try:
                            await producer.send("Orders", b"1:%d" % step, queue=homes[1])
                            break
                        except TrioMQError:
                            await trio.sleep(0.05)
            await until(lambda: journal.steps[1][-1:] == [9])
    assert journal.steps[0] == list(range(10))
    # A repeated send may be stored twice.
    assert list(dict.fromkeys(journal.steps[1])) == list(range(10))
    assert journal.overlaps == 0
