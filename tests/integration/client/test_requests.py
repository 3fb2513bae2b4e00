"""Request and reply over real sockets: ``producer.request`` and ``message.reply``."""

from __future__ import annotations

import logging
import pickle
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

import pytest
import trio

from triomq import (
    ConsumerSettings,
    Message,
    MessageQueue,
    NotARequest,
    Producer,
    ProducerSettings,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    ReplyMessage,
    ReplyNotDelivered,
    ReplyTimeout,
    RouteNotFound,
    SendReceipt,
    SettingsError,
)
from triomq.client.core.config import ClientSettings
from triomq.client.core.heartbeats import Heartbeats
from triomq.client.core.route_finder import RouteFinder
from triomq.client.core.routes import KnownRoutes, TopicQueues
from triomq.client.sending.destinations import SendRequests
from triomq.client.sending.encoding import OutgoingMessage
from triomq.client.sending.sender import Sender, SendTarget
from triomq.remoting.client.connector import Connector
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.message_properties import parse_properties, properties_text
from triomq.testing import InProcessCluster, local_cluster

Handle = Callable[[ReceivedMessage], Awaitable[object]]


async def echo(message: ReceivedMessage) -> None:
    await message.reply(b"re: " + message.body)


@asynccontextmanager
async def replying(
    cluster: InProcessCluster, topic: str, handler: Handle
) -> AsyncIterator[PushConsumer]:
    async with PushConsumer(
        cluster.namesrv_address,
        group="repliers",
        subscriptions=topic,
        handler=handler,
        consume_from="first",
        concurrency=64,
    ) as consumer:
        await consumer.wait_assigned()
        yield consumer


@asynccontextmanager
async def requesting(cluster: InProcessCluster, **settings: object) -> AsyncIterator[Producer]:
    async with Producer(
        cluster.namesrv_address,
        group="requesters",
        settings=ProducerSettings(**settings),  # type: ignore[arg-type]
    ) as producer:
        yield producer


@pytest.mark.feature("162a")
async def test_a_request_returns_the_reply_of_a_consumer() -> None:
    async with local_cluster() as cluster:
        await cluster.create_topic("Prices", queues=2)
        async with replying(cluster, "Prices", echo), requesting(cluster) as producer:
            with trio.fail_after(20):
                reply = await producer.request(
                    "Prices", b"tea?", tag="t", properties={"unit": "g"}, timeout=10
                )
            assert isinstance(reply, ReplyMessage)
            assert reply.body == b"re: tea?"
            assert reply.topic.endswith("_REPLY_TOPIC")
            assert reply.properties["MSG_TYPE"] == "reply"
            assert reply.properties["REPLY_TO_CLIENT"] == producer.client_id
            assert reply.properties["TTL"] == "10000"
            assert int(reply.properties["ARRIVE_TIME"]) >= int(reply.properties["PUSH_REPLY_TIME"])
            assert (reply.group, reply.queue_offset, reply.settled, reply.lost) == (
                "requesters",
                -1,
                True,
                False,
            )
            assert reply.correlation_id in repr(reply)
            assert "re: tea" not in repr(reply)
            statistics = producer.request_statistics()
            assert (statistics.answered, statistics.waiting) == (1, 0)


@pytest.mark.feature("162a")
async def test_a_pull_consumer_replies_and_a_message_object_is_a_request() -> None:
    async with local_cluster() as cluster:
        await cluster.create_topic("Prices", queues=1)
        async with (
            requesting(cluster) as producer,
            PullConsumer(
                cluster.namesrv_address, group="g", subscriptions="Prices", consume_from="first"
            ) as consumer,
            trio.open_nursery() as nursery,
        ):

            async def ask() -> None:
                message = Message(topic="Prices", body=b"x" * 10_000, keys=("k",))
                reply = await producer.request(message, timeout=10)
                assert reply.body == b"y" * 10_000
                assert reply.properties["colour"] == "blue"

            nursery.start_soon(ask)
            with trio.fail_after(20):
                (request,) = await consumer.poll()
                assert request.body == b"x" * 10_000  # it travelled compressed
                await request.reply(b"y" * 10_000, properties={"colour": "blue"})


@pytest.mark.feature("162b")
async def test_two_thousand_requests_in_flight_each_get_their_own_reply() -> None:
    count = 2000
    gate, waiting = trio.Event(), 0

    async def handler(message: ReceivedMessage) -> None:
        await gate.wait()
        await echo(message)

    async with local_cluster() as cluster:
        await cluster.create_topic("Prices", queues=4)
        async with replying(cluster, "Prices", handler), requesting(cluster) as producer:
            replies: dict[int, bytes] = {}

            async def ask(number: int) -> None:
                reply = await producer.request("Prices", b"%d" % number, timeout=60)
                replies[number] = reply.body

            with trio.fail_after(90):
                async with trio.open_nursery() as nursery:
                    for number in range(count):
                        nursery.start_soon(ask, number)
                    while waiting < count:
                        await trio.sleep(0.05)
                        waiting = producer.request_statistics().waiting
                    gate.set()
            assert replies == {number: b"re: %d" % number for number in range(count)}
            statistics = producer.request_statistics()
            assert (statistics.answered, statistics.timed_out) == (count, 0)
            assert (statistics.waiting, statistics.unmatched) == (0, 0)


