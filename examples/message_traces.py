"""Trace messages: what happened to one of them, as its clients noted it.

The brokers need the topic of the traces: traceTopicEnable=true.

NAMESRV_ADDR=127.0.0.1:9876 python examples/message_traces.py
"""

import sys

import trio

from triomq import (
    Admin,
    ClientSettings,
    ConsumerSettings,
    Producer,
    ProducerSettings,
    PushConsumer,
)

TRACED = ClientSettings(trace=True)


async def main(namesrv: str | None) -> None:
    """Send an order, handle it, and ask what became of it."""
    async with Producer(
        namesrv, group="shop", settings=ProducerSettings(client=TRACED)
    ) as producer:
        await producer.send("Traced", b"order", keys=["order-7"])
    async with PushConsumer(
        namesrv,
        group="billing",
        subscriptions="Traced",
        consume_from="first",
        settings=ConsumerSettings(client=TRACED),
    ) as consumer:
        async with await anext(consumer) as message:
            print("billed", message.keys)

    async with Admin(namesrv) as admin:
        history = await admin.message_trace("order-7")  # an id or a business key
        for event in history.events:
            print(event.kind, event.group, "success" if event.success else "failed")


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else None)
