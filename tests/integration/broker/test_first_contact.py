"""Name servers as clients use them: one connection each, to a server drawn at random, and a route
asked for only when it is needed.
"""

from __future__ import annotations

import random

import pytest
import trio
from scripted_cluster import scripted_cluster

from triomq import Producer, ProducerSettings
from triomq.client.core.config import ClientSettings
from triomq.remoting.protocol.codes import RequestCode
from triomq.testing import local_cluster

FAST_ROUTES = ProducerSettings(client=ClientSettings(route_interval=0.2, heartbeat_interval=0.2))


@pytest.mark.feature("6a", "6b")
async def test_a_client_uses_one_of_two_name_servers_and_which_one_is_random(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen: set[str] = set()
    async with local_cluster(namesrvs=2) as cluster:
        await cluster.create_topic("Orders", queues=1)
        for seed in range(20):
            random.seed(seed)
            async with Producer(cluster.namesrv_address, group="orders") as producer:
                used: set[str] = set()
                for _ in range(3):
                    await producer.send("Orders", b"x")
                    await producer.queues("Orders")
                    connector = producer._active().session.connector
                    used |= {
                        server.address
                        for server in cluster.namesrvs
                        if connector.connected(server.address)
                    }
            assert len(used) == 1
            chosen |= used
    assert len(chosen) == 2


@pytest.mark.feature("7a")
async def test_the_route_of_a_topic_is_asked_for_at_its_first_send_and_kept() -> None:
    async with (
        scripted_cluster() as cluster,
        Producer(cluster.namesrv.address, group="orders") as producer,
    ):

        def asked() -> int:
            return sum(
                header.topic == "T"
                for header in cluster.namesrv.headers(RequestCode.GET_ROUTEINFO_BY_TOPIC)
            )

        assert asked() == 0
        for _ in range(5):
            await producer.send("T", b"x")
            assert asked() == 1


@pytest.mark.feature("7b", "8d")
async def test_a_change_of_a_route_reaches_a_client_with_the_next_refresh() -> None:
    assert ClientSettings().route_interval == 30
    async with scripted_cluster(2) as cluster:
        gone = cluster.brokers.pop()
        async with Producer(
            cluster.namesrv.address, group="orders", settings=FAST_ROUTES
        ) as producer:
            assert {queue.broker_name for queue in await producer.queues("T")} == {"broker-a"}
            cluster.brokers.append(gone)
            with trio.fail_after(10):
                while (
                    len({(await producer.send("T", b"x")).queue.broker_name for _ in range(2)}) < 2
                ):
                    await trio.sleep(0.02)
