"""A name server that hangs costs administration and Spark less than a time-out, while another one
answers. Time-outs are too long for the tests, so one that is waited for fails them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
from silent_servers import silent_server

from triomq.client.admin.admin import Admin
from triomq.client.spark import name_servers
from triomq.client.spark.name_servers import RouteReader
from triomq.testing import InProcessCluster, local_cluster

LONG_SECONDS = 1000.0


@pytest.fixture
async def cluster() -> AsyncIterator[InProcessCluster]:
    async with local_cluster() as running:
        yield running


@pytest.mark.parametrize("first", [True, False])
async def test_administration_goes_on(cluster: InProcessCluster, first: bool) -> None:
    with silent_server() as port:
        addresses = [f"127.0.0.1:{port}", cluster.namesrv_address]
        async with Admin(
            addresses if first else addresses[::-1], timeout_seconds=LONG_SECONDS
        ) as admin:
            admin.limit_to(LONG_SECONDS)
            with trio.fail_after(30):
                await admin.create_topic("orders", queues=1)
                assert "orders" in await admin.topics()
                assert await admin.missing_brokers() == []


async def test_spark_goes_on(cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_servers, "REQUEST_SECONDS", LONG_SECONDS)
    monkeypatch.setattr(name_servers.random, "sample", lambda some, count: list(some))
    await cluster.create_topic("orders", queues=1)

    def look() -> list[bool]:
        with RouteReader([f"127.0.0.1:{port}", cluster.namesrv_address]) as reader:
            return [reader.routes(["orders"])["orders"] is not None for _ in range(2)]

    with silent_server() as port, trio.fail_after(30):
        assert await trio.to_thread.run_sync(look, abandon_on_cancel=True) == [True, True]
