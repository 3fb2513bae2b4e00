"""Tenants of both kinds of clients: a Java client with ``setNamespace`` and one of ours with
``namespace=`` are the same tenant, and others see nothing of it.
"""

from __future__ import annotations

import pytest
import trio
from processes import java_home, java_peer

from triomq import ClientSettings, ConsumerSettings, Producer, ProducerSettings, PullConsumer
from triomq.client.admin.admin import Admin

pytestmark = [pytest.mark.compat, pytest.mark.timeout(240)]


async def send(namesrv: str, tenant: str | None, topic: str, count: int) -> None:
    settings = ProducerSettings(client=ClientSettings(namespace=tenant))
    async with Producer(namesrv, group="shop", settings=settings) as producer:
        for number in range(count):
            await producer.send(topic, f"{tenant}-{number}".encode(), tag="t", keys=[f"k{number}"])


async def read_all(namesrv: str, tenant: str | None, topic: str) -> list[tuple[str, bytes]]:
    """Everything that a tenant finds in a topic: (topic, body)."""
    found: list[tuple[str, bytes]] = []
    settings = ConsumerSettings(client=ClientSettings(namespace=tenant))
    async with PullConsumer(
        namesrv, group="auditor", consume_from="first", settings=settings
    ) as consumer:
        queues = await consumer.queues(topic)
        wanted = sum([await consumer.max_offset(queue) for queue in queues])
        await consumer.assign(queues)
        with trio.fail_after(60):
            while len(found) < wanted:
                found += [(message.topic, message.body) for message in await consumer.poll()]
    return found


@pytest.mark.loss
@pytest.mark.feature(166)
async def test_a_java_client_with_a_namespace_is_our_tenant(
    our_cluster: str, java_version: str
) -> None:
    topic = f"Tenants-{java_version.replace('.', '-')}"
    async with Admin(our_cluster) as admin:
        for name in (f"red%{topic}", f"blue%{topic}", topic):
            await admin.create_topic(name, queues=2)
    await send(our_cluster, "blue", topic, 3)
    await send(our_cluster, None, topic, 2)
    red = ["peer.namespace=red"]
    sent = await trio.to_thread.run_sync(
        lambda: java_peer(java_version, "send", our_cluster, topic, "5", "t", "sync", define=red)
    )
    assert len([line for line in sent if line[:2] == ["SENT", "SEND_OK"]]) == 5
    assert sorted(await read_all(our_cluster, "red", topic)) == [
        (topic, b"body-%d" % number) for number in range(5)
    ]
    assert sorted(await read_all(our_cluster, "blue", topic)) == [
        (topic, b"blue-%d" % number) for number in range(3)
    ]
    assert sorted(await read_all(our_cluster, None, topic)) == [
        (topic, b"None-%d" % number) for number in range(2)
    ]
    await send(our_cluster, "red", topic, 4)
    lines = await trio.to_thread.run_sync(
        lambda: java_peer(
            java_version,
            "consume",
            our_cluster,
            topic,
            "billing",
            "*",
            "9",
            "60",
            seconds=120,
            define=red,
        )
    )
    bodies = sorted(line[7] for line in lines if line[0] == "GOT")
    assert bodies == sorted(
        [f"body-{number}" for number in range(5)] + [f"red-{number}" for number in range(4)]
    )
    async with PullConsumer(our_cluster, group="red%billing") as administrator:
        stored = [
            await administrator.committed(queue) or 0
            for queue in await administrator.queues(f"red%{topic}")
        ]
    assert sum(stored) == 9, "the Java consumer's offsets are those of the tenant's group"


@pytest.mark.loss
async def test_the_second_kind_of_namespace_is_none_to_a_broker(our_cluster: str) -> None:
    """``setNamespaceV2`` only adds the fields ``nsd`` and ``ns`` to requests, for proxies; brokers
    of RocketMQ do not look at them, and neither do ours.
    """
    if java_home("5.5.0") is None:
        pytest.skip("the Java peers 5.5.0 are not installed: run `make peers`")
    async with Admin(our_cluster) as admin:
        await admin.create_topic("SecondKind", queues=2)
    define = ["peer.namespaceV2=green"]
    await trio.to_thread.run_sync(
        lambda: java_peer(
            "5.5.0", "send", our_cluster, "SecondKind", "3", "t", "sync", define=define
        )
    )
    assert sorted(await read_all(our_cluster, None, "SecondKind")) == [
        ("SecondKind", b"body-%d" % number) for number in range(3)
    ]
