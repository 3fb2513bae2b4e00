"""Reads the messages of a topic with the SDK, from the first on."""

from __future__ import annotations

import trio

from triomq import PullConsumer, ReceivedMessage

SECONDS_MAX = 30


async def read_topic(namesrv: str, topic: str, count: int) -> list[ReceivedMessage]:
    """Return ``count`` messages or more, those of all queues."""
    found: list[ReceivedMessage] = []
    async with PullConsumer(namesrv, group="py-reader", consume_from="first") as consumer:
        await consumer.assign(await consumer.queues(topic))
        with trio.fail_after(SECONDS_MAX):
            while len(found) < count:
                found += await consumer.poll()
    return found
