"""One member of the consumer group, as a process of its own.

    python -m examples.demo.consume NAMESRV GROUP TOPIC OUTPUT.csv

It prints a line of JSON from time to time and stops when its standard input ends. It writes what it
has read to OUTPUT.csv, one row per message: broker, queue, offset, carrier, month, departure delay.
"""

import csv
import json
import sys
from pathlib import Path

import msgspec
import trio

from triomq import PushConsumer, ReceivedMessage

PROGRESS_SECONDS = 0.25
CONCURRENCY = 8


class Departure(msgspec.Struct):
    """The part of a flight that the statistics need."""

    carrier: str
    month: int
    dep_delay: int | None


async def consume(namesrv: str, group: str, topic: str, output: Path) -> None:
    """Read messages until standard input ends; then write ``output``."""
    rows: list[tuple[str, int, int, str, int, int | None]] = []
    decode = msgspec.json.Decoder(Departure).decode

    async def handle(message: ReceivedMessage) -> None:
        departure = decode(message.body)
        rows.append(
            (
                message.queue.broker_name,
                message.queue.queue_id,
                message.queue_offset,
                departure.carrier,
                departure.month,
                departure.dep_delay,
            )
        )

    async with PushConsumer(
        namesrv,
        group=group,
        subscriptions=topic,
        consume_from="first",
        handler=handle,
        concurrency=CONCURRENCY,
    ) as consumer:
        async with trio.open_nursery() as nursery:

            async def report() -> None:
                while True:
                    print(
                        json.dumps({"messages": len(rows), "queues": consumer.statistics().queues}),
                        flush=True,
                    )
                    await trio.sleep(PROGRESS_SECONDS)

            nursery.start_soon(report)
            await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
            nursery.cancel_scope.cancel()
    with output.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    print(json.dumps({"messages": len(rows), "done": True}), flush=True)


if __name__ == "__main__":
    trio.run(consume, sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