@pytest.mark.feature("162c")
async def test_a_request_without_a_reply_times_out_and_a_late_reply_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    requests: list[ReceivedMessage] = []

    async def silent(message: ReceivedMessage) -> None:
        requests.append(message)

    async with local_cluster() as cluster:
        await cluster.create_topic("Prices", queues=1)
        async with replying(cluster, "Prices", silent), requesting(cluster) as producer:
            began = trio.current_time()
            with pytest.raises(ReplyTimeout) as timed_out:
                await producer.request("Prices", b"?", timeout=1)
            assert trio.current_time() - began < 2
            error = timed_out.value
            assert isinstance(error, TimeoutError)
            assert error.maybe_stored
            assert "the request is stored" in str(error)
            assert "the request is stored" in str(pickle.loads(pickle.dumps(error)))
            with trio.fail_after(10):
                while not requests:
                    await trio.sleep(0.01)
            (request,) = requests
            assert error.correlation_id == request.properties["CORRELATION_ID"]
            assert error.correlation_id in str(error)
            with caplog.at_level(logging.WARNING, "triomq.client.requests"):
                for _ in range(3):
                    await request.reply(b"too late")
            lines = [line for line in caplog.messages if "nothing waits for it" in line]
            assert len(lines) == 1
            assert error.correlation_id in lines[0]
            statistics = producer.request_statistics()
            assert (statistics.timed_out, statistics.unmatched) == (1, 3)


async def test_a_second_reply_does_not_replace_the_first() -> None:
    async def twice(message: ReceivedMessage) -> None:
        await message.reply(b"first")
        await message.reply(b"second")

    async with local_cluster() as cluster:
        await cluster.create_topic("Prices", queues=1)
        async with replying(cluster, "Prices", twice), requesting(cluster) as producer:
            assert (await producer.request("Prices", b"?", timeout=10)).body == b"first"
            with trio.fail_after(10):
                while not producer.request_statistics().unmatched:
                    await trio.sleep(0.01)


@pytest.mark.feature("162c")
async def test_a_requester_that_is_gone_is_a_typed_error_of_the_replier() -> None:
    requests: list[ReceivedMessage] = []

    async def keep(message: ReceivedMessage) -> None:
        requests.append(message)

    async with local_cluster() as cluster:
        await cluster.create_topic("Prices", queues=1)
        async with replying(cluster, "Prices", keep):
            async with requesting(cluster) as producer:
                with pytest.raises(ReplyTimeout):
                    await producer.request("Prices", b"?", timeout=0.5)
                client_id = producer.client_id
            with trio.fail_after(10):
                while not requests:
                    await trio.sleep(0.01)
            with pytest.raises(ReplyNotDelivered) as lost:
                await requests[0].reply(b"!")
            assert lost.value.client_id == client_id
            assert f"channel of <{client_id}> not found" in str(lost.value)


async def test_only_requests_can_be_answered_and_arguments_are_checked() -> None:
    async with local_cluster() as cluster:
        await cluster.create_topic("Prices", queues=1)
        async with requesting(cluster) as producer:
            await producer.send("Prices", b"no request")
            async with PullConsumer(
                cluster.namesrv_address, group="g", subscriptions="Prices", consume_from="first"
            ) as consumer:
                with trio.fail_after(10):
                    (message,) = await consumer.poll()
                with pytest.raises(NotARequest, match="CORRELATION_ID, REPLY_TO_CLIENT"):
                    await message.reply(b"!")
                with pytest.raises(SettingsError, match="timeout"):
                    await message.reply(b"!", timeout=0)
            for timeout in (0, -1, None, "3"):
                with pytest.raises(SettingsError, match="timeout"):
                    await producer.request("Prices", b"?", timeout=timeout)  # type: ignore[arg-type]


async def test_a_request_that_cannot_be_sent_fails_at_once_with_its_cause() -> None:
    async with (
        local_cluster(settings={"autoCreateTopicEnable": "false"}) as cluster,
        requesting(cluster) as producer,
    ):
        with trio.fail_after(5), pytest.raises(RouteNotFound):
            await producer.request("Unknown", b"?", timeout=30)


async def test_replies_come_when_the_broker_has_lost_its_connections() -> None:
    """The requester sends its next request only after a heartbeat on the new connection."""
    async with local_cluster() as cluster:
        await cluster.create_topic("Prices", queues=1)
        async with replying(cluster, "Prices", echo), requesting(cluster) as producer:
            for number in range(3):
                with trio.fail_after(30):
                    reply = await producer.request("Prices", b"%d" % number, timeout=25)
                assert reply.body == b"re: %d" % number
                for broker in cluster.brokers:
                    assert broker._running is not None
                    broker._running.ready.drop_connections()  # type: ignore[attr-defined]


