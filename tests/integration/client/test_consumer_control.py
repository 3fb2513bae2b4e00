"""Control of consumers against a real cluster: batches, pause, subscriptions, limits, rates,
offsets.
"""

from __future__ import annotations

import datetime
from collections import Counter

import attrs
import pytest
import trio
from numbered_messages import QUICK, send_numbers
from serving import until

from triomq import (
    AssignmentChange,
    ConsumerSettings,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SettingsError,
    allocate_circle,
    allocate_config,
    allocate_consistent_hash,
)
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import Command, encode_command
from triomq.testing import InProcessCluster


def numbers_of(messages: list[ReceivedMessage]) -> list[int]:
    return [int(message.body) for message in messages]


@pytest.mark.feature("80a")
async def test_batches_are_of_one_queue_and_are_settled_together(
    triomq_cluster: InProcessCluster,
) -> None:
    await triomq_cluster.create_topic("Numbers", queues=3)
    await send_numbers(triomq_cluster, range(60))
    batches: list[tuple[set[int], list[int]]] = []
    failed: list[int] = []

    async def handle(messages: list[ReceivedMessage]) -> None:
        await trio.lowlevel.checkpoint()
        if 30 in numbers_of(messages) and not failed:
            await messages[0].ack()
            failed.extend(numbers_of(messages[1:]))
            for message in messages[1:]:
                await message.retry(1)  # one second, not ten
            raise ValueError("an error after the message is settled")
        batches.append(({message.queue.queue_id for message in messages}, numbers_of(messages)))

    async with PushConsumer(
        triomq_cluster.namesrv_address, group="batches", subscriptions="Numbers",
        consume_from="first",
        batch_handler=handle, batch_max=8, concurrency=3, settings=QUICK,
    ) as consumer:  # fmt: skip
        await until(lambda: sum(len(numbers) for _, numbers in batches) >= 59)
        await until(lambda: consumer.statistics().unsettled == 0)
    assert all(len(queues) == 1 and len(numbers) <= 8 for queues, numbers in batches)
    assert max(len(numbers) for _, numbers in batches) > 1
    assert failed
    counted = Counter(number for _, numbers in batches for number in numbers)
    assert sum(counted.values()) == 59  # all but the message that was acked before the failure
    assert set(counted.values()) == {1}


async def test_wrong_batch_arguments(triomq_cluster: InProcessCluster) -> None:
    async def handle(message: object) -> None: ...

    for wrong in (
        {"handler": handle, "batch_handler": handle},
        {"batch_max": 0},
        {"concurrency": 0},
    ):
        with pytest.raises(SettingsError):
            PushConsumer(triomq_cluster.namesrv_address, group="g", subscriptions="T", **wrong)  # type: ignore[arg-type]


class PullCount:
    """An RPC hook that counts the pulls of a topic."""

    def __init__(self) -> None:
        self.count = 0

    def before_request(self, address: str, command: Command) -> None:
        if command.code == RequestCode.PULL_MESSAGE and b"Numbers" in encode_command(command):
            self.count += b"%RETRY%" not in encode_command(command)

    def after_response(self, address: str, command: Command, answer: Command) -> None:
        """Leave answers unchanged."""


@pytest.mark.feature("130b")
@pytest.mark.parametrize("ordered", [False, True])
async def test_a_paused_consumer_hands_out_nothing(
    triomq_cluster: InProcessCluster, ordered: bool
) -> None:
    await triomq_cluster.create_topic("Numbers", queues=2)
    seen: list[int] = []
    pulls = PullCount()

    async def handle(message: ReceivedMessage) -> None:
        await trio.lowlevel.checkpoint()
        seen.append(int(message.body))
        if len(seen) == 5:
            consumer.pause()

    async with PushConsumer(
        triomq_cluster.namesrv_address, group="pausing", subscriptions="Numbers",
        consume_from="first",
        handler=handle, concurrency=1, ordered=ordered, settings=attrs.evolve(QUICK,
        client=attrs.evolve(QUICK.client, rpc_hooks=(pulls,))),
    ) as consumer:  # fmt: skip
        await send_numbers(triomq_cluster, range(20))
        await until(lambda: len(seen) == 5)
        await send_numbers(triomq_cluster, range(20, 30))
        await trio.sleep(0.2)
        pulls_before = pulls.count  # those that were held at the broker have been answered
        await send_numbers(triomq_cluster, range(30, 40))
        await trio.sleep(0.2)
        assert len(seen) == 5
        assert pulls.count == pulls_before > 0
        assert sum(queue.topic == "Numbers" for queue in consumer.assignment) == 2  # they stay ours
        consumer.resume()
        await until(lambda: len(seen) == 40)
        assert pulls.count > pulls_before
    assert sorted(seen) == list(range(40))


