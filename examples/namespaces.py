"""Two tenants that use the same names on one cluster: neither sees the other's messages.

NAMESRV_ADDR=127.0.0.1:9876 python examples/namespaces.py
"""

import sys

import trio

from triomq import ClientSettings, ConsumerSettings, Producer, ProducerSettings, PushConsumer


async def tenant(namesrv: str | None, name: str) -> str:
    """Send one order and read one: the tenant's own."""
    client = ClientSettings(namespace=name)
    async with Producer(
        namesrv, group="shop", settings=ProducerSettings(client=client)
    ) as producer:
        await producer.send("TenantOrders", f"order of {name}".encode())
    async with PushConsumer(
        namesrv,
        group="billing",
        subscriptions="TenantOrders",
        consume_from="first",
        settings=ConsumerSettings(client=client),
    ) as consumer:
        async for message in consumer:
            async with message:
                return f"{message.topic}: {message.body.decode()}"
    raise AssertionError("the consumer ended without a message")


async def main(namesrv: str | None) -> None:
    """Run the same program for both."""
    for name in ("red", "blue"):
        print(name, await tenant(namesrv, name))


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else None)
