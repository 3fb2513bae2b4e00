"""``PushConsumer(mode="pop")`` against real clusters: every member has work, nothing is lost."""

from __future__ import annotations

import asyncio
import datetime
import random
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from process_cluster import process_cluster
from serving import until
from virtual_time import in_virtual_time

from triomq import (
    ClientSettings,
    ConsumerSettings,
    Message,
    MessageQueue,
    Producer,
    ProducerSettings,
    PushConsumer,
    ReceivedMessage,
    SettingsError,
    TrioMQError,
    aio,
    allocate_circle,
    sync,
)
from triomq.client.admin.admin import Admin
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import Command
from triomq.testing import InProcessCluster, local_cluster

QUICK = ConsumerSettings(
    error_delay=0.05,
    pop_invisible=2.0,
    suspend_queue=0.05,
    client=ClientSettings(route_interval=0.5, heartbeat_interval=0.5),
)
PATIENT = ProducerSettings(send_timeout=30)
VICTIM = Path(__file__).parents[2] / "support/pop_victim.py"


async def send(namesrv: str, bodies: Iterable[bytes], topic: str = "T") -> None:
    async with Producer(namesrv, group="p", settings=PATIENT) as producer:
        await producer.send_batch([Message(topic=topic, body=body) for body in bodies])


@asynccontextmanager
async def popping(where: InProcessCluster | str, handler: Any, **more: Any) -> AsyncIterator[Any]:
    options: dict[str, Any] = {
        "group": "g", "subscriptions": "T", "consume_from": "first", "mode": "pop",
        "settings": QUICK, **more,
    }  # fmt: skip
    namesrv = where if isinstance(where, str) else where.namesrv_address
    async with PushConsumer(namesrv, handler=handler, **options) as consumer:
        yield consumer


def numbers(count: int) -> list[bytes]:
    return [b"%03d" % number for number in range(count)]


