"""Three groups read one topic, each only the tags that it wants; the broker leaves out the rest.

NAMESRV_ADDR=127.0.0.1:9876 python examples/tag_filter.py
"""

import sys

import trio

from triomq import Message, Producer, PushConsumer

WANTED = {"accounting": "paid || refunded", "packing": "paid", "audit": "*"}
TAGS = ("created", "paid", "refunded", "paid", "created", "paid")


async def read(namesrv: str | None, group: str, expression: str, count: int) -> None:
    """Print the tags that a group gets."""
    async with PushConsumer(
        namesrv, group=group, subscriptions={"Payments": expression}, consume_from="first"
    ) as consumer:
        tags = []
        async for message in consumer:
            async with message:
                tags.append(message.tag or "")
            if len(tags) == count:
                break
    print(f"{group} ({expression}):", " ".join(sorted(tags)))


async def main(namesrv: str | None) -> None:
    """Send six messages and let three groups read them."""
    async with Producer(namesrv, group="shop") as producer:
        for tag in TAGS:
            await producer.send(Message(topic="Payments", body=b"...", tag=tag))
    async with trio.open_nursery() as nursery:
        for group, expression in WANTED.items():
            wanted = set(expression.split(" || "))
            nursery.start_soon(
                read, namesrv, group, expression, sum(t in wanted or "*" in wanted for t in TAGS)
            )


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else None)
