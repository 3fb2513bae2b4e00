"""SQL92 subscriptions of the SDK, in both kinds of consumers: delivery, and refusals with the
cause.
"""

from __future__ import annotations

import pytest
import trio
from mqadmin_calls import mqadmin
from scripted_cluster import refuse, scripted_cluster

from triomq import Producer, PullConsumer, PushConsumer, SettingsError, Sql
from triomq.client.core.broker_errors import BrokerFailed, SubscriptionInvalid
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.testing import InProcessCluster, local_cluster


@pytest.mark.feature("120a")
async def test_a_pull_consumer_reads_messages_that_match_the_expression() -> None:
    async with local_cluster(settings={"enablePropertyFilter": True}) as cluster:
        async with Producer(cluster.namesrv_address, group="p") as producer:
            for number in range(200):
                await producer.send("T", b"%d" % number, properties={"n": str(number)})
        async with PullConsumer(
            cluster.namesrv_address,
            group="g",
            subscriptions={"T": Sql("n BETWEEN 50 AND 59")},
            consume_from="first",
        ) as consumer:
            got: list[int] = []
            with trio.fail_after(30):
                while len(got) < 10:
                    got += [int(message.body) for message in await consumer.poll()]
        assert sorted(got) == list(range(50, 60))


async def test_a_wrong_expression_and_a_broker_without_filters_are_errors_at_the_start(
    triomq_cluster: InProcessCluster,
) -> None:
    address = triomq_cluster.namesrv_address
    await triomq_cluster.create_topic("T")
    with pytest.raises(SettingsError, match="enablePropertyFilter"):
        async with PushConsumer(address, group="g", subscriptions={"T": Sql("n > 5")}):
            raise AssertionError("it must not start")
    with pytest.raises(SettingsError, match="empty"):
        PushConsumer(address, group="g", subscriptions={"T": Sql(" ")})
    broker = triomq_cluster.brokers[0].address
    assert (
        await mqadmin(
            "updateBrokerConfig",
            "-b",
            broker,
            "-k",
            "enablePropertyFilter",
            "-v",
            "true",
            "-n",
            address,
        )
    ).code == 0
    with pytest.raises(SubscriptionInvalid, match="the expression ends"):
        async with PushConsumer(address, group="g", subscriptions={"T": Sql("n >")}):
            raise AssertionError("it must not start")


async def test_a_refused_subscribe_changes_nothing(triomq_cluster: InProcessCluster) -> None:
    address = triomq_cluster.namesrv_address
    for topic in ("T", "U"):
        await triomq_cluster.create_topic(topic)
    async with (
        Producer(address, group="p") as producer,
        PushConsumer(address, group="push", subscriptions="T", consume_from="first") as push,
        PullConsumer(address, group="pull", subscriptions="T", consume_from="first") as pull,
    ):
        for consumer in (push, pull):
            for topic in ("T", "U"):
                with pytest.raises(SettingsError, match="enablePropertyFilter"):
                    await consumer.subscribe({topic: Sql("n > 5")})
            with pytest.raises(SettingsError, match="not subscribed"):
                await consumer.unsubscribe("U")
        await producer.send("T", b"x")
        with trio.fail_after(30):  # pulls by a refused filter would be refused, too, for ever
            assert [message.body for message in await push.take()] == [b"x"]
            assert [message.body for message in await pull.poll()] == [b"x"]
            await pull.subscribe("U")
            await producer.send("U", b"y")
            assert [message.body for message in await pull.poll()] == [b"y"]


async def test_an_internal_error_of_the_broker_is_not_taken_for_a_missing_filter() -> None:
    async with scripted_cluster() as cluster:
        cluster.broker.script[RequestCode.CHECK_CLIENT_CONFIG] = refuse(ResponseCode.SYSTEM_ERROR)
        async with PushConsumer(cluster.namesrv.address, group="g", subscriptions="T") as consumer:
            with pytest.raises(BrokerFailed, match="as the script says"):
                await consumer.subscribe({"T": Sql("n > 5")})
