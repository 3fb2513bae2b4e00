"""Keep the order of each customer's steps, while customers are handled side by side.

NAMESRV_ADDR=127.0.0.1:9876 python examples/ordered.py
"""

import sys

import trio

from triomq import Producer, PushConsumer, ReceivedMessage

STEPS = ("created", "paid", "packed", "delivered")
CUSTOMERS = ("ada", "bob", "eve")


async def send_steps(namesrv: str | None) -> None:
    """Send all steps in their order.

    Equal sharding keys go to one queue, and each ``send`` ends before the next begins, so the queue
    has a customer's steps in this order.
    """
    async with Producer(namesrv, group="shop") as producer:
        for step in STEPS:
            for customer in CUSTOMERS:
                await producer.send(
                    "Deliveries", f"{customer} {step}".encode(), sharding_key=customer
                )


async def main(namesrv: str | None) -> None:
    """Handle all steps, one of them at the second try."""
    done: list[str] = []
    finished = trio.Event()

    async def handle(message: ReceivedMessage) -> None:
        text = message.body.decode()
        if text == "bob paid" and message.reconsume_times == 0:
            # The queue rests, then the same message comes again; "bob packed" waits for it, as do
            # the other messages in this queue.
            await message.retry(pause=0.1)
            return
        done.append(text)
        print(text)
        if len(done) == len(STEPS) * len(CUSTOMERS):
            finished.set()

    await send_steps(namesrv)
    async with PushConsumer(
        namesrv,
        group="couriers",
        subscriptions="Deliveries",
        consume_from="first",
        ordered=True,
        handler=handle,
    ):
        await finished.wait()
    for customer in CUSTOMERS:
        print(
            customer, "->", ", ".join(text.split()[1] for text in done if text.startswith(customer))
        )


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else None)
