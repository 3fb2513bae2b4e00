"""What happens to messages that fail: they come again, with growing delays, then become dead
letters.

NAMESRV_ADDR=127.0.0.1:9876 python examples/retry.py
"""

import sys

import trio

from triomq import ConsumerSettings, Producer, PullConsumer, PushConsumer, ReceivedMessage


async def main(namesrv: str | None) -> None:
    """Send three messages: one works, one works at the second try, one never does."""
    done: list[str] = []
    tries: list[int] = []
    finished = trio.Event()

    async def handle(message: ReceivedMessage) -> None:
        text = message.body.decode()
        print(f"{text}: delivery {message.reconsume_times + 1}")
        if text == "hopeless":
            tries.append(message.reconsume_times)
        if text == "hopeless" or (text == "shaky" and message.reconsume_times == 0):
            # Level 1 is 1 s. An exception means level 3 and up: 10 s, 30 s, 1 min, 2 min … 2 h.
            await message.retry(1)
        else:
            done.append(text)
        if len(done) == 2 and len(tries) == 3:
            finished.set()

    async with Producer(namesrv, group="shop") as producer:
        for text in ("good", "shaky", "hopeless"):
            await producer.send("Tasks", text.encode())

    settings = ConsumerSettings(max_reconsume_times=2)  # otherwise the broker's setting: 16
    async with PushConsumer(
        namesrv,
        group="workers",
        subscriptions="Tasks",
        consume_from="first",
        handler=handle,
        settings=settings,
    ):
        await finished.wait()

    # Dead letters are messages of an ordinary topic: read them, correct the cause, send them again.
    async with PullConsumer(namesrv, group="undertakers", consume_from="first") as consumer:
        await consumer.assign(await consumer.queues("%DLQ%workers"))
        for message in await consumer.poll():
            print(
                f"dead: {message.body.decode()} of topic {message.topic} after"
                f" {message.reconsume_times} deliveries"
            )


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else None)
