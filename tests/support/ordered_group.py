"""An ordered group with a consumer of ours, in which a foreign one joins and leaves under load."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import trio
from foreign_clients import ForeignClient

from triomq import ClientSettings, ConsumerSettings, Producer, PushConsumer, ReceivedMessage
from triomq.client.admin.admin import Admin

KEYS = 8
SETTINGS = ConsumerSettings(client=ClientSettings(route_interval=1.0))
LOCK_SECONDS = 60
"""After this time a broker forgets a lock that its owner has not given back."""


def steps_by_key(bodies: Iterable[str]) -> dict[int, list[int]]:
    """Key -> its steps in the order in which they were handled first."""
    steps: dict[int, list[int]] = defaultdict(list)
    for body in dict.fromkeys(bodies):
        key, step = body.split(":")
        steps[int(key)].append(int(step))
    return steps


async def share_in_order(namesrv: str, client: ForeignClient, topic: str) -> None:
    """Both kinds handle some messages, together all, and each the steps of each key in order."""
    ours: list[str] = []
    wanted: list[str] = []
    enough = trio.Event()
    async with Admin(namesrv) as admin:
        await admin.create_topic(topic, queues=4)

    async def handle(message: ReceivedMessage) -> None:
        ours.append(message.body.decode())
        await trio.sleep(0.005)

    async def send() -> None:
        async with Producer(namesrv, group="orders") as producer:
            step = 0
            while not enough.is_set():
                for key in range(KEYS):
                    wanted.append(f"{key}:{step}")
                    await producer.send(topic, wanted[-1].encode(), sharding_key=f"order-{key}")
                step += 1
                await trio.sleep(0.05)

    def join_and_leave() -> str:
        with client.consuming(topic, topic, mode="orderly") as name:
            client.wait_got(name, 5 * KEYS)
            return name

    async with trio.open_nursery() as nursery:
        async with PushConsumer(
            namesrv,
            group=topic,
            subscriptions=topic,
            consume_from="first",
            handler=handle,
            ordered=True,
            settings=SETTINGS,
        ) as consumer:
            await consumer.wait_assigned()
            nursery.start_soon(send)
            name = await trio.to_thread.run_sync(join_and_leave)
            enough.set()
            with trio.fail_after(LOCK_SECONDS + 20):
                while not set(wanted) <= {*ours, *(one.body for one in client.got(name))}:
                    await trio.sleep(0.05)
    theirs = [one.body for one in client.got(name)]
    for bodies in (ours, theirs):
        assert bodies
        assert all(steps == sorted(steps) for steps in steps_by_key(bodies).values())
    # A new owner goes on where the old one stopped, but for what was being handled.
    twice = len({*ours} & {*theirs})
    assert twice <= 2 * KEYS, f"{twice} of {len(wanted)} messages were handled by both"