@pytest.mark.feature("143a")
async def test_more_members_than_queues_have_work(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("T", queues=1)
    got: dict[int, list[bytes]] = defaultdict(list)

    def handler_of(member: int) -> Any:
        async def handle(message: ReceivedMessage) -> None:
            got[member].append(message.body)
            await trio.sleep(0.02)

        return handle

    async with AsyncExitStack() as stack:
        for member in range(4):
            await stack.enter_async_context(
                popping(triomq_cluster, handler_of(member), concurrency=1)
            )
        await send(triomq_cluster.namesrv_address, numbers(100))
        await until(lambda: sum(map(len, got.values())) >= 100)
        await trio.sleep(0.3)
    assert sorted(body for bodies in got.values() for body in bodies) == numbers(100)
    assert all(len(got[member]) > 5 for member in range(4)), got


@in_virtual_time
async def test_a_slow_member_holds_back_no_other(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("T", queues=1)
    fast: list[bytes] = []
    slow: list[bytes] = []

    async def hang(message: ReceivedMessage) -> None:
        slow.append(message.body)
        await trio.sleep_forever()

    async def handle(message: ReceivedMessage) -> None:
        fast.append(message.body)
        await trio.lowlevel.checkpoint()

    quick_stop = ConsumerSettings(
        pop_invisible=2.0, client=ClientSettings(shutdown_timeout=0.1, farewell_timeout=2.0)
    )
    async with popping(triomq_cluster, handle) as other:
        async with popping(triomq_cluster, hang, concurrency=2, settings=quick_stop) as hanging:
            for part in range(20):
                await send(triomq_cluster.namesrv_address, numbers(200)[part * 10 : part * 10 + 10])
                await trio.sleep(0.02)
            await until(lambda: len(fast) + len(slow) >= 200)
            assert len(slow) == hanging.statistics().unsettled == 2
            await trio.sleep(3)  # longer than the invisible time: it is renewed
            assert len(fast) == 198
        await until(lambda: len(fast) >= 200)
        assert sorted(fast) == numbers(200)
        await until(lambda: other.statistics().unsettled == 0)


@in_virtual_time
async def test_a_long_handler_keeps_its_message(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("T", queues=1)
    begun, ended = Counter[bytes](), Counter[bytes]()

    async def handle(message: ReceivedMessage) -> None:
        begun[message.body] += 1
        await trio.sleep(6)
        ended[message.body] += 1

    settings = ConsumerSettings(pop_invisible=4.0)
    async with (
        popping(triomq_cluster, handle, settings=settings) as first,
        popping(triomq_cluster, handle, settings=settings),
    ):
        await send(triomq_cluster.namesrv_address, numbers(5))
        await until(lambda: sum(ended.values()) >= 5)
        await trio.sleep(1)
        assert first.statistics().unsettled == 0
    assert begun == ended == Counter(dict.fromkeys(numbers(5), 1))


class AckDuringRenewal:
    """An RPC hook that acks a message while the request that renews it is on its way."""

    def __init__(self) -> None:
        self.message: ReceivedMessage | None = None
        self.outcomes: list[bool] = []

    def before_request(self, address: str, command: Command) -> None:
        if command.code == RequestCode.CHANGE_MESSAGE_INVISIBLETIME and self.message is not None:
            message, self.message = self.message, None
            self.outcomes.append(message.ack_nowait())

    def after_response(self, address: str, command: Command, answer: Command) -> None:
        """Change nothing."""


@in_virtual_time
async def test_a_message_that_is_acked_while_it_is_renewed_never_comes_again(
    triomq_cluster: InProcessCluster,
) -> None:
    """The acknowledgement needs the handle that the renewal brings."""
    await triomq_cluster.create_topic("T", queues=1)
    await send(triomq_cluster.namesrv_address, numbers(1))
    hook = AckDuringRenewal()
    settings = ConsumerSettings(
        pop_invisible=1.0,
        client=ClientSettings(rpc_hooks=[hook]),  # type: ignore[arg-type]
    )
    async with popping(triomq_cluster, None, settings=settings) as consumer:
        hook.message = await anext(consumer)
        await until(lambda: hook.outcomes == [True] and consumer.statistics().unsettled == 0)
        with trio.move_on_after(3) as waiting:
            await anext(consumer)
        assert waiting.cancelled_caught


@in_virtual_time
async def test_acks_wait_for_a_broker_that_is_away() -> None:
    async with local_cluster() as cluster:
        await cluster.create_topic("T", queues=1)
        await send(cluster.namesrv_address, numbers(3))
        settings = ConsumerSettings(
            error_delay=0.1, pop_invisible=30.0, client=ClientSettings(route_interval=0.2)
        )
        async with popping(cluster, None, settings=settings) as consumer:
            consumer._member().fetcher.handle_at_once(3)
            taken = await consumer.take(max_messages=3)
            taken += [await anext(consumer) for _ in range(3 - len(taken))]
            await cluster.stop_broker("broker-a")
            assert [await message.ack() for message in taken] == [True] * 3
            await trio.sleep(0.5)
            assert consumer.statistics().unsettled == 3
            await cluster.start_broker("broker-a")
            await until(lambda: consumer.statistics().unsettled == 0)
        with trio.move_on_after(1) as waiting:
            async with popping(cluster, None) as consumer:
                await anext(consumer)
        assert waiting.cancelled_caught


@in_virtual_time
async def test_a_namespace_pops_its_own_messages(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("red%T", queues=1)
    deliveries: list[tuple[str, bytes, int]] = []

    async def handle(message: ReceivedMessage) -> None:
        deliveries.append((message.topic, message.body, message.reconsume_times))
        if message.reconsume_times == 0:
            await message.retry(1)
        else:
            await trio.lowlevel.checkpoint()

    settings = ConsumerSettings(pop_invisible=2.0, client=ClientSettings(namespace="red"))
    async with popping(triomq_cluster, handle, settings=settings) as consumer:
        await send(triomq_cluster.namesrv_address, numbers(4), "red%T")
        await until(lambda: len(deliveries) >= 8)
        await until(lambda: consumer.statistics().unsettled == 0)
        await trio.sleep(2.5)
    expected = [("T", body, times) for body in numbers(4) for times in (0, 1)]
    assert sorted(deliveries) == expected


@in_virtual_time
async def test_a_failed_message_comes_again(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("T", queues=1)
    deliveries: list[tuple[bytes, int]] = []
    outcomes = []

    async def handle(message: ReceivedMessage) -> None:
        deliveries.append((message.body, message.reconsume_times))
        if message.body == b"001" and message.reconsume_times < 2:
            outcomes.append(await message.retry(1))
        else:
            outcomes.append(await message.ack())

    async with popping(triomq_cluster, handle):
        await send(triomq_cluster.namesrv_address, numbers(3))
        await until(lambda: len(deliveries) >= 5)
        await trio.sleep(2.5)
    assert sorted(deliveries) == [(b"000", 0), *((b"001", n) for n in range(3)), (b"002", 0)]
    assert outcomes == [True] * 5


@in_virtual_time
async def test_an_exception_hides_the_message_for_the_group_s_delay(
    triomq_cluster: InProcessCluster, caplog: pytest.LogCaptureFixture
) -> None:
    await triomq_cluster.create_topic("T", queues=1)
    failed = trio.Event()

    async def handle(message: ReceivedMessage) -> None:
        failed.set()
        raise ZeroDivisionError

    async with popping(triomq_cluster, handle) as consumer:
        await send(triomq_cluster.namesrv_address, numbers(1))
        await failed.wait()
        await until(lambda: consumer.statistics().unsettled == 0)
        async with Admin(triomq_cluster.namesrv_address) as admin:
            assert await admin.brokers()
        assert consumer.statistics().topics["T"].failed == 1
        await trio.sleep(3)  # longer than the invisible time, shorter than 10 s
        assert consumer.statistics().topics["T"].failed == 1
    assert "ZeroDivisionError" in caplog.text


@in_virtual_time
async def test_the_last_delivery_makes_a_dead_letter(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("T", queues=1)
    tries: list[int] = []
    dead: list[bytes] = []

    async def fail(message: ReceivedMessage) -> None:
        tries.append(message.reconsume_times)
        await message.retry(1)

    async def bury(message: ReceivedMessage) -> None:
        dead.append(message.body)
        await trio.lowlevel.checkpoint()

    settings = ConsumerSettings(max_reconsume_times=1)
    async with popping(triomq_cluster, fail, settings=settings):
        await send(triomq_cluster.namesrv_address, numbers(1))
        await until(lambda: len(tries) >= 2)
        async with popping(triomq_cluster, bury, group="undertakers", subscriptions="%DLQ%g"):
            await until(lambda: dead == numbers(1))
        await trio.sleep(2)
    assert tries == [0, 1]


@in_virtual_time
async def test_the_end_gives_back_what_no_handler_has(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("T", queues=1)
    await send(triomq_cluster.namesrv_address, numbers(8))
    taken: list[ReceivedMessage] = []
    later: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        later.append(message.body)
        await trio.lowlevel.checkpoint()

    hour = ConsumerSettings(pop_invisible=3600.0, client=ClientSettings(farewell_timeout=20.0))
    async with popping(triomq_cluster, None, settings=hour) as consumer:
        consumer._member().fetcher.handle_at_once(6)
        taken += [await anext(consumer), await anext(consumer)]
        assert await taken[0].ack()
        await until(lambda: consumer.statistics().unsettled >= 5)
    assert not await taken[1].ack()
    async with popping(triomq_cluster, handle):
        await until(lambda: len(later) >= 7)
        await trio.sleep(0.3)
    assert sorted([taken[0].body, *later]) == numbers(8)


@in_virtual_time
async def test_little_is_held(triomq_cluster: InProcessCluster) -> None:
    """Neither messages nor bytes beyond the limits, however long the application waits."""
    await triomq_cluster.create_topic("T", queues=4)
    await send(triomq_cluster.namesrv_address, numbers(400))
    for settings, least, most in (
        (ConsumerSettings(pop_messages_max=40), 40, 40),
        (ConsumerSettings(cached_bytes_max=1), 1, 32),
    ):
        async with popping(triomq_cluster, None, settings=settings) as consumer:
            consumer._member().fetcher.handle_at_once(1000)
            await until(lambda: consumer.statistics().unsettled >= least)  # noqa: B023
            await trio.sleep(0.5)
            assert least <= consumer.statistics().unsettled <= most


async def test_an_orderly_group_keeps_the_order_of_each_queue(
    triomq_cluster: InProcessCluster,
) -> None:
    await triomq_cluster.create_topic("T", queues=3)
    begun: dict[MessageQueue, list[int]] = defaultdict(list)
    working: set[MessageQueue] = set()
    overlaps, members = 0, set()

    def handler_of(member: int) -> Any:
        async def handle(message: ReceivedMessage) -> None:
            nonlocal overlaps
            overlaps += message.queue in working
            working.add(message.queue)
            members.add(member)
            begun[message.queue].append(message.queue_offset)
            try:
                await trio.sleep(random.random() * 0.01)
                if message.queue_offset % 7 == 3 and message.reconsume_times < 2:
                    raise ZeroDivisionError
            finally:
                working.discard(message.queue)

        return handle

    # A machine that stands still for two seconds must not end an invisible time.
    settings = attrs.evolve(QUICK, pop_invisible=40.0)
    options: Any = {"ordered": True, "concurrency": 3, "settings": settings}
    async with AsyncExitStack() as stack:
        for member in range(4):
            await stack.enter_async_context(popping(triomq_cluster, handler_of(member), **options))
        await send(triomq_cluster.namesrv_address, numbers(60))
        async with Producer(triomq_cluster.namesrv_address, group="p") as producer:
            for number in range(60):
                queue = MessageQueue("T", "broker-a", number % 3)
                await producer.send("T", b"%d" % number, queue=queue)
        await until(lambda: sum(len(set(offsets)) for offsets in begun.values()) >= 120)
        await trio.sleep(0.5)
    for offsets in begun.values():
        assert offsets == sorted(offsets)  # a failed one again, before the next one
        assert Counter(offsets) == {n: 3 if n % 7 == 3 else 1 for n in range(max(offsets) + 1)}
    assert overlaps == 0
    assert len(members) > 1


async def test_an_orderly_group_goes_on_behind_a_member_that_stopped(
    triomq_cluster: InProcessCluster,
) -> None:
    await triomq_cluster.create_topic("T", queues=1)
    await send(triomq_cluster.namesrv_address, numbers(6))
    seen: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.body)
        await trio.lowlevel.checkpoint()

    hour = ConsumerSettings(pop_invisible=3600.0, client=ClientSettings(farewell_timeout=20.0))
    async with popping(triomq_cluster, None, ordered=True, settings=hour) as consumer:
        consumer._member().fetcher.handle_at_once(6)
        message = await anext(consumer)
        seen.append(message.body)
        await message.ack()
        await anext(consumer)  # not settled
    async with popping(triomq_cluster, handle, ordered=True):
        await until(lambda: len(seen) >= 6)
    assert seen == numbers(6)


async def test_batches_are_of_one_queue(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("T", queues=2)
    batches: list[list[ReceivedMessage]] = []

    async def handle(messages: list[ReceivedMessage]) -> None:
        batches.append(messages)
        await trio.lowlevel.checkpoint()

    await send(triomq_cluster.namesrv_address, numbers(40))
    async with popping(triomq_cluster, None, batch_handler=handle, concurrency=1) as consumer:
        await until(lambda: sum(map(len, batches)) >= 40)
        await until(lambda: consumer.statistics().unsettled == 0)
    assert all(len({message.queue for message in batch}) == 1 for batch in batches)
    assert max(map(len, batches)) > 1


async def test_a_message_that_is_never_settled_goes_back(
    triomq_cluster: InProcessCluster, caplog: pytest.LogCaptureFixture
) -> None:
    await triomq_cluster.create_topic("T", queues=1)
    await send(triomq_cluster.namesrv_address, numbers(1))
    settings = ConsumerSettings(pop_invisible=1.0, consume_timeout=1.5)
    async with popping(triomq_cluster, None, settings=settings) as consumer:
        with trio.fail_after(30):
            forgotten = await anext(consumer)
            again = await anext(consumer)
        assert (again.body, again.reconsume_times) == (forgotten.body, 1)
        assert forgotten.lost
        assert not await forgotten.ack()
        assert await again.ack()
    assert "consume_timeout" in caplog.text


async def test_pause_and_resume(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("T", queues=1)
    seen: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.body)
        await trio.lowlevel.checkpoint()

    async with popping(triomq_cluster, handle) as consumer:
        await consumer.wait_assigned()
        assert consumer.assignment == ()
        consumer.pause()
        await send(triomq_cluster.namesrv_address, numbers(10))
        await trio.sleep(0.3)
        assert seen == []
        consumer.pause()  # once more, while its tasks wait for the end of the first pause
        consumer.resume()
        await until(lambda: len(seen) >= 10)
        await consumer.unsubscribe("T")
        await send(triomq_cluster.namesrv_address, numbers(1))
        await trio.sleep(0.3)
        assert len(seen) == 10
        await consumer.subscribe("T")
        await until(lambda: len(seen) >= 11)


@in_virtual_time
async def test_a_group_that_pulled_before_gets_its_retries(
    triomq_cluster: InProcessCluster,
) -> None:
    await triomq_cluster.create_topic("T", queues=1)
    again: list[tuple[str, bytes, int]] = []

    async def fail(message: ReceivedMessage) -> None:
        await message.retry(1)

    async def handle(message: ReceivedMessage) -> None:
        again.append((message.topic, message.body, message.reconsume_times))
        await trio.lowlevel.checkpoint()

    await send(triomq_cluster.namesrv_address, numbers(1))
    async with popping(triomq_cluster, fail, mode="pull") as consumer:
        await until(
            lambda: "T" in (topics := consumer.statistics().topics) and topics["T"].failed == 1
        )
    async with popping(triomq_cluster, handle):
        await until(lambda: len(again) >= 1)
        await trio.sleep(2.5)
    assert again == [("T", b"000", 1)]


async def test_an_administrator_sees_the_member(triomq_cluster: InProcessCluster) -> None:
    async def handle(message: ReceivedMessage) -> None:
        await trio.sleep(0.01)

    await triomq_cluster.create_topic("T", queues=1)
    async with popping(triomq_cluster, handle) as consumer:
        requests = consumer._broker_requests
        running = requests.running(with_tasks=False)
        assert running.properties["PROP_CONSUMEORDERLY"] == "false"
        assert [each.topic for each in running.subscriptions if "%" not in each.topic] == ["T"]
        assert repr(consumer) == "<PushConsumer of g: holds 0 messages>"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"mode": "push"}, "'pull' or 'pop'"),
        ({"broadcast": True}, "exclude each other.*mode='pull' for broadcasting"),
        ({"allocate": allocate_circle}, "own no queues"),
        ({"on_assignment": print}, "own no queues"),
        ({"consume_from": datetime.datetime.now(datetime.UTC)}, "'first' or 'last'"),
    ],
)
def test_what_has_no_meaning_is_refused(arguments: dict[str, Any], text: str) -> None:
    options: dict[str, Any] = {"mode": "pop", **arguments}
    with pytest.raises(SettingsError, match=text):
        PushConsumer("a:1", group="g", subscriptions="T", **options)


async def test_a_killed_process_loses_nothing(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("T", queues=1)
    await send(triomq_cluster.namesrv_address, numbers(10))
    seen: list[tuple[bytes, int]] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append((message.body, message.reconsume_times))
        await trio.lowlevel.checkpoint()

    command = [sys.executable, str(VICTIM), triomq_cluster.namesrv_address, "T", "g", "2"]
    victim = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
    assert victim.stdout is not None
    printed = b""
    with trio.fail_after(60):
        while printed.count(b"\n") < 2:
            printed += await victim.stdout.receive_some()
    await trio.sleep(3)  # it renews
    victim.kill()
    await victim.wait()
    async with popping(triomq_cluster, handle):
        await until(lambda: len(seen) >= 10)
        await trio.sleep(0.5)
    assert sorted(body for body, _ in seen) == numbers(10)
    assert {body for body, times in seen if times} >= set(printed.split())


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_broker_that_is_killed_in_the_middle(tmp_path: Path, ordered: bool) -> None:
    acked = Counter[bytes]()
    settings = ConsumerSettings(
        error_delay=0.2, pop_invisible=4.0, client=ClientSettings(route_interval=0.5)
    )

    async def handle(message: ReceivedMessage) -> None:
        await trio.sleep(0.01)
        acked[message.body] += 1

    async with process_cluster(
        tmp_path, brokers=["broker-a"], namesrvs=1, settings={"flushDiskType": "SYNC_FLUSH"}
    ) as cluster:
        await cluster.create_topic("T", queues=2)
        where = cluster.namesrv_address
        async with (
            popping(where, handle, settings=settings, ordered=ordered, concurrency=4),
            popping(where, handle, settings=settings, ordered=ordered, concurrency=4) as second,
            trio.open_nursery() as nursery,
        ):

            async def produce() -> None:
                async with Producer(where, group="p", settings=PATIENT) as producer:
                    for body in numbers(300):
                        while True:
                            try:
                                await producer.send("T", body)
                                break
                            except TrioMQError:
                                await trio.sleep(0.2)

            nursery.start_soon(produce)
            await until(lambda: len(acked) >= 60)
            await cluster.crash_broker("broker-a")
            await trio.sleep(0.5)
            await cluster.start_broker("broker-a")
            with trio.fail_after(90):
                await until(lambda: len(acked) >= 300)
                await until(lambda: second.statistics().unsettled == 0)
    assert sorted(acked) == numbers(300)


@in_virtual_time
async def test_several_brokers() -> None:
    async with local_cluster(brokers=2) as cluster:
        await cluster.create_topic("T", queues=1)
        seen: list[tuple[str, bytes]] = []

        async def handle(message: ReceivedMessage) -> None:
            seen.append((message.queue.broker_name, message.body))
            await trio.lowlevel.checkpoint()

        async with popping(cluster, handle):
            async with Producer(cluster.namesrv_address, group="p") as producer:
                for body in numbers(20):
                    await producer.send("T", body)
            await until(lambda: len(seen) >= 20)
        assert len({broker for broker, _ in seen}) == 2
        assert sorted(body for _, body in seen) == numbers(20)


# The other interfaces


def test_threads_handle_what_they_pop(triomq_server: str) -> None:
    seen: list[bytes] = []
    with sync.Admin(triomq_server) as admin:
        admin.create_topic("SyncPushPop", queues=1)
    with (
        sync.Producer(triomq_server, group="p") as producer,
        sync.PushConsumer(
            triomq_server, group="threads-pop", subscriptions="SyncPushPop", mode="pop",
            consume_from="first",
        ) as consumer,
    ):  # fmt: skip
        producer.send_batch([Message(topic="SyncPushPop", body=body) for body in numbers(20)])
        for message in consumer:
            with message:
                seen.append(message.body)
            if len(seen) == 20:
                break
    assert sorted(seen) == numbers(20)


def test_asyncio_handles_what_it_pops(triomq_server: str) -> None:
    seen: list[bytes] = []

    async def work() -> None:
        done = asyncio.Event()

        async def handle(message: aio.ReceivedMessage) -> None:
            await asyncio.sleep(0.001)
            seen.append(message.body)
            if len(seen) == 20:
                done.set()

        async with aio.Admin(triomq_server) as admin:
            await admin.create_topic("AioPushPop", queues=1)
        async with (
            aio.Producer(triomq_server, group="p") as producer,
            aio.PushConsumer(
                triomq_server, group="loops-pop", subscriptions="AioPushPop", mode="pop",
                consume_from="first", handler=handle,
            ),
            asyncio.timeout(30),
        ):  # fmt: skip
            await producer.send_batch(
                [Message(topic="AioPushPop", body=body) for body in numbers(20)]
            )
            await done.wait()

    asyncio.run(work())
    assert sorted(seen) == numbers(20)
