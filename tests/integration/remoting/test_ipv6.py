"""Everything over IPv6: listen, register, route, send, consume, and read from threads, with
``[::1]``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from ipv6_cluster import has_ipv6, ipv6_cluster
from mqadmin_calls import mqadmin

from triomq import Message, Producer, PullConsumer, PushConsumer, ReceivedMessage
from triomq.client.admin.admin import Admin
from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.protocol.bodies.route import TopicRoute
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.route import GetRouteHeader

pytestmark = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")


@pytest.mark.feature("1a", 131)
@pytest.mark.parametrize("literal", ["::1", "[::1]"])
async def test_a_message_arrives(tmp_path: Path, literal: str) -> None:
    got: list[ReceivedMessage] = []
    arrived = trio.Event()

    async def handle(message: ReceivedMessage) -> None:
        got.append(message)
        arrived.set()
        await trio.lowlevel.checkpoint()

    async with ipv6_cluster(tmp_path, brokerIP1=literal, bindAddress=literal) as cluster:
        assert cluster.broker.address == f"[::1]:{cluster.broker.port}"
        async with Admin(cluster.namesrv_address) as admin:
            await admin.create_topic("T", queues=1)
            assert [broker.address for broker in await admin.brokers()] == [cluster.broker.address]
        async with Producer(cluster.namesrv_address, group="p") as producer:
            receipt = await producer.send(Message(topic="T", body=b"hello", keys=["k"]))
            assert len(receipt.message_id) == 56  # 16 bytes of address
            assert len(receipt.offset_message_id or "") == 56
        async with PushConsumer(
            cluster.namesrv_address,
            group="g",
            subscriptions="T",
            consume_from="first",
            handler=handle,
        ):
            with trio.fail_after(20):
                await arrived.wait()
        assert (got[0].body, got[0].message_id) == (b"hello", receipt.message_id)
        async with PullConsumer(
            cluster.namesrv_address, group="readers", consume_from="first"
        ) as reader:
            await reader.assign(await reader.queues("T"))
            with trio.fail_after(20):
                assert [message.body for message in await reader.poll(max_messages=1)] == [b"hello"]
        found = await mqadmin(
            "queryMsgById",
            "-t",
            "T",
            "-i",
            receipt.offset_message_id,
            "-n",
            cluster.namesrv_address,
        )
        assert found.code == 0, found
        assert "hello" in found.out or receipt.message_id in found.out
        listed = await mqadmin("clusterList", "-n", cluster.namesrv_address, "--json")
        assert [row["address"] for row in listed.document["brokers"]] == [cluster.broker.address]
        status = await mqadmin(
            "brokerStatus", "-b", cluster.broker.address, "-n", cluster.namesrv_address
        )
        assert "request_310_SEND_MESSAGE_V2" in status.out


async def test_threads_and_routes(tmp_path: Path) -> None:
    async with ipv6_cluster(tmp_path) as cluster:
        async with Admin(cluster.namesrv_address) as admin:
            await admin.create_topic("T", queues=2)

        def ask() -> TopicRoute:
            with BlockingConnection(cluster.namesrv_address) as connection:
                return TopicRoute.decode(
                    bytes(
                        connection.invoke(
                            request(Code.GET_ROUTEINFO_BY_TOPIC, GetRouteHeader("T"))
                        ).body
                    )
                )

        route = await trio.to_thread.run_sync(ask)
        assert route.broker_datas[0].broker_addrs == {0: cluster.broker.address}


async def test_spark_s_source_reads_it(tmp_path: Path) -> None:
    """The data source without a Spark session: driver and tasks are threads."""
    pytest.importorskip("pyspark")
    from triomq.client.spark.sources.source import RocketMQDataSource  # Spark is optional

    async with ipv6_cluster(tmp_path) as cluster:
        async with Admin(cluster.namesrv_address) as admin:
            await admin.create_topic("T", queues=2)
        async with Producer(cluster.namesrv_address, group="p") as producer:
            for number in range(10):
                await producer.send("T", b"%d" % number)

        def read() -> list[bytes]:
            source = RocketMQDataSource(
                {"nameServer": cluster.namesrv_address, "topic": "T", "startingOffsets": "earliest"}
            )
            reader = source.reader(source.schema())
            return [
                bytes(value.as_py())
                for partition in reader.partitions()
                for batch in reader.read(partition)
                for value in batch.column("value")
            ]

        assert sorted(await trio.to_thread.run_sync(read)) == [
            b"%d" % number for number in range(10)
        ]


async def test_one_broker_for_both_families(tmp_path: Path) -> None:
    """``bindAddress=::`` takes IPv4, too; clients learn only brokerIP1."""
    async with ipv6_cluster(tmp_path, bindAddress="::") as cluster:
        for host in ("127.0.0.1", "[::1]"):
            for port in (cluster.broker.port, cluster.broker.port - 2):
                with await trio.to_thread.run_sync(
                    BlockingConnection, f"{host}:{port}"
                ) as connection:
                    answer = await trio.to_thread.run_sync(
                        connection.invoke, request(Code.GET_BROKER_RUNTIME_INFO)
                    )
                    assert answer.code == 0
