"""An order service: orders are placed, billing charges them, what cannot be charged is set aside.

docs/tutorial.md explains it step by step; examples/test_order_service.py tests it.

mqlocal &
NAMESRV_ADDR=127.0.0.1:9876 python examples/order_service.py
"""

import json
import sys

import trio

from triomq import ConsumerSettings, Producer, PullConsumer, PushConsumer, ReceivedMessage


async def place(producer: Producer, order: str, euros: int) -> None:
    """Place an order: when this returns, a broker has stored it."""
    body = json.dumps({"order": order, "euros": euros}).encode()
    await producer.send("Orders", body, tag="placed", keys=[order])


class Billing:
    """Charges each order once."""

    def __init__(self) -> None:
        self.charged: dict[str, int] = {}
        self.declined: list[str] = []

    async def handle(self, message: ReceivedMessage) -> None:
        """Charge the order of a message; the normal end acknowledges it."""
        order = json.loads(message.body)
        if order["order"] in self.charged:
            return  # it came a second time: at least once means that this can happen
        if not self.card_accepts(order["euros"], message.reconsume_times):
            self.declined.append(order["order"])
            await message.retry(1)  # in 1 s; an exception would mean 10 s, 30 s, 1 min …
            return
        self.charged[order["order"]] = order["euros"]

    def card_accepts(self, euros: int, earlier: int) -> bool:
        """Stand for a bank: 500 euros work at the second time, 1000 never."""
        return euros < 500 or (euros < 1000 and earlier > 0)


def consumer(namesrv: str | None, billing: Billing) -> PushConsumer:
    """Return a member of the group that charges orders; start as many processes as you like."""
    return PushConsumer(
        namesrv,
        group="billing",
        subscriptions={"Orders": "placed"},
        consume_from="first",
        handler=billing.handle,
        settings=ConsumerSettings(max_reconsume_times=2),  # otherwise the broker's setting: 16
    )


async def dead_orders(namesrv: str | None, count: int) -> list[str]:
    """Return orders that were given up, for a person to look at."""
    found: list[str] = []
    async with PullConsumer(namesrv, group="support", consume_from="first") as support:
        await support.assign(await support.queues("%DLQ%billing"))
        while len(found) < count:
            found += [json.loads(message.body)["order"] for message in await support.poll()]
    return found


async def main(namesrv: str | None) -> None:
    """Place three orders; one is charged at once, one later, one never."""
    async with Producer(namesrv, group="shop") as producer:
        for order, euros in (("o-1", 20), ("o-2", 500), ("o-3", 1000)):
            await place(producer, order, euros)
    billing = Billing()
    async with consumer(namesrv, billing):
        while billing.declined.count("o-3") < 3:
            await trio.sleep(0.1)
    print("charged:", ", ".join(sorted(billing.charged)))
    print("given up:", *await dead_orders(namesrv, 1))


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else None)
