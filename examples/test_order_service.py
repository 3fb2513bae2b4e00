"""Tests of the order service with a cluster inside the test: ``pip install pytest-trio``."""

import pytest
import trio
from order_service import Billing, consumer, place

from triomq import Producer
from triomq.testing import InProcessCluster


@pytest.mark.trio
async def test_an_order_is_charged_once(triomq_cluster: InProcessCluster) -> None:
    namesrv, billing = triomq_cluster.namesrv_address, Billing()
    await triomq_cluster.create_topic("Orders")
    async with Producer(namesrv, group="shop") as producer:
        await place(producer, "o-1", 20)
        await place(producer, "o-1", 20)  # the web page was sent twice
        async with consumer(namesrv, billing):
            with trio.fail_after(10):
                while not billing.charged:
                    await trio.sleep(0.01)
    assert billing.charged == {"o-1": 20}


@pytest.mark.trio
async def test_orders_survive_a_broker_that_crashes(triomq_cluster: InProcessCluster) -> None:
    namesrv, billing = triomq_cluster.namesrv_address, Billing()
    await triomq_cluster.create_topic("Orders")
    async with Producer(namesrv, group="shop") as producer:
        await place(producer, "o-1", 20)
    await triomq_cluster.crash_broker("broker-a")
    await triomq_cluster.start_broker("broker-a")
    async with consumer(namesrv, billing):
        with trio.fail_after(30):
            while not billing.charged:
                await trio.sleep(0.01)
    assert billing.charged == {"o-1": 20}
