"""A topic read as a table: the newest message of each key, then what changes, in all interfaces."""

from __future__ import annotations

import asyncio

import pytest
import trio

from triomq import (
    Message,
    Producer,
    PullConsumer,
    RouteNotFound,
    SettingsError,
    TooManyKeys,
    aio,
    sync,
)
from triomq.testing import InProcessCluster


async def send(cluster: InProcessCluster, *values: tuple[str | None, bytes]) -> None:
    """Send values; all of a key go to one queue."""
    async with Producer(cluster.namesrv_address, group="p") as producer:
        for key, body in values:
            keys = () if key is None else (key,)
            await producer.send(
                Message(topic="Prices", body=body, keys=keys), sharding_key=key or ""
            )


async def test_the_newest_value_of_each_key_and_then_what_changes(
    triomq_cluster: InProcessCluster,
) -> None:
    await triomq_cluster.create_topic("Prices", queues=4)
    many = [(f"k{number % 50}", b"%d" % number) for number in range(500)]
    await send(triomq_cluster, *many, ("k7", b"changed"), (None, b"no key"))
    with trio.fail_after(30):
        async with PullConsumer(triomq_cluster.namesrv_address, group="readers") as consumer:
            table = await consumer.latest("Prices")
            expected = {f"k{number}": b"%d" % (450 + number) for number in range(50)}
            expected["k7"] = b"changed"
            assert {key: message.body for key, message in table.items()} == expected
            await send(triomq_cluster, ("k7", b"back"))
            changes = await consumer.poll()
            assert [(message.keys, message.body) for message in changes] == [(("k7",), b"back")]
            again = await consumer.latest("Prices")
            assert again["k7"].body == b"back"
            assert len(again) == 50


async def test_a_table_of_a_topic_without_messages_is_empty(
    triomq_cluster: InProcessCluster,
) -> None:
    await triomq_cluster.create_topic("Prices", queues=2)
    async with PullConsumer(triomq_cluster.namesrv_address, group="readers") as consumer:
        with trio.fail_after(10):
            assert await consumer.latest("Prices") == {}
        with pytest.raises(RouteNotFound):
            await consumer.latest("Nothing")


async def test_a_table_has_a_limit(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("Prices", queues=1)
    await send(triomq_cluster, ("a", b"1"), ("b", b"2"), ("a", b"3"), ("c", b"4"))
    async with PullConsumer(triomq_cluster.namesrv_address, group="readers") as consumer:
        with trio.fail_after(10):
            with pytest.raises(TooManyKeys, match=r"more than 2 keys, .* raise keys_max"):
                await consumer.latest("Prices", keys_max=2)
            assert len(await consumer.latest("Prices", keys_max=3)) == 3
        with pytest.raises(SettingsError, match="keys_max"):
            await consumer.latest("Prices", keys_max=0)


def fill(namesrv: str, topic: str) -> None:
    with sync.Producer(namesrv, group="p") as producer:
        for key, body in (("a", b"1"), ("b", b"2"), ("a", b"3"), ("b", b"4")):
            producer.send(Message(topic=topic, body=body, keys=(key,)), sharding_key=key)


def test_a_table_in_the_blocking_interface(namesrv: str) -> None:
    fill(namesrv, "Blocking")
    with sync.PullConsumer(namesrv, group="tables") as consumer:
        table = consumer.latest("Blocking", timeout=20)
    assert {key: message.body for key, message in table.items()} == {"a": b"3", "b": b"4"}
    assert isinstance(table["a"], sync.ReceivedMessage)


def test_a_table_in_asyncio(namesrv: str) -> None:
    fill(namesrv, "Asyncio")

    async def main() -> dict[str, aio.ReceivedMessage]:
        async with aio.PullConsumer(namesrv, group="tables") as consumer:
            return await asyncio.wait_for(consumer.latest("Asyncio"), 20)

    table = asyncio.run(main())
    assert {key: message.body for key, message in table.items()} == {"a": b"3", "b": b"4"}
    assert isinstance(table["a"], aio.ReceivedMessage)
