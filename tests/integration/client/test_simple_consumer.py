"""The simple consumer against a real cluster, in all interfaces: receive, ack, invisible times."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from serving import until

from triomq import (
    AlreadySettled,
    ClientSettings,
    ConsumerSettings,
    LeasedMessage,
    Message,
    NotRunning,
    Producer,
    ReceiptExpired,
    RouteNotFound,
    SettingsError,
    SimpleConsumer,
    TrioMQError,
    aio,
    sync,
)
from triomq.client.admin.admin import Admin
from triomq.client.receiving.pop import receiver
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import Command
from triomq.testing import InProcessCluster, local_cluster


async def send(cluster: InProcessCluster, bodies: list[bytes], topic: str = "T") -> None:
    async with Producer(cluster.namesrv_address, group="p") as producer:
        for body in bodies:
            await producer.send(topic, body)


@asynccontextmanager
async def consuming(cluster: InProcessCluster, **more: object) -> AsyncIterator[SimpleConsumer]:
    options: dict[str, object] = {"group": "g", "subscriptions": "T", "consume_from": "first"}
    async with SimpleConsumer(cluster.namesrv_address, **(options | more)) as consumer:  # type: ignore[arg-type]
        yield consumer


async def receive_all(consumer: SimpleConsumer, wanted: int, **more: object) -> list[LeasedMessage]:
    found: list[LeasedMessage] = []
    with trio.fail_after(30):
        while len(found) < wanted:
            found += await consumer.receive(**more)  # type: ignore[arg-type]
    return found


@pytest.mark.feature("171b")
@pytest.mark.feature("143b")
async def test_acked_messages_never_come_again_and_others_do(
    triomq_cluster: InProcessCluster,
) -> None:
    await triomq_cluster.create_topic("T", queues=2)
    bodies = [b"%d" % number for number in range(6)]
    await send(triomq_cluster, bodies)
    async with consuming(triomq_cluster) as consumer:
        found = await receive_all(consumer, 6, count=4, invisible=1.5)
        assert sorted(message.body for message in found) == bodies
        assert {message.reconsume_times for message in found} == {0}
        for message in found[:3]:
            await message.ack()
            assert message.settled
        await consumer.ack(found[3])
        with pytest.raises(AlreadySettled, match=found[3].message_id):
            await consumer.ack(found[3])
        again = await receive_all(consumer, 2)
        assert sorted(message.body for message in again) == sorted(m.body for m in found[4:])
        assert {message.reconsume_times for message in again} == {1}
        assert {message.topic for message in again} == {"T"}
        for message in again:
            await message.ack()
        assert await consumer.receive(timeout=2.5) == []


async def test_short_invisible_times_end_on_a_fresh_broker(
    triomq_cluster: InProcessCluster,
) -> None:
    """No timed message has come there, by which the broker would tell the time."""
    await triomq_cluster.create_topic("T", queues=1)
    await send(triomq_cluster, [b"0"])
    async with consuming(triomq_cluster, invisible=0.5) as consumer:
        for times in range(4):
            (message,) = await consumer.receive(timeout=10)
            assert message.reconsume_times == times


async def test_an_expired_receipt_says_what_happened(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("T", queues=1)
    await send(triomq_cluster, [b"0"])
    async with consuming(triomq_cluster) as consumer:
        (message,) = await consumer.receive(invisible=datetime.timedelta(seconds=0.5))
        assert not message.lost
        await until(lambda: message.lost)
        await trio.sleep(0.05)
        with pytest.raises(ReceiptExpired, match=r"0\.5 s.*longer `invisible`") as caught:
            await message.ack()
        assert caught.value.message_id == message.message_id
        with pytest.raises(ReceiptExpired):
            await consumer.change_invisible(message, 10)
        assert not message.settled


async def test_an_expired_receipt_is_refused_by_the_broker_too(
    triomq_cluster: InProcessCluster,
) -> None:
    """This side's clock may be wrong."""
    await triomq_cluster.create_topic("T", queues=1)
    await send(triomq_cluster, [b"0"])
    async with consuming(triomq_cluster) as consumer:
        (message,) = await consumer.receive(invisible=0.3)
        message._lease.ends += 60
        await trio.sleep(0.4)
        with pytest.raises(ReceiptExpired) as caught:
            await message.change_invisible(10)
        assert caught.value.__cause__ is not None


