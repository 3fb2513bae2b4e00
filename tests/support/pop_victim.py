"""A push consumer that pops, in a process of its own, and hangs in its handler until it is killed.

    python pop_victim.py NAMESRV TOPIC GROUP INVISIBLE

It prints the body of each message that it has; it would hold messages for ever.
"""

from __future__ import annotations

import sys

import trio

from triomq import ConsumerSettings, PushConsumer, ReceivedMessage


async def main(namesrv: str, topic: str, group: str, invisible: str) -> None:
    async def hang(message: ReceivedMessage) -> None:
        print(message.body.decode(), flush=True)
        await trio.sleep_forever()

    async with PushConsumer(
        namesrv,
        group=group,
        subscriptions=topic,
        handler=hang,
        concurrency=2,
        mode="pop",
        consume_from="first",
        settings=ConsumerSettings(pop_invisible=float(invisible)),
    ):
        await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
