"""Send many messages at low cost: as a list, or one by one with automatic batches.

NAMESRV_ADDR=127.0.0.1:9876 python examples/batch_producer.py
"""

import sys

import trio

from triomq import BatchIncomplete, Message, Producer, ProducerSettings


async def send_list(namesrv: str | None, count: int) -> None:
    """Send one list of messages to one topic.

    A list that is too long for one request is cut into several, each of which is stored as a whole.
    """
    settings = ProducerSettings(batch_bytes_max=64 * 1024)
    async with Producer(namesrv, group="meters", settings=settings) as producer:
        rows = [
            Message(topic="Metrics", body=b"row %06d" % number, keys=(f"row-{number}",))
            for number in range(count)
        ]
        try:
            receipts = await producer.send_batch(rows)
        except BatchIncomplete as error:
            print(error)  # the rows of `error.receipts` are stored; send the others again
            raise
        queues = {receipt.queue for receipt in receipts}
        print(
            f"{len(receipts)} rows, each with an id and an offset of its own, in {len(queues)}"
            " queues"
        )


async def send_one_by_one(namesrv: str | None, count: int) -> None:
    """Send messages by many tasks, with automatic batches.

    Every ``send`` still returns its own receipt; messages of the same moment share a request.
    """
    settings = ProducerSettings(auto_batch=True, auto_batch_hold=0.005)
    async with Producer(namesrv, group="meters", settings=settings) as producer:
        offsets: list[int] = []

        async def send(number: int) -> None:
            offsets.append((await producer.send("Metrics", b"value %d" % number)).queue_offset)

        async with trio.open_nursery() as nursery:
            for number in range(count):
                nursery.start_soon(send, number)
        print(f"{len(offsets)} values by automatic batches")


async def main(namesrv: str | None) -> None:
    """Send in both ways."""
    await send_list(namesrv, 5000)
    await send_one_by_one(namesrv, 500)


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else None)
