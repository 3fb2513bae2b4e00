"""Consume by iteration, and settle each message.

NAMESRV_ADDR=127.0.0.1:9876 python examples/iterate.py
"""

import sys

import trio

from triomq import PushConsumer


async def main(namesrv: str | None, count: int) -> None:
    """Print ``count`` messages."""
    async with PushConsumer(
        namesrv, group="printing", subscriptions="Orders", consume_from="first"
    ) as consumer:
        number = 0
        async for message in consumer:
            async with message:  # ack at a normal end, retry after an exception
                number += 1
                print(message.queue_offset, message.keys, message.body.decode())
            if number == count:
                break


if __name__ == "__main__":
    trio.run(
        main,
        sys.argv[1] if len(sys.argv) > 1 else None,
        int(sys.argv[2]) if len(sys.argv) > 2 else 10,
    )
