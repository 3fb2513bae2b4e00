"""Deliver every message to every member: caches on several machines drop what has changed.

NAMESRV_ADDR=127.0.0.1:9876 python examples/broadcast.py
"""

import sys
import tempfile

import trio

from triomq import ClientSettings, ConsumerSettings, Producer, PushConsumer, ReceivedMessage


class Cache:
    """One machine's cache."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.values = {"apples": 1, "pears": 2, "plums": 3}

    async def drop(self, message: ReceivedMessage) -> None:
        """Forget what has changed."""
        self.values.pop(message.body.decode(), None)
        await trio.lowlevel.checkpoint()

    def consumer(self, namesrv: str | None, folder: str) -> PushConsumer:
        # Offsets are kept in a file named after the instance. On separate machines the caches need
        # neither of these settings.
        settings = ConsumerSettings(
            offset_dir=folder, client=ClientSettings(instance_name=self.name)
        )
        return PushConsumer(
            namesrv,
            group="caches",
            subscriptions="Changes",
            consume_from="first",
            broadcast=True,
            handler=self.drop,
            settings=settings,
        )


async def main(namesrv: str | None) -> None:
    """Run two caches, and change two values."""
    one, two = Cache("one"), Cache("two")
    with tempfile.TemporaryDirectory() as folder:
        async with (
            Producer(namesrv, group="prices") as producer,
            one.consumer(namesrv, folder),
            two.consumer(namesrv, folder),
        ):
            for key in ("pears", "plums"):
                await producer.send("Changes", key.encode())
            with trio.fail_after(30):
                while len(one.values) + len(two.values) > 2:
                    await trio.sleep(0.01)
    print(one.name, one.values)
    print(two.name, two.values)


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else None)
