"""A pull loop that books each payment once, with offsets that are committed afterwards.

NAMESRV_ADDR=127.0.0.1:9876 python examples/once_pulled.py
"""

import sys
import tempfile
from pathlib import Path

import trio

from triomq import Producer, PullConsumer, ReceivedMessage, SqliteOnceStore, once


async def main(namesrv: str | None, directory: Path) -> None:
    """Book four payments, and read them all again."""
    booked: list[str] = []

    with SqliteOnceStore(directory / "once.db") as store:

        @once(store)
        async def book(message: ReceivedMessage) -> None:
            await trio.sleep(0.001)  # stands for the work
            booked.append(message.body.decode())

        async with Producer(namesrv, group="bank") as producer:
            for number in range(4):
                await producer.send("Transfers", b"transfer %d" % number)

        for _ in range(2):
            async with PullConsumer(
                namesrv,
                group="ledger",
                subscriptions="Transfers",
                consume_from="first",
                auto_commit=False,
            ) as consumer:
                await consumer.wait_assigned()
                for queue in consumer.assignment:
                    await consumer.seek(queue, 0)
                seen = book.statistics()
                wanted = seen.done + seen.duplicates + 4
                while seen.done + seen.duplicates < wanted:
                    for message in await consumer.poll():
                        await book(message)
                    await consumer.commit()
                    seen = book.statistics()
        print(f"{sorted(booked)}, {seen.duplicates} duplicates")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        trio.run(main, sys.argv[1] if len(sys.argv) > 1 else None, Path(directory))