async def test_the_invisible_time_can_be_changed(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("T", queues=1)
    await send(triomq_cluster, [b"long", b"short"])
    async with consuming(triomq_cluster, invisible=1.5) as consumer:
        long, short = await receive_all(consumer, 2)
        receipt, end = long.receipt, long.invisible_until
        await long.change_invisible(datetime.timedelta(seconds=60))
        assert long.receipt != receipt
        assert long.invisible_until > end
        await short.change_invisible(0)
        (again,) = await consumer.receive(timeout=20)
        assert again.body == b"short"
        await again.ack()
        assert await consumer.receive(timeout=3) == []  # the old time of the other one is over
        await long.ack()


async def test_a_block_acks_or_retries(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("T", queues=1)
    await send(triomq_cluster, [b"0", b"1"])
    seen = []
    async with consuming(triomq_cluster) as consumer:
        with trio.fail_after(30):
            async for message in consumer:
                seen.append((message.body, message.reconsume_times))
                if len(seen) == 1:
                    with pytest.raises(ZeroDivisionError):
                        async with message:
                            raise ZeroDivisionError
                    assert message.given_back
                    assert message.invisible_until.timestamp() > 8 + message.store_timestamp / 1000
                    continue
                async with message:
                    pass
                assert (message.settled, message.given_back) == (True, False)
                break
    assert seen == [(b"0", 0), (b"1", 0)]


async def test_dead_letters(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("T", queues=1)
    await send(triomq_cluster, [b"0", b"1"])
    settings = ConsumerSettings(max_reconsume_times=0)
    async with consuming(triomq_cluster, invisible=1.5, settings=settings) as consumer:
        first, second = await receive_all(consumer, 2)
        await first.dead_letter()
        await second.retry()  # was its last delivery
        assert await consumer.receive(timeout=4) == []
    dead: dict[str, object] = {"subscriptions": "%DLQ%g", "group": "undertakers"}
    async with consuming(triomq_cluster, **dead) as consumer:
        found = await receive_all(consumer, 2)
        assert sorted(message.body for message in found) == [b"0", b"1"]


async def test_one_ring_is_enough_for_all_that_wait(triomq_cluster: InProcessCluster) -> None:
    """Each receive takes one message and ends, so nobody but the next one asks for more."""
    await triomq_cluster.create_topic("T", queues=1)
    got: list[bytes] = []
    async with consuming(triomq_cluster) as consumer:

        async def receive_one() -> None:
            (message,) = await consumer.receive(count=1)
            got.append(message.body)
            await message.ack()

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(receive_one)
            await trio.sleep(0.3)
            async with Producer(triomq_cluster.namesrv_address, group="p") as producer:
                await producer.send_batch([Message(topic="T", body=b"%d" % n) for n in range(4)])
            await until(lambda: len(got) == 4)
    assert sorted(got) == [b"0", b"1", b"2", b"3"]


async def test_many_receives_of_several_brokers_get_every_message_once() -> None:
    async with local_cluster(brokers=3) as cluster:
        await cluster.create_topic("T", queues=1)
        bodies = [b"%d" % number for number in range(60)]
        got: list[bytes] = []
        async with (
            consuming(cluster) as first,
            consuming(cluster) as second,
            trio.open_nursery() as nursery,
        ):
            parties: dict[SimpleConsumer, int] = {first: 0, second: 0}

            async def work(consumer: SimpleConsumer) -> None:
                while True:
                    for message in await consumer.receive(count=1):
                        got.append(message.body)
                        parties[consumer] += 1
                        await trio.sleep(0.01)
                        await message.ack()

            for consumer in (first, second):
                for _ in range(3):
                    nursery.start_soon(work, consumer)
            async with Producer(cluster.namesrv_address, group="p") as producer:
                for body in bodies:
                    await producer.send("T", body)
            await until(lambda: len(got) >= len(bodies))
            await trio.sleep(0.2)
            nursery.cancel_scope.cancel()
        assert sorted(got) == sorted(bodies)
        assert all(parties.values())


class Interruption:
    """An RPC hook that cancels a scope when a pop is sent."""

    def __init__(self) -> None:
        self.scope: trio.CancelScope | None = None
        self.requests: list[int] = []

    def before_request(self, address: str, command: Command) -> None:
        self.requests.append(command.code)
        if command.code == RequestCode.POP_MESSAGE and self.scope is not None:
            self.scope.cancel()

    def after_response(self, address: str, command: Command, answer: Command) -> None:
        """Change nothing."""


async def test_a_cancelled_receive_gives_back_what_comes_after_it(
    triomq_cluster: InProcessCluster,
) -> None:
    await triomq_cluster.create_topic("T", queues=1)
    await send(triomq_cluster, [b"0"])
    hook = Interruption()
    settings = ConsumerSettings(client=ClientSettings(rpc_hooks=[hook]))  # type: ignore[arg-type]
    async with (
        consuming(triomq_cluster, settings=settings) as cancelled,
        consuming(triomq_cluster) as other,
    ):
        with trio.CancelScope() as hook.scope:
            await cancelled.receive(invisible=3600)
        assert hook.scope.cancelled_caught
        await until(lambda: RequestCode.CHANGE_MESSAGE_INVISIBLETIME in hook.requests)
        (message,) = await other.receive(timeout=20)  # long before the invisible time is over
        assert (message.body, message.reconsume_times) == (b"0", 1)
        await message.ack()


async def test_the_end_gives_back_what_comes_after_it(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("T", queues=1)
    await send(triomq_cluster, [b"0"])
    hook = Interruption()
    settings = ConsumerSettings(client=ClientSettings(rpc_hooks=[hook]))  # type: ignore[arg-type]
    with trio.CancelScope() as hook.scope:
        async with consuming(triomq_cluster, settings=settings) as cancelled:
            await cancelled.receive(invisible=3600)
    assert hook.scope.cancelled_caught
    async with consuming(triomq_cluster) as other:
        (message,) = await other.receive(timeout=20)
        await message.ack()


async def test_a_watch_outlives_its_receive(
    triomq_cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop of short receives leaves one waiting request behind, not one for each."""
    monkeypatch.setattr(receiver, "WATCH_SECONDS", 60.0)
    await triomq_cluster.create_topic("T", queues=1)
    hook = Interruption()
    settings = ConsumerSettings(client=ClientSettings(rpc_hooks=[hook]))  # type: ignore[arg-type]
    async with consuming(triomq_cluster, settings=settings) as consumer:
        for _ in range(5):
            with trio.move_on_after(0.05):
                await consumer.receive()
        assert hook.requests.count(RequestCode.NOTIFICATION) == 1
        await send(triomq_cluster, [b"0"])
        (message,) = await consumer.receive(timeout=20)
        await message.ack()


async def test_a_watch_ends_by_itself(
    triomq_cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver, "WATCH_SECONDS", 0.2)
    await triomq_cluster.create_topic("T", queues=1)
    hook = Interruption()
    settings = ConsumerSettings(client=ClientSettings(rpc_hooks=[hook]))  # type: ignore[arg-type]
    async with consuming(triomq_cluster, settings=settings) as consumer:
        assert await consumer.receive(timeout=1.5) == []
    assert 2 <= hook.requests.count(RequestCode.NOTIFICATION) <= 8


async def test_a_broker_that_restarts_in_the_middle() -> None:
    async with local_cluster() as cluster:
        await cluster.create_topic("T", queues=1)
        await send(cluster, [b"0", b"1"])
        settings = ConsumerSettings(
            error_delay=0.1, offset_timeout=20, client=ClientSettings(route_interval=0.2)
        )
        async with consuming(cluster, settings=settings) as consumer:
            first, second = await receive_all(consumer, 2, invisible=30)
            await first.ack()
            await cluster.stop_broker("broker-a")
            with pytest.raises(TrioMQError):
                await consumer.receive(timeout=0.3)
            got: list[LeasedMessage] = []

            async def wait() -> None:
                got.extend(await consumer.receive(timeout=60))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(second.ack)  # is repeated until the broker is back
                nursery.start_soon(wait)
                await trio.sleep(0.3)
                await cluster.start_broker("broker-a")
                await send(cluster, [b"2"])
            assert [message.body for message in got] == [b"2"]
            await got[0].ack()
            assert second.settled
            assert await consumer.receive(timeout=0.5) == []


async def test_only_messages_with_the_tags_come(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("T", queues=1)
    async with Producer(triomq_cluster.namesrv_address, group="p") as producer:
        # The first two have the same hash.
        for tag in ("BB", "Aa", "c"):
            await producer.send("T", tag.encode(), tag=tag)
    async with consuming(triomq_cluster, subscriptions={"T": "Aa"}, invisible=1.5) as consumer:
        (message,) = await consumer.receive(timeout=20)
        assert message.body == b"Aa"
        await message.ack()
        assert await consumer.receive(timeout=4) == []


@pytest.mark.feature(104)
async def test_an_orderly_group_waits_for_each_queue(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("T", queues=1)
    await send(triomq_cluster, [b"0", b"1", b"2"])
    async with (
        consuming(triomq_cluster, ordered=True) as first,
        consuming(triomq_cluster, ordered=True) as second,
    ):
        (message,) = await first.receive(count=1, invisible=1.5)
        assert message.body == b"0"
        assert await second.receive(timeout=0.3) == []  # the queue is blocked
        again = await second.receive(count=2, invisible=30, timeout=20)  # the first one's time ends
        assert [each.body for each in again] == [b"0", b"1"]
        assert [each.reconsume_times for each in again] == [1, 0]
        while not message.lost:  # its time, which the client counts from the answer on
            await trio.sleep(0.05)
        await trio.sleep(0.05)
        with pytest.raises(ReceiptExpired):
            await message.ack()
        for each in again:
            await each.ack()
        (last,) = await first.receive(timeout=20)
        assert last.body == b"2"
        await last.ack()
        assert await first.receive(timeout=0.3) == []


async def test_a_group_begins_with_new_messages(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("T", queues=1)
    await send(triomq_cluster, [b"old", b"older"])
    async with consuming(triomq_cluster, consume_from="last") as consumer:
        await send(triomq_cluster, [b"new"])
        (message,) = await consumer.receive(timeout=20)
        assert message.body == b"new"


async def test_subscriptions_change(triomq_cluster: InProcessCluster) -> None:
    for topic in ("T", "U"):
        await triomq_cluster.create_topic(topic, queues=1)
    async with consuming(triomq_cluster) as consumer:
        await consumer.subscribe("U")
        await consumer.unsubscribe("T")
        await send(triomq_cluster, [b"t"], "T")
        await send(triomq_cluster, [b"u"], "U")
        (message,) = await consumer.receive(timeout=20)
        assert (message.topic, message.body) == ("U", b"u")
        await message.ack()
        assert await consumer.receive(timeout=0.3) == []
        with pytest.raises(SettingsError, match="not subscribed"):
            await consumer.unsubscribe("T")


async def test_a_namespace_has_its_own_messages(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("red%T", queues=1)
    client = ClientSettings(namespace="red")
    async with Producer(triomq_cluster.namesrv_address, group="p") as producer:
        await producer.send("red%T", b"0")
    settings = ConsumerSettings(client=client)
    async with consuming(triomq_cluster, settings=settings, invisible=1.0) as consumer:
        (message,) = await consumer.receive(timeout=20)
        assert (message.topic, message.queue.topic) == ("T", "T")
        (again,) = await consumer.receive(timeout=20)
        assert (again.topic, again.reconsume_times) == ("T", 1)
        await again.ack()
        assert await consumer.receive(timeout=3) == []


async def test_a_topic_that_does_not_exist_is_named(triomq_cluster: InProcessCluster) -> None:
    async with consuming(triomq_cluster, subscriptions="Nowhere") as consumer:
        with pytest.raises(RouteNotFound, match="Nowhere"):
            await consumer.receive(timeout=0.2)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"count": 33}, "1 to 32"),
        ({"count": 0}, "1 or greater"),
        ({"invisible": 0}, "invisible must be from"),
        ({"invisible": datetime.timedelta(days=1)}, "12|43200"),
        ({"timeout": -1}, "timeout must be"),
    ],
)
async def test_wrong_arguments_are_named(
    triomq_cluster: InProcessCluster, arguments: dict[str, object], text: str
) -> None:
    async with consuming(triomq_cluster) as consumer:
        with pytest.raises(SettingsError, match=text):
            await consumer.receive(**arguments)  # type: ignore[arg-type]


async def test_a_consumer_receives_in_its_block_only(triomq_cluster: InProcessCluster) -> None:
    consumer = SimpleConsumer(triomq_cluster.namesrv_address, group="g", subscriptions="T")
    with pytest.raises(NotRunning):
        await consumer.receive()
    async with consumer:
        async with Admin(triomq_cluster.namesrv_address) as admin:
            assert admin
    with pytest.raises(StopAsyncIteration):
        await anext(consumer)
    with pytest.raises(SettingsError, match="begins 'first' or 'last'"):
        SimpleConsumer(
            "a:1", group="g", subscriptions="T", consume_from=datetime.datetime.now(datetime.UTC)
        )


# The other interfaces


def test_threads_receive_and_ack(triomq_server: str) -> None:
    with sync.Admin(triomq_server) as admin:
        admin.create_topic("SyncPop", queues=2)
    with (
        sync.Producer(triomq_server, group="p") as producer,
        sync.SimpleConsumer(
            triomq_server, group="threads", subscriptions="SyncPop", consume_from="first"
        ) as consumer,
    ):
        assert consumer.receive(timeout=0) == []
        for number in range(3):
            producer.send("SyncPop", b"%d" % number)
        (first,) = consumer.receive(count=1, timeout=20, invisible=datetime.timedelta(seconds=1))
        assert first.invisible_until > datetime.datetime.now(datetime.UTC)
        consumer.change_invisible(first, 30)
        with first:
            pass
        assert first.settled
        bodies = {first.body}
        for message in consumer:
            bodies.add(message.body)
            consumer.ack(message)
            if len(bodies) == 3:
                break
        assert bodies == {b"0", b"1", b"2"}
        assert consumer.receive(timeout=0.2) == []
        with pytest.raises(AlreadySettled):
            first.ack()


def test_asyncio_receives_and_acks(triomq_server: str) -> None:
    async def work() -> None:
        async with aio.Admin(triomq_server) as admin:
            await admin.create_topic("AioPop", queues=2)
        async with (
            aio.Producer(triomq_server, group="p") as producer,
            aio.SimpleConsumer(
                triomq_server, group="loops", subscriptions="AioPop", consume_from="first"
            ) as consumer,
        ):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await consumer.receive()
            await producer.send_batch([Message(topic="AioPop", body=b"%d" % n) for n in range(3)])
            bodies = set()
            async with asyncio.timeout(30):
                async for message in consumer:
                    async with message:
                        await consumer.change_invisible(message, 30)
                        bodies.add(message.body)
                    if len(bodies) == 3:
                        break
            assert bodies == {b"0", b"1", b"2"}
            assert await consumer.receive(timeout=0.2) == []

    asyncio.run(work())


async def test_the_end_gives_back_what_the_application_holds(
    triomq_cluster: InProcessCluster,
) -> None:
    """What it acknowledged stays away, and what it hid for a time of its own stays hidden."""
    await send(triomq_cluster, [b"acked", b"hidden", b"dropped", b"held"])
    async with consuming(triomq_cluster, invisible=300) as first:
        found = {each.body: each for each in await receive_all(first, 4)}
        await found[b"acked"].ack()
        await found.pop(b"hidden").change_invisible(301)
        del found[b"dropped"]
    async with consuming(triomq_cluster) as second:
        again = await receive_all(second, 2)
        assert {each.body for each in again} == {b"dropped", b"held"}
        assert {each.reconsume_times for each in again} == {1}
        assert await second.receive(timeout=0.2) == []
    with pytest.raises(ReceiptExpired, match="the group gets it again"):
        await found[b"held"].ack()


async def test_what_an_application_never_settles_is_not_kept_for_ever(
    triomq_cluster: InProcessCluster,
) -> None:
    await send(triomq_cluster, [b"%d" % number for number in range(40)])
    async with consuming(triomq_cluster, invisible=0.05) as consumer:
        for _ in range(20):
            await consumer.receive(timeout=1)
            await trio.sleep(0.06)
        assert len(consumer._leases) <= 80
