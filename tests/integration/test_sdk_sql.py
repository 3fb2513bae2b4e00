"""SQL92 subscriptions of the SDK: delivered, refused with the cause, in both kinds of consumers."""

from __future__ import annotations

import pytest
import trio
from mqadmin_calls import mqadmin

from triomq import Producer, PullConsumer, PushConsumer, SettingsError, Sql
from triomq.client.refusals import SubscriptionInvalid
from triomq.testing import InProcessCluster, local_cluster


@pytest.mark.feature(120)
async def test_a_pull_consumer_reads_what_fulfils_the_expression() -> None:
    async with local_cluster(settings={"enablePropertyFilter": True}) as cluster:
        async with Producer(cluster.namesrv_address, group="p") as producer:
            for number in range(200):
                await producer.send("T", b"%d" % number, properties={"n": str(number)})
        async with PullConsumer(cluster.namesrv_address, group="g", subscriptions={"T": Sql("n BETWEEN 50 AND 59")}, consume_from="first") as consumer:
            got: list[int] = []
            with trio.fail_after(30):
                while len(got) < 10:
                    got += [int(message.body) for message in await consumer.poll()]
        assert sorted(got) == list(range(50, 60))


async def test_a_wrong_expression_and_a_broker_that_does_not_filter_are_told_at_the_start(triomq_cluster: InProcessCluster) -> None:
    address = triomq_cluster.namesrv_address
    await triomq_cluster.create_topic("T")
    with pytest.raises(SettingsError, match="enablePropertyFilter"):
        async with PushConsumer(address, group="g", subscriptions={"T": Sql("n > 5")}):
            raise AssertionError("it must not start")
    with pytest.raises(SettingsError, match="empty"):
        PushConsumer(address, group="g", subscriptions={"T": Sql(" ")})
    broker = triomq_cluster.brokers[0].address
    assert (await mqadmin("updateBrokerConfig", "-b", broker, "-k", "enablePropertyFilter", "-v", "true", "-n", address)).code == 0
    with pytest.raises(SubscriptionInvalid, match="the expression ends"):
        async with PushConsumer(address, group="g", subscriptions={"T": Sql("n >")}):
            raise AssertionError("it must not start")
