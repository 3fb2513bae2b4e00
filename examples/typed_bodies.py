"""Bodies as objects: a codec for a topic, and what happens to a body that does not fit.

NAMESRV_ADDR=127.0.0.1:9876 python examples/typed_bodies.py
"""

import sys

import msgspec
import trio

from triomq import BodyCodec, Producer, PushConsumer, ReceivedMessage


class Order(msgspec.Struct):
    """What a body of the topic holds."""

    number: int
    customer: str


orders = BodyCodec(msgspec.json.encode, msgspec.json.Decoder(Order).decode)


@orders.handler(unfit="dead_letter")
async def ship(order: Order, message: ReceivedMessage) -> None:
    """Ship an order."""
    await trio.lowlevel.checkpoint()
    print(f"shipping order {order.number} to {order.customer}", flush=True)
    shipped.set()


shipped = trio.Event()


async def main(namesrv: str | None) -> None:
    """Send a body that fits and one that does not, and handle them."""
    async with Producer(namesrv, group="shop") as producer:
        await producer.send("TypedOrders", b'{"number": "one"}')
        await producer.send("TypedOrders", orders.encode(Order(1, "Ada")))
    async with PushConsumer(
        namesrv, group="shipping", subscriptions="TypedOrders", consume_from="first", handler=ship
    ):
        await shipped.wait()


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else None)
