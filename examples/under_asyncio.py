"""Use TrioMQ under a running asyncio loop: a web application, a Jupyter notebook.

In a notebook the cells are written as here, without ``main`` and ``asyncio.run``: ``await`` works
at the top of a cell. The blocking interface works, too, since each object has its Trio loop in a
thread of its own.

NAMESRV_ADDR=127.0.0.1:9876 python examples/under_asyncio.py
"""

import asyncio
import sys

from triomq import MessageView, aio, sync


def is_nightly(message: MessageView) -> bool:
    """Return whether a message, of any of the three interfaces, is nightly."""
    return message.topic == "Visits" and message.body.startswith(b"nightly")


async def main(namesrv: str | None) -> None:
    """Send and read while other work of the loop goes on."""
    beats = 0

    async def heart() -> None:
        nonlocal beats
        while True:
            await asyncio.sleep(0.001)
            beats += 1

    other_work = asyncio.create_task(heart())

    async with aio.Producer(namesrv, group="web") as producer:
        receipts = await asyncio.gather(
            *(producer.send("Visits", b"visit %d" % number) for number in range(100))
        )
    print(len(receipts), "sent with await")

    # A blocking call stops its caller: run it in a thread if the loop has other work (a cell of a
    # notebook need not).
    def report() -> int:
        with sync.Producer(namesrv, group="web") as producer:
            return len(
                producer.send_batch(
                    [sync.Message(topic="Visits", body=b"nightly %d" % n) for n in range(10)]
                )
            )

    print(await asyncio.to_thread(report), "sent by triomq.sync in a thread")

    count = nightly = 0
    async with aio.PushConsumer(
        namesrv, group="counter", subscriptions="Visits", consume_from="first"
    ) as consumer:
        async for message in consumer:
            async with message:
                count += 1
                nightly += is_nightly(message)
            if count == 110:
                break
    print(count, "read back,", nightly, "of them nightly")
    other_work.cancel()
    print("the loop went on" if beats else "the loop stood still")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else None))
