"""Read at your own pace: choose queues and offsets, poll, commit.

NAMESRV_ADDR=127.0.0.1:9876 python examples/pull_consumer.py
"""

import sys

import trio

from triomq import PullConsumer


async def main(namesrv: str | None) -> None:
    """Read every queue of a topic from its beginning to its current end."""
    async with PullConsumer(namesrv, group="reports", auto_commit=False) as consumer:
        queues = await consumer.queues("Orders")
        await consumer.assign(queues)
        ends = {queue: await consumer.max_offset(queue) for queue in queues}
        for queue in queues:
            await consumer.seek_to_begin(queue)
        total = 0
        while any(consumer.position(queue) < end for queue, end in ends.items()):
            total += len(await consumer.poll(max_messages=100))
        await consumer.commit()
        print(f"{total} messages in {len(queues)} queues")


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else None)
