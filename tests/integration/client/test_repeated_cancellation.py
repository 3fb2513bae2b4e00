"""Calls of an asyncio consumer that are cancelled again and again, as anyio's scopes do it: no
message is lost.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import triomq.aio
import triomq.sync
from triomq import Message

POLLED, RECEIVED = 600, 60


class Body(Protocol):
    @property
    def body(self) -> bytes: ...


def send(server: str, topic: str, count: int) -> set[bytes]:
    bodies = {b"%d" % number for number in range(count)}
    with triomq.sync.Producer(server, group="p") as producer:
        for body in bodies:
            producer.send(Message(topic=topic, body=body))
    return bodies


async def cancelled_often(
    call: Callable[[], Awaitable[Sequence[Body]]],
    wanted: set[bytes],
    choose: random.Random,
    share: float,
) -> None:
    """Call until everything has come; a share of the calls is cancelled at some moment, and once
    more in each step of the loop until it ends.
    """
    found: set[bytes] = set()
    async with asyncio.timeout(60):
        while found != wanted:
            task = asyncio.ensure_future(call())
            if choose.random() < share:
                for _ in range(choose.randrange(40)):
                    await asyncio.sleep(0)
                await asyncio.sleep(choose.choice((0, 0, 0.0005, 0.002)))
                while not task.done():
                    task.cancel()
                    await asyncio.sleep(0)
            await asyncio.wait([task])
            if not task.cancelled():
                found |= {message.body for message in task.result()}


def test_polls_lose_nothing(triomq_server: str) -> None:
    """77 of 600 messages never came, and their offsets were committed: they arrived between the
    first and the second cancellation.
    """
    first = send(triomq_server, "RepeatedPolls", 1)
    wanted = {b"%d" % number for number in range(POLLED)}

    async def main() -> None:
        async with triomq.aio.PullConsumer(
            triomq_server, group="polls", subscriptions="RepeatedPolls", consume_from="first"
        ) as consumer:
            choose = random.Random(7)
            more = asyncio.to_thread(send, triomq_server, "RepeatedPolls", POLLED)
            sending = asyncio.ensure_future(more)
            await cancelled_often(
                lambda: consumer.poll(max_messages=choose.randrange(1, 8)), wanted, choose, 0.9
            )
            await sending

    assert first < wanted

    asyncio.run(main())


def test_receives_lose_nothing(triomq_server: str) -> None:
    """What a cancelled call has received is given back at once, and not after its time."""
    wanted = send(triomq_server, "RepeatedReceives", RECEIVED)

    async def main() -> None:
        async with triomq.aio.SimpleConsumer(
            triomq_server, group="receives", subscriptions="RepeatedReceives", consume_from="first"
        ) as consumer:
            choose = random.Random(7)

            async def receive() -> Sequence[Body]:
                return await consumer.receive(count=choose.randrange(1, 8), invisible=300)

            await cancelled_often(receive, wanted, choose, 0.3)

    asyncio.run(main())
