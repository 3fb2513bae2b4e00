"""One of everything that metrics count: sends of each kind, pulls, pops, transactions, dead
letters. The same load runs against Java's broker and ours.
"""

from __future__ import annotations

import trio

from triomq import Producer, PushConsumer, ReceivedMessage, SimpleConsumer, TransactionOutcome
from triomq.client.admin.admin import Admin

TOPIC, TIMED, DEALS = "orders", "reminders", "deals"
PULLS, POPS = "billing", "shipping"
SIZES = (10, 2_000, 100_000)
"""bytes of the bodies: below 1 KiB, below 4 KiB, below 512 KiB"""


async def run_load(
    namesrv: str, cluster: str, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Create topics, and send, consume, pop, commit and bury messages.

    Everything is done at ``started``; then the clients stay until they are cancelled.
    """
    async with Admin(namesrv) as admin:
        for topic in (TOPIC, TIMED, DEALS):
            await admin.create_topic(topic, cluster=cluster, read_queues=1, write_queues=1)

    async def bury(message: ReceivedMessage) -> None:
        if len(message.body) == SIZES[0]:
            await message.dead_letter()
        else:
            await trio.lowlevel.checkpoint()

    async def look(_message: object) -> TransactionOutcome:
        await trio.lowlevel.checkpoint()
        return TransactionOutcome.COMMIT

    async with Producer(namesrv, group="shop", check=look) as producer:
        for size in SIZES:
            await producer.send(TOPIC, b"x" * size)
        await producer.send(TOPIC, b"x" * 11, sharding_key="one")
        await producer.send(TIMED, b"soon", delay=1.5)
        await producer.send(TIMED, b"later", delay=3600)
        await producer.send(TIMED, b"level", delay_level=1)
        async with producer.transaction(DEALS, b"kept"):
            pass
        try:
            async with producer.transaction(DEALS, b"dropped"):
                raise KeyError
        except KeyError:
            pass
        async with (
            PushConsumer(
                namesrv, group=PULLS, subscriptions=TOPIC, consume_from="first", handler=bury
            ),
            SimpleConsumer(namesrv, group=POPS, subscriptions=TOPIC, consume_from="first") as pops,
        ):
            first, *_ = await pops.receive(count=2, timeout=20)
            await first.ack()
            await trio.sleep(3)
            task_status.started()
            await trio.sleep_forever()