async def test_a_broker_that_a_send_has_found_gets_a_heartbeat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A send that is tried again may reach a broker that was not there before it, while the task of
    heartbeats waits for another one.
    """
    send = Sender.send

    async def stuck(self: Heartbeats) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(Heartbeats, "send_heartbeats", stuck)
    async with local_cluster(brokers=2) as cluster, trio.open_nursery() as nursery:
        await cluster.create_topic("Prices", queues=1)
        await cluster.stop_broker("broker-b")

        async def reply(asked: Mapping[str, str]) -> None:
            properties = {name: asked[name] for name in ("CORRELATION_ID", "REPLY_TO_CLIENT")}
            topic = f"{cluster.cluster_name}_REPLY_TOPIC"
            outgoing = OutgoingMessage(
                topic, b"from b", properties_text(properties), "7F" * 16, 0, 0, 0
            )
            queue = MessageQueue(topic, "broker-b", 0)
            command = SendRequests("repliers", ProducerSettings()).command(
                outgoing, queue, RequestCode.SEND_REPLY_MESSAGE_V2
            )
            address = cluster.broker("broker-b").address
            async with Connector() as connector:
                while (await connector.invoke(address, command, timeout=5)).code != 0:
                    await trio.sleep(0.1)

        async def to_b(
            self: Sender, outgoing: OutgoingMessage, *, target: SendTarget | None, deadline: float
        ) -> SendReceipt:
            await cluster.start_broker("broker-b")
            await self.session.finder.refresh("Prices")
            target = MessageQueue("Prices", "broker-b", 0)
            receipt = await send(self, outgoing, target=target, deadline=deadline)
            nursery.start_soon(reply, parse_properties(outgoing.properties))
            return receipt

        monkeypatch.setattr(Sender, "send", to_b)
        async with requesting(cluster) as producer:
            answer = await producer.request("Prices", b"tea?", timeout=5)
            assert (answer.body, answer.queue.broker_name) == (b"from b", "broker-b")


async def test_a_replier_asks_for_the_route_when_it_knows_no_master(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A slave may have become master since its route was read."""
    refresh, known = RouteFinder.refresh, KnownRoutes.master
    asked = 0

    async def counted(self: RouteFinder, topic: str) -> TopicQueues | None:
        nonlocal asked
        asked += 1
        return await refresh(self, topic)

    async def late(message: ReceivedMessage) -> None:
        before = asked
        monkeypatch.setattr(RouteFinder, "refresh", counted)
        monkeypatch.setattr(
            KnownRoutes, "master", lambda self, name: known(self, name) if asked > before else None
        )
        await echo(message)

    async with local_cluster() as cluster:
        await cluster.create_topic("Prices", queues=1)
        async with replying(cluster, "Prices", late), requesting(cluster) as producer:
            reply = await producer.request("Prices", b"tea?", timeout=5)
            assert reply.body == b"re: tea?"
            assert asked == 1


@pytest.mark.feature("162d")
async def test_a_reply_may_come_through_any_broker_of_the_cluster() -> None:
    """Java's clients reply through any broker that has the reply topic, the topic's or not."""
    async with local_cluster(brokers=2) as cluster:
        await cluster.stop_broker("broker-b")
        await cluster.create_topic("Prices", queues=1)
        await cluster.start_broker("broker-b")
        topic = f"{cluster.cluster_name}_REPLY_TOPIC"

        async def by_broker_b(message: ReceivedMessage) -> None:
            names = ("CORRELATION_ID", "REPLY_TO_CLIENT", "TTL")
            text = properties_text({name: message.properties[name] for name in names})
            queue = MessageQueue(topic, "broker-b", 0)
            requests = SendRequests("repliers", ProducerSettings())
            outgoing = OutgoingMessage(topic, b"from b", text, "7F" * 16, 0, 0, 0)
            command = requests.command(outgoing, queue, RequestCode.SEND_REPLY_MESSAGE_V2)
            async with Connector() as connector:
                answer = await connector.invoke(
                    cluster.broker("broker-b").address, command, timeout=5
                )
            assert answer.code == 0, answer.remark

        async with replying(cluster, "Prices", by_broker_b), requesting(cluster) as producer:
            reply = await producer.request("Prices", b"?", timeout=15)
            assert (reply.body, reply.queue.broker_name) == (b"from b", "broker-b")


async def test_tenants_use_request_and_reply() -> None:
    tenant = ClientSettings(namespace="tenant")
    async with local_cluster() as cluster:
        await cluster.create_topic("tenant%Prices", queues=1)
        async with (
            PushConsumer(
                cluster.namesrv_address,
                group="repliers",
                subscriptions="Prices",
                handler=echo,
                consume_from="first",
                settings=ConsumerSettings(client=tenant),
            ),
            requesting(cluster, client=tenant) as producer,
        ):
            reply = await producer.request("Prices", b"?", timeout=10)
            assert reply.body == b"re: ?"
            assert reply.topic == f"{cluster.cluster_name}_REPLY_TOPIC"
