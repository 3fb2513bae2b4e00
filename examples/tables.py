"""Read a topic as a table: the newest message of each key, then what changes.

NAMESRV_ADDR=127.0.0.1:9876 python examples/tables.py
"""

import sys

import trio

from triomq import Message, Producer, PullConsumer


async def main(namesrv: str | None) -> None:
    """Send prices, read the newest ones, and follow a change."""
    async with Producer(namesrv, group="price-list") as producer:
        for key, price in (("tea", b"3"), ("coffee", b"4"), ("tea", b"5")):
            # One queue for each key: the order of its values is certain.
            await producer.send(Message(topic="Prices", body=price, keys=[key]), sharding_key=key)
        async with PullConsumer(namesrv, group="price-tables") as consumer:
            prices = await consumer.latest("Prices")
            print(*(f"{key} {message.body.decode()}" for key, message in sorted(prices.items())))
            change = Message(topic="Prices", body=b"6", keys=["coffee"])
            await producer.send(change, sharding_key="coffee")
            async for message in consumer:
                prices[message.keys[0]] = message
                break
            print("coffee", prices["coffee"].body.decode())


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else None)
