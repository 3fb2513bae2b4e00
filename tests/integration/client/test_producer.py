"""The producer against a real cluster: receipts, queues, batches, retries, restarts of servers."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
import trio
from sent_requests import SentRequests
from silent_servers import silent_server
from topic_reader import read_topic
from virtual_time import in_virtual_time

from triomq import (
    Message,
    MessageInvalid,
    MessageQueue,
    NoNameServer,
    NotRunning,
    Producer,
    ProducerSettings,
    PullConsumer,
    ReceivedMessage,
    RouteNotFound,
    SendFailed,
    SendReceipt,
    SendStatus,
    TopicInvalid,
)
from triomq.client.core.config import ClientSettings
from triomq.testing import InProcessCluster, local_cluster

FAST_ROUTES = ProducerSettings(client=ClientSettings(route_interval=0.2, heartbeat_interval=0.2))
ENDLESS_PRODUCER = """
import itertools, sys, trio
from triomq import Producer

async def main():
    async with Producer(sys.argv[1], group="orders") as producer:
        for number in itertools.count():
            await producer.send("Orders", b"%d" % number)
            print(number, flush=True)

trio.run(main)
"""


@pytest.mark.feature("65a")
async def test_a_receipt_says_where_the_message_is_stored(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("Orders", queues=2)
    async with Producer(triomq_cluster.namesrv_address, group="orders") as producer:
        queue = (await producer.queues("Orders"))[1]
        first = await producer.send(
            "Orders", b"one", tag="paid", keys=["o-1", "o-2"], properties={"shop": "7"}, queue=queue
        )
        second = await producer.send(Message(topic="Orders", body=b"two"), queue=1)
    assert first.status is SendStatus.STORED
    assert (first.queue, first.queue_offset, second.queue, second.queue_offset) == (
        queue,
        0,
        queue,
        1,
    )
    assert first.region == "DefaultRegion"
    assert len(first.offset_message_id) == 32
    assert first.message_id != second.message_id
    async with PullConsumer(
        triomq_cluster.namesrv_address, group="reader", consume_from="first"
    ) as consumer:
        await consumer.assign([queue])
        with trio.fail_after(5):
            message = (await consumer.poll())[0]
    assert (message.topic, message.body, message.tag, message.keys) == (
        "Orders",
        b"one",
        "paid",
        ("o-1", "o-2"),
    )
    assert message.properties["shop"] == "7"
    assert message.message_id == first.message_id
    assert message.offset_message_id == first.offset_message_id
    assert message.queue_offset == 0
    assert message.reconsume_times == 0
    assert abs(message.stored_at.timestamp() - message.born_at.timestamp()) < 5
    assert message.born_host[0] == "127.0.0.1"


@pytest.mark.feature("11a", "11b", "62a", 66)
async def test_round_robin_over_all_queues_of_two_brokers() -> None:
    async with local_cluster(brokers=2) as cluster:
        await cluster.create_topic("Orders", queues=4)
        async with Producer(cluster.namesrv_address, group="orders") as producer:
            counts = Counter([(await producer.send("Orders", b"x")).queue for _ in range(400)])
    assert len(counts) == 8
    assert {queue.broker_name for queue in counts} == {"broker-a", "broker-b"}
    assert set(counts.values()) == {50}


@pytest.mark.feature("65b", "76a")
async def test_many_sends_at_once_share_one_connection(triomq_cluster: InProcessCluster) -> None:
    """Asynchronous sending means many tasks; each answer finds its own sender."""
    await triomq_cluster.create_topic("Orders", queues=4)
    receipts: dict[int, str] = {}
    async with Producer(
        triomq_cluster.namesrv_address, group="orders", settings=ProducerSettings(send_timeout=30)
    ) as producer:

        async def send(number: int) -> None:
            receipt = await producer.send(
                "Orders", b"%d" % number, properties={"number": str(number)}
            )
            receipts[number] = receipt.message_id

        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(send, number)
    found = await read_topic(triomq_cluster.namesrv_address, "Orders", 200)
    assert {int(message.properties["number"]): message.message_id for message in found} == receipts
    assert len(set(receipts.values())) == 200


async def test_one_way(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("Orders", queues=1)
    async with Producer(triomq_cluster.namesrv_address, group="orders") as producer:
        for number in range(20):
            assert await producer.send_oneway("Orders", b"%d" % number) is None
        await producer.send("Orders", b"end")
    found = await read_topic(triomq_cluster.namesrv_address, "Orders", 21)
    assert [message.body for message in found] == [
        *(b"%d" % number for number in range(20)),
        b"end",
    ]


@pytest.mark.feature("161a", "161b")
async def test_a_batch_gives_each_message_its_id_and_offset(
    triomq_cluster: InProcessCluster,
) -> None:
    await triomq_cluster.create_topic("Orders", queues=1)
    messages = [
        Message(topic="Orders", body=b"%04d" % number, tag="t", keys=(f"k{number}",))
        for number in range(500)
    ]
    requests = SentRequests()
    settings = ProducerSettings(batch_bytes_max=8192, send_hooks=[requests])
    async with Producer(
        triomq_cluster.namesrv_address, group="orders", settings=settings
    ) as producer:
        receipts = await producer.send_batch(messages[:20])
        assert (requests.batches, requests.singles) == (1, 0)
        receipts += await producer.send_batch(messages[20:])
        assert requests.batches > 2, "too much for one request"
        assert requests.singles == 0
        assert await producer.send_batch([]) == []
    assert [receipt.queue_offset for receipt in receipts] == list(range(500))
    assert len({receipt.message_id for receipt in receipts}) == 500
    assert len({receipt.offset_message_id for receipt in receipts}) == 500
    found = await read_topic(triomq_cluster.namesrv_address, "Orders", 500)
    assert [message.body for message in found] == [message.body for message in messages]
    assert [message.message_id for message in found] == [receipt.message_id for receipt in receipts]
    assert found[7].keys == ("k7",)


async def test_without_automatic_creation_an_unknown_topic_is_a_clear_error() -> None:
    async with local_cluster(settings={"autoCreateTopicEnable": False}) as cluster:
        async with Producer(cluster.namesrv_address, group="orders") as producer:
            with pytest.raises(RouteNotFound, match="mqadmin topic create -c CLUSTER -t Nowhere"):
                await producer.send("Nowhere", b"hello")


@pytest.mark.feature("60b", "62b", "70a")
async def test_a_send_is_tried_again_on_another_broker(caplog: pytest.LogCaptureFixture) -> None:
    """The route still names the dead broker; the send succeeds on the other, under the same id."""
    async with local_cluster(brokers=2) as cluster:
        await cluster.create_topic("Orders", queues=2)
        async with Producer(cluster.namesrv_address, group="orders") as producer:
            await producer.queues("Orders")
            await cluster.stop_broker("broker-a")
            receipts = [await producer.send("Orders", b"x") for _ in range(8)]
    assert {receipt.queue.broker_name for receipt in receipts} == {"broker-b"}


async def test_when_all_tries_fail_the_error_names_them(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("Orders", queues=2)
    async with Producer(triomq_cluster.namesrv_address, group="orders") as producer:
        await producer.send("Orders", b"x")
        await triomq_cluster.stop_broker("broker-a")
        with pytest.raises(SendFailed) as caught:
            await producer.send("Orders", b"x")
        assert 3 < len(caught.value.attempts) <= 16  # until its time was over
        assert {attempt.broker for attempt in caught.value.attempts} == {"broker-a"}
        assert "broker-a" in str(caught.value)
        await triomq_cluster.start_broker("broker-a")
        assert (await producer.send("Orders", b"x")).status is SendStatus.STORED


@pytest.mark.feature("70c", 74)
async def test_illegal_messages_fail_at_once(triomq_cluster: InProcessCluster) -> None:
    async with Producer(triomq_cluster.namesrv_address, group="orders") as producer:
        with pytest.raises(MessageInvalid, match="4194304"):
            await producer.send("Orders", b"x" * (4 * 1024 * 1024 + 1))
        with pytest.raises(MessageInvalid, match="empty"):
            await producer.send("Orders", b"")
        with pytest.raises(MessageInvalid, match="must be bytes"):
            await producer.send("Orders", "text")  # type: ignore[call-overload]
        with pytest.raises(MessageInvalid, match="list of texts"):
            await producer.send("Orders", b"x", keys="o-1")
        with pytest.raises(TopicInvalid):
            await producer.send("no.dots", b"x")


@pytest.mark.feature("8a", "8b")
async def test_a_producer_follows_new_brokers_and_topics() -> None:
    async with local_cluster(brokers=2) as cluster:
        await cluster.stop_broker("broker-b")
        await cluster.create_topic("Orders", queues=1)
        async with Producer(
            cluster.namesrv_address, group="orders", settings=FAST_ROUTES
        ) as producer:
            assert {queue.broker_name for queue in await producer.queues("Orders")} == {"broker-a"}
            await cluster.start_broker("broker-b")
            await cluster.create_topic("Orders", queues=1)
            with trio.fail_after(10):
                while (await producer.send("Orders", b"x")).queue.broker_name != "broker-b":
                    await trio.sleep(0.02)
            await cluster.crash_broker("broker-a")
            with trio.fail_after(10):
                while {queue.broker_name for queue in await producer.queues("Orders")} != {
                    "broker-b"
                }:
                    await trio.sleep(0.02)


async def test_a_name_server_that_hangs_delays_only_the_first_look_up() -> None:
    """And one look-up by less than half a second: the other answers."""
    async with local_cluster() as cluster:
        with silent_server() as port:
            addresses = [f"127.0.0.1:{port}", cluster.namesrv_address]
            settings = ProducerSettings(client=ClientSettings(route_timeout=60.0))
            async with Producer(addresses, group="orders", settings=settings) as producer:
                names = producer._active().session._names
                names._current = 0
                names._silent.clear()
                with trio.fail_after(25):  # half of the time would be that of the silent one
                    for number in range(10):
                        await producer.send(f"Fresh{number}", b"needs a look-up")
                assert names.is_silent(addresses[0], trio.current_time()) or (
                    names.order(trio.current_time())[0] == addresses[1]
                )


@pytest.mark.feature("5a", "6c")
async def test_one_of_two_name_servers_is_enough() -> None:
    async with local_cluster(namesrvs=2) as cluster:
        await cluster.create_topic("Orders", queues=1)
        async with Producer(
            cluster.namesrv_address, group="orders", settings=FAST_ROUTES
        ) as producer:
            used = producer._active().session._names
            for _ in range(5):
                before = used.order(trio.current_time())[0]
                await producer.queues("Orders")
                assert used.order(trio.current_time())[0] == before
            gone = next(
                server.name
                for server in cluster.namesrvs
                if server.address == used.order(trio.current_time())[0]
            )
            await cluster.stop_namesrv(gone)
            await producer.send("Fresh", b"needs a look-up")
            assert used.order(trio.current_time())[0] != before
            await cluster.start_namesrv(gone)
            assert (await producer.send("Orders", b"x")).queue.topic == "Orders"


async def test_starting_without_name_server_fails_early() -> None:
    async with local_cluster(brokers=0) as cluster:
        address = cluster.namesrv_address
        await cluster.stop_namesrv("namesrv-1")
        settings = ProducerSettings(client=ClientSettings(route_timeout=0.2))
        with pytest.raises(NoNameServer, match=f"{address}.*mqnamesrv"):
            async with Producer(address, group="orders", settings=settings):
                raise AssertionError("must not start")


@pytest.mark.feature("15a", "15b")
async def test_a_killed_producer_leaves_nothing_to_clean_up(
    triomq_cluster: InProcessCluster,
) -> None:
    """After SIGKILL while it sends, the other producer of its group continues, and a third one
    starts normally.
    """
    await triomq_cluster.create_topic("Orders", queues=1)
    address, patient = triomq_cluster.namesrv_address, ProducerSettings(send_timeout=60)
    async with Producer(address, group="orders", settings=patient) as survivor:
        await survivor.send("Orders", b"before")
        victim = await trio.lowlevel.open_process(
            [sys.executable, "-c", ENDLESS_PRODUCER, triomq_cluster.namesrv_address],
            stdout=subprocess.PIPE,
        )
        assert victim.stdout is not None
        printed = b""
        with trio.fail_after(30):
            while printed.count(b"\n") < 5:
                printed += await victim.stdout.receive_some()
            victim.kill()
            await victim.wait()
        await survivor.send("Orders", b"after")
        async with Producer(address, group="orders", settings=patient) as successor:
            last = await successor.send("Orders", b"successor")
    bodies = [
        message.body for message in await read_topic(address, "Orders", last.queue_offset + 1)
    ]
    assert bodies[0] == b"before"
    assert bodies[-2:] == [b"after", b"successor"]
    assert bodies[1:-2][:5] == [b"0", b"1", b"2", b"3", b"4"], (
        "what the killed one had been answered"
    )


@pytest.mark.feature("14a")
async def test_producers_are_listed_while_they_run(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("Orders", queues=1)
    async with Producer(triomq_cluster.namesrv_address, group="orders") as producer:
        await producer.send("Orders", b"x")
        session = producer._active().session
        await session.heartbeats.ensure_all()
        assert session.heartbeats.registered == {triomq_cluster.brokers[0].address}


async def test_stopping_is_quick_even_when_cancelled(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("Orders", queues=1)
    with trio.fail_after(5), trio.CancelScope() as scope:
        async with Producer(triomq_cluster.namesrv_address, group="orders") as producer:
            await producer.send("Orders", b"x")
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    with pytest.raises(NotRunning, match="async with"):
        await producer.send("Orders", b"x")
    with pytest.raises(NotRunning, match="make a new one"):
        await producer.__aenter__()


async def test_errors_of_the_body_are_raised_unchanged(triomq_cluster: InProcessCluster) -> None:
    with pytest.raises(ZeroDivisionError):
        async with Producer(triomq_cluster.namesrv_address, group="orders"):
            _ = 1 / 0
    with pytest.raises(ExceptionGroup) as caught:
        async with Producer(triomq_cluster.namesrv_address, group="orders"):
            raise ExceptionGroup("mine", [ValueError("1")])
    assert caught.value.message == "mine"


async def test_a_cancelled_send_leaves_the_connection_usable(
    triomq_cluster: InProcessCluster,
) -> None:
    await triomq_cluster.create_topic("Orders", queues=1)
    async with Producer(triomq_cluster.namesrv_address, group="orders") as producer:
        await producer.send("Orders", b"0")
        message_id = producer.new_message_id()
        with trio.CancelScope() as scope:
            scope.cancel()
            await producer.send("Orders", b"1", message_id=message_id)
        assert scope.cancelled_caught
        receipt = await producer.send("Orders", b"1", message_id=message_id)
        assert receipt.message_id == message_id
        assert receipt.queue == MessageQueue("Orders", "broker-a", 0)


def test_logging_is_left_to_the_application() -> None:
    assert logging.getLogger("triomq").handlers == []


@in_virtual_time
async def test_a_broker_that_restarts_delays_sends_and_fails_none() -> None:
    """Its port refuses connections for a while: tries without a connection do not count, and the
    time limit decides.
    """
    async with local_cluster() as cluster:
        await cluster.create_topic("Orders", queues=2)
        async with Producer(
            cluster.namesrv_address, group="orders", settings=ProducerSettings(send_timeout=20)
        ) as producer:
            await producer.send("Orders", b"x")
            name = cluster.brokers[0].name
            await cluster.crash_broker(name)
            receipts: list[SendReceipt] = []

            async def send(number: int) -> None:
                receipts.append(
                    await producer.send("Orders", b"%d" % number, queue=0 if number % 2 else None)
                )

            async with trio.open_nursery() as nursery:
                for number in range(50):
                    nursery.start_soon(send, number)
                await trio.sleep(1)
                assert receipts == []
                await cluster.start_broker(name)
            assert len(receipts) == 50


@pytest.mark.feature("75a", "75b")
async def test_every_field_of_a_message_reaches_its_consumers_unchanged(
    triomq_cluster: InProcessCluster,
) -> None:
    await triomq_cluster.create_topic("Orders", queues=1)
    sent = Message(
        topic="Orders",
        body=bytes(range(256)),
        tag="päid",
        keys=["a", "b"],
        properties={"shop": "7", "名": "ä b"},
        flag=-5,
    )
    begin = datetime.now(UTC) - timedelta(milliseconds=1)
    async with Producer(triomq_cluster.namesrv_address, group="orders") as producer:
        receipt = await producer.send(sent)
    end = datetime.now(UTC)
    found: list[ReceivedMessage] = []
    for group in ("one", "two"):
        async with PullConsumer(
            triomq_cluster.namesrv_address, group=group, consume_from="first"
        ) as consumer:
            await consumer.assign(await consumer.queues("Orders"))
            with trio.fail_after(5):
                found += await consumer.poll()
    for message in found:
        assert (message.message_id, message.topic, message.body, message.tag) == (
            receipt.message_id,
            "Orders",
            sent.body,
            "päid",
        )
        assert (
            message.keys,
            message.flag,
            message.properties["shop"],
            message.properties["名"],
        ) == (("a", "b"), -5, "7", "ä b")
        assert begin <= message.born_at <= message.stored_at <= end
    assert (found[0].born_at, found[0].stored_at) == (found[1].born_at, found[1].stored_at)