@pytest.mark.feature("130a")
async def test_a_delayed_retry_in_order_makes_no_request_to_the_broker(
    triomq_cluster: InProcessCluster,
) -> None:
    """The message, and those behind it, wait at the ordered consumer."""
    await triomq_cluster.create_topic("Numbers", queues=1)
    await send_numbers(triomq_cluster, range(40))
    pulls, tries, pulls_at = PullCount(), 0, [0, 0]

    async def handle(message: ReceivedMessage) -> None:
        nonlocal tries
        tries += 1
        if tries in (5, 25):
            pulls_at[tries == 25] = pulls.count
        if tries < 25:
            await message.retry(pause=0.02)

    client = attrs.evolve(QUICK.client, rpc_hooks=(pulls,))
    settings = attrs.evolve(QUICK, cached_messages_max=10, pull_batch=4, client=client)
    async with PushConsumer(
        triomq_cluster.namesrv_address,
        group="later",
        subscriptions="Numbers",
        consume_from="first",
        handler=handle,
        ordered=True,
        settings=settings,
    ):
        await until(lambda: tries == 24 + 40)
    assert 1 <= pulls_at[0] == pulls_at[1] <= 4


async def test_subscriptions_of_a_running_consumer(triomq_cluster: InProcessCluster) -> None:
    for topic in ("Numbers", "Others"):
        await triomq_cluster.create_topic(topic, queues=1)
        await send_numbers(triomq_cluster, range(3), topic)
    seen: list[tuple[str, int]] = []

    async def handle(message: ReceivedMessage) -> None:
        await trio.lowlevel.checkpoint()
        seen.append((message.topic, int(message.body)))

    async with PushConsumer(
        triomq_cluster.namesrv_address, group="changing", subscriptions="Numbers",
        consume_from="first",
        handler=handle, settings=QUICK,
    ) as consumer:  # fmt: skip
        await until(lambda: len(seen) == 3)
        await consumer.subscribe("Others")
        await until(lambda: len(seen) == 6)
        await consumer.unsubscribe("Numbers")
        await until(lambda: "Numbers" not in {queue.topic for queue in consumer.assignment})
        await send_numbers(triomq_cluster, range(3, 6), "Numbers")
        await send_numbers(triomq_cluster, range(3, 6), "Others")
        await until(lambda: len(seen) == 9)
        with pytest.raises(SettingsError, match="not subscribed"):
            await consumer.unsubscribe("Numbers")
    assert sorted(seen) == [("Numbers", n) for n in range(3)] + [("Others", n) for n in range(6)]


