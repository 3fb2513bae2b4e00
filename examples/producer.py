"""Send messages: one by one, many at once, as a batch.

mqlocal &                                          # a cluster on this machine
NAMESRV_ADDR=127.0.0.1:9876 python examples/producer.py
"""

import json
import sys

import trio

from triomq import Message, Producer, SendError


async def main(namesrv: str | None) -> None:
    """Send 120 orders."""
    async with Producer(namesrv, group="shop") as producer:
        receipt = await producer.send(
            "Orders", b'{"order": 0}', tag="paid", keys=["order-0"], properties={"shop": "7"}
        )
        print(
            f"{receipt.message_id} is in {receipt.queue.broker_name}, queue"
            f" {receipt.queue.queue_id}, at {receipt.queue_offset}"
        )

        async def send(number: int) -> None:
            body = json.dumps({"order": number}).encode()
            try:
                await producer.send(
                    "Orders",
                    body,
                    tag="paid" if number % 3 else "refunded",
                    keys=[f"order-{number}"],
                )
            except SendError as error:
                # `error.maybe_stored` tells whether the message may be stored all the same.
                print(f"order {number}: {error}")

        # To send asynchronously, start many tasks: their requests share one connection and do not
        # wait for each other.
        async with trio.open_nursery() as nursery:
            for number in range(1, 20):
                nursery.start_soon(send, number)

        batch = [
            Message(
                topic="Orders",
                body=json.dumps({"order": number}).encode(),
                tag="paid",
                keys=(f"order-{number}",),
            )
            for number in range(20, 120)
        ]
        receipts = await producer.send_batch(batch)
        print(
            f"{len(receipts)} more in one batch, the last one at offset {receipts[-1].queue_offset}"
        )


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else None)
