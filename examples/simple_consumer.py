"""Receive messages when you are ready for them, and ack each.

NAMESRV_ADDR=127.0.0.1:9876 python examples/simple_consumer.py
"""

import sys
from datetime import timedelta

import trio

from triomq import SimpleConsumer


async def main(namesrv: str | None, wanted: int) -> None:
    """Take ``wanted`` orders, some at a time."""
    done = 0
    async with SimpleConsumer(
        namesrv, group="packing", subscriptions="Orders", consume_from="first"
    ) as consumer:
        while done < wanted:
            for message in await consumer.receive(count=10, invisible=30, timeout=5):
                if message.tag == "refunded":  # takes longer
                    await message.change_invisible(timedelta(minutes=5))
                print(message.queue_offset, message.body.decode())
                await message.ack()
                done += 1
    print(f"{done} orders packed")


if __name__ == "__main__":
    trio.run(
        main,
        sys.argv[1] if len(sys.argv) > 1 else None,
        int(sys.argv[2]) if len(sys.argv) > 2 else 10,
    )
