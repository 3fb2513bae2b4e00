"""Handle messages in batches, for sinks that like lists: databases, files.

NAMESRV_ADDR=127.0.0.1:9876 python examples/batches.py
"""

import sys

import trio

from triomq import Message, Producer, PushConsumer, ReceivedMessage


async def main(namesrv: str | None, count: int) -> None:
    """Send ``count`` readings and take them in batches."""
    async with Producer(namesrv, group="sensors") as producer:
        await producer.send_batch(
            [Message(topic="Readings", body=b"%d" % number) for number in range(count)]
        )

    sizes: list[int] = []
    finished = trio.Event()

    async def insert(messages: list[ReceivedMessage]) -> None:
        # Messages of one queue, in its order. The normal end acks all, an exception retries all.
        await trio.sleep(0.001)  # stands for one INSERT of many rows
        sizes.append(len(messages))
        if sum(sizes) >= count:
            finished.set()

    async with PushConsumer(
        namesrv,
        group="database",
        subscriptions="Readings",
        consume_from="first",
        batch_handler=insert,
        batch_max=25,
    ):
        await finished.wait()
    print(f"{sum(sizes)} readings, at most {max(sizes)} at a time")


if __name__ == "__main__":
    trio.run(
        main,
        sys.argv[1] if len(sys.argv) > 1 else None,
        int(sys.argv[2]) if len(sys.argv) > 2 else 500,
    )
