"""Receive only messages whose properties match a condition.

The broker evaluates it, and needs enablePropertyFilter=true.

NAMESRV_ADDR=127.0.0.1:9876 python examples/sql_filter.py
"""

import sys

import trio

from triomq import Producer, PushConsumer, ReceivedMessage, Sql

OFFERS = [("Hangzhou", 35), ("Hangzhou", 20), ("Berlin", 99), ("Hangzhou", 31)]


async def main(namesrv: str | None) -> None:
    """Send four offers, read the two that are wanted."""
    got: list[str] = []
    finished = trio.Event()

    async def handle(message: ReceivedMessage) -> None:
        got.append(message.body.decode())
        if len(got) == 2:
            finished.set()
        await trio.lowlevel.checkpoint()

    async with Producer(namesrv, group="market") as producer:
        for region, price in OFFERS:
            await producer.send(
                "Offers",
                f"{region} {price}".encode(),
                properties={"Region": region, "price": str(price)},
            )

    async with PushConsumer(
        namesrv,
        group="buyers",
        subscriptions={"Offers": Sql("Region = 'Hangzhou' AND price > 30")},
        consume_from="first",
        handler=handle,
    ):
        await finished.wait()
    print(", ".join(sorted(got)))


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else None)