@pytest.mark.feature("137a")
async def test_limits_for_all_queues_together_are_divided(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("Numbers", queues=4)
    await send_numbers(triomq_cluster, range(400))
    settings = ConsumerSettings(cached_messages_max_topic=50, pull_batch=8, client=QUICK.client)
    async with PushConsumer(
        triomq_cluster.namesrv_address,
        group="slow",
        subscriptions="Numbers",
        consume_from="first",
        settings=settings,
    ) as consumer:
        await consumer.wait_assigned()
        await until(lambda: consumer.statistics().unsettled > 40)
        await trio.sleep(0.2)
        # four queues, or five with that of the retry topic: 12 or 10 messages each, exceeded by one
        # pull at most
        assert 40 < consumer.statistics().unsettled <= 4 * (12 + 8)


@pytest.mark.feature("87a", "87b", "88c")
@pytest.mark.parametrize("rule", [allocate_circle, allocate_consistent_hash])
async def test_assignment_callbacks_and_other_allocation_rules(
    triomq_cluster: InProcessCluster, rule: object
) -> None:
    await triomq_cluster.create_topic("Numbers", queues=8)
    changes: list[AssignmentChange] = []

    def member(**more: object) -> PushConsumer:
        return PushConsumer(
            triomq_cluster.namesrv_address, group="ruled", subscriptions="Numbers", allocate=rule,
            settings=QUICK, **more  # type: ignore[arg-type]
        )  # fmt: skip

    def numbers(consumer: PushConsumer) -> set[int]:
        return {queue.queue_id for queue in consumer.assignment if queue.topic == "Numbers"}

    def notice(change: AssignmentChange) -> None:
        if change.topic == "Numbers":
            changes.append(change)

    async with member(on_assignment=notice) as first:
        await first.wait_assigned()
        assert (len(changes[0].gained), changes[0].lost, len(changes[0].owned)) == (8, (), 8)
        assert changes[0].queues == changes[0].owned
        async with member() as second, member() as third:
            await until(lambda: len(numbers(first) | numbers(second) | numbers(third)) == 8)
            await until(
                lambda: len(numbers(first)) + len(numbers(second)) + len(numbers(third)) == 8
            )
            assert changes[-1].owned == tuple(
                queue for queue in first.assignment if queue.topic == "Numbers"
            )
        await until(lambda: len(numbers(first)) == 8)
    if rule is allocate_consistent_hash:  # nothing but what the others had came back
        assert len(changes[-1].gained) == sum(len(change.lost) for change in changes) - sum(
            len(change.gained) for change in changes[1:-1]
        )


async def test_a_fixed_assignment_and_a_rule_that_fails(
    triomq_cluster: InProcessCluster, caplog: pytest.LogCaptureFixture
) -> None:
    await triomq_cluster.create_topic("Numbers", queues=4)
    fixed = [MessageQueue("Numbers", "broker-a", 1), MessageQueue("Numbers", "broker-a", 3)]
    async with PushConsumer(
        triomq_cluster.namesrv_address,
        group="fixed",
        subscriptions="Numbers",
        allocate=allocate_config(fixed),
    ) as consumer:
        await consumer.wait_assigned()
        assert list(consumer.assignment) == fixed

    def broken(*_: object) -> list[MessageQueue]:
        raise LookupError("no such room")

    async with PushConsumer(
        triomq_cluster.namesrv_address,
        group="broken",
        subscriptions="Numbers",
        allocate=broken,
        settings=QUICK,
    ) as consumer:
        await until(lambda: any("LookupError: no such room" in line for line in caplog.messages))
        assert consumer.assignment == ()


async def test_rates(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("Numbers", queues=1)
    await send_numbers(triomq_cluster, range(10))

    async def handle(message: ReceivedMessage) -> None:
        await trio.sleep(0.005)
        if message.body == b"4":
            await message.dead_letter()

    async with PushConsumer(
        triomq_cluster.namesrv_address, group="measured", subscriptions="Numbers",
        consume_from="first",
        handler=handle, concurrency=2,
    ) as consumer:  # fmt: skip
        await until(lambda: "Numbers" in consumer.statistics().topics)
        await until(lambda: consumer.statistics().topics["Numbers"].done == 9)
        rates = consumer.statistics().topics["Numbers"]
    assert (rates.done, rates.failed, rates.failed_in_the_last_hour) == (9, 1, 1)
    assert rates.handling_seconds >= 0.005
    assert rates.pulled_per_second >= rates.done_per_second > rates.failed_per_second > 0
    assert rates.pull_seconds > 0


@pytest.mark.feature("176d", "176e")
async def test_seek_to_time_and_commit_in_the_background(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("Numbers", queues=1)
    queue = MessageQueue("Numbers", "broker-a", 0)
    await send_numbers(triomq_cluster, range(5))
    await trio.sleep(0.02)
    between = datetime.datetime.now(datetime.UTC)
    await trio.sleep(0.02)
    await send_numbers(triomq_cluster, range(5, 8))
    async with PullConsumer(
        triomq_cluster.namesrv_address, group="readers", auto_commit=False
    ) as consumer:
        await consumer.assign([queue])
        await consumer.seek_to_time(queue, between)
        got: list[int] = []
        with trio.fail_after(10):
            while len(got) < 3:
                got += numbers_of(await consumer.poll())
            assert got == [5, 6, 7]
            consumer.commit_nowait()
            while await consumer.committed(queue) != 8:
                await trio.sleep(0.01)
            consumer.commit_nowait({queue: 6})
            while await consumer.committed(queue) != 6:
                await trio.sleep(0.01)


@pytest.mark.feature("176a")
async def test_queues_of_a_topic_are_watched(triomq_cluster: InProcessCluster) -> None:
    seen: list[int] = []
    async with PullConsumer(
        triomq_cluster.namesrv_address, group="watchers", settings=QUICK
    ) as consumer:

        async def watch() -> None:
            async for queues in consumer.watch_queues("Numbers"):
                await consumer.assign(queues)
                seen.append(len(queues))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            await until(lambda: seen == [0])
            await triomq_cluster.create_topic("Numbers", queues=2)
            await until(lambda: seen == [0, 2])
            await triomq_cluster.create_topic("Numbers", queues=3)
            await until(lambda: seen == [0, 2, 3])
            assert len(consumer.assignment) == 3
            nursery.cancel_scope.cancel()


@pytest.mark.feature("176b")
async def test_a_pull_consumer_that_unsubscribes(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("Numbers", queues=2)
    async with PullConsumer(
        triomq_cluster.namesrv_address, group="leavers", subscriptions="Numbers", settings=QUICK
    ) as consumer:
        await until(lambda: len(consumer.assignment) == 2)
        await consumer.unsubscribe("Numbers")
        await until(lambda: consumer.assignment == ())
        with pytest.raises(SettingsError, match="not subscribed"):
            await consumer.unsubscribe("Numbers")


@pytest.mark.feature("137a", "137b")
async def test_pulls_stop_at_the_byte_limit_and_continue_when_there_is_room(
    triomq_cluster: InProcessCluster,
) -> None:
    await triomq_cluster.create_topic("Numbers", queues=1)
    async with Producer(triomq_cluster.namesrv_address, group="numbers") as producer:
        for number in range(60):
            await producer.send("Numbers", b"%03d" % number + bytes(1021))
    settings = ConsumerSettings(cached_bytes_max=10_000, pull_batch=4, client=QUICK.client)
    async with PushConsumer(
        triomq_cluster.namesrv_address,
        group="slow",
        subscriptions="Numbers",
        consume_from="first",
        settings=settings,
    ) as consumer:
        await until(lambda: consumer.statistics().unsettled >= 9)
        await trio.sleep(0.2)
        # A message has less than 1.2 KiB, and one pull may exceed the limit.
        assert 9 <= consumer.statistics().unsettled <= 10 + 4
        seen: list[int] = []
        with trio.fail_after(30):
            while len(seen) < 60:
                for message in await consumer.take():
                    seen.append(int(message.body[:3]))
                    message.ack_nowait()
    assert seen == list(range(60))


@pytest.mark.feature("137a", "137b")
async def test_pulls_stop_at_the_span_limit_even_with_few_messages(
    triomq_cluster: InProcessCluster,
) -> None:
    await triomq_cluster.create_topic("Numbers", queues=1)
    await send_numbers(triomq_cluster, range(100))
    settings = ConsumerSettings(cached_span_max=20, pull_batch=4, client=QUICK.client)
    async with PushConsumer(
        triomq_cluster.namesrv_address,
        group="slow",
        subscriptions="Numbers",
        consume_from="first",
        settings=settings,
    ) as consumer:
        await until(lambda: consumer.statistics().unsettled >= 22)
        held: list[ReceivedMessage] = []
        with trio.fail_after(30):
            while len(held) < consumer.statistics().unsettled:
                held += await consumer.take()
        assert 22 <= len(held) <= 21 + 4
        for message in held[1:-1]:
            message.ack_nowait()
        await trio.sleep(0.2)
        assert (consumer.statistics().unsettled, consumer.statistics().waiting) == (2, 0)
        held[0].ack_nowait()
        seen = numbers_of(held)
        with trio.fail_after(30):
            while len(seen) < 100:
                for message in await consumer.take():
                    seen.append(int(message.body))
                    message.ack_nowait()
    assert seen == list(range(100))


async def test_a_pull_consumer_calls_on_assignment(triomq_cluster: InProcessCluster) -> None:
    """It is Java's message-queue listener."""
    await triomq_cluster.create_topic("Numbers", queues=4)
    changes: list[AssignmentChange] = []

    def member(**more: object) -> PullConsumer:
        return PullConsumer(
            triomq_cluster.namesrv_address,
            group="listening",
            subscriptions="Numbers",
            settings=QUICK,
            **more,
        )  # type: ignore[arg-type]

    async with member(on_assignment=changes.append) as first:
        await first.wait_assigned()
        assert [
            (len(change.gained), len(change.lost), len(change.owned), len(change.queues))
            for change in changes
        ] == [(4, 0, 4, 4)]
        async with member() as second:
            await until(lambda: len(second.assignment) == 2 and len(first.assignment) == 2)
            assert changes[-1].lost == second.assignment
        await until(lambda: len(first.assignment) == 4)
        assert changes[-1].owned == first.assignment
