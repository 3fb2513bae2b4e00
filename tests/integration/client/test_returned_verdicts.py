"""A handler that returns a verdict, as ported code does, ends its consumer; nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import trio

import triomq.aio
import triomq.sync
from triomq import HandlerInvalid, Message, Producer, PushConsumer, SettingsError
from triomq.testing import InProcessCluster

LATER = "RECONSUME_LATER"


async def returning(message: object) -> Any:
    return LATER


def plainly_returning(message: object) -> Any:
    return LATER


def in_trio(address: str) -> None:
    async def main() -> None:
        async with PushConsumer(
            address, group="g", subscriptions="T", consume_from="first", handler=returning
        ):
            await trio.sleep(20)

    trio.run(main)


def under_asyncio(address: str) -> None:
    async def main() -> None:
        async with triomq.aio.PushConsumer(
            address, group="g", subscriptions="T", consume_from="first"
        ) as consumer:
            await asyncio.wait_for(consumer.run(returning), 20)

    asyncio.run(main())


def blocking(address: str) -> None:
    with triomq.sync.PushConsumer(
        address, group="g", subscriptions="T", consume_from="first"
    ) as consumer:
        consumer.run(plainly_returning, timeout=20)


@pytest.mark.parametrize("consume", [in_trio, under_asyncio, blocking])
async def test_it_is_an_error_that_names_the_way(
    triomq_cluster: InProcessCluster, consume: Callable[[str], None]
) -> None:
    """It was an acknowledgement, whatever it said."""
    await triomq_cluster.create_topic("T", queues=1)
    address = triomq_cluster.namesrv_address
    async with Producer(address, group="p") as producer:
        await producer.send(Message(topic="T", body=b"x"))
    with pytest.raises((HandlerInvalid, ExceptionGroup)) as caught:
        await trio.to_thread.run_sync(consume, address)
    error: BaseException = caught.value
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, HandlerInvalid)
    assert "message.retry()" in str(error)
    async with PushConsumer(address, group="g", subscriptions="T") as consumer:
        with trio.fail_after(20):
            message = await anext(consumer)
            assert message.body == b"x"
            await message.ack()


async def test_a_consumer_with_a_handler_is_not_iterated(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("T", queues=1)

    async def handle(message: object) -> None: ...

    async with PushConsumer(
        triomq_cluster.namesrv_address, group="g", subscriptions="T", handler=handle
    ) as consumer:
        with pytest.raises(SettingsError, match="has a handler"):
            await anext(consumer)
        with pytest.raises(SettingsError, match="has a handler"):
            await consumer.take()
