"""A shop and the systems behind it: stock, mail and billing each read its orders.

The shop does not know them, and one of them may be away.

NAMESRV_ADDR=127.0.0.1:9876 python examples/decoupling.py
"""

import sys

import trio

from triomq import Producer, PushConsumer, ReceivedMessage

ORDERS = 20


class Service:
    """One system behind the shop, with a group of its own."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: set[str] = set()
        self.complete = trio.Event()

    async def handle(self, message: ReceivedMessage) -> None:
        """Do the work of one order; it may come twice."""
        self.seen.add(message.body.decode())
        if len(self.seen) == ORDERS:
            self.complete.set()
        await trio.lowlevel.checkpoint()

    def consumer(self, namesrv: str | None) -> PushConsumer:
        return PushConsumer(
            namesrv,
            group=self.name,
            subscriptions="ShopOrders",
            consume_from="first",
            handler=self.handle,
        )


async def main(namesrv: str | None) -> None:
    """Send each order once, for all readers."""
    stock, mail, billing = Service("stock"), Service("mail"), Service("billing")
    async with stock.consumer(namesrv), mail.consumer(namesrv):
        async with Producer(namesrv, group="shop") as producer:
            for number in range(ORDERS):
                await producer.send(
                    "ShopOrders", f"order-{number}".encode(), keys=[f"order-{number}"]
                )
        await stock.complete.wait()
        await mail.complete.wait()
    print(
        f"the shop has closed; stock {len(stock.seen)}, mail {len(mail.seen)}, billing"
        f" {len(billing.seen)}: was away"
    )
    async with billing.consumer(namesrv):
        await billing.complete.wait()
    print(f"billing is back: {len(billing.seen)}, none was lost")


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else None)
